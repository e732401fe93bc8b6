//! [`Names`]: the names of locks, indexes and fence counters in Redis.

use syncguard_core::backend::{make_fence_key, make_storage_key};
use syncguard_core::list::KeyPrefix;
use syncguard_core::{LockError, LockId, LockKey};

/// The longest storage key in bytes, [`STORAGE_KEY_RESERVE`] included. The SyncGuard specification sets it;
/// Redis itself allows far longer keys.
///
/// A key is stored as it is if `{prefix}:{key}` has at most `STORAGE_KEY_LIMIT - STORAGE_KEY_RESERVE`
/// bytes, and under a hash otherwise. So with a prefix of up to 461 bytes every key is stored as it is.
///
/// ```
/// use syncguard_core::backend::{MAX_KEY_LENGTH_BYTES, make_storage_key};
/// use syncguard_redis::{STORAGE_KEY_LIMIT, STORAGE_KEY_RESERVE};
///
/// let longest = "k".repeat(MAX_KEY_LENGTH_BYTES);
/// let name = make_storage_key("syncguard", &longest, STORAGE_KEY_LIMIT, STORAGE_KEY_RESERVE)?;
/// assert_eq!(name, format!("syncguard:{longest}"));
/// # Ok::<(), syncguard_core::LockError>(())
/// ```
pub const STORAGE_KEY_LIMIT: usize = 1000;

/// Bytes of [`STORAGE_KEY_LIMIT`] that every storage key leaves free for the index of a lock id: `:id:` and
/// 22 characters.
pub const STORAGE_KEY_RESERVE: usize = 26;

const INDEX: &str = "id:";
const FENCE: &str = "fence";

/// The names under one prefix.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    prefix: String,
    /// Prefix of all fence counters whose names are not hashed.
    counters: String,
}

impl Names {
    /// Refuses a prefix that is too long, or under which a lock could be stored at a fence counter or
    /// an index of another prefix.
    pub(crate) fn new(prefix: &str) -> Result<Self, LockError> {
        let prefix = prefix.trim_end_matches(':');
        if prefix.ends_with(FENCE) || prefix.contains("fence:") {
            return Err(LockError::invalid_argument(
                "the prefix contains `fence:` or ends in `fence`: its locks could overwrite the \
                 fence counters of another prefix",
            ));
        }
        if prefix.rsplit(':').next() == Some("id") {
            return Err(LockError::invalid_argument(
                "the prefix is or ends in the segment `id`: its locks could overwrite the indexes \
                 of another prefix",
            ));
        }
        // The length of the hashed form does not depend on the key. A key this long is always hashed.
        make_storage_key(
            prefix,
            &"x".repeat(STORAGE_KEY_LIMIT),
            STORAGE_KEY_LIMIT,
            STORAGE_KEY_RESERVE,
        )?;
        let locks = make_storage_key(prefix, "", usize::MAX, 0)?;
        let counters = make_fence_key(prefix, &locks, usize::MAX, 0)?;
        Ok(Self {
            prefix: prefix.to_owned(),
            counters,
        })
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Where the lock on a key is stored.
    ///
    /// A key that would be stored at an index or a fence counter is `InvalidArgument`.
    pub(crate) fn lock(&self, key: &LockKey) -> Result<String, LockError> {
        let id = key.as_str().strip_prefix(INDEX);
        if id.is_some_and(|id| LockId::parse(id).is_ok()) {
            return Err(reserved("the index of a lock id"));
        }
        let name = self.shorten(key.as_str())?;
        if name.starts_with(&self.counters) {
            return Err(reserved("the fence counter of another key"));
        }
        Ok(name)
    }

    /// The beginning of the names of locks whose keys have this prefix, unless they are hashed.
    pub(crate) fn of_prefix(&self, prefix: &KeyPrefix) -> Result<String, LockError> {
        make_storage_key(&self.prefix, prefix.as_str(), usize::MAX, 0)
    }

    /// The beginning of the names of fence counters, unless they are hashed.
    pub(crate) fn counters(&self) -> &str {
        &self.counters
    }

    /// Where the index of an id is stored: the storage key of its lock.
    pub(crate) fn index(&self, id: &LockId) -> Result<String, LockError> {
        self.shorten(&format!("{INDEX}{}", id.as_str()))
    }

    /// The counter of a stored lock. It is derived from the lock's storage key, not from the user's
    /// key, so different locks have different counters.
    pub(crate) fn fence(&self, lock: &str) -> Result<String, LockError> {
        make_fence_key(&self.prefix, lock, STORAGE_KEY_LIMIT, STORAGE_KEY_RESERVE)
    }

    /// Whether a cluster keeps all names on one node, because the prefix has a hash tag.
    pub(crate) fn share_one_slot(&self) -> bool {
        let tagged = self
            .prefix
            .split_once('{')
            .and_then(|(_, rest)| rest.split_once('}'));
        tagged.is_some_and(|(tag, _)| !tag.is_empty())
    }

    fn shorten(&self, name: &str) -> Result<String, LockError> {
        make_storage_key(&self.prefix, name, STORAGE_KEY_LIMIT, STORAGE_KEY_RESERVE)
    }
}

fn reserved(purpose: &str) -> LockError {
    LockError::invalid_argument(format!(
        "the key is reserved: under this prefix its lock would be stored as {purpose}"
    ))
}

#[cfg(test)]
mod tests {
    use syncguard_core::ErrorCode;

