//! What the compiler proves: fences without `Option`, and auto traits of the whole public API.

use std::fmt::Debug;

use syncguard_core::backend::{
    AcquireRequest, AcquireResult, Capabilities, Clause, CloseRequest, ExtendRequest,
    FailureReason, Grant, IsLockedRequest, ListPage, ListPosition, ListRequest, Lookup,
    LookupRequest, NoFence, PreflightRequest, PurgeRequest, ReleaseRequest, Reporter,
    TimeAuthority,
};
use syncguard_core::list::{KeyPrefix, ListCursor, ListLocks, LockPage};
use syncguard_core::observe::{
    ClockSkew, Operation, OperationEnd, OperationOutcome, ReclaimEnd, ReclaimResult,
    ReleaseFailure, ReleaseStage, WaitEnd, WaitOutcome, WaitStart, WaitSummary,
};
use syncguard_core::{
    Attempt, AutoExtend, Backoff, ErrorCode, ExtendResult, Fence, Finding, HashId, Jitter, Lease,
    LockError, LockGuard, LockId, LockInfo, LockInfoDebug, LockKey, LockOptions, LockRequest,
    Locks, LocksBuilder, Receipt, ReleaseResult, Request, Severity, TryLockRequest, Ttl,
};
use syncguard_memory::{ManualClock, MemoryBackend};

#[test]
fn a_fence_exists_only_on_backends_that_give_one() {
    struct NoMethod;
    /// The method of a type comes before that of a trait.
    trait Otherwise {
        fn fence(&self) -> NoMethod {
            NoMethod
        }
    }
    impl<T> Otherwise for T {}

    fn of_lease(lease: &Lease<NoFence>) -> NoMethod {
        lease.fence()
    }
    fn of_guard(guard: &LockGuard<NoFence>) -> NoMethod {
        guard.fence()
    }
    fn of_fenced(lease: &Lease<Fence>) -> Fence {
        lease.fence()
    }
    let _compiled = (of_lease, of_guard, of_fenced);
}

#[test]
fn everything_can_be_sent_and_shared() {
    fn shared<T: Send + Sync + Unpin + Debug>() {}
    fn sent<T: Send + Unpin + Debug>() {}
    shared::<(Locks, Locks<NoFence>, LocksBuilder, LockOptions, AutoExtend)>();
    shared::<(LockRequest, TryLockRequest, Attempt, Backoff, Jitter)>();
    shared::<(LockGuard, LockGuard<NoFence>, Lease, Receipt<u8>)>();
    shared::<(LockKey, LockId, Ttl, Fence, NoFence, HashId)>();
    shared::<(ReleaseResult, ExtendResult, LockInfo, LockInfoDebug)>();
    shared::<(LockError, ErrorCode, Operation, WaitSummary)>();
    shared::<(Finding, Severity, Capabilities, TimeAuthority, Clause)>();
    shared::<(AcquireResult, Grant, FailureReason, Lookup<'_>, Reporter)>();
    shared::<(AcquireRequest<'_>, ReleaseRequest<'_>, ExtendRequest<'_>)>();
    shared::<(IsLockedRequest<'_>, LookupRequest<'_>)>();
    shared::<(ListRequest<'_>, ListPage, ListPosition)>();
    shared::<(
        ListLocks<LockInfo>,
        LockPage<LockInfo>,
        ListCursor,
        KeyPrefix,
    )>();
    shared::<(PreflightRequest, PurgeRequest, CloseRequest)>();
    shared::<(OperationEnd<'_>, OperationOutcome, ClockSkew)>();
    shared::<(WaitStart<'_>, WaitEnd<'_>, WaitOutcome)>();
    shared::<(ReclaimEnd<'_>, ReclaimResult, ReleaseFailure, ReleaseStage)>();
    shared::<(MemoryBackend, ManualClock)>();
    // A future that one task polls.
    sent::<Request<LockInfo>>();
}

#[test]
fn the_contract_is_numbered_without_gaps_or_repeats() {
    let clauses = syncguard_core::backend::clauses();
    assert!(clauses.len() >= 35, "{} clauses", clauses.len());
    let mut expected = 0;
    for (index, clause) in clauses.iter().enumerate() {
        let (series, number) = clause.id.split_at(1);
        let continues = index > 0 && clauses[index - 1].id.starts_with(series);
        expected = if continues { expected + 1 } else { 1 };
        assert_eq!(number, expected.to_string(), "clause {}", clause.id);
    }
}
