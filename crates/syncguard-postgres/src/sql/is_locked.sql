-- Whether a key is held. `stale` means free, with a row that may be deleted.
-- $1 statement, $2 storage key
SELECT {proof},
    CASE
        WHEN {live_then} THEN 'held'
        WHEN lock.expires_at_ms < now_ms - {cleanup_guard_ms} THEN 'stale'
        ELSE 'free'
    END AS verdict
FROM (SELECT {now_ms} AS now_ms OFFSET 0) AS clock
LEFT JOIN {locks} AS lock ON lock.key = $2
WHERE $1 = '{statement}'
