-- Acquires the lock on a key, or replies why not. The write lock is held, so nobody else changes a row.
-- $1 lock id, $2 storage key, $3 fence key, $4 TTL in ms, $5 user's key
INSERT INTO {fences} AS counter (fence_key, fence, key_debug)
SELECT $3, 1, $5 WHERE NOT EXISTS (SELECT 1 FROM {locks} WHERE key = $2 AND {live})
ON CONFLICT (fence_key) DO UPDATE SET fence = counter.fence + 1
WHERE counter.fence >= 0 AND counter.fence < {fence_max};

-- changes(): the key is free, and it has a new fence.
INSERT INTO {locks} (key, lock_id, expires_at_ms, acquired_at_ms, fence, user_key)
SELECT $2, $1, {now_ms} + $4, {now_ms}, printf('%015d', fence), $5
FROM {fences} WHERE fence_key = $3 AND changes() = 1
ON CONFLICT (key) DO UPDATE
SET lock_id = excluded.lock_id, expires_at_ms = excluded.expires_at_ms,
    acquired_at_ms = excluded.acquired_at_ms, fence = excluded.fence, user_key = excluded.user_key;

SELECT CASE WHEN lock_id = $1 AND {live} THEN 'granted'
            -- It may have expired since the first statement.
            WHEN {live} OR counter.fence BETWEEN 0 AND {fence_max} - 1 THEN 'locked'
            ELSE 'exhausted' END AS word,
       lock.expires_at_ms, lock.fence, max(lock.expires_at_ms - {dead_by_ms}, 1) AS free_in_ms
FROM {fences} AS counter LEFT JOIN {locks} AS lock ON lock.key = $2
WHERE counter.fence_key = $3
