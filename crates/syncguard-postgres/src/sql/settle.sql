-- Waits until no acquire of a key is in flight. The row of one whose commit hangs is in nobody's snapshot,
-- but it keeps its advisory lock until the row can be seen.
-- $1 statement, $2 lock id, $3 storage key
SELECT pg_catalog.concat_ws(' ', '{statement}', $2,
    CASE WHEN pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtext($3)) IS NOT NULL THEN 'settled' END)
WHERE $1 = '{statement}'
