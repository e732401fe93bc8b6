//! Names of keys inside a store.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};
use unicode_normalization::UnicodeNormalization as _;

use crate::LockError;

/// Bytes of the SHA-256 digest that a shortened storage key keeps.
const DIGEST_BYTES: usize = 16;

/// Makes the storage key of `key`: `prefix:key`, or `prefix:` and a hash if that is too long.
///
/// `key` is in NFC, as the text of a [`LockKey`](crate::LockKey) is. Lengths are UTF-8 bytes. `limit` is
/// the store's greatest length of a name. `reserve` is the part of it that names derived from this one
/// need. Trailing colons of the prefix are dropped; an empty prefix adds nothing. The hash covers prefix
/// and key, so namespaces stay apart.
///
/// ```
/// # use syncguard_core::backend::make_storage_key;
/// assert_eq!(make_storage_key("app", "payment:42", 1000, 26)?, "app:payment:42");
/// assert_eq!(make_storage_key("app", &"x".repeat(200), 100, 26)?.len(), "app:".len() + 22);
/// # Ok::<(), syncguard_core::LockError>(())
/// ```
///
/// # Errors
/// `InvalidArgument` if even the shortened form does not fit: the prefix is too long.
pub fn make_storage_key(
    prefix: &str,
    key: &str,
    limit: usize,
    reserve: usize,
) -> Result<String, LockError> {
    let prefix = prefix.trim_end_matches(':');
    let fits = |name: &str| name.len().saturating_add(reserve) <= limit;
    let qualify = |name: &str| match prefix {
        "" => name.to_owned(),
        // One allocation; `format!` makes more.
        _ => [prefix, ":", name].concat(),
    };

    let full = qualify(key);
    if fits(&full) {
        return Ok(full);
    }
    let shortened = qualify(&digest_of(&full));
    if fits(&shortened) {
        return Ok(shortened);
    }
    Err(LockError::invalid_argument(format!(
        "the prefix is too long: even a shortened key needs {} bytes, and the store allows {limit}",
        shortened.len().saturating_add(reserve),
    )))
}

/// Makes the storage key of a key whose text a store refuses: always the hashed form of
/// [`make_storage_key`].
///
/// ```
/// # use syncguard_core::backend::make_hashed_storage_key;
/// assert_eq!(make_hashed_storage_key("app", "a/b").len(), "app:".len() + 22);
/// assert_ne!(make_hashed_storage_key("", "a/b"), make_hashed_storage_key("", "a/c"));
/// ```
#[must_use]
pub fn make_hashed_storage_key(prefix: &str, key: &str) -> String {
    match prefix.trim_end_matches(':') {
        "" => digest_of(key),
        prefix => format!("{prefix}:{}", digest_of(&format!("{prefix}:{key}"))),
    }
}

/// Makes the name of the fence counter that belongs to a storage key.
///
/// The name is derived from the *storage* key, in a second step. If it were made from the user's key, two
/// keys that are shortened differently could share a counter.
///
/// # Errors
/// As [`make_storage_key`].
pub fn make_fence_key(
    prefix: &str,
    storage_key: &str,
    limit: usize,
    reserve: usize,
) -> Result<String, LockError> {
    let name = ["fence:", storage_key].concat();
    // The key is in NFC; the prefix is not normalized. The TypeScript original normalizes both here.
    let name = if prefix.is_ascii() {
        name
    } else {
        name.nfc().collect()
    };
    make_storage_key(prefix, &name, limit, reserve)
}

/// The smallest text after all texts with this prefix, in the order of UTF-8 bytes. `None` if there is
/// none, as for the empty prefix.
///
/// With it, a store that orders by bytes reads a prefix as a range.
///
/// ```
/// # use syncguard_core::backend::prefix_end;
/// assert_eq!(prefix_end("payment:").as_deref(), Some("payment;"));
/// assert_eq!(prefix_end(""), None);
/// ```
#[must_use]
pub fn prefix_end(prefix: &str) -> Option<String> {
    let mut end = prefix.trim_end_matches(char::MAX).to_owned();
    let last = end.pop()?;
    end.extend((last..=char::MAX).nth(1));
    Some(end)
}

fn digest_of(full: &str) -> String {
    URL_SAFE_NO_PAD.encode(&Sha256::digest(full.as_bytes())[..DIGEST_BYTES])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_before_the_next_text_of_its_length() {
        for (prefix, end) in [
            ("a", "b"),
            ("a\u{d7ff}", "a\u{e000}"),
            ("a\u{10ffff}\u{10ffff}", "b"),
            ("\u{7f}", "\u{80}"),
        ] {
            assert_eq!(prefix_end(prefix).as_deref(), Some(end), "{prefix:?}");
            assert!(format!("{prefix}\u{10ffff}").as_str() < end);
        }
        assert_eq!(prefix_end("\u{10ffff}"), None);
    }

    #[test]
    fn the_hashed_form_is_that_of_a_key_too_long() {
        for prefix in ["", "app", "app:"] {
            let key = "caf\u{e9}/".repeat(20);
            let shortened = make_storage_key(prefix, &key, 40, 0).unwrap();
            assert_eq!(make_hashed_storage_key(prefix, &key), shortened);
        }
    }
}
