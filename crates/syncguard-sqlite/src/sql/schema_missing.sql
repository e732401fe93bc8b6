-- How many of two tables are missing.
-- $1, $2 their names
SELECT 2 - count(*) AS missing FROM sqlite_schema
WHERE type = 'table' AND name COLLATE NOCASE IN ($1, $2)
