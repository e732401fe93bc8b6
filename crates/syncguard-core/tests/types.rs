//! What the compiler proves: fences without `Option`, and auto traits of the whole public API.

use syncguard_core::{
    AcquireResult, AnyBackend, Backoff, Capabilities, Clause, ErrorCode, ExtendResult,
    FailureReason, Fence, Finding, Grant, HashId, Jitter, Lease, LockError, LockGuard, LockId,
    LockInfo, LockInfoDebug, LockKey, LockOptions, Lookup, Managed, NoFence, Operation, Policy,
    Receipt, ReleaseResult, Severity, TimeAuthority, Ttl, WaitSummary,
};
use syncguard_memory::{ManualClock, MemoryBackend, MemoryStore};

#[test]
fn a_fence_exists_only_on_backends_that_give_one() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/compile_fail/*.rs");
}

#[test]
fn everything_can_be_sent_and_shared() {
    fn check<T: Send + Sync + Unpin + std::fmt::Debug>() {}
    check::<(
        AcquireResult,
        ReleaseResult,
        ExtendResult,
        FailureReason,
        Grant,
    )>();
    check::<(
        LockInfo,
        LockInfoDebug,
        Lookup<'_>,
        HashId,
        LockKey,
        LockId,
        Ttl,
        Fence,
        NoFence,
    )>();
    check::<(
        LockError,
        ErrorCode,
        Operation,
        WaitSummary,
        Capabilities,
        TimeAuthority,
        Clause,
    )>();
    check::<(LockOptions, Backoff, Jitter, Receipt<u8>, Policy)>();
    check::<(Managed<MemoryStore>, AnyBackend, AnyBackend<NoFence>)>();
    check::<(
        Lease<MemoryBackend>,
        LockGuard<MemoryBackend>,
        LockGuard<AnyBackend>,
    )>();
    check::<(MemoryStore, ManualClock)>();
    check::<(Finding, Severity)>();
}

#[test]
fn the_contract_is_numbered_without_gaps_or_repeats() {
    let clauses = syncguard_core::clauses();
    assert!(clauses.len() >= 35, "{} clauses", clauses.len());
    let mut expected = 0;
    for (index, clause) in clauses.iter().enumerate() {
        let (series, number) = clause.id.split_at(1);
        let continues = index > 0 && clauses[index - 1].id.starts_with(series);
        expected = if continues { expected + 1 } else { 1 };
        assert_eq!(number, expected.to_string(), "clause {}", clause.id);
    }
}
