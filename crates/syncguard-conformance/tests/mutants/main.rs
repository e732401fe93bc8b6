//! Deliberately broken backends: the suite proves itself by refusing each, on the case of the
//! clause that it breaks.
//!
//! A mutant is the memory store with one fault: it overrides the operation at fault and nothing
//! else. Its line below says which clause it breaks and which case must fail.

mod broken;
mod on_acquire;
mod on_extend;
mod on_fences;
mod on_keys;
mod on_reads;
mod on_release;

use std::sync::Arc;

use broken::{BrokenHarness, Fault};
use syncguard_conformance::{RunOptions, Status, cases, run};

macro_rules! mutants {
    ($($test:ident: $fault:path, $clause:ident, $case:literal;)+) => {
        $(
            #[tokio::test(flavor = "multi_thread")]
            async fn $test() {
                refuses::<$fault>(stringify!($clause), $case).await;
            }
        )+
    };
}

mutants! {
    acquire_steals: on_acquire::Steals, A2, "acquire::a_held_key_is_locked_for_everyone_else";
    acquire_is_not_atomic: on_acquire::NotAtomic, A3, "concurrency::of_many_exactly_one_is_granted";
    acquire_waits_for_the_holder: on_acquire::Waits, A4, "acquire::it_never_waits_for_the_holder";
    contention_moves_the_ttl: on_acquire::ContentionMovesTtl, A2, "acquire::contention_changes_nothing";
    replay_is_refused: on_acquire::ReplayIsRefused, A5, "acquire::replay_gives_the_same_grant";
    replay_extends: on_acquire::ReplayExtends, A5, "acquire::replay_moves_no_ttl";
    ttl_in_seconds: on_acquire::TtlInSeconds, T1, "acquire::ttls_are_exact";
    expiry_is_a_second_late: on_acquire::ExpiryIsLate, A6, "acquire::ttls_are_exact";
    acquire_arrives_late: on_acquire::ArrivesLate, C1, "cancel::an_acquire_dropped_at_any_poll_leaves_no_lock";
    tolerance_is_doubled: on_acquire::ToleranceDoubled, E2, "expiry::after_the_tolerance_the_key_is_free";
    acquire_logs_the_key: on_acquire::LogsTheKey, O2, "errors::events_show_no_identifier";
    release_is_released_twice: on_release::Twice, R2, "release::again_it_is_not_held";
    release_ignores_the_owner: on_release::IgnoresOwner, R3, "release::it_leaves_a_successor_alone";
    release_resets_the_fence: on_release::ResetsFence, R4, "release::it_leaves_the_fence_counter_alone";
    extend_adds: on_extend::Adds, X1, "extend::it_replaces_the_remaining_time";
    extend_estimates: on_extend::Estimates, X2, "extend::it_returns_the_stores_expiry";
    extend_resurrects: on_extend::Resurrects, X3, "extend::it_does_not_bring_back_a_released_lock";
    extend_ignores_the_owner: on_extend::IgnoresOwner, X3, "extend::it_leaves_a_successor_alone";
    contention_burns_fences: on_fences::BurntByContention, F4, "fencing::contention_uses_no_fence";
    fences_count_per_store: on_fences::PerStore, K3, "fencing::every_key_counts_for_itself";
    keys_are_folded: on_keys::Folded, K2, "keys::near_identical_keys_do_not_contend";
    keys_are_trimmed: on_keys::Trimmed, K2, "keys::near_identical_keys_do_not_contend";
    long_keys_are_cut: on_keys::Cut, K4, "keys::long_keys_are_not_cut";
    is_locked_is_always_true: on_reads::AlwaysLocked, L1, "lookup::is_locked_follows_the_lock";
    is_locked_keeps_alive: on_reads::KeepsAlive, L4, "lookup::reads_change_nothing";
    lookup_by_id_ignores_the_owner: on_reads::IgnoresOwner, L2, "lookup::by_id_it_shows_the_ids_own_lock";
}

/// Without a fault the same decorator passes: it is the fault that fails.
#[tokio::test(flavor = "multi_thread")]
async fn the_decorator_alone_conforms() {
    let harness = BrokenHarness::new::<broken::None>();
    let report = run(Arc::new(harness), RunOptions::new().with_concurrency(32)).await;
    assert!(report.is_success() && report.skipped == 0, "{report}");
}

async fn refuses<F: Fault>(clause: &str, case: &str) {
    let listed = cases().into_iter().find(|listed| listed.name == case);
    let listed = listed.unwrap_or_else(|| panic!("no case {case}"));
    assert!(
        listed.clauses.contains(&clause),
        "{case} does not prove {clause}"
    );

    let harness = Arc::new(BrokenHarness::new::<F>());
    let report = run(harness, RunOptions::new().with_filter(case)).await;
    let seen = report.case(case).unwrap();
    assert_eq!(
        seen.status,
        Status::Failed,
        "a broken backend survived {case}"
    );
    let detail = seen.detail.as_deref().unwrap();
    assert!(
        detail.contains("expected"),
        "{case} failed for another reason: {detail}"
    );
}
