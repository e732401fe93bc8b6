//! What `Locks` does around a backend's preflight, purge and close.

use std::time::{Duration, Instant};

use syncguard_core::observe::Operation;
use syncguard_core::{CancellationToken, ErrorCode, Finding, Locks, Severity};
use syncguard_memory::MemoryBackend;

use crate::common::{Fault, FaultyBackend};

const HANGS: Duration = Duration::from_millis(50);

#[tokio::test]
async fn the_gravest_come_first_and_otherwise_order_is_kept() {
    let faulty = FaultyBackend::default();
    let finding = |severity, code| Finding::new(severity, code, "found", "fix");
    faulty.find([
        finding(Severity::Info, "a"),
        finding(Severity::Error, "b"),
        finding(Severity::Warning, "c"),
        finding(Severity::Error, "d"),
    ]);
    let findings = faulty.locks().preflight().await.unwrap();
    let codes: Vec<_> = findings.iter().map(Finding::code).collect();
    assert_eq!(codes, ["b", "d", "c", "a"]);
}

#[tokio::test]
async fn a_store_that_hangs_is_given_up_at_the_operation_timeout() {
    let faulty = FaultyBackend::default();
    let locks = faulty.builder().operation_timeout(HANGS).build();
    let (preflight, purge, close) = (
        Operation::Preflight,
        Operation::PurgeExpired,
        Operation::Close,
    );
    for operation in [preflight, purge, close] {
        faulty.plan(operation, [Fault::Hang]);
    }
    let begun = Instant::now();
    let errors = [
        locks.preflight().await.unwrap_err(),
        locks.purge_expired().await.unwrap_err(),
        locks.close().await.unwrap_err(),
    ];
    assert!(begun.elapsed() >= HANGS * 3);
    for (error, operation) in errors.iter().zip([preflight, purge, close]) {
        assert_eq!(error.code(), ErrorCode::NetworkTimeout);
        assert_eq!(error.operation(), Some(operation));
        assert_eq!(error.outcome_unknown(), operation == purge);
    }

    let token = CancellationToken::new();
    token.cancel();
    let before = faulty.calls(preflight);
    let error = locks.preflight().cancel_on(&token).await.unwrap_err();
    assert_eq!(
        (error.code(), error.outcome_unknown()),
        (ErrorCode::Aborted, false)
    );
    assert_eq!(faulty.calls(preflight), before);
}

#[tokio::test]
async fn memory_says_that_it_keeps_tasks_apart_and_no_processes() {
    let locks = Locks::new(MemoryBackend::default());
    let findings = locks.preflight().await.unwrap();
    let seen: Vec<_> = findings.iter().map(|f| (f.severity(), f.code())).collect();
    assert_eq!(seen, [(Severity::Info, "memory-one-process")]);
}

#[tokio::test]
async fn after_close_operations_fail_and_the_background_gives_up() {
    let faulty = FaultyBackend::default();
    let locks = faulty.locks();
    let held = locks.lock("held").await.unwrap();
    let refused = std::iter::repeat_n(Fault::Refuse(ErrorCode::ServiceUnavailable), 1_000);
    faulty.plan(Operation::Release, refused);
    drop(locks.lock("dropped").await.unwrap());
    let elsewhere = Locks::builder(faulty.clone()).build();

    locks.close().await.unwrap();
    locks.close().await.unwrap();
    let errors = [
        locks.lock("k").await.unwrap_err(),
        locks.is_locked("k").await.unwrap_err(),
        held.extend(HANGS).await.unwrap_err(),
        held.release().await.unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.code(), ErrorCode::ServiceUnavailable);
        assert!(!error.outcome_unknown() && error.to_string().contains("closed"));
    }
    locks.drain(Duration::from_secs(20)).await.unwrap();
    assert!(elsewhere.is_locked("dropped").await.unwrap());
    assert!(elsewhere.try_lock("k").await.unwrap().is_some());
}
