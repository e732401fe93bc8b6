-- Deletes the lock that an id holds, live or expired, and replies which it was.
-- $1 statement, $2 lock id
WITH deleted AS (
    -- After a wait for another statement, the owner is checked again on the newest version of the
    -- row. RETURNING reads the clock after that wait.
    DELETE FROM {locks}
    WHERE lock_id = $2 AND $1 = '{statement}'{commit}{limit}
    RETURNING CASE WHEN {live} THEN 'released'
              ELSE 'expired' END AS verdict{wake}
)
SELECT {proof}, coalesce((SELECT verdict FROM deleted), 'absent') AS verdict
