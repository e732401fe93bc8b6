//! The names that the scripts in `lua/` and Rust share.
//!
//! The benchmarks include this file, too.

use syncguard_core::backend;

/// Defines constants, and [`value`], which finds them by their names.
macro_rules! shared {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $value:expr;)*) => {
        $($(#[$doc])* pub(crate) const $name: $type = $value;)*

        /// The constant of this name, as Lua writes it. Lua reads the quotes and escapes of Rust's `Debug`.
        fn value(name: &str) -> Option<String> {
            match name {
                $(stringify!($name) => Some(format!("{:?}", $name)),)*
                _ => None,
            }
        }
    };
}

shared! {
    // Replies in place of a value or a time.
    RELEASED: i64 = 1;
    /// Another id holds the key.
    OTHER_OWNER: i64 = 0;
    /// No index leads from the id to a key.
    NO_INDEX: i64 = -1;
    /// The lock had expired.
    EXPIRED: i64 = -2;
    /// The stored value is not a lock.
    NOT_A_LOCK: i64 = -3;
    FENCE_EXHAUSTED: i64 = -4;
    /// The index exists, and the lock does not.
    NO_LOCK: i64 = -5;
    /// How the text begins that `gathered.lua` returns for an error.
    ERROR_MARK: &str = "-";

    // A stored lock begins with the id and the expiry at fixed places. To read these, the scripts need not
    // decode the value: docs/performance.md has the gain. Lua counts from 1, and includes the last place.
    BEFORE_ID: &str = r#"{"lockId":""#;
    BEFORE_EXPIRY: &str = r#"","expiresAtMs":"#;
    BEFORE_ACQUIRED: &str = r#","acquiredAtMs":"#;
    ID_LENGTH: usize = backend::LOCK_ID_LENGTH;
    ID_FIRST: usize = BEFORE_ID.len() + 1;
    ID_LAST: usize = BEFORE_ID.len() + ID_LENGTH;
    EXPIRY_FIRST: usize = ID_LAST + BEFORE_EXPIRY.len() + 1;
    EXPIRY_LAST: usize = ID_LAST + BEFORE_EXPIRY.len() + EXPIRY_DIGITS;
    /// As many as milliseconds since 1970 have from 2001 to 2286.
    EXPIRY_DIGITS: usize = 13;

    TOLERANCE_MS: i64 = backend::TIME_TOLERANCE_MS;
    FENCE_MAX: u64 = backend::FENCE_MAX;
    /// The greatest time that is accepted, in ms before or after 1970: doubles skip integers beyond it.
    MAX_MS: i64 = 1 << 53;
}

/// A script's text, with `lock.lua` where it is included, and values in place of the shared names. So the
/// names cost the server nothing: variables would be set, and a function created, at every call.
pub(crate) fn filled(text: &str) -> String {
    let text = text.replace("--- lock.lua\n", include_str!("lua/lock.lua"));
    let in_name = |character: char| character.is_ascii_alphanumeric() || character == '_';
    let pieces = text.split_inclusive(|character| !in_name(character));
    let filled = pieces.map(|piece| {
        let name = piece.trim_end_matches(|character| !in_name(character));
        value(name).map_or_else(|| piece.to_owned(), |value| value + &piece[name.len()..])
    });
    filled.collect()
}
