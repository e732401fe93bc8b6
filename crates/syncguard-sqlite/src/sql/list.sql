-- The live locks among the next {look_at} rows of a range of storage keys, in order, and how far it looked.
-- $1 first storage key, $2 end of the range or '', $3 how many locks at most
SELECT 'lock' AS word, key, user_key, lock_id, expires_at_ms, acquired_at_ms, fence
FROM (
    -- A blob comes after every text.
    SELECT * FROM {locks} WHERE key >= $1 AND key < coalesce(nullif($2, ''), x'')
    ORDER BY key LIMIT {look_at}
)
WHERE {live} ORDER BY key LIMIT $3;

SELECT 'looked-at' AS word, key
FROM {locks} WHERE key >= $1 AND key < coalesce(nullif($2, ''), x'')
ORDER BY key LIMIT 1 OFFSET {look_at} - 1
