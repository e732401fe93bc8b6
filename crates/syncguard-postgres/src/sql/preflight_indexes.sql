-- The indexes of a table.
-- $1 the table's oid, $2 the column that every write changes
SELECT (SELECT relname::text FROM pg_catalog.pg_class WHERE oid = indexrelid) AS name,
       -- The column that the index makes unique, if it does.
       (SELECT attname::text FROM pg_catalog.pg_attribute
        WHERE attrelid = indrelid AND attnum = indkey[0]
          AND indisunique AND indisvalid AND indimmediate AND indnkeyatts = 1
          AND indpred IS NULL AND indexprs IS NULL) AS unique_column,
       -- Whether every write changes the index: by key, expression, predicate or INCLUDE.
       EXISTS (SELECT FROM pg_catalog.pg_attribute
               WHERE attrelid = indrelid AND attname = $2
                 AND (attnum = ANY (indkey) OR EXISTS (
                     SELECT FROM pg_catalog.pg_depend
                     WHERE classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND objid = indexrelid
                       AND refobjid = indrelid AND refobjsubid = attnum))) AS changes
FROM pg_catalog.pg_index
WHERE indrelid = $1::oid
