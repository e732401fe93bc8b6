//! Requests to a backend, with a deadline that no test reaches.

use std::time::Duration;

use syncguard_core::backend::{
    AcquireRequest, ExtendRequest, IsLockedRequest, Lookup, LookupRequest, PurgeRequest,
    ReleaseRequest, WatchRequest,
};
use syncguard_core::{LockId, LockKey, Ttl};
use tokio::time::Instant;

pub fn acquire<'a>(key: &'a LockKey, id: &'a LockId, ttl: Ttl) -> AcquireRequest<'a> {
    AcquireRequest::new(key, id, ttl, far_ahead())
}

pub fn release(id: &LockId) -> ReleaseRequest<'_> {
    ReleaseRequest::new(id, far_ahead())
}

pub fn extend(id: &LockId, ttl: Ttl) -> ExtendRequest<'_> {
    ExtendRequest::new(id, ttl, far_ahead())
}

pub fn is_locked(key: &LockKey) -> IsLockedRequest<'_> {
    IsLockedRequest::new(key, far_ahead())
}

pub fn watch(key: &LockKey) -> WatchRequest<'_> {
    WatchRequest::new(key, far_ahead())
}

pub fn lookup(by: Lookup<'_>) -> LookupRequest<'_> {
    LookupRequest::new(by, far_ahead())
}

pub fn purge(limit: u32) -> PurgeRequest {
    PurgeRequest::new(limit, far_ahead())
}

fn far_ahead() -> Instant {
    Instant::now() + Duration::from_secs(600)
}
