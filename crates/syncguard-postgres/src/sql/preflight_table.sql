-- A table, and what the role may do with it. No row if there is none.
-- $1 schema or NULL, $2 table, $3 the rights that are needed
SELECT class.oid::bigint AS id,
       class.relpersistence <> 'p' AS unlogged,
       row_security_active(class.oid) AS row_security,
       coalesce(array_to_string(class.reloptions, ' '), '') LIKE '%fillfactor=%' AS fillfactor,
       has_schema_privilege(class.relnamespace, 'USAGE') AS usage,
       array(SELECT privilege FROM unnest($3::text[]) AS privilege
             WHERE NOT has_table_privilege(class.oid, privilege)) AS missing
FROM pg_class AS class JOIN pg_namespace AS schema ON schema.oid = class.relnamespace
WHERE class.relname = $2 AND class.relkind IN ('r', 'p')
  AND (schema.nspname = $1 OR $1 IS NULL AND pg_table_is_visible(class.oid))
