//! [`forward_calls!`](crate::forward_calls): the methods of a wrapper that do nothing of their own.

/// Writes methods of a [`LockBackend`](crate::backend::LockBackend) that only call another backend.
///
/// Name the backend to call, as a closure would, and then the methods. With
/// `#[deny(clippy::missing_trait_methods)]`, clippy reports a method that the wrapper has forgotten.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// use syncguard_core::backend::{LockBackend, ReleaseRequest};
/// use syncguard_core::{LockError, ReleaseResult, forward_calls};
///
/// /// A backend that counts its releases.
/// #[derive(Debug)]
/// struct Counting<B> {
///     inner: B,
///     releases: AtomicU64,
/// }
///
/// #[deny(clippy::missing_trait_methods)]
/// impl<B: LockBackend> LockBackend for Counting<B> {
///     type Fence = B::Fence;
///
///     async fn release(&self, request: ReleaseRequest<'_>) -> Result<ReleaseResult, LockError> {
///         self.releases.fetch_add(1, Ordering::Relaxed);
///         self.inner.release(request).await
///     }
///
///     forward_calls! { |counting| &counting.inner =>
///         capabilities acquire extend lookup_raw is_locked watch list attach preflight purge_expired close
///     }
/// }
/// ```
#[macro_export]
macro_rules! forward_calls {
    (|$this:ident| $to:expr => $($method:ident)+) => {
        $($crate::forward_calls! { @$method $this $to })+
    };
    (@capabilities $this:ident $to:expr) => {
        fn capabilities(&self) -> $crate::backend::Capabilities {
            let $this = self;
            $crate::backend::LockBackend::capabilities($to)
        }
    };
    (@attach $this:ident $to:expr) => {
        fn attach(&self, reporter: $crate::backend::Reporter) {
            let $this = self;
            $crate::backend::LockBackend::attach($to, reporter);
        }
    };
    (@acquire $($to:tt)+) => { $crate::forward_calls! {
        @call acquire AcquireRequest<'_>, $crate::backend::AcquireResult<Self::Fence>, $($to)+
    } };
    (@release $($to:tt)+) => { $crate::forward_calls! {
        @call release ReleaseRequest<'_>, $crate::ReleaseResult, $($to)+
    } };
    (@extend $($to:tt)+) => { $crate::forward_calls! {
        @call extend ExtendRequest<'_>, $crate::ExtendResult, $($to)+
    } };
    (@lookup_raw $($to:tt)+) => { $crate::forward_calls! {
        @call lookup_raw LookupRequest<'_>,
        ::core::option::Option<$crate::LockInfoDebug<Self::Fence>>, $($to)+
    } };
    (@is_locked $($to:tt)+) => { $crate::forward_calls! {
        @call is_locked IsLockedRequest<'_>, bool, $($to)+
    } };
    (@watch $($to:tt)+) => { $crate::forward_calls! {
        @call watch WatchRequest<'_>, ::core::option::Option<$crate::backend::Watch>, $($to)+
    } };
    (@list $($to:tt)+) => { $crate::forward_calls! {
        @call list ListRequest<'_>,
        ::core::option::Option<$crate::backend::ListPage<Self::Fence>>, $($to)+
    } };
    (@preflight $($to:tt)+) => { $crate::forward_calls! {
        @call preflight PreflightRequest, ::std::vec::Vec<$crate::Finding>, $($to)+
    } };
    (@purge_expired $($to:tt)+) => { $crate::forward_calls! {
        @call purge_expired PurgeRequest, u64, $($to)+
    } };
    (@close $($to:tt)+) => { $crate::forward_calls! {
        @call close CloseRequest, (), $($to)+
    } };
    (@call $method:ident $request:ident $(<$lifetime:lifetime>)?, $answer:ty, $this:ident $to:expr) => {
        fn $method(
            &self,
            request: $crate::backend::$request $(<$lifetime>)?,
        ) -> impl ::core::future::Future<
            Output = ::core::result::Result<$answer, $crate::LockError>,
        > + ::core::marker::Send {
            let $this = self;
            $crate::backend::LockBackend::$method($to, request)
        }
    };
}
