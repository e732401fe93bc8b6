-- Whether a key is held. A contended attempt ends here, without the write lock.
-- $1 lock id, $2 storage key
SELECT CASE WHEN lock_id = $1 THEN 'granted' ELSE 'locked' END AS word,
       expires_at_ms, fence, expires_at_ms - {dead_by_ms} AS free_in_ms
FROM {locks}
WHERE key = $2 AND {live}
