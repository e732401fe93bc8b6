//! [`FirestoreOptions`]: what a store can be told.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use syncguard_core::{DEFAULT_OPERATION_TIMEOUT, LockError, TimeAuthority};

use crate::name::check_collection;

/// Collection of the locks when none is given.
pub const DEFAULT_LOCK_COLLECTION: &str = "locks";

/// Collection of the fence counters when none is given.
pub const DEFAULT_FENCE_COLLECTION: &str = "fence_counters";

/// Bound of one request, and of connecting, when none is given.
pub const DEFAULT_REQUEST_TIMEOUT: Duration = DEFAULT_OPERATION_TIMEOUT;

/// Difference of the clocks that warns when none is given.
pub const DEFAULT_SKEW_WARNING: Duration = Duration::from_millis(200);

/// A sensible value for [`FirestoreOptions::with_skew_limit`].
pub const RECOMMENDED_SKEW_LIMIT: Duration = Duration::from_millis(500);

pub(crate) type WallClock = Arc<dyn Fn() -> i64 + Send + Sync>;

/// Options of a [`FirestoreStore`](crate::FirestoreStore).
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
    /// The defaults, as each setter states them.
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
    /// All clients must agree on it. It is checked when the store is made.
    #[must_use]
    pub fn with_lock_collection(mut self, id: impl Into<String>) -> Self {
        self.locks = id.into();
        self
    }

    /// The collection of the fence counters, another than that of the locks. Default:
    /// `fence_counters`.
    ///
    /// All clients must agree on it. It is checked when the store is made.
    #[must_use]
    pub fn with_fence_collection(mut self, id: impl Into<String>) -> Self {
        self.fence_counters = id.into();
        self
    }

    /// Whether the server's time decides when a lease ends. Default: no, each client's own.
    ///
    /// All clients must agree on it. The server's time is that of the read which an operation
    /// starts with.
    #[must_use]
    pub fn with_server_time(mut self, enabled: bool) -> Self {
        self.time_authority = if enabled {
            TimeAuthority::Server
        } else {
            TimeAuthority::Client
        };
        self
    }

    /// Warns, once a minute at most, when this machine's clock and the server's are further apart.
    /// Default: 200 ms.
    ///
    /// It has no effect with [server time](Self::with_server_time), to which the clock is nothing.
    #[must_use]
    pub fn with_skew_warning(mut self, difference: Duration) -> Self {
        self.skew_warning = difference;
        self
    }

    /// Refuses to acquire and to extend, with `Internal`, when the clocks are further apart.
    /// Default: never.
    ///
    /// [`RECOMMENDED_SKEW_LIMIT`] leaves as much again to the tolerance of leases. It has no effect
    /// with [server time](Self::with_server_time).
    #[must_use]
    pub fn with_skew_limit(mut self, difference: Duration) -> Self {
        self.skew_limit = Some(difference);
        self
    }

    /// Whether `is_locked` deletes, in the background, a lock that it finds expired for more than
    /// 2 s. Default: no; `is_locked` then only reads.
    ///
    /// At most one deletion is started a second. It never delays or changes the answer, and never
    /// touches a lock that was taken meanwhile, or a fence counter.
    #[must_use]
    pub fn with_cleanup_in_is_locked(mut self, enabled: bool) -> Self {
        self.cleanup_in_is_locked = enabled;
        self
    }

    /// Bounds connecting, and each request to the server. Default: 5 s.
    ///
    /// An operation of up to two requests or more is bounded as a whole by its
    /// [`Policy`](syncguard_core::Policy).
    #[must_use]
    pub fn with_request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout;
        self
    }

    /// Replaces this machine's clock: Unix milliseconds. Meant for tests.
    #[must_use]
    pub fn with_wall_clock(mut self, now_ms: impl Fn() -> i64 + Send + Sync + 'static) -> Self {
        self.wall_clock = Arc::new(now_ms);
        self
    }

    pub(crate) fn check(&self) -> Result<(), LockError> {
        check_collection(&self.locks)?;
        check_collection(&self.fence_counters)?;
        if self.locks == self.fence_counters {
            return Err(LockError::invalid_argument(
                "locks and fence counters need collections of their own: cleaning up locks must \
                 never delete a fence counter",
            ));
        }
        if self.request_timeout.is_zero() {
            return Err(LockError::invalid_argument("the request timeout is zero"));
        }
        Ok(())
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
