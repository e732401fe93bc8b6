-- Acquires the lock on a key that has no row and no queue, as most keys that are acquired. Costs the server
-- less than acquire.sql, which is needed for the rest ('again').
-- $1 statement, $2 lock id, $3 storage key, $4 fence key, $5 TTL in ms, $6 user's key
WITH
existing AS MATERIALIZED (
    SELECT lock_id = $2 AS own, expires_at_ms, fence, {live} AS live
    FROM {locks}
    WHERE key = $3
),
-- CASE, so that the advisory lock is tried last.
next_fence AS (
    INSERT INTO {fences} AS counter (fence_key, fence, key_debug)
    SELECT $4, 1, $6
    WHERE CASE
        WHEN $1 = '{statement}' AND NOT EXISTS (SELECT FROM existing)
        THEN pg_catalog.pg_try_advisory_xact_lock(pg_catalog.hashtext($3)){limit}
        ELSE false
    END
    ON CONFLICT (fence_key) DO UPDATE SET fence = counter.fence + 1
    WHERE counter.fence >= 0 AND counter.fence < {fence_max}
    RETURNING fence
),
-- The snapshot does not show a lock that was granted just before the advisory lock was free. Then the race
-- is lost and a fence is skipped.
granted AS (
    INSERT INTO {locks} (key, lock_id, expires_at_ms, acquired_at_ms, fence, user_key)
    SELECT $3, $2, now_ms + $5, now_ms, pg_catalog.lpad(fence::text, 15, '0'), $6
    FROM (SELECT fence, {now_ms} AS now_ms FROM next_fence WHERE {in_time_at_all} OFFSET 0) AS stamped
    ON CONFLICT (key) DO NOTHING
    RETURNING CASE WHEN {late} THEN {began_late} ELSE 'granted' END AS verdict, expires_at_ms, fence
)
SELECT {proof},
    CASE
        WHEN existing.own THEN 'granted'
        WHEN NOT existing.own THEN 'locked'
        ELSE coalesce(granted.verdict, 'again')
    END AS verdict,
    {grant_or_wait}
FROM (VALUES (1)) AS one_row
LEFT JOIN granted ON true
LEFT JOIN existing ON existing.live
