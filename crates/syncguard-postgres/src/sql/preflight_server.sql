-- The settings of the server and the session that matter to locks.
SELECT pg_is_in_recovery() AS standby,
       current_setting('transaction_read_only') = 'on' AS read_only,
       current_setting('synchronous_commit') = 'off' AS asynchronous_commit,
       current_setting('fsync') = 'off' AS unsynced,
       has_function_privilege('pg_advisory_xact_lock(bigint)', 'EXECUTE')
           AND has_function_privilege('pg_try_advisory_xact_lock(bigint)', 'EXECUTE') AS may_take_turns
