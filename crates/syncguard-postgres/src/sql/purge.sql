-- Deletes up to $3 rows of locks that expired some time ago. It never deletes a fence counter.
-- $1 statement, $2 unused, $3 how many at most
WITH expired AS MATERIALIZED (
    -- Skip a row that is in use instead of waiting for it. FOR UPDATE checks the newest version of a
    -- row, so a key that was acquired meanwhile keeps its lock.
    SELECT key
    FROM {locks}
    WHERE $1 = '{statement}' AND expires_at_ms < {now_ms} - {cleanup_guard_ms}
    LIMIT $3
    FOR UPDATE SKIP LOCKED
),
deleted AS (
    DELETE FROM {locks} AS lock USING expired WHERE lock.key = expired.key
    RETURNING lock.key
)
SELECT {proof}, (SELECT pg_catalog.count(*) FROM deleted) AS deleted
