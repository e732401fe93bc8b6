-- Replaces the remaining time of the lock that an id holds.
-- $1 statement, $2 lock id, $3 TTL in ms
WITH
-- Past its expiry a lock can be saved only while nobody is taking it. Who takes it holds the
-- advisory lock; the other implementations' upsert would not notice us otherwise. Before its
-- expiry nobody takes it, and renewals stay off the advisory lock.
turn AS MATERIALIZED (
    SELECT key, overdue, CASE WHEN overdue THEN pg_advisory_xact_lock(hashtext(key)) END
    FROM (
        SELECT key, expires_at_ms <= {now_ms} AS overdue
        FROM {locks}
        WHERE lock_id = $2 AND $1 = '{statement}'
        OFFSET 0
    ) AS seen
),
-- Locked first, judged after: the row may be in use, and time passes while waiting for it.
held AS MATERIALIZED (
    SELECT lock.expires_at_ms, turn.overdue
    FROM turn JOIN {locks} AS lock ON lock.key = turn.key
    WHERE lock.lock_id = $2
    FOR UPDATE OF lock
),
judged AS MATERIALIZED (
    SELECT now_ms,
        CASE
            WHEN expires_at_ms <= now_ms - {tolerance_ms} THEN 'expired'
            -- It became overdue while we waited, without the advisory lock.
            WHEN expires_at_ms <= now_ms AND NOT overdue THEN 'again'
            ELSE 'extended'
        END AS verdict
    FROM (SELECT expires_at_ms, overdue, {now_ms} AS now_ms FROM held OFFSET 0) AS timed
),
extended AS (
    UPDATE {locks} AS lock
    SET expires_at_ms = judged.now_ms + $3
    FROM judged
    WHERE lock.lock_id = $2 AND judged.verdict = 'extended'
    RETURNING lock.expires_at_ms
)
SELECT concat_ws(' ', '{statement}', $2,
    coalesce((SELECT verdict FROM judged), 'absent'), (SELECT expires_at_ms FROM extended))
