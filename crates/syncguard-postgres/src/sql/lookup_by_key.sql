-- The live lock of a storage key; its columns are NULL if there is none.
-- $1 statement, $2 storage key
SELECT {proof}, lock.expires_at_ms, lock.acquired_at_ms, lock.fence, lock.lock_id, lock.user_key
FROM (VALUES (1)) AS one_row
LEFT JOIN {locks} AS lock ON lock.key = $2 AND {live}
WHERE $1 = '{statement}'
