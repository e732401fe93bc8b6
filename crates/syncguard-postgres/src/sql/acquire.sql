-- Acquires the lock on a key, or replies why not. One statement: one implicit transaction.
-- $1 statement, $2 lock id, $3 storage key, $4 fence key, $5 TTL in ms, $6 user's key
WITH
-- The row as it was when the statement began. A contended attempt ends here, without a write or a wait.
existing AS MATERIALIZED (
    SELECT lock_id = $2 AS own, expires_at_ms, fence, {live} AS live
    FROM {locks}
    WHERE key = $3
),
-- Contenders for a free key queue for an advisory lock. Other implementations of SyncGuard queue for the
-- same one and then upsert without a condition, so every upsert needs it. The first, failed try shows that
-- there was a queue.
advisory_lock AS MATERIALIZED (
    SELECT CASE
        WHEN pg_catalog.pg_try_advisory_xact_lock(pg_catalog.hashtext($3)) THEN false
        ELSE pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtext($3)) IS NOT NULL
    END AS waited
    WHERE $1 = '{statement}' AND NOT EXISTS (SELECT FROM existing WHERE live){limit}
),
-- Lock the row of an expired lock before reading the clock: an extend that is about to commit may still
-- save the lock. And if a delete is about to commit, the upsert would wait for it and then insert values
-- that were computed before the wait.
row_lock AS MATERIALIZED (
    SELECT lock.expires_at_ms
    FROM advisory_lock, existing, {locks} AS lock
    WHERE lock.key = $3
    FOR UPDATE OF lock
),
after_waits AS MATERIALIZED (
    SELECT waited,
           EXISTS (SELECT FROM row_lock WHERE {live}) AS saved
    FROM advisory_lock
),
-- No grant after a long wait: the caller may have left, and would not release a lock granted that late.
next_fence AS (
    INSERT INTO {fences} AS counter (fence_key, fence, key_debug)
    SELECT $4, 1, $6 FROM after_waits WHERE NOT saved AND {in_time}
    ON CONFLICT (fence_key) DO UPDATE SET fence = counter.fence + 1
    WHERE counter.fence >= 0 AND counter.fence < {fence_max}
    RETURNING fence
),
-- The snapshot of this statement does not show a lock that was granted while it queued. ON CONFLICT does:
-- it checks the newest version of the row. Then the race is lost and a fence is skipped. If that lock has
-- this id, the driver sent the call twice: the grant stays as it is.
granted AS (
    INSERT INTO {locks} AS lock (key, lock_id, expires_at_ms, acquired_at_ms, fence, user_key)
    SELECT $3, $2, now_ms + $5, now_ms, pg_catalog.lpad(fence::text, 15, '0'), $6
    FROM (SELECT fence, {now_ms} AS now_ms FROM next_fence, after_waits WHERE {in_time} OFFSET 0) AS stamped
    ON CONFLICT (key) DO UPDATE
    SET lock_id = excluded.lock_id, user_key = excluded.user_key,
        -- The TTL counts from after the wait for the row.
        (expires_at_ms, acquired_at_ms, fence) = (
            SELECT CASE WHEN {dead} THEN now_ms + $5 ELSE lock.expires_at_ms END,
                   CASE WHEN {dead} THEN now_ms ELSE lock.acquired_at_ms END,
                   CASE WHEN {dead} THEN excluded.fence ELSE lock.fence END
            FROM (SELECT {now_ms} AS now_ms OFFSET 0) AS clock
        )
    WHERE CASE WHEN {dead} THEN {in_time_at_all} ELSE lock.lock_id = excluded.lock_id END
    -- A grant that stays as it is has an earlier fence, and is not late.
    RETURNING CASE
        WHEN {late} AND fence = (SELECT pg_catalog.lpad(next_fence.fence::text, 15, '0') FROM next_fence)
        THEN {began_late} ELSE 'granted'
    END AS verdict, expires_at_ms, fence
)
SELECT {proof},
    CASE
        WHEN existing.own THEN 'granted'
        WHEN NOT existing.own THEN 'locked'
        WHEN granted.verdict IS NOT NULL THEN granted.verdict
        WHEN saved THEN 'again'
        WHEN NOT {in_time} THEN CASE WHEN waited THEN 'waited' ELSE 'again' END
        WHEN EXISTS (SELECT FROM next_fence) THEN 'locked'
        -- Still in time, so it was in time before: only FENCE_MAX can have stopped the counter.
        ELSE 'exhausted'
    END AS verdict,
    {grant_or_wait}
FROM (VALUES (1)) AS one_row
LEFT JOIN granted ON true
LEFT JOIN existing ON existing.live
LEFT JOIN after_waits ON true
