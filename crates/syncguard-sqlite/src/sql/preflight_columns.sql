-- The columns of a table.
-- $1 its name
SELECT name, upper(type) AS type FROM pragma_table_info($1)
