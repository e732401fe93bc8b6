//! What `Managed` does around a backend's preflight.

mod common;

use std::future::pending;
use std::time::{Duration, Instant};

use common::FaultyStore;
use syncguard_core::{
    Cancellable as _, CancellationToken, ErrorCode, Finding, LockError, Managed, Operation, Policy,
    Preflight, Severity,
};
use syncguard_memory::MemoryBackend;

const HANGS: Duration = Duration::from_millis(50);

/// Has findings in the order of the alphabet.
impl Preflight for FaultyStore {
    async fn preflight(&self) -> Result<Vec<Finding>, LockError> {
        if self.calls(Operation::IsLocked) > 0 {
            return pending().await;
        }
        let finding = |severity, code| Finding::new(severity, code, "found", "fix");
        Ok(vec![
            finding(Severity::Info, "a"),
            finding(Severity::Error, "b"),
            finding(Severity::Warning, "c"),
            finding(Severity::Error, "d"),
        ])
    }
}

#[tokio::test]
async fn the_gravest_come_first_and_otherwise_order_is_kept() {
    let findings = Managed::new(FaultyStore::default())
        .preflight()
        .await
        .unwrap();
    let codes: Vec<_> = findings.iter().map(Finding::code).collect();
    assert_eq!(codes, ["b", "d", "c", "a"]);
}

#[tokio::test]
async fn a_store_that_hangs_is_given_up_at_the_operation_timeout() {
    let store = FaultyStore::default();
    let policy = Policy::new().with_operation_timeout(HANGS);
    let backend = Managed::with_policy(store, policy);
    let _ = syncguard_core::is_locked(&backend, "k").await.unwrap();

    let begun = Instant::now();
    let error = backend.preflight().await.unwrap_err();
    assert!(begun.elapsed() >= HANGS && begun.elapsed() < Duration::from_secs(5));
    assert_eq!(error.code(), ErrorCode::NetworkTimeout);
    assert_eq!(error.operation(), Some(Operation::Setup));
    assert!(!error.outcome_unknown(), "it only reads");

    let token = CancellationToken::new();
    token.cancel();
    let error = backend.preflight().cancelled_by(&token).await.unwrap_err();
    assert_eq!(
        (error.code(), error.outcome_unknown()),
        (ErrorCode::Aborted, false)
    );
}

#[tokio::test]
async fn memory_says_that_it_keeps_tasks_apart_and_no_processes() {
    let findings = MemoryBackend::default().preflight().await.unwrap();
    let seen: Vec<_> = findings.iter().map(|f| (f.severity(), f.code())).collect();
    assert_eq!(seen, [(Severity::Info, "memory-one-process")]);
}
