-- Deletes the lock that an id holds, live or expired, and says which it was.
-- $1 statement, $2 lock id
WITH deleted AS (
    -- The condition on the owner is checked again on the newest version of the row, should the
    -- statement have waited for another. RETURNING reads the clock after that wait.
    DELETE FROM {locks} AS lock
    WHERE lock.lock_id = $2 AND $1 = '{statement}'
    RETURNING lock.lock_id, lock.expires_at_ms > {now_ms} - {tolerance_ms} AS live
)
SELECT concat_ws(' ', '{statement}', $2,
    CASE
        WHEN deleted.lock_id IS DISTINCT FROM $2 THEN 'absent'
        WHEN deleted.live THEN 'released'
        ELSE 'expired'
    END)
FROM (VALUES (1)) AS one_row LEFT JOIN deleted ON true
