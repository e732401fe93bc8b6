-- Takes the lock on a key, or says why not. One statement: one implicit transaction.
-- $1 statement, $2 lock id, $3 storage key, $4 fence key, $5 TTL in ms, $6 user's key
WITH
-- What was there when the statement began. A contended attempt ends here, having written nothing
-- and waited for nobody.
seen AS MATERIALIZED (
    SELECT lock.lock_id, lock.expires_at_ms, lock.fence,
           coalesce(counter.fence, 0) AS counter,
           coalesce(lock.expires_at_ms > {now_ms} - {tolerance_ms}, false) AS live
    FROM (VALUES (1)) AS one_row
    LEFT JOIN {locks} AS lock ON lock.key = $3
    LEFT JOIN {fences} AS counter ON counter.fence_key = $4
),
-- Contenders for a free key line up. Other implementations of SyncGuard take this same advisory
-- lock and then upsert without a condition, so nobody may upsert without it. Trying first tells
-- whether there was a line.
turn AS MATERIALIZED (
    SELECT CASE
        WHEN pg_try_advisory_xact_lock(hashtext($3)) THEN false
        ELSE pg_advisory_xact_lock(hashtext($3)) IS NOT NULL
    END AS waited
    FROM seen
    WHERE $1 = '{statement}' AND NOT live AND counter >= 0 AND counter < {fence_max}
),
-- An expired lock's row is locked before anything depends on it: an extend that is about to
-- commit may still save it. FOR UPDATE waits for that and reads the newest version, where the
-- statement's snapshot would show the one from before the wait.
settled AS MATERIALIZED (
    SELECT lock.expires_at_ms
    FROM turn, {locks} AS lock
    WHERE lock.key = $3
    FOR UPDATE OF lock
),
ready AS MATERIALIZED (
    SELECT waited,
           (SELECT count(*) FROM settled WHERE expires_at_ms > {now_ms} - {tolerance_ms}) AS saved
    FROM turn
),
-- Whoever waited long is sent away. Its caller may be gone, and would not come back to release a
-- lock granted that late.
bumped AS (
    INSERT INTO {fences} AS counter (fence_key, fence, key_debug)
    SELECT $4, 1, $6 FROM ready WHERE saved = 0 AND {in_time}
    ON CONFLICT (fence_key) DO UPDATE SET fence = counter.fence + 1
    WHERE counter.fence >= 0 AND counter.fence < {fence_max}
    RETURNING fence
),
-- The lease counts from here, after every wait.
stamped AS MATERIALIZED (
    SELECT fence, {now_ms} AS now_ms FROM bumped, ready WHERE {in_time}
),
-- A lock that was taken while this waited its turn is invisible to the statement's snapshot, but
-- not to ON CONFLICT. The race is lost then, and a fence skipped, unless it was taken for this very
-- id: by a twin of this call, whose grant is then left as it is.
granted AS (
    INSERT INTO {locks} AS lock (key, lock_id, expires_at_ms, acquired_at_ms, fence, user_key)
    SELECT $3, $2, now_ms + $5, now_ms, lpad(fence::text, 15, '0'), $6 FROM stamped
    ON CONFLICT (key) DO UPDATE
    SET lock_id = excluded.lock_id, user_key = excluded.user_key,
        expires_at_ms = CASE WHEN {dead} THEN excluded.expires_at_ms ELSE lock.expires_at_ms END,
        acquired_at_ms = CASE WHEN {dead} THEN excluded.acquired_at_ms ELSE lock.acquired_at_ms END,
        fence = CASE WHEN {dead} THEN excluded.fence ELSE lock.fence END
    WHERE {dead} OR lock.lock_id = excluded.lock_id
    RETURNING lock.expires_at_ms, lock.fence
)
SELECT concat_ws(' ', '{statement}', $2,
    CASE
        WHEN granted.fence IS NOT NULL THEN
            concat_ws(' ', 'granted', granted.expires_at_ms, granted.fence)
        -- Delivered twice, or asked again: the same grant.
        WHEN seen.live AND seen.lock_id = $2 THEN
            concat_ws(' ', 'granted', seen.expires_at_ms, seen.fence)
        WHEN seen.live OR EXISTS (SELECT FROM stamped) THEN 'locked'
        WHEN seen.counter < 0 OR seen.counter >= {fence_max} THEN 'exhausted'
        WHEN EXISTS (SELECT FROM turn WHERE waited) THEN 'waited'
        ELSE 'again'
    END)
FROM seen LEFT JOIN granted ON true
