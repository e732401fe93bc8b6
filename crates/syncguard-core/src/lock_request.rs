//! [`LockRequest`] and [`TryLockRequest`]: what `lock` and `try_lock` return.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::backend::FenceToken;
use crate::call::Subject;
use crate::error::{Operation, parse};
use crate::guard::attempt;
use crate::observe::ReleaseFailure;
use crate::wait::wait;
use crate::{
    Attempt, AutoExtend, Backoff, Fence, Jitter, Lease, LockError, LockGuard, LockKey, LockOptions,
    Locks, Receipt, Ttl, section,
};

/// The future of the requests: one allocation.
type Boxed<T> = Pin<Box<dyn Future<Output = Result<T, LockError>> + Send>>;

impl<F: FenceToken> Locks<F> {
    /// Waits for `key` and acquires it, as locking a mutex does.
    ///
    /// Await the request for a [`LockGuard`], or [`run`](LockRequest::run) a section under the lock.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use syncguard_core::{Fence, LockError, Locks};
    /// # use syncguard_memory::MemoryBackend;
    /// # async fn charge(fence: Fence) -> u32 { 1 }
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), LockError> {
    /// # let locks = Locks::new(MemoryBackend::default());
    /// let guard = locks.lock("payment:42").await?;
    /// # drop(guard);
    /// let receipt = locks
    ///     .lock("payment:42")
    ///     .ttl(Duration::from_secs(60))
    ///     .timeout(Duration::from_secs(5))
    ///     .run(async |lease| charge(lease.fence()).await)
    ///     .await?;
    /// assert_eq!(receipt.into_value(), 1);
    /// # Ok(()) }
    /// ```
    pub fn lock<K>(&self, key: K) -> LockRequest<F>
    where
        K: TryInto<LockKey>,
        LockError: From<K::Error>,
    {
        LockRequest::new(self.clone(), parse(key))
    }

    /// Acquires `key` if it is free, in one attempt. It never waits for the holder.
    ///
    /// Await the request for an `Option<LockGuard>`. [`attempt`](TryLockRequest::attempt) also returns
    /// for how long the key stays held. [`run`](TryLockRequest::run) runs a section if the key is free.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use syncguard_core::{LockError, Locks};
    /// # use syncguard_memory::MemoryBackend;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), LockError> {
    /// # let locks = Locks::new(MemoryBackend::default());
    /// if let Some(guard) = locks.try_lock("report:daily").ttl(Duration::from_secs(60)).await? {
    ///     // ... the work, passing guard.fence() to whatever it writes to ...
    ///     assert!(guard.release().await?.is_released());
    /// }
    /// # Ok(()) }
    /// ```
    pub fn try_lock<K>(&self, key: K) -> TryLockRequest<F>
    where
        K: TryInto<LockKey>,
        LockError: From<K::Error>,
    {
        TryLockRequest::new(self.clone(), parse(key))
    }
}

/// Waits for a key: made by [`Locks::lock`].
///
/// Await it for a [`LockGuard`], or [`run`](Self::run) a section. Its setters are those of
/// [`LockOptions`]. By default, `lock` retries only contention, and a failure of the store ends the wait at once.
///
/// # Errors
/// - `InvalidArgument` for a bad key or TTL, before anything is sent.
/// - `AcquisitionTimeout` if the key stayed held; [`LockError::wait`] has the figures.
/// - `Aborted` if the token was cancelled.
/// - A failure of the store.
///
/// # Cancel safety
/// Safe: SyncGuard releases in the background whatever an attempt in flight may have acquired. Poll the
/// future or drop it: if it is kept and not polled, it keeps its place ahead of other callers of this
/// process.
#[must_use = "a request does nothing unless it is awaited"]
#[derive(Clone)]
pub struct LockRequest<F: FenceToken = Fence>(Parts<F>);

