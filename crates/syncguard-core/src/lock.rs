//! [`lock()`]: wait for a key, run a section, give the key back.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::cancel::aborted;
use crate::error::WaitSummary;
use crate::guard::attempt;
use crate::managed::current_runtime;
use crate::ttl::DEFAULT_TTL;
use crate::wait::Wait;
use crate::{
    AutoExtend, Backoff, ErrorCode, Jitter, Lease, LockError, LockGuard, LockKey, ManagedBackend,
    Operation, ReleaseResult, Ttl, hash_key,
};

/// Further attempts after the first, when none are given.
pub const DEFAULT_MAX_RETRIES: u32 = 10;
/// Delay before the first retry, when none is given.
pub const DEFAULT_RETRY_DELAY: Duration = Duration::from_millis(100);
/// How long [`lock()`] waits in all, when no timeout is given.
pub const DEFAULT_LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// Time kept back from a delay cut short, so that one more attempt fits in before the timeout.
const LAST_ATTEMPT: Duration = Duration::from_millis(50);

/// How [`lock()`] waits and for how long it holds.
///
/// ```
/// # use std::time::Duration;
/// # use syncguard_core::{Backoff, LockOptions};
/// let patient = LockOptions::new()
///     .with_ttl(Duration::from_secs(60))
///     .with_timeout(Duration::from_secs(30))
///     .with_max_retries(1_000)
///     .with_backoff(Backoff::Fixed);
/// ```
#[derive(Debug, Clone)]
pub struct LockOptions {
    ttl: Duration,
    max_retries: u32,
    retry_delay: Duration,
    backoff: Backoff,
    jitter: Jitter,
    timeout: Duration,
    cancellation: Option<CancellationToken>,
    auto_extend: Option<AutoExtend>,
}

impl Default for LockOptions {
    fn default() -> Self {
        Self {
            ttl: DEFAULT_TTL.as_duration(),
            max_retries: DEFAULT_MAX_RETRIES,
            retry_delay: DEFAULT_RETRY_DELAY,
            backoff: Backoff::default(),
            jitter: Jitter::default(),
            timeout: DEFAULT_LOCK_TIMEOUT,
            cancellation: None,
            auto_extend: None,
        }
    }
}

impl LockOptions {
    /// The defaults, each named at its setter.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Time to live of the lock: 1 ms to 10 years. Default: 30 s.
    #[must_use]
    pub fn with_ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Attempts after the first one. Default: 10.
    #[must_use]
    pub fn with_max_retries(mut self, retries: u32) -> Self {
        self.max_retries = retries;
        self
    }

    /// Delay before the first retry. Default: 100 ms.
    #[must_use]
    pub fn with_retry_delay(mut self, delay: Duration) -> Self {
        self.retry_delay = delay;
        self
    }

    /// How the delay grows. Default: [`Backoff::Exponential`].
    #[must_use]
    pub fn with_backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// How much of the delay is random. Default: [`Jitter::Equal`].
    #[must_use]
    pub fn with_jitter(mut self, jitter: Jitter) -> Self {
        self.jitter = jitter;
        self
    }

    /// Bounds the whole wait, an attempt in flight included. Default: 5 s.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Ends the wait with `Aborted` when the token is cancelled. Default: none.
    ///
    /// It is heeded before each attempt, during one, and between them. It does not interrupt the
    /// section, which may watch the token itself, nor the release at the end.
    #[must_use]
    pub fn with_cancellation(mut self, token: CancellationToken) -> Self {
        self.cancellation = Some(token);
        self
    }

    /// Keeps the lease alive while the section runs. Default: off, the TTL is all there is.
    ///
    /// If the lease is lost all the same, the section's future is dropped and [`lock()`] fails with
    /// `LockLost`.
    #[must_use]
    pub fn with_auto_extend(mut self, auto_extend: AutoExtend) -> Self {
        self.auto_extend = Some(auto_extend);
        self
    }
}

/// What came of a section that [`lock()`] ran.
#[derive(Debug, Clone)]
#[must_use]
pub struct Receipt<T> {
    value: T,
    ending: Ending,
}

#[derive(Debug, Clone)]
enum Ending {
    Released,
    Overran,
    ReleaseFailed(LockError),
}

impl<T> Receipt<T> {
    /// What the section returned.
    #[must_use]
    pub fn value(&self) -> &T {
        &self.value
    }

    /// What the section returned.
    #[must_use]
    pub fn into_value(self) -> T {
        self.value
    }

    /// Whether the lock was gone when the section ended: it ran unprotected for a while.
    ///
    /// Choose a longer TTL, and have the resource check fences.
    #[must_use]
    pub fn overran(&self) -> bool {
        matches!(self.ending, Ending::Overran)
    }

    /// Why the lock could not be given back at once. The release goes on in the background.
    #[must_use]
    pub fn release_error(&self) -> Option<&LockError> {
        match &self.ending {
            Ending::ReleaseFailed(error) => Some(error),
            Ending::Released | Ending::Overran => None,
        }
    }
}

