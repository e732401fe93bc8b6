-- The live lock of a lock id. The user's key comes last: it may contain any character.
-- $1 statement, $2 lock id
SELECT pg_catalog.concat_ws(' ', '{statement}', $2,
    CASE WHEN {live} THEN
        pg_catalog.concat_ws(' ', 'live', lock.expires_at_ms, lock.acquired_at_ms, lock.fence, lock.lock_id,
                  lock.user_key)
    ELSE 'absent' END)
FROM (VALUES (1)) AS one_row
LEFT JOIN {locks} AS lock ON lock.lock_id = $2
WHERE $1 = '{statement}'
