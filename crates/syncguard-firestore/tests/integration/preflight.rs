//! The preflight on databases and clocks with and without a fault.

use std::time::Duration;

use syncguard_core::{ErrorCode, Finding, Locks, Severity};
use syncguard_firestore::gcloud_sdk::google::firestore::v1::firestore_client::FirestoreClient;
use syncguard_firestore::gcloud_sdk::google_cloud_auth::credentials::anonymous;
use syncguard_firestore::{FirestoreApi, FirestoreBackend, FirestoreOptions};
use syncguard_testkit::FirestoreEmulator;
use tonic::Code;

use crate::common::proxy::{Fault, Proxy};
use crate::common::{Database, now_ms, take, warm_up};

const INFO: Severity = Severity::Info;
const ERROR: Severity = Severity::Error;
const WARNING: Severity = Severity::Warning;

fn seen(findings: &[Finding]) -> Vec<(Severity, &'static str)> {
    findings.iter().map(|f| (f.severity(), f.code())).collect()
}

async fn findings_of(backend: FirestoreBackend) -> Vec<Finding> {
    // An emulator that has just started is slow on a busy machine.
    let patient = Locks::builder(backend).operation_timeout(Duration::from_secs(60));
    patient.build().preflight().await.unwrap()
}

#[tokio::test]
async fn a_database_in_order_has_no_findings_and_is_left_as_it_was() {
    let database = Database::new();
    let backend = database.backend().await;
    assert_eq!(findings_of(backend.clone()).await, []);
    assert!(database.list("locks").await.is_empty());
    assert!(database.list("fence_counters").await.is_empty());

    let _ = take(&backend, "k").await;
    let before = (
        database.only("locks").await,
        database.only("fence_counters").await,
    );
    assert_eq!(findings_of(backend).await, []);
    let after = (
        database.only("locks").await,
        database.only("fence_counters").await,
    );
    assert_eq!(after, before);
}

#[tokio::test]
async fn it_takes_six_requests() {
    let (proxy, database) = Proxy::before(&Database::new()).await;
    let backend = database.backend().await;
    assert_eq!(findings_of(backend).await, []);
    assert_eq!(
        proxy.requests(),
        "BatchGetDocuments 1, Commit 1, Listen 1, RunQuery 3"
    );
}

#[tokio::test]
async fn permissions_that_rules_deny() {
    let rules = |allowed: &str| {
        format!(
            "rules_version = '2';\n\
             service cloud.firestore {{\n  match /databases/{{database}}/documents {{\n    \
             match /{{document=**}} {{ {allowed} }}\n  }}\n}}\n"
        )
    };
    for (allowed, denied) in [
        ("allow read, write: if true;", None),
        ("allow read: if true;", Some("write documents")),
        (
            "allow read, write: if false;",
            Some("read documents, query locks, write documents"),
        ),
    ] {
        let emulator = FirestoreEmulator::start_with_rules(&rules(allowed)).unwrap();
        warm_up(&emulator.host());
        let database = Database::on(emulator.host());
        // Without the header that says it is the owner.
        let path = format!("projects/{}/databases/(default)", database.project);
        let client = FirestoreApi::from_function_with_credentials(
            FirestoreClient::new,
            format!("http://{}", database.host),
            Some(path),
            anonymous::Builder::new().build(),
        );
        let client = client.await.unwrap();
        let backend =
            FirestoreBackend::with_client(client, &database.project, FirestoreOptions::new());
        let findings = findings_of(backend.unwrap()).await;
        let Some(denied) = denied else {
            assert_eq!(findings, [], "{allowed}");
            continue;
        };
        assert_eq!(
            seen(&findings),
            [(ERROR, "firestore-missing-permissions")],
            "{allowed}"
        );
        assert_eq!(findings[0].found(), format!("no permission to {denied}"));
        assert!(database.list("locks").await.is_empty());
        assert!(database.list("fence_counters").await.is_empty());
    }
}