/// Acquires a key in one attempt: made by [`Locks::try_lock`].
///
/// Await it for an `Option<LockGuard>`, which is `None` if someone else holds the key;
/// [`attempt`](Self::attempt) it; or [`run`](Self::run) a section. Its setters are those of
/// [`LockOptions`] that concern an attempt.
///
/// # Errors
/// `InvalidArgument` for a bad key or TTL, before anything is sent; `Aborted` if the token was
/// cancelled; else a failure of the store.
///
/// # Cancel safety
/// Safe: SyncGuard releases in the background whatever a dropped attempt may have acquired.
#[must_use = "a request does nothing unless it is awaited"]
#[derive(Clone)]
pub struct TryLockRequest<F: FenceToken = Fence>(Parts<F>);

#[derive(Clone)]
struct Parts<F: FenceToken> {
    locks: Locks<F>,
    key: Result<LockKey, LockError>,
    options: LockOptions,
}

impl<F: FenceToken> LockRequest<F> {
    pub(crate) fn new(locks: Locks<F>, key: Result<LockKey, LockError>) -> Self {
        Self(Parts::new(locks, key))
    }

    /// Runs `section` under the lock, then releases it.
    ///
    /// The [`Receipt`] has what the section returned, also if that is an error, and also if the release
    /// failed. The token does not cancel the release.
    ///
    /// The protected work must be complete when the section returns: commit a transaction inside the
    /// section, not after it.
    ///
    /// # Errors
    /// The errors of the request. Also `LockLost`, if auto-extension is on and the lease was lost: `run`
    /// then drops the section at its current `await`. A failed release is in the receipt.
    ///
    /// # Panics
    /// If the section panics. The background then releases the lock.
    ///
    /// # Cancel safety
    /// Safe: dropping the future drops the section, and the background releases the lock.
    pub async fn run<S, T>(self, section: S) -> Result<Receipt<T>, LockError>
    where
        S: AsyncFnOnce(Lease<F>) -> T,
    {
        let Parts {
            locks,
            key,
            options,
        } = self.0;
        let guard = wait(&locks, key, &options).await?;
        section::run(guard, options.auto_extend, section).await
    }

    /// See [`LockOptions::timeout`]. Default: 5 s.
    pub fn timeout(self, timeout: Duration) -> Self {
        self.with(|options| options.timeout(timeout))
    }

    /// See [`LockOptions::max_retries`]. Default: no limit but the timeout.
    pub fn max_retries(self, retries: u32) -> Self {
        self.with(|options| options.max_retries(retries))
    }

    /// See [`LockOptions::retry_delay`]. Default: 100 ms.
    pub fn retry_delay(self, delay: Duration) -> Self {
        self.with(|options| options.retry_delay(delay))
    }

    /// See [`LockOptions::max_retry_delay`]. Default: 1 s.
    pub fn max_retry_delay(self, delay: Duration) -> Self {
        self.with(|options| options.max_retry_delay(delay))
    }

    /// See [`LockOptions::retry_failures`]. Default: `false`.
    pub fn retry_failures(self, retry: bool) -> Self {
        self.with(|options| options.retry_failures(retry))
    }

    /// See [`LockOptions::backoff`]. Default: [`Backoff::Exponential`].
    pub fn backoff(self, backoff: Backoff) -> Self {
        self.with(|options| options.backoff(backoff))
    }

    /// See [`LockOptions::jitter`]. Default: [`Jitter::Equal`].
    pub fn jitter(self, jitter: Jitter) -> Self {
        self.with(|options| options.jitter(jitter))
    }
}

impl<F: FenceToken> TryLockRequest<F> {
    pub(crate) fn new(locks: Locks<F>, key: Result<LockKey, LockError>) -> Self {
        Self(Parts::new(locks, key))
    }

    /// Makes the attempt. If someone else holds the key, the result says when the store will grant it.
    ///
    /// ```
    /// # use syncguard_core::{Attempt, LockError, Locks};
    /// # use syncguard_memory::MemoryBackend;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), LockError> {
    /// # let locks = Locks::new(MemoryBackend::default());
    /// match locks.try_lock("report:daily").attempt().await? {
    ///     Attempt::Acquired(guard) => println!("working under fence {}", guard.fence()),
    ///     Attempt::Locked { free_in, .. } => println!("try again in {free_in:?}"),
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As awaiting the request.
    ///
    /// # Cancel safety
    /// As awaiting the request.
    pub async fn attempt(self) -> Result<Attempt<F>, LockError> {
        self.0.attempt().await
    }

