-- The live locks of a prefix among the next {look_at} rows, in the order of the primary key, and how far it
-- looked.
-- $1 statement, $2 behind this storage key, $3 prefix of storage keys, $4 prefix of users' keys, $5 how many at
-- most
WITH page AS (
    SELECT key, expires_at_ms, acquired_at_ms, fence, lock_id, user_key
    FROM (
        -- In the order of the column's collation, which need not be that of bytes: a prefix is no range.
        SELECT key, expires_at_ms, acquired_at_ms, fence, lock_id, user_key
        FROM {locks} WHERE key > $2 ORDER BY key LIMIT {look_at}
    ) AS next_rows
    WHERE {live}
      AND pg_catalog.starts_with(key, $3) AND pg_catalog.starts_with(user_key, $4)
    ORDER BY key LIMIT $5
)
SELECT {proof},
    CASE WHEN (SELECT pg_catalog.count(*) FROM page) = $5
        THEN (SELECT pg_catalog.max(key) FROM page)
        ELSE (SELECT key FROM {locks} WHERE key > $2 ORDER BY key LIMIT 1 OFFSET {look_at} - 1)
    END AS next,
    ARRAY(SELECT (key, expires_at_ms, acquired_at_ms, fence, lock_id, user_key) FROM page) AS locks
WHERE $1 = '{statement}'
