-- The settings of the server and the session that matter to locks.
SELECT pg_catalog.pg_is_in_recovery() AS standby,
       pg_catalog.current_setting('transaction_read_only') = 'on' AS read_only,
       pg_catalog.current_setting('synchronous_commit') = 'off' AS asynchronous_commit,
       pg_catalog.current_setting('fsync') = 'off' AS unsynced,
       -- SQL_ASCII stores any text as it is.
       pg_catalog.current_setting('server_encoding') NOT IN ('UTF8', 'SQL_ASCII') AS other_encoding,
       pg_catalog.has_function_privilege('pg_catalog.pg_advisory_xact_lock(bigint)', 'EXECUTE')
           AND pg_catalog.has_function_privilege('pg_catalog.pg_try_advisory_xact_lock(bigint)', 'EXECUTE')
           AS may_take_turns,
       -- NULL if there is none, or if the role may not see it.
       (SELECT pg_catalog.concat_ws(' ', pid,
                   pg_catalog.floor(pg_catalog.date_part('epoch',
                       pg_catalog.clock_timestamp() - xact_start)))
        FROM pg_catalog.pg_stat_activity
        WHERE datname = pg_catalog.current_database()
          AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
          AND xact_start < pg_catalog.clock_timestamp() - interval '1 minute'
        ORDER BY xact_start
        LIMIT 1) AS old_snapshot,
       -- A process that has held an advisory lock whose number could be a key's for longer than an acquire holds
       -- its own, unless its commit waits for a standby. NULL if there is none, or if the role may not see it.
       (SELECT pg_catalog.min(pid)::text
        FROM pg_catalog.pg_locks AS advisory_lock JOIN pg_catalog.pg_stat_activity AS holder USING (pid)
        WHERE locktype = 'advisory' AND granted AND objsubid = 1
          AND holder.datname = pg_catalog.current_database() AND holder.datid = advisory_lock.database
          -- An integer, as `hashtext` gives.
          AND (classid::bigint << 32 | objid::bigint) BETWEEN -2147483648 AND 2147483647
          AND state_change < pg_catalog.clock_timestamp() - interval '5 seconds'
          AND wait_event IS DISTINCT FROM 'SyncRep') AS number_holder
