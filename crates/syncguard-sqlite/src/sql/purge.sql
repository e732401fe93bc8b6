-- Deletes up to $1 rows of locks that expired some time ago. It never deletes a fence counter.
DELETE FROM {locks} WHERE key IN (
    SELECT key FROM {locks} WHERE expires_at_ms < {now_ms} - {cleanup_guard_ms} LIMIT $1
);

SELECT changes() AS deleted