    /// Runs `section` under the lock and releases it, or returns `None` if someone else holds the key.
    ///
    /// # Errors
    /// As [`LockRequest::run`].
    ///
    /// # Panics
    /// If the section panics. The background then releases the lock.
    ///
    /// # Cancel safety
    /// As [`LockRequest::run`].
    pub async fn run<S, T>(self, section: S) -> Result<Option<Receipt<T>>, LockError>
    where
        S: AsyncFnOnce(Lease<F>) -> T,
    {
        let auto_extend = self.0.options.auto_extend;
        match self.attempt().await? {
            Attempt::Acquired(guard) => section::run(guard, auto_extend, section).await.map(Some),
            Attempt::Locked { .. } => Ok(None),
        }
    }
}

macro_rules! setters_of {
    ($($request:ident),+) => {$(
        impl<F: FenceToken> $request<F> {
            /// See [`LockOptions::ttl`]: a `Duration` or a [`Ttl`]. Default: 30 s.
            pub fn ttl<T>(self, ttl: T) -> Self
            where
                T: TryInto<Ttl>,
                LockError: From<T::Error>,
            {
                self.with(|options| options.ttl(ttl))
            }

            /// See [`LockOptions::auto_extend`]. Default: off.
            pub fn auto_extend(self, auto_extend: AutoExtend) -> Self {
                self.with(|options| options.auto_extend(auto_extend))
            }

            /// See [`LockOptions::on_release_error`]. Default: the handler of the `Locks`.
            pub fn on_release_error(
                self,
                handler: impl Fn(&ReleaseFailure) + Send + Sync + 'static,
            ) -> Self {
                self.with(|options| options.on_release_error(handler))
            }

            /// See [`LockOptions::cancel_on`]. Default: no token.
            pub fn cancel_on(self, token: &CancellationToken) -> Self {
                self.with(|options| options.cancel_on(token))
            }

            /// Replaces all options that were set before, the token included, by these.
            pub fn options(self, options: &LockOptions) -> Self {
                self.with(|_| options.clone())
            }

            fn with(mut self, choose: impl FnOnce(LockOptions) -> LockOptions) -> Self {
                self.0.options = choose(self.0.options);
                self
            }
        }

        impl<F: FenceToken> fmt::Debug for $request<F> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($request))
                    .field("key", &self.0.key)
                    .field("options", &self.0.options)
                    .finish_non_exhaustive()
            }
        }
    )+};
}

setters_of!(LockRequest, TryLockRequest);

impl<F: FenceToken> Parts<F> {
    fn new(locks: Locks<F>, key: Result<LockKey, LockError>) -> Self {
        Self {
            locks,
            key,
            options: LockOptions::new(),
        }
    }

    /// Makes one attempt. It borrows its fields: moved ones would be in memory twice until it ends.
    async fn attempt(&self) -> Result<Attempt<F>, LockError> {
        let Self {
            locks,
            key,
            options,
        } = self;
        let subject = Subject::new(Operation::Acquire);
        let key = &locks.store().admit(subject, key.clone())?;
        let ttl = locks.store().admit(subject.key(key), options.ttl.clone())?;
        let mut attempted = attempt(locks, key, ttl, options, None).await?;
        if let Attempt::Acquired(guard) = &mut attempted {
            let place = locks.lines().enter(key);
            place.hold(guard, None);
            guard.keep(place);
        }
        Ok(attempted)
    }
}

impl<F: FenceToken> IntoFuture for LockRequest<F> {
    type Output = Result<LockGuard<F>, LockError>;
    type IntoFuture = Boxed<LockGuard<F>>;

    fn into_future(self) -> Self::IntoFuture {
        let Parts {
            locks,
            key,
            options,
        } = self.0;
        Box::pin(async move { wait(&locks, key, &options).await })
    }
}

impl<F: FenceToken> IntoFuture for TryLockRequest<F> {
    type Output = Result<Option<LockGuard<F>>, LockError>;
    type IntoFuture = Boxed<Option<LockGuard<F>>>;

    fn into_future(self) -> Self::IntoFuture {
        let parts = self.0;
        Box::pin(async move { Ok(parts.attempt().await?.acquired()) })
    }
}
