-- Which of these storage keys nobody holds.
-- $1 JSON array of storage keys
SELECT value FROM json_each($1)
WHERE NOT EXISTS (SELECT 1 FROM {locks} WHERE key = value AND {live})
