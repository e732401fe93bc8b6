-- Deletes the lock that an id holds, live or expired, and replies which it was.
-- $1 lock id
SELECT CASE WHEN {live} THEN 'released' ELSE 'expired' END AS word, key
FROM {locks} WHERE lock_id = $1;

DELETE FROM {locks} WHERE lock_id = $1
