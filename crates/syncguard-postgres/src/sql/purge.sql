-- Clears away some rows of locks that expired long ago. Never a fence counter.
-- $1 statement, $2 unused, $3 how many at most
WITH expired AS MATERIALIZED (
    -- A row that is in use is somebody's business already: it is passed over, not waited for.
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
SELECT concat_ws(' ', '{statement}', $2, (SELECT count(*) FROM deleted))
