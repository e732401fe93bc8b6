-- The settings of a connection that matter to locks.
SELECT sqlite_version() AS version,
       (SELECT journal_mode FROM pragma_journal_mode) AS journal_mode,
       (SELECT synchronous FROM pragma_synchronous) AS synchronous
