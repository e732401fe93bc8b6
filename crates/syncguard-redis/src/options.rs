//! [`RedisOptions`].

use std::time::Duration;

/// Prefix of all names in Redis when none is given.
pub const DEFAULT_PREFIX: &str = "syncguard";

/// Bound of connecting and of each command when none is given.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);

/// How a [`RedisStore`](crate::RedisStore) names, waits and cleans up.
///
/// ```
/// # use syncguard_redis::RedisOptions;
/// let clustered = RedisOptions::new().with_prefix("{billing}");
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
    /// On a cluster it needs a hash tag, as in `{syncguard}`. It may neither contain `fence:` nor
    /// end in `fence`, nor be or end in the segment `id`: another prefix's fence counters and
    /// indexes could be taken for its locks.
    #[must_use]
    pub fn with_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Bounds connecting, and each command. Not zero. Default: 5 s.
    ///
    /// A command that could not be sent by then never is, whoever waits for it. The deadline of
    /// an operation is the policy's of [`Managed`](syncguard_core::Managed), if that is shorter.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Whether `is_locked` removes what it sees to be long expired. Default: it only reads.
    ///
    /// Redis removes expired locks itself; this is for locks whose TTL was taken away, as by
    /// `PERSIST`. It happens in the background, at most once a second, never to a lock that
    /// expired less than 2 s ago and never to a fence counter.
    #[must_use]
    pub fn with_cleanup_in_is_locked(mut self, enabled: bool) -> Self {
        self.cleanup_in_is_locked = enabled;
        self
    }
}
