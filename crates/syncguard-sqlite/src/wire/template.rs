//! The SQL in `src/sql/`, filled in. The bench includes this file, to send what the backend sends.

use std::fmt::Display;

use syncguard_core::backend::{CLEANUP_GUARD_MS, FENCE_MAX, MAX_PAGE_SIZE, TIME_TOLERANCE_MS};

/// The machine's system time. SQLite reads it once in a step of a statement, when it is first needed: in a
/// transaction that writes, after the write lock was granted. The value is whole milliseconds as a float
/// of seconds, so it is rounded.
const NOW_MS: &str = "CAST(round(unixepoch('now', 'subsec') * 1000) AS INTEGER)";

/// Up to this expiry a lock is dead.
const DEAD_BY_MS: &str = "({now_ms} - {tolerance_ms})";

const LIVE: &str = "expires_at_ms > {dead_by_ms}";

/// Fills in a template with the names of the tables, and drops its comments.
pub(crate) fn fill_in(
    template: &str,
    locks: &impl Display,
    fence_counters: &impl Display,
) -> String {
    let lines: Vec<_> = template
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with("--"))
        .collect();
    lines
        .join(" ")
        .replace("{live}", LIVE)
        .replace("{dead_by_ms}", DEAD_BY_MS)
        .replace("{now_ms}", NOW_MS)
        .replace("{tolerance_ms}", &TIME_TOLERANCE_MS.to_string())
        .replace("{cleanup_guard_ms}", &CLEANUP_GUARD_MS.to_string())
        .replace("{look_at}", &MAX_PAGE_SIZE.to_string())
        .replace("{fence_max}", &FENCE_MAX.to_string())
        .replace("{locks}", &locks.to_string())
        .replace("{fences}", &fence_counters.to_string())
}
