-- The columns of a table.
-- $1 the table's oid
SELECT attname::text AS name,
       format_type(atttypid, atttypmod) AS type,
       attnotnull AND NOT atthasdef AND attidentity = '' AS must_be_given,
       EXISTS (SELECT FROM pg_collation AS chosen
               WHERE chosen.oid = attcollation AND NOT collisdeterministic) AS equates
FROM pg_attribute
WHERE attrelid = $1::oid AND attnum > 0 AND NOT attisdropped