    use super::*;

    const ID: &str = "AAAAAAAAAAAAAAAAAAAAA_";

    fn lock(prefix: &str, key: &str) -> Result<String, LockError> {
        Names::new(prefix)?.lock(&LockKey::new(key)?)
    }

    #[test]
    fn names_are_the_specified_ones() {
        let names = Names::new("syncguard").unwrap();
        let lock = names.lock(&LockKey::new("payment:42").unwrap()).unwrap();
        let index = names.index(&LockId::parse(ID).unwrap()).unwrap();
        assert_eq!(lock, "syncguard:payment:42");
        assert_eq!(index, format!("syncguard:id:{ID}"));
        assert_eq!(
            names.fence(&lock).unwrap(),
            "syncguard:fence:syncguard:payment:42"
        );
    }

    #[test]
    fn keys_that_would_be_internal_names_are_refused_and_their_neighbours_are_not() {
        for key in [format!("id:{ID}"), "fence:p:bar".into(), "fence:p:".into()] {
            let error = lock("p", &key).unwrap_err();
            assert_eq!(error.code(), ErrorCode::InvalidArgument, "{key}");
        }
        for key in [
            &format!("id:{ID}x"),
            "id:short",
            "fence:bar",
            "fence:q:bar",
            "p:bar",
            "fence",
        ] {
            lock("p", key).unwrap();
        }
        assert!(
            lock("", "fence:bar").is_err(),
            "without a prefix `fence:` is the counters' own"
        );
        assert!(
            lock("p:", "fence:p:bar").is_err(),
            "trailing colons of a prefix do not count"
        );
    }

    #[test]
    fn a_counters_name_is_reserved_however_its_prefix_is_composed() {
        // The prefix itself is not normalized. As part of the counter's name it is in NFC.
        let names = Names::new("cafe\u{301}").unwrap();
        let lock = names.lock(&LockKey::new("bar").unwrap()).unwrap();
        assert_eq!(
            names.fence(&lock).unwrap(),
            "cafe\u{301}:fence:caf\u{e9}:bar"
        );
        for spelling in ["fence:cafe\u{301}:bar", "fence:caf\u{e9}:bar"] {
            assert!(names.lock(&LockKey::new(spelling).unwrap()).is_err());
        }
    }

    #[test]
    fn prefixes_that_reach_into_counters_or_leave_no_room_are_refused() {
        for prefix in [
            "fence",
            "p:fence",
            "p:fence:",
            "fence:p",
            "p:fence:q",
            "defence",
            "id",
            "p:id",
            "p:id:",
        ] {
            assert!(Names::new(prefix).is_err(), "{prefix}");
        }
        for prefix in [
            "",
            "fences",
            "{p}",
            "p:q",
            "id:p",
            "valid",
            &"x".repeat(951),
        ] {
            Names::new(prefix).unwrap();
        }
        assert!(Names::new(&"x".repeat(952)).is_err());
    }

    #[test]
    fn a_hash_tag_is_what_redis_takes_for_one() {
        for prefix in ["{p}", "a{p}b", "{{p}", "{p}{q}"] {
            assert!(Names::new(prefix).unwrap().share_one_slot(), "{prefix}");
        }
        for prefix in ["", "p", "{", "}{", "{}", "{}{p}", "p}"] {
            assert!(!Names::new(prefix).unwrap().share_one_slot(), "{prefix}");
        }
    }
}
