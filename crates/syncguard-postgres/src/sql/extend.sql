-- Replaces the remaining time of the lock that an id holds.
-- $1 statement, $2 lock id, $3 TTL in ms
WITH
-- After its expiry, a lock can be saved only while nobody acquires the key, so the extend queues for the
-- advisory lock of acquire: the upsert of other implementations would overwrite it. Before the expiry
-- nobody acquires the key, and an extend needs no advisory lock.
advisory_lock AS MATERIALIZED (
    SELECT key, overdue, CASE WHEN overdue THEN pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtext(key)) END
    FROM (
        SELECT key, expires_at_ms <= {now_ms} AS overdue
        FROM {locks}
        WHERE lock_id = $2 AND $1 = '{statement}'{limit}
        OFFSET 0
    ) AS existing
),
-- Lock the row first, read the clock after: the wait for the row takes time.
row_lock AS MATERIALIZED (
    SELECT lock.expires_at_ms, advisory_lock.overdue
    FROM advisory_lock JOIN {locks} AS lock ON lock.key = advisory_lock.key
    WHERE lock.lock_id = $2
    FOR UPDATE OF lock
),
after_waits AS MATERIALIZED (
    SELECT now_ms,
        CASE
            WHEN NOT {live_then} THEN 'expired'
            -- It expired during the wait, without the advisory lock.
            WHEN expires_at_ms <= now_ms AND NOT overdue THEN 'again'
            ELSE 'extended'
        END AS verdict
    FROM (SELECT expires_at_ms, overdue, {now_ms} AS now_ms FROM row_lock OFFSET 0) AS timed
),
extended AS (
    UPDATE {locks} AS lock
    SET expires_at_ms = after_waits.now_ms + $3
    FROM after_waits
    WHERE lock.lock_id = $2 AND after_waits.verdict = 'extended'
    RETURNING lock.expires_at_ms
)
SELECT {proof},
    coalesce((SELECT verdict FROM after_waits), 'absent') AS verdict,
    (SELECT expires_at_ms FROM extended) AS expires_at_ms
