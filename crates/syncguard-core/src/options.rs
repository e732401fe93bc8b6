//! [`LockOptions`]: the choices of a request, as a value.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::locks::parse;
use crate::observe::{ReleaseErrorHandler, ReleaseFailure};
use crate::{AutoExtend, Backoff, Jitter, LockError, Ttl};

/// How a lock is waited for, held and released: the choices of a
/// [`LockRequest`](crate::LockRequest), as a value that requests can share.
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
/// A [`TryLockRequest`](crate::TryLockRequest) uses the TTL, the auto-extension, the handler and the
/// token alone: it does not wait.
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
    /// Delay before the first retry, when none is given.
    pub const DEFAULT_RETRY_DELAY: Duration = Duration::from_millis(100);
    /// Longest delay between retries, when none is given.
    pub const DEFAULT_MAX_RETRY_DELAY: Duration = Duration::from_secs(1);
    /// Limit of the whole wait, when none is given.
    pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);

    /// The defaults, each named at its setter.
    pub fn new() -> Self {
        Self::default()
    }

    /// Time to live of the lock: 1 ms to 10 years. Default: 30 s.
    ///
    /// A bad one is `InvalidArgument` when the request is awaited.
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

    /// Ends the wait after so many polls: attempts that are made only because a delay has passed.
    /// Default: no limit but the timeout.
    ///
    /// With 0, it gives up as soon as an attempt finds the key held. Attempts for another reason do not
    /// count: its turn in the line, or the end of the holder's lease.
    pub fn max_retries(mut self, retries: u32) -> Self {
        self.max_retries = Some(retries);
        self
    }

    /// Delay before the first retry. Default: 100 ms.
    pub fn retry_delay(mut self, delay: Duration) -> Self {
        self.retry_delay = delay;
        self
    }

    /// Longest delay between retries. Default: 1 s. A longer [`retry_delay`](Self::retry_delay) counts
    /// in its place.
    ///
    /// It is the longest time that a key can rest free before the wait notices.
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

    /// Waits through failures that may pass, such as a store that is away:
    /// [`is_retryable`](LockError::is_retryable) ones. Default: `false`; a failure ends the wait at once.
    ///
    /// It asks again after the same delays as for a key that is held. The background releases what an
    /// attempt with an unknown outcome may have acquired. If the last attempt fails, its error is the
    /// source of `AcquisitionTimeout`.
    pub fn retry_failures(mut self, retry: bool) -> Self {
        self.retry_failures = retry;
        self
    }

    /// Renews the lease for as long as the lock is held. Default: off; the lease ends with its TTL.
    ///
    /// Watch [`Lease::lost`](crate::Lease::lost) beside the work: the lease can still be lost.
    /// [`run`](crate::LockRequest::run) does so itself, drops the section and fails with `LockLost`.
    pub fn auto_extend(mut self, auto_extend: AutoExtend) -> Self {
        self.auto_extend = Some(auto_extend);
        self
    }

    /// Handles a failed release of this lock where no caller waits for the answer. Default: the
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
    /// It is heeded before each attempt, during one, and between them. With a token that is cancelled
    /// already, nothing is sent. It interrupts neither the section, which may watch the token itself,
    /// nor the release at its end.
    pub fn cancel_on(mut self, token: &CancellationToken) -> Self {
        self.token = Some(token.clone());
        self
    }
}
