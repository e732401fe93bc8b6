CREATE TABLE IF NOT EXISTS {locks} (
    key TEXT PRIMARY KEY,
    lock_id TEXT NOT NULL UNIQUE,
    expires_at_ms BIGINT NOT NULL,
    acquired_at_ms BIGINT NOT NULL,
    fence TEXT NOT NULL,
    user_key TEXT NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE IF NOT EXISTS {fences} (
    fence_key TEXT PRIMARY KEY,
    fence BIGINT NOT NULL DEFAULT 0,
    key_debug TEXT
) WITH (fillfactor = 50);
