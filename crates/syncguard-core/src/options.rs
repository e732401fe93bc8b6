//! [`LockOptions`]: the options of a request, as a value.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::error::parse;
use crate::observe::{ReleaseErrorHandler, ReleaseFailure};
use crate::{AutoExtend, Backoff, Jitter, LockError, Ttl};

/// How to wait for a lock, hold it and release it: the options of a [`LockRequest`](crate::LockRequest), as
/// a value that requests can share.
///
/// ```
/// # use std::time::Duration;
/// # use syncguard_core::{Backoff, LockError, LockOptions, Locks};
/// # use syncguard_memory::MemoryBackend;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), LockError> {
/// # let locks = Locks::new(MemoryBackend::default());
/// let patient = LockOptions::new()
///     .ttl(Duration::from_secs(60))
///     .timeout(Duration::from_secs(30))
///     .backoff(Backoff::Fixed);
/// let guard = locks.lock("report:daily").options(&patient).await?;
/// # drop(guard);
/// # Ok(()) }
/// ```
///
/// A [`TryLockRequest`](crate::TryLockRequest) does not wait: it uses only the TTL, the auto-extension, the
/// handler and the token.
#[derive(Debug, Clone)]
#[must_use]
pub struct LockOptions {
    pub(crate) ttl: Result<Ttl, LockError>,
    pub(crate) max_retries: Option<u32>,
    pub(crate) retry_delay: Duration,
    pub(crate) max_retry_delay: Duration,
    pub(crate) backoff: Backoff,
    pub(crate) jitter: Jitter,
    pub(crate) timeout: Duration,
    pub(crate) retry_failures: bool,
    pub(crate) auto_extend: Option<AutoExtend>,
    pub(crate) on_release_error: Option<ReleaseErrorHandler>,
    pub(crate) token: Option<CancellationToken>,
}

impl Default for LockOptions {
    fn default() -> Self {
        Self {
            ttl: Ok(Ttl::DEFAULT),
            max_retries: None,
            retry_delay: Self::DEFAULT_RETRY_DELAY,
            max_retry_delay: Self::DEFAULT_MAX_RETRY_DELAY,
            backoff: Backoff::default(),
            jitter: Jitter::default(),
            timeout: Self::DEFAULT_TIMEOUT,
            retry_failures: false,
            auto_extend: None,
            on_release_error: None,
            token: None,
        }
    }
}

impl LockOptions {
    /// Default delay before the first retry.
    pub const DEFAULT_RETRY_DELAY: Duration = Duration::from_millis(100);
    /// Default of the longest delay between retries.
    pub const DEFAULT_MAX_RETRY_DELAY: Duration = Duration::from_secs(1);
    /// Default limit of the whole wait.
    pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);

    /// The defaults, each named at its setter.
    pub fn new() -> Self {
        Self::default()
    }

    /// Time to live of the lock: 1 ms to 10 years. Default: 30 s.
    ///
    /// An invalid TTL is `InvalidArgument` when the request is awaited.
    pub fn ttl<T>(mut self, ttl: T) -> Self
    where
        T: TryInto<Ttl>,
        LockError: From<T::Error>,
    {
        self.ttl = parse(ttl);
        self
    }

    /// Limits the whole wait, an attempt in flight included. Default: 5 s.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Ends the wait after this many polls: attempts that are made because a delay has passed.
    /// Default: no limit but the timeout.
    ///
    /// With 0, the wait ends as soon as an attempt finds the key held. Attempts for another reason do not
    /// count: the caller's turn in the line, a wake-up, or the end of the holder's lease.
    pub fn max_retries(mut self, retries: u32) -> Self {
        self.max_retries = Some(retries);
        self
    }

    /// Delay before the first retry. Default: 100 ms.
    pub fn retry_delay(mut self, delay: Duration) -> Self {
        self.retry_delay = delay;
        self
    }

    /// Longest delay between retries. Default: 1 s. A longer [`retry_delay`](Self::retry_delay) takes
    /// precedence.
    ///
    /// So a key is free for at most this long before the wait notices it.
    pub fn max_retry_delay(mut self, delay: Duration) -> Self {
        self.max_retry_delay = delay;
        self
    }

    /// How the delay grows, up to the [longest](Self::max_retry_delay). Default:
    /// [`Backoff::Exponential`].
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// How much of the delay is random. Default: [`Jitter::Equal`].
    pub fn jitter(mut self, jitter: Jitter) -> Self {
        self.jitter = jitter;
        self
    }

    /// Retries [retryable](LockError::is_retryable) failures, such as an unreachable store, until the
    /// timeout. Default: `false`; a failure ends the wait at once.
    ///
    /// The delays are those for a key that is held. SyncGuard releases in the background whatever an
    /// attempt with an unknown outcome may have acquired. If the last attempt fails, its error is the
    /// source of `AcquisitionTimeout`, unless the key was held before and only the timeout cut the attempt short.
    pub fn retry_failures(mut self, retry: bool) -> Self {
        self.retry_failures = retry;
        self
    }

    /// Renews the lease while the lock is held. Default: off; the lease ends with its TTL.
    ///
    /// The lease can still be lost: watch [`Lease::lost`](crate::Lease::lost) while you work.
    /// [`run`](crate::LockRequest::run) does so itself: it drops the section and fails with `LockLost`.
    pub fn auto_extend(mut self, auto_extend: AutoExtend) -> Self {
        self.auto_extend = Some(auto_extend);
        self
    }

    /// Handles a failed release of this lock that no caller waits for. Default: the
    /// handler of the `Locks`: see
    /// [`LocksBuilder::on_release_error`](crate::LocksBuilder::on_release_error).
    pub fn on_release_error(
        mut self,
        handler: impl Fn(&ReleaseFailure) + Send + Sync + 'static,
    ) -> Self {
        self.on_release_error = Some(ReleaseErrorHandler::new(handler));
        self
    }

    /// Ends the request with `Aborted` when the token is cancelled. Default: no token.
    ///
    /// The token ends the request before, during and between attempts. If it is already cancelled, nothing
    /// is sent. It does not interrupt the section, which may watch the token itself, nor the release at its
    /// end.
    pub fn cancel_on(mut self, token: &CancellationToken) -> Self {
        self.token = Some(token.clone());
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_those_of_the_documentation() {
        let options = LockOptions::new();
        assert_eq!(options.ttl.unwrap().as_duration(), Duration::from_secs(30));
        assert_eq!(options.timeout, Duration::from_secs(5));
        assert_eq!(options.retry_delay, Duration::from_millis(100));
        assert_eq!(options.max_retry_delay, Duration::from_secs(1));
        assert_eq!(options.backoff, Backoff::Exponential);
        assert_eq!(options.jitter, Jitter::Equal);
        assert_eq!(options.max_retries, None);
        assert!(!options.retry_failures);
        assert_eq!(options.auto_extend, None);
    }
}
