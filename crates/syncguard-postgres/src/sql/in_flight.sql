-- Whether an acquire of a key is in flight. The row of one whose commit hangs is in nobody's snapshot, but
-- it keeps its advisory lock until the row can be seen. One that only waits for that lock is too late to be
-- granted. Later acquires, of others, do not count.
-- $1 statement, $2 lock id, $3 storage key, $4 ms since the acquire was given up
SELECT {proof}, EXISTS (
    SELECT FROM pg_catalog.pg_locks AS advisory_lock JOIN pg_catalog.pg_stat_activity AS acquire USING (pid)
    WHERE advisory_lock.locktype = 'advisory' AND advisory_lock.granted AND advisory_lock.objsubid = 1
      AND acquire.datname = pg_catalog.current_database() AND acquire.datid = advisory_lock.database
      AND (advisory_lock.classid::bigint << 32 | advisory_lock.objid::bigint) = pg_catalog.hashtext($3)
      AND acquire.state = 'active'
      AND acquire.query_start <= pg_catalog.clock_timestamp()
          - $4::bigint * '1 millisecond'::pg_catalog.interval
) AS in_flight
WHERE $1 = '{statement}'
