//! Names of documents: ids, and the full names in requests.

use syncguard_core::backend::{make_fence_key, make_hashed_storage_key, make_storage_key};
use syncguard_core::{LockError, LockKey};

/// The longest storage key in UTF-8 bytes: Firestore's limit of a document id.
///
/// The storage key of a lock is the key itself, without a prefix. A key has at most
/// [`MAX_KEY_LENGTH_BYTES`](syncguard_core::backend::MAX_KEY_LENGTH_BYTES) bytes and its fence counter
/// `fence:` before that, so none is ever shortened for its length.
pub const STORAGE_KEY_LIMIT: usize = 1_500;

/// Bytes of a storage key that stay free for names derived from it: none, since locks and fence
/// counters are documents of different collections.
pub const STORAGE_KEY_RESERVE: usize = 0;

/// A collection is a namespace of its own: keys need no prefix.
const PREFIX: &str = "";

/// The full names of one key's two documents.
#[derive(Debug)]
pub(crate) struct KeyNames {
    pub(crate) lock: String,
    pub(crate) fence_counter: String,
}

/// A database and the two collections in it.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    /// `projects/P/databases/D`.
    pub(crate) database: String,
    locks: String,
    fence_counters: String,
}

impl Names {
    /// Names in a database, which is a project's id, for its default database, or a full path.
    pub(crate) fn new(
        database: &str,
        locks: &str,
        fence_counters: &str,
    ) -> Result<Self, LockError> {
        check_collection(locks)?;
        check_collection(fence_counters)?;
        if locks == fence_counters {
            return Err(LockError::invalid_argument(
                "locks and fence counters must be in different collections: deleting expired locks \
                 must never delete a fence counter",
            ));
        }
        let database = match database.split('/').collect::<Vec<_>>()[..] {
            [project] if is_id(project) => format!("projects/{project}/databases/(default)"),
            ["projects", project, "databases", name] if is_id(project) && is_id(name) => {
                database.to_owned()
            }
            _ => {
                return Err(LockError::invalid_argument(
                    "the database is neither a project id nor `projects/PROJECT/databases/DATABASE`",
                ));
            }
        };
        Ok(Self {
            database,
            locks: locks.to_owned(),
            fence_counters: fence_counters.to_owned(),
        })
    }

    pub(crate) fn of(&self, key: &LockKey) -> Result<KeyNames, LockError> {
        let id = document_id(key.as_str())?;
        let fence_id = make_fence_key(PREFIX, &id, STORAGE_KEY_LIMIT, STORAGE_KEY_RESERVE)?;
        Ok(KeyNames {
            lock: self.document(&self.locks, &id),
            fence_counter: self.document(&self.fence_counters, &fence_id),
        })
    }

    pub(crate) fn lock_collection(&self) -> &str {
        &self.locks
    }

    /// The parent of both collections.
    pub(crate) fn root(&self) -> String {
        format!("{}/documents", self.database)
    }

    fn document(&self, collection: &str, id: &str) -> String {
        format!("{}/documents/{collection}/{id}", self.database)
    }
}

/// The key itself if Firestore accepts it as an id, else its hash.
fn document_id(key: &str) -> Result<String, LockError> {
    if is_reserved(key) || key.contains('/') {
        return Ok(make_hashed_storage_key(PREFIX, key));
    }
    make_storage_key(PREFIX, key, STORAGE_KEY_LIMIT, STORAGE_KEY_RESERVE)
}

/// Checks a collection's id. Firestore has the same rules for it as for a document's.
fn check_collection(id: &str) -> Result<(), LockError> {
    let refuse = |why: &str| {
        Err(LockError::invalid_argument(format!(
            "`{}` is not a valid collection id: {why}",
            id.escape_debug()
        )))
    };
    match id {
        "" => refuse("it is empty"),
        _ if id.len() > STORAGE_KEY_LIMIT => refuse("it is longer than 1500 bytes"),
        _ if id.contains('/') => refuse("it contains `/`; subcollections are not supported"),
        _ if id.contains('\0') => refuse("it contains U+0000"),
        _ if is_reserved(id) => refuse("`.`, `..` and `__x__` are reserved"),
        _ => Ok(()),
    }
}

