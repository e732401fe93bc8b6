-- Deletes the row of a lock that expired some time ago. It never deletes a fence counter.
-- $1 statement, $2 storage key
WITH deleted AS (
    DELETE FROM {locks} AS lock
    WHERE lock.key = $2 AND $1 = '{statement}'{limit}
      AND lock.expires_at_ms < {now_ms} - {cleanup_guard_ms}
)
SELECT {proof}
