-- Replaces the remaining time of the lock that an id holds.
-- $1 lock id, $2 TTL in ms
UPDATE {locks} SET expires_at_ms = {now_ms} + $2 WHERE lock_id = $1 AND {live};

SELECT CASE WHEN changes() = 1 THEN 'extended' ELSE 'expired' END AS word, expires_at_ms
FROM {locks} WHERE lock_id = $1
