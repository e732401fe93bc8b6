//! `run` and its report.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use syncguard_conformance::{Harness, Report, RunOptions, Status, cases, run};
use syncguard_core::backend::{
    AcquireRequest, AcquireResult, Capabilities, Grant, LockBackend, LookupRequest, NoFence,
    ReleaseRequest, TimeAuthority, clauses,
};
use syncguard_core::{
    ErrorCode, Fence, LockError, LockInfoDebug, LockKey, forward_calls, hash_key,
};
use syncguard_memory::MemoryBackend;

use crate::harness::MemoryHarness;

async fn run_some<H: Harness + Default>(part_of_name: &str) -> Report {
    run(
        Arc::new(H::default()),
        RunOptions::new().filter(part_of_name),
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_has_every_case_in_order_and_reports_each_as_it_ends() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&seen);
    let options = RunOptions::new()
        .concurrency(32)
        .on_case(move |case| told.lock().unwrap().push(case.name));
    let report = run(Arc::new(MemoryHarness::default()), options).await;
    let names: Vec<_> = report.cases.iter().map(|case| case.name).collect();
    let listed: Vec<_> = cases().into_iter().map(|case| case.name).collect();
    assert_eq!(names, listed);
    assert_eq!((report.failed, report.skipped), (0, 0), "{report}");
    assert_eq!(report.passed, listed.len());
    assert!(report.is_success());
    let mut seen = seen.lock().unwrap().clone();
    seen.sort_unstable();
    let mut listed = listed;
    listed.sort_unstable();
    assert_eq!(seen, listed);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_json_has_the_published_shape() {
    let report = run_some::<MemoryHarness>("release::again_it_is_not_held").await;
    let mut json: Value = serde_json::to_value(&report).unwrap();
    assert!(json["cases"][0]["ms"].is_u64());
    json["cases"][0]["ms"] = json!(0);
    let known = json["mutants"]["known"].clone();
    assert!(known.as_u64().unwrap() >= 150, "{known}");
    assert_eq!(
        json,
        json!({
            "backend": "memory", "supports_fencing": true, "time_authority": "server",
            "suite_version": env!("CARGO_PKG_VERSION"),
            "passed": 1, "failed": 0, "skipped": 0,
            "proven": ["R2"], "unproven": [], "causes": [],
            "mutants": {"known": known, "caught": 1, "unseen": []},
            "cases": [{
                "name": "release::again_it_is_not_held",
                "clauses": ["R2"],
                "status": "passed",
                "ms": 0,
            }],
        })
    );
}

/// A store with nothing to set a fence counter by.
#[derive(Default)]
pub(crate) struct Plain(MemoryBackend);

impl Harness for Plain {
    type Backend = MemoryBackend;
    async fn connect(&self) -> Result<MemoryBackend, LockError> {
        Ok(self.0.clone())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_harness_cannot_do_is_skipped_by_name_and_with_a_reason() {
    let report = run_some::<Plain>("fencing::great_fences_are_exact").await;
    let case = report.case("fencing::great_fences_are_exact").unwrap();
    assert_eq!(case.status, Status::Skipped);
    assert!(
        case.detail
            .as_deref()
            .unwrap()
            .contains("set_fence_counter"),
        "{case:?}"
    );
    assert_eq!((report.passed, report.failed, report.skipped), (0, 0, 1));
    assert!(!report.is_success(), "nothing was proved");
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["cases"][0]["status"], "skipped");
    assert_eq!(report.unproven, ["F1", "F3"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_view_of_the_store_its_growth_stays_open() {
    let report = run_some::<Plain>("stored::").await;
    assert_eq!(report.skipped, report.cases.len(), "{report}");
    let growth = ["G1", "G2", "G3"];
    assert!(growth.iter().all(|clause| report.unproven.contains(clause)));
    let page = report.to_string();
    for part in ["Harness::stored", "releases leave the index"] {
        assert!(page.contains(part), "{part}: {page}");
    }
    let report = run_some::<MemoryHarness>("stored::").await;
    assert_eq!(report.passed, report.cases.len(), "{report}");
    assert!(growth.iter().all(|clause| report.proven.contains(clause)));
}

#[derive(Default)]
struct Unreachable;

impl Harness for Unreachable {
    type Backend = MemoryBackend;
    async fn connect(&self) -> Result<MemoryBackend, LockError> {
        Err(LockError::new(
            ErrorCode::ServiceUnavailable,
            "nobody there",
        ))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_cannot_be_reached_fails_every_case() {
    let report = run_some::<Unreachable>("").await;
    assert_eq!((report.passed, report.skipped), (0, 0), "{report}");
    assert!(
        report
            .cases
            .iter()
            .all(|case| case.detail.as_ref().unwrap().contains("nobody there"))
    );
    assert!(!report.is_success());
    let all: Vec<_> = clauses().into_iter().map(|clause| clause.id).collect();
    assert_eq!(report.unproven, all);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_ends_with_the_counts_and_the_clauses_left_open() {
    let report = run_some::<Unreachable>("release::again_it_is_not_held").await;
    let end = "would have been detected\n\
               clauses not proven:\n  \
               R2  If the id holds nothing, it answers `NotHeld`, however often it is called.";
    assert!(report.to_string().ends_with(end), "{report}");
    let report = run_some::<MemoryHarness>("release::again_it_is_not_held").await;
    let (page, clauses) = (report.to_string(), clauses().len());
    let counts = format!("\n1 passed, 0 failed, 0 skipped; 1 of {clauses} clauses proven; ");
    assert!(
        page.contains(&counts) && page.ends_with("would have been detected"),
        "{page}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_says_what_was_not_run_and_what_that_leaves_open() {
    let report = run_some::<Plain>("fencing::").await;
    let page = report.to_string();
    let (_, skipped) = page.split_once("Not run, so not passed:").unwrap();
    for part in [
        "fencing::great_fences_are_exact: the harness cannot set a fence counter",
        "fences in 32 bits",
        "fences saturate",
    ] {
        assert!(skipped.contains(part), "{part}: {page}");
    }
    let json = serde_json::to_value(&report).unwrap();
    let cases = json["cases"].as_array().unwrap();
    for case in cases {
        let open = case
            .get("leaves_open")
            .map(|open| !open.as_array().unwrap().is_empty());
        assert_eq!(open == Some(true), case["status"] == "skipped", "{case}");
    }
    assert!(report.mutants.unseen.contains(&"fences saturate"));
    assert!(report.mutants.caught > 0, "{report}");
}

/// A store that keeps no lock fails nearly everything; the cause is one.
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_run_leads_with_the_clause_that_all_others_rest_on() {
    let report = run_some::<Forgetful>("acquire::").await;
    assert!(report.failed > 5, "{report}");
    assert_eq!(report.causes[0].clause, "A1", "{report}");
    let explained: usize = report.causes.iter().map(|cause| cause.cases.len()).sum();
    assert_eq!(explained, report.failed);
    let page = report.to_string();
    let (_, causes) = page.split_once("likeliest first:").unwrap();
    assert!(
        causes.trim_start().starts_with("A1  On a free key"),
        "{page}"
    );
}

/// One broken clause is one cause, not one for each clause that its cases name.
#[tokio::test(flavor = "multi_thread")]
async fn failures_of_one_clause_are_one_cause() {
    let report = run_some::<Unhashed>("").await;
    let causes: Vec<_> = report.causes.iter().map(|cause| cause.clause).collect();
    assert_eq!(causes, ["L5"], "{report}");
}

/// A clause is proven by what passed, but not beside a case that failed.
#[tokio::test(flavor = "multi_thread")]
async fn a_clause_is_open_only_while_nothing_proves_it() {
    let report = run_some::<Plain>("fencing::").await;
    assert!(report.skipped > 0 && report.failed == 0, "{report}");
    assert_eq!(
        report.unproven,
        ["A5", "F3", "G3"],
        "F1 has cases that passed"
    );
}

/// A store with a fault.
#[derive(Debug, Clone, Default)]
struct Faulty<const KEEPS: bool>(MemoryBackend);

type Forgetful = Faulty<false>;
type Unhashed = Faulty<true>;

impl<const KEEPS: bool> LockBackend for Faulty<KEEPS> {
    type Fence = Fence;

    forward_calls! { |faulty| &faulty.0 =>
        capabilities release extend watch
    }

    /// The forgetful one does not keep what it grants.
    async fn acquire(&self, request: AcquireRequest<'_>) -> Result<AcquireResult, LockError> {
        let (id, deadline) = (*request.id, request.deadline);
        let answer = self.0.acquire(request).await?;
        if !KEEPS {
            let _ = self.0.release(ReleaseRequest::new(&id, deadline)).await?;
        }
        Ok(answer)
    }

    /// The other one hashes the name under which it has the key.
    async fn lookup_raw(
        &self,
        request: LookupRequest<'_>,
    ) -> Result<Option<LockInfoDebug>, LockError> {
        let mut found = self.0.lookup_raw(request).await?;
        if let Some(info) = found.as_mut().filter(|_| KEEPS) {
            info.key_hash = hash_key("the store's name");
        }
        Ok(found)
    }
}

impl<const KEEPS: bool> Harness for Faulty<KEEPS> {
    type Backend = Self;

    async fn connect(&self) -> Result<Self, LockError> {
        Ok(self.clone())
    }
}

#[derive(Default)]
struct Panicking;

impl Harness for Panicking {
    type Backend = MemoryBackend;
    async fn connect(&self) -> Result<MemoryBackend, LockError> {
        std::panic::resume_unwind(Box::new("the harness's own".to_owned()))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_inside_a_case_is_a_failure_of_that_case() {
    let report = run_some::<Panicking>("release::").await;
    assert!(
        report.failed > 0 && report.failed == report.cases.len(),
        "{report}"
    );
    let detail = report.cases[0].detail.as_deref().unwrap();
    assert!(
        detail.contains("panicked") && detail.contains("the harness's own"),
        "{detail}"
    );
}

#[derive(Default)]
struct Hanging;

impl Harness for Hanging {
    type Backend = MemoryBackend;
    async fn connect(&self) -> Result<MemoryBackend, LockError> {
        std::future::pending().await
    }
    async fn set_fence_counter(&self, _: &LockKey, _: u64) -> Result<bool, LockError> {
        Ok(true)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_case_without_end_is_a_failure_of_that_case() {
    let options = RunOptions::new()
        .filter("release::again")
        .case_timeout(std::time::Duration::from_millis(50));
    let report = run(Arc::new(Hanging), options).await;
    assert_eq!(report.failed, 1);
    assert!(
        report.to_string().contains("no end within 50ms"),
        "{report}"
    );
}

/// The memory backend without its fences.
#[derive(Debug, Clone, Default)]
struct Unfenced(MemoryBackend);

impl LockBackend for Unfenced {
    type Fence = NoFence;

    forward_calls! { |unfenced| &unfenced.0 =>
        release extend watch
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::new("unfenced", TimeAuthority::Server)
    }

    async fn acquire(
        &self,
        request: AcquireRequest<'_>,
    ) -> Result<AcquireResult<NoFence>, LockError> {
        Ok(match self.0.acquire(request).await? {
            AcquireResult::Acquired(grant) => {
                AcquireResult::Acquired(Grant::new(grant.lock_id, grant.expires_at_ms, NoFence))
            }
            AcquireResult::Locked { free_in, .. } => {
                free_in.map_or(AcquireResult::locked(), AcquireResult::locked_for)
            }
        })
    }

    async fn lookup_raw(
        &self,
        request: LookupRequest<'_>,
    ) -> Result<Option<LockInfoDebug<NoFence>>, LockError> {
        let found = self.0.lookup_raw(request).await?;
        Ok(found.map(|info| {
            let (expires_at_ms, acquired_at_ms) = (info.expires_at_ms, info.acquired_at_ms);
            LockInfoDebug::new(
                info.key,
                info.lock_id,
                expires_at_ms,
                acquired_at_ms,
                NoFence,
            )
        }))
    }
}

#[derive(Default)]
struct UnfencedHarness(Unfenced);

impl Harness for UnfencedHarness {
    type Backend = Unfenced;
    async fn connect(&self) -> Result<Unfenced, LockError> {
        Ok(self.0.clone())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backend_without_fences_conforms_and_its_fencing_cases_are_skipped() {
    let options = RunOptions::new().concurrency(32);
    let report = run(Arc::new(UnfencedHarness::default()), options).await;
    assert!(report.is_success(), "{report}");
    for case in &report.cases {
        let about_fences = case.name.starts_with("fencing::");
        let about_listing = case.name.starts_with("listing::");
        assert!(
            !(about_fences || about_listing) || case.status == Status::Skipped,
            "{case:?}"
        );
    }
}
