-- The columns of a table.
-- $1 the table's oid
SELECT attname::text AS name,
       -- Without the quotes that `quote_all_identifiers` adds.
       pg_catalog.replace(pg_catalog.format_type(atttypid, atttypmod), '"', '') AS type,
       attnotnull AND NOT atthasdef AND attidentity = '' AS must_be_given,
       EXISTS (SELECT FROM pg_catalog.pg_collation AS chosen
               WHERE chosen.oid = attcollation AND NOT collisdeterministic) AS equates
FROM pg_catalog.pg_attribute
WHERE attrelid = $1::oid AND attnum > 0 AND NOT attisdropped