fn is_reserved(id: &str) -> bool {
    let dunder = id.len() >= 4 && id.starts_with("__") && id.ends_with("__");
    dunder || matches!(id, "." | "..")
}

fn is_id(segment: &str) -> bool {
    !segment.is_empty() && segment.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id_of(key: &str) -> String {
        document_id(LockKey::new(key).unwrap().as_str()).unwrap()
    }

    #[test]
    fn a_key_is_its_documents_id_unless_firestore_forbids_it() {
        for key in [
            "payment:42",
            "...",
            "__",
            "___",
            "__x",
            "x__",
            "%2F",
            "#",
            " ",
            "a\nb",
            "\u{1}",
        ] {
            assert_eq!(id_of(key), key);
        }
        for key in [
            "/", "a/b", ".", "..", "____", "__x__", "__a\nb__", "__id7__",
        ] {
            let id = id_of(key);
            assert_eq!(id.len(), 22, "{key:?}");
            assert!(!is_reserved(&id) && !id.contains('/'));
        }
    }

    #[test]
    fn ids_of_different_keys_differ_and_so_do_their_counters() {
        let names = Names::new("p", "locks", "fence_counters").unwrap();
        let keys = [
            "a/b",
            "a/c",
            "/",
            ".",
            "..",
            "__x__",
            "__y__",
            "a",
            "fence:a",
            "fence:fence:a",
        ];
        let documents: std::collections::BTreeSet<_> = keys
            .into_iter()
            .flat_map(|key| {
                let names = names.of(&LockKey::new(key).unwrap()).unwrap();
                [names.lock, names.fence_counter]
            })
            .collect();
        assert_eq!(documents.len(), 2 * keys.len());
    }

    #[test]
    fn the_counter_is_named_after_the_locks_id() {
        let names = Names::new("p", "locks", "fence_counters").unwrap();
        for key in ["payment:42", "a/b"] {
            let KeyNames {
                lock,
                fence_counter,
            } = names.of(&LockKey::new(key).unwrap()).unwrap();
            let root = "projects/p/databases/(default)/documents";
            let id = lock.strip_prefix(&format!("{root}/locks/")).unwrap();
            assert_eq!(fence_counter, format!("{root}/fence_counters/fence:{id}"));
        }
    }

    /// No valid key is this long, but the rule must hold on both sides of the limit.
    #[test]
    fn an_id_too_long_is_hashed() {
        assert_eq!(document_id(&"x".repeat(1_500)).unwrap().len(), 1_500);
        assert_eq!(document_id(&"x".repeat(1_501)).unwrap().len(), 22);
    }

    #[test]
    fn databases() {
        let of = |database| Names::new(database, "locks", "fence_counters");
        assert_eq!(of("p").unwrap().database, "projects/p/databases/(default)");
        let full = "projects/example.com:p/databases/locks";
        assert_eq!(of(full).unwrap().database, full);
        for bad in [
            "",
            "/",
            "p/q",
            "projects/p",
            "projects//databases/d",
            "projects/p/databases/",
            "projects/p/databases/d/documents",
            "a b",
            "projects/p/databases/d\n",
        ] {
            assert!(of(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn collections() {
        let long = "x".repeat(1_501);
        for bad in ["", "a/b", ".", "..", "__x__", "a\0b", &long] {
            for (locks, fence_counters) in [(bad, "fences"), ("locks", bad)] {
                let error = Names::new("p", locks, fence_counters).unwrap_err();
                assert_eq!(error.code(), syncguard_core::ErrorCode::InvalidArgument);
            }
        }
        assert!(Names::new("p", "same", "same").is_err());
        assert!(Names::new("p", "app-locks", "app-fences").is_ok());
    }
}