/// The emulator has every index, so the proxy answers as Firestore does without one.
#[tokio::test]
async fn indexes_that_are_missing() {
    let (proxy, database) = Proxy::before(&Database::new()).await;
    let backend = database.backend().await;
    let missing = Fault::Refused(Code::FailedPrecondition);
    for (queries_before, finding) in [
        (0, (ERROR, "firestore-index-missing")),
        (1, (WARNING, "firestore-expiry-index-missing")),
        (2, (INFO, "firestore-key-index-missing")),
    ] {
        for _ in 0..queries_before {
            proxy.fail_next("RunQuery", Fault::None);
        }
        proxy.fail_next("RunQuery", missing);
        assert_eq!(seen(&findings_of(backend.clone()).await), [finding]);
    }
}

#[tokio::test]
async fn a_server_that_gives_no_wake_ups() {
    let (proxy, database) = Proxy::before(&Database::new()).await;
    for fault in [
        Fault::Refused(Code::PermissionDenied),
        Fault::Refused(Code::Unimplemented),
        Fault::PlainHttp(404),
        Fault::Lost,
    ] {
        let backend = database.backend().await;
        proxy.fail_next("Listen", fault);
        assert_eq!(
            seen(&findings_of(backend).await),
            [(INFO, "firestore-wake-ups-unavailable")],
            "{fault:?}"
        );
    }
}

/// Not a missing role: the finding and the error of an operation say what to do instead.
#[tokio::test]
async fn denials_of_google_itself() {
    let (proxy, database) = Proxy::before(&Database::new()).await;
    let locks = database.locks().await;
    for (reason, code, fix) in [
        (
            "SERVICE_DISABLED",
            "firestore-api-disabled",
            "gcloud services enable",
        ),
        ("BILLING_DISABLED", "firestore-billing-disabled", "billing"),
        (
            "USER_PROJECT_DENIED",
            "firestore-quota-project-denied",
            "quota project",
        ),
        (
            "CONSUMER_INVALID",
            "firestore-quota-project-denied",
            "quota project",
        ),
        (
            "ACCESS_TOKEN_SCOPE_INSUFFICIENT",
            "firestore-scope-insufficient",
            "scope",
        ),
        (
            "IAM_PERMISSION_DENIED",
            "firestore-missing-permissions",
            "roles/datastore.user",
        ),
    ] {
        for method in ["BatchGetDocuments", "RunQuery", "RunQuery", "Commit"] {
            proxy.fail_next(method, Fault::Denied(reason));
        }
        let findings = locks.preflight().await.unwrap();
        assert_eq!(seen(&findings), [(ERROR, code)], "{reason}");
        assert!(findings[0].fix().contains(fix), "{findings:?}");

        proxy.fail_next("BatchGetDocuments", Fault::Denied(reason));
        let error = locks.is_locked("k").await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::AuthFailed);
        assert!(error.message().contains(fix), "{error:?}");
    }
}

#[tokio::test]
async fn credentials_that_are_refused_and_a_server_that_is_away_are_errors() {
    let (proxy, database) = Proxy::before(&Database::new()).await;
    let locks = database.locks().await;
    for method in ["BatchGetDocuments", "RunQuery", "Commit"] {
        for (refusal, expected) in [
            (Code::Unauthenticated, ErrorCode::AuthFailed),
            (Code::Unavailable, ErrorCode::ServiceUnavailable),
        ] {
            proxy.fail_next(method, Fault::Refused(refusal));
            let error = locks.preflight().await.unwrap_err();
            assert_eq!(error.code(), expected, "{method}: {error:?}");
            assert!(!error.outcome_unknown());
        }
    }
}

#[tokio::test]
async fn clocks_that_are_off() {
    let database = Database::new();
    // By so much that the time an answer takes, which is no skew, does not matter. The ladder is a
    // unit test.
    for (off_ms, expected) in [
        (3_600_000, vec![(ERROR, "firestore-clock-skew")]),
        (-3_600_000, vec![(ERROR, "firestore-clock-skew")]),
        (5_000, vec![(ERROR, "firestore-clock-skew")]),
        (0, vec![]),
    ] {
        let off = || FirestoreOptions::new().wall_clock(move || now_ms() + off_ms);
        let backend = database.backend_with(off()).await;
        assert_eq!(seen(&findings_of(backend).await), expected, "{off_ms} ms");
        let backend = database.backend_with(off().server_time(true)).await;
        assert_eq!(findings_of(backend).await, [], "{off_ms} ms");
    }
}
