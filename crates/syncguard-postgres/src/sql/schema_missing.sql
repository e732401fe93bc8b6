-- Which parts of the schema are missing. $1 and $2: the tables' quoted names.
SELECT pg_catalog.to_regclass($1) IS NULL AS locks,
       pg_catalog.to_regclass($2) IS NULL AS fences,
       NOT EXISTS (
           SELECT FROM pg_catalog.pg_index
           JOIN pg_catalog.pg_attribute ON attrelid = indrelid AND attnum = indkey[0]
           WHERE indrelid = pg_catalog.to_regclass($1) AND attname = 'lock_id'
             AND indisunique AND indisvalid AND indnkeyatts = 1 AND indpred IS NULL
       ) AS lock_id_index
