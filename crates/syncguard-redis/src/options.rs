//! [`RedisOptions`].

use std::time::Duration;

/// Default prefix of all names in Redis.
pub const DEFAULT_PREFIX: &str = "syncguard";

/// Default timeout of connecting and of each command.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);

/// Options of a [`RedisBackend`](crate::RedisBackend).
///
/// ```
/// # use std::time::Duration;
/// # use syncguard_redis::RedisOptions;
/// let clustered = RedisOptions::new()
///     .prefix("{billing}")
///     .timeout(Duration::from_secs(2));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisOptions {
    pub(crate) prefix: String,
    pub(crate) timeout: Duration,
    pub(crate) cleanup_in_is_locked: bool,
}

impl Default for RedisOptions {
    fn default() -> Self {
        Self {
            prefix: DEFAULT_PREFIX.to_owned(),
            timeout: DEFAULT_TIMEOUT,
            cleanup_in_is_locked: false,
        }
    }
}

impl RedisOptions {
    /// The defaults, each named at its setter.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Prefix of all names in Redis, without the colon that follows it. Default: `syncguard`.
    ///
    /// On a cluster it needs a hash tag, as in `{syncguard}`. It must not contain `fence:`, end in
    /// `fence`, or be or end in the segment `id`: its locks could overwrite the fence counters and
    /// indexes of another prefix.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Timeout of connecting and of each command. Not zero. Default: 5 s.
    ///
    /// A command also ends at the deadline of its operation: see
    /// [`operation_timeout`](syncguard_core::LocksBuilder::operation_timeout). A command that was not sent
    /// before the earlier of the two is never sent.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Whether `is_locked` removes a lock that expired long ago. Default: it only reads.
    ///
    /// Redis removes expired locks itself. This option is for locks that lost their TTL, for example by
    /// `PERSIST`. The removal runs in the background, at most once a second. It never removes a lock
    /// that expired less than 2 s ago, and never a fence counter.
    #[must_use]
    pub fn cleanup_in_is_locked(mut self, enabled: bool) -> Self {
        self.cleanup_in_is_locked = enabled;
        self
    }
}
