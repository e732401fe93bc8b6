//! [`FirestoreOptions`]: the options of a backend.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use syncguard_core::LockError;
use syncguard_core::backend::{DEFAULT_OPERATION_TIMEOUT, TimeAuthority};

use crate::names::Names;

/// Default collection of the locks.
pub const DEFAULT_LOCK_COLLECTION: &str = "locks";

/// Default collection of the fence counters.
pub const DEFAULT_FENCE_COLLECTION: &str = "fence_counters";

/// Default timeout of one request and of connecting.
pub const DEFAULT_REQUEST_TIMEOUT: Duration = DEFAULT_OPERATION_TIMEOUT;

/// Default clock skew above which the backend logs a warning.
pub const DEFAULT_SKEW_WARNING: Duration = Duration::from_millis(200);

/// Recommended value for [`FirestoreOptions::skew_limit`].
pub const RECOMMENDED_SKEW_LIMIT: Duration = Duration::from_millis(500);

pub(crate) type WallClock = Arc<dyn Fn() -> i64 + Send + Sync>;

/// Options of a [`FirestoreBackend`](crate::FirestoreBackend).
#[derive(Clone)]
pub struct FirestoreOptions {
    pub(crate) locks: String,
    pub(crate) fence_counters: String,
    pub(crate) time_authority: TimeAuthority,
    pub(crate) skew_warning: Duration,
    pub(crate) skew_limit: Option<Duration>,
    pub(crate) cleanup_in_is_locked: bool,
    pub(crate) request_timeout: Duration,
    pub(crate) wall_clock: WallClock,
}

impl FirestoreOptions {
    /// The defaults, each named at its setter.
    #[must_use]
    pub fn new() -> Self {
        Self {
            locks: DEFAULT_LOCK_COLLECTION.to_owned(),
            fence_counters: DEFAULT_FENCE_COLLECTION.to_owned(),
            time_authority: TimeAuthority::Client,
            skew_warning: DEFAULT_SKEW_WARNING,
            skew_limit: None,
            cleanup_in_is_locked: false,
            request_timeout: DEFAULT_REQUEST_TIMEOUT,
            wall_clock: Arc::new(system_now_ms),
        }
    }

    /// The collection of the locks. Default: `locks`.
    ///
    /// All clients must use the same collection. The constructors of the backend check the name alone.
    #[must_use]
    pub fn lock_collection(mut self, id: impl Into<String>) -> Self {
        self.locks = id.into();
        self
    }

    /// The collection of the fence counters, which is not that of the locks. Default:
    /// `fence_counters`.
    ///
    /// All clients must use the same collection. The constructors of the backend check the name alone.
    #[must_use]
    pub fn fence_collection(mut self, id: impl Into<String>) -> Self {
        self.fence_counters = id.into();
        self
    }

    /// Whether the server's time decides when a lease ends. Default: no, each client's own clock.
    ///
    /// All clients must use the same; SyncGuard for TypeScript uses client time. SyncGuard takes the server's time
    /// from the read that begins each operation.
    #[must_use]
    pub fn server_time(mut self, enabled: bool) -> Self {
        self.time_authority = if enabled {
            TimeAuthority::Server
        } else {
            TimeAuthority::Client
        };
        self
    }

    /// Logs a warning, at most once a minute, when the clock skew exceeds `skew`. Default: 200 ms.
    ///
    /// The skew is the difference of this machine's clock from the server's. With
    /// [server time](Self::server_time) nothing is logged: the local clock does not matter then.
    #[must_use]
    pub fn skew_warning(mut self, skew: Duration) -> Self {
        self.skew_warning = skew;
        self
    }

    /// Refuses to acquire and to extend, with `Internal`, when the clock skew exceeds `skew`. Default:
    /// no limit.
    ///
    /// [`RECOMMENDED_SKEW_LIMIT`] is half of the tolerance, because two machines can be off in opposite
    /// directions. It has no effect with [server time](Self::server_time).
    #[must_use]
    pub fn skew_limit(mut self, skew: Duration) -> Self {
        self.skew_limit = Some(skew);
        self
    }

    /// Whether `is_locked` deletes, in the background, a lock that it finds expired for more than
    /// 2 s. Default: no; `is_locked` only reads.
    ///
    /// It starts at most one deletion a second. The deletion neither delays nor changes the answer,
    /// and never touches a fence counter or a lock that was acquired meanwhile.
    #[must_use]
    pub fn cleanup_in_is_locked(mut self, enabled: bool) -> Self {
        self.cleanup_in_is_locked = enabled;
        self
    }

    /// Bounds connecting and each request to the server. Default: 5 s.
    ///
    /// An operation can send several requests. The
    /// [operation timeout](syncguard_core::LocksBuilder::operation_timeout) bounds it as a whole.
    #[must_use]
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout;
        self
    }

    /// Replaces this machine's clock: Unix milliseconds. For tests. Default: the system's clock.
    #[must_use]
    pub fn wall_clock(mut self, now_ms: impl Fn() -> i64 + Send + Sync + 'static) -> Self {
        self.wall_clock = Arc::new(now_ms);
        self
    }

    /// Checks the options, and returns the names in a database.
    pub(crate) fn names(&self, database: &str) -> Result<Names, LockError> {
        if self.request_timeout.is_zero() {
            return Err(LockError::invalid_argument("the request timeout is zero"));
        }
        Names::new(database, &self.locks, &self.fence_counters)
    }
}

impl Default for FirestoreOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for FirestoreOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FirestoreOptions")
            .field("locks", &self.locks)
            .field("fence_counters", &self.fence_counters)
            .field("time_authority", &self.time_authority)
            .field("skew_warning", &self.skew_warning)
            .field("skew_limit", &self.skew_limit)
            .field("cleanup_in_is_locked", &self.cleanup_in_is_locked)
            .field("request_timeout", &self.request_timeout)
            .finish_non_exhaustive()
    }
}

fn system_now_ms() -> i64 {
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX)
}
