-- A table, and the permissions on it that the role lacks. No row if the table does not exist.
-- $1 schema or NULL, $2 table, $3 the needed permissions
SELECT class.oid::bigint AS id,
       class.relpersistence <> 'p' AS unlogged,
       pg_catalog.row_security_active(class.oid) AS row_security,
       EXISTS (SELECT FROM pg_catalog.pg_options_to_table(class.reloptions)
               WHERE option_name = 'fillfactor' AND option_value::integer < 100) AS fillfactor,
       pg_catalog.has_schema_privilege(class.relnamespace, 'USAGE') AS usage,
       array(SELECT privilege FROM pg_catalog.unnest($3::text[]) AS privilege
             -- DELETE can be granted only on a table, the others also on columns.
             WHERE NOT CASE privilege WHEN 'DELETE' THEN pg_catalog.has_table_privilege(class.oid, privilege)
                       ELSE pg_catalog.has_any_column_privilege(class.oid, privilege) END) AS missing
FROM pg_catalog.pg_class AS class JOIN pg_catalog.pg_namespace AS schema ON schema.oid = class.relnamespace
WHERE class.relname = $2 AND class.relkind IN ('r', 'p')
  AND (schema.nspname = $1 OR $1 IS NULL AND pg_catalog.pg_table_is_visible(class.oid))