/// Waits for `key`, runs `section` while holding it, and gives it back.
///
/// Only contention is retried; a failure of the store ends the wait at once. What the section
/// returns, an error of its own included, is in the [`Receipt`], whatever becomes of the release.
///
/// ```
/// # use syncguard_core::{LockOptions, lock};
/// # use syncguard_memory::MemoryBackend;
/// # async fn charge(fence: syncguard_core::Fence) -> u32 { 1 }
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), syncguard_core::LockError> {
/// # let backend = MemoryBackend::default();
/// let receipt = lock(&backend, "payment:42", LockOptions::new(), async |lease| {
///     charge(lease.fence()).await
/// })
/// .await?;
/// assert_eq!(receipt.into_value(), 1);
/// # Ok(()) }
/// ```
///
/// # Errors
/// - `InvalidArgument` for a bad key or TTL, before any I/O.
/// - `AcquisitionTimeout` if the key stayed held; [`LockError::wait`] has the figures.
/// - `Aborted` if the options' token was cancelled.
/// - `LockLost` if auto-extension is on and the lease was lost; the section is then dropped at its
///   current `await`.
/// - A failure of the store while acquiring. One while releasing is in the receipt.
///
/// # Panics
/// If the section panics. The lock is then released in the background.
///
/// # Cancel safety
/// Safe: dropping the future drops the section and releases the lock in the background.
pub async fn lock<B, K, F, T>(
    backend: &B,
    key: K,
    options: LockOptions,
    section: F,
) -> Result<Receipt<T>, LockError>
where
    B: ManagedBackend,
    K: TryInto<LockKey>,
    LockError: From<K::Error>,
    F: AsyncFnOnce(Lease<B>) -> T,
{
    let key = key.try_into()?;
    let guard = wait_for(backend, &key, &options).await.map_err(|error| {
        let error = error.with_key(&key);
        if error.operation().is_some() {
            error
        } else {
            error.with_operation(Operation::Lock)
        }
    })?;
    let (guard, value) = hold(guard, options.auto_extend, section).await?;
    let ending = match guard.release().await {
        Ok(ReleaseResult::Released) => Ending::Released,
        Ok(ReleaseResult::NotHeld { .. }) => {
            tracing::warn!(
                key_hash = %hash_key(key.as_str()),
                "a section outlived its lock; choose a longer TTL"
            );
            Ending::Overran
        }
        Err(error) => {
            backend.policy().report_release_error(&error);
            Ending::ReleaseFailed(error)
        }
    };
    Ok(Receipt { value, ending })
}

/// Runs the section, and drops it if a lease that was to be kept alive is lost.
async fn hold<B, F, T>(
    guard: LockGuard<B>,
    auto_extend: Option<AutoExtend>,
    section: F,
) -> Result<(LockGuard<B>, T), LockError>
where
    B: ManagedBackend,
    F: AsyncFnOnce(Lease<B>) -> T,
{
    let lease = guard.lease();
    let Some(auto_extend) = auto_extend else {
        let value = section(lease).await;
        return Ok((guard, value));
    };
    let guard = guard.with_auto_extend(auto_extend);
    let value = tokio::select! {
        biased;
        value = section(lease) => Some(value),
        () = guard.lost() => None,
    };
    match value {
        Some(value) => Ok((guard, value)),
        None => {
            let message = "the lease could not be kept; the section was dropped unfinished";
            let error = LockError::new(ErrorCode::LockLost, message)
                .with_operation(Operation::Lock)
                .with_key(guard.key())
                .with_lock_id(guard.lock_id());
            guard.abandon();
            Err(error)
        }
    }
}

async fn wait_for<B: ManagedBackend>(
    backend: &B,
    key: &LockKey,
    options: &LockOptions,
) -> Result<LockGuard<B>, LockError> {
    let ttl = Ttl::new(options.ttl)?;
    current_runtime()?;
    let token = options.cancellation.as_ref();
    if token.is_some_and(CancellationToken::is_cancelled) {
        return Err(aborted());
    }
    let wait = Wait::begin(backend.policy().observers());
    let contend = contend(backend, key, ttl, options, &wait);
    let outcome = match token {
        None => contend.await,
        Some(token) => tokio::select! {
            biased;
            () = token.cancelled() => Err(wait.aborted()),
            guard = contend => guard,
        },
    };
    wait.end(&outcome);
    outcome
}

/// Tries until the options say to stop.
async fn contend<B: ManagedBackend>(
    backend: &B,
    key: &LockKey,
    ttl: Ttl,
    options: &LockOptions,
    wait: &Wait<'_>,
) -> Result<LockGuard<B>, LockError> {
    // A timeout beyond what the clock can count is no timeout.
    let deadline = wait
        .started()
        .checked_add(options.timeout)
        .unwrap_or_else(|| wait.started() + Ttl::MAX.as_duration());
    let mut retries = 0;
    loop {
        wait.attempt_begins();
        let answer = timeout_at(deadline, attempt(backend, key, ttl)).await;
        wait.attempt_ended();
        match answer {
            Ok(Ok(Some(guard))) => return Ok(guard),
            Ok(Ok(None)) => {}
            Ok(Err(error)) => return Err(error.with_wait(wait.summary())),
            Err(_) => {
                let cause = "the last attempt had no answer yet";
                return Err(timed_out(wait.summary(), cause).with_outcome_unknown());
            }
        }
        if retries >= options.max_retries {
            let cause = "the key stayed held through all retries";
            return Err(timed_out(wait.summary(), cause));
        }
        let mut pause = options
            .backoff
            .delay(options.jitter, options.retry_delay, retries);
        let left = deadline.saturating_duration_since(Instant::now());
        if pause >= left {
            // Too long: come back a little before the timeout instead, once.
            pause = left.saturating_sub(LAST_ATTEMPT);
            if pause.is_zero() {
                let cause = "the key stayed held until the timeout";
                return Err(timed_out(wait.summary(), cause));
            }
        }
        tokio::time::sleep(pause).await;
        retries += 1;
    }
}

fn timed_out(wait: WaitSummary, cause: &str) -> LockError {
    let WaitSummary { attempts, waited } = wait;
    let plural = if attempts == 1 { "" } else { "s" };
    LockError::new(
        ErrorCode::AcquisitionTimeout,
        format!("gave up after {attempts} attempt{plural} in {waited:.1?}: {cause}"),
    )
    .with_wait(wait)
}
