-- The live lock of a lock id; its columns are NULL if there is none.
-- $1 statement, $2 lock id
SELECT {proof}, lock.expires_at_ms, lock.acquired_at_ms, lock.fence, lock.lock_id, lock.user_key
FROM (VALUES (1)) AS one_row
LEFT JOIN {locks} AS lock ON lock.lock_id = $2 AND {live}
WHERE $1 = '{statement}'
