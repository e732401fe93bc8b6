//! Histories with one violation each, planted in the midst of ordinary use.

use syncguard_chaos::{Invocation, Response, check, check_ended};

use crate::support::{Script, acquire, found, lookup, release, script};

/// When the planted part begins.
const T: i64 = 1_000;
/// The last fence before it.
const F: u64 = 100;

fn before() -> Script {
    script().quiet(0, 1, F)
}

/// Finds the violation among what is ordinary before and after it, by exactly these many calls.
#[track_caller]
fn illegal(planted: Script, reason: &str, calls: usize) {
    let last = planted
        .0
        .calls
        .iter()
        .filter_map(|call| call.returned_us)
        .max()
        .unwrap();
    let history = planted.quiet(last / 1_000 + 100_000, F + 100, 20).0;
    let violations = check(&history);
    assert_eq!(violations.len(), 1, "not found");
    let violation = &violations[0];
    assert!(violation.reason.contains(reason), "{violation}");
    assert_eq!(violation.window.len(), calls, "{violation}");
    assert!(
        violation
            .window
            .iter()
            .all(|call| call.invoked_us >= T * 1_000 - 50_000),
        "{violation}"
    );
}

#[test]
fn two_live_leases() {
    let planted = before().granted(T..T + 2, "a", 101, T + 1, 5_000);
    illegal(
        planted.granted(T + 10..T + 12, "b", 102, T + 11, 5_000),
        "another lease was live",
        2,
    );
}

#[test]
fn what_was_not_applied_is_no_part_of_a_violation() {
    let planted = before()
        .granted(T..T + 2, "a", 101, T + 1, 5_000)
        .call(T + 3..T + 4, acquire("c", 5_000), Response::Failed)
        .call(T + 5..T + 6, release("a"), Response::Failed)
        .call(T + 7..T + 13, acquire("d", 5_000), Response::Failed);
    illegal(
        planted.granted(T + 10..T + 12, "b", 102, T + 11, 5_000),
        "another lease was live",
        2,
    );
}

#[test]
fn granted_a_millisecond_before_the_expiry() {
    let planted = before().granted(T..T + 2, "a", 101, T + 1, 100);
    illegal(
        planted.granted(T + 99..T + 103, "b", 102, T + 100, 5_000),
        "another lease was live",
        2,
    );
}

#[test]
fn granted_despite_an_extension() {
    let planted = before().granted(T..T + 2, "a", 101, T + 1, 100).extended(
        T + 50..T + 51,
        "a",
        T + 50,
        3_000,
    );
    illegal(
        planted.granted(T + 200..T + 201, "b", 102, T + 200, 5_000),
        "another lease was live",
        2,
    );
}

#[test]
fn a_fence_used_again() {
    let planted = before()
        .granted(T..T + 2, "a", 101, T + 1, 5_000)
        .released(T + 3..T + 4, "a");
    illegal(
        planted.granted(T + 10..T + 12, "b", 101, T + 11, 5_000),
        "fence is not above",
        2,
    );
}

#[test]
fn a_fence_reset_after_expiry() {
    let planted = before().granted(T..T + 2, "a", 101, T + 1, 10);
    illegal(
        planted.granted(T + 2_000..T + 2_001, "b", 1, T + 2_000, 5_000),
        "fence is not above",
        2,
    );
}

#[test]
fn a_fence_that_a_lost_acquire_must_have_used() {
    let planted = before()
        .granted(T..T + 2, "a", 101, T + 1, 5_000)
        .lost_acquire(T + 2..T + 30, "x", 5_000)
        .released(T + 3..T + 4, "a")
        .locked(T + 10..T + 11, "c");
    // What refused C was a lock of its own, with a fence between 101 and 102.
    illegal(
        planted.granted(T + 40..T + 41, "b", 102, T + 40, 5_000),
        "fence is not above",
        4,
    );
}

#[test]
fn released_by_an_id_that_never_held() {
    illegal(before().released(T..T + 1, "stranger"), "did not hold", 2);
}

#[test]
fn released_twice() {
    let planted = before()
        .granted(T..T + 2, "a", 101, T + 1, 5_000)
        .released(T + 3..T + 4, "a");
    illegal(planted.released(T + 10..T + 11, "a"), "did not hold", 2);
}

#[test]
fn a_successors_lock_released() {
    let planted = before().granted(T..T + 2, "a", 101, T + 1, 10).granted(
        T + 20..T + 21,
        "b",
        102,
        T + 20,
        5_000,
    );
    illegal(planted.released(T + 30..T + 31, "a"), "did not hold", 2);
}

#[test]
fn extended_by_an_id_that_does_not_hold() {
    let planted = before().granted(T..T + 2, "a", 101, T + 1, 5_000);
    illegal(
        planted.extended(T + 5..T + 6, "stranger", T + 5, 5_000),
        "did not hold",
        2,
    );
}

#[test]
fn extended_after_the_release() {
    let planted = before()
        .granted(T..T + 2, "a", 101, T + 1, 5_000)
        .released(T + 3..T + 4, "a");
    illegal(
        planted.extended(T + 5..T + 6, "a", T + 5, 5_000),
        "did not hold",
        2,
    );
}

#[test]
fn extended_beyond_the_tolerance() {
    let planted = before().granted(T..T + 2, "a", 101, T + 1, 100);
    illegal(
        planted.extended(T + 1_101..T + 1_102, "a", T + 1_101, 5_000),
        "beyond the tolerance",
        2,
    );
}

#[test]
fn extended_after_it_was_seen_dead() {
    let planted = before()
        .granted(T..T + 2, "a", 101, T + 1, 100)
        .free(T + 150..T + 151);
    illegal(
        planted.extended(T + 160..T + 161, "a", T + 160, 5_000),
        "did not hold",
        2,
    );
}

#[test]
fn an_extension_that_adds() {
    let planted = before().granted(T..T + 2, "a", 101, T + 1, 5_000);
    illegal(
        planted.extended(T + 5..T + 6, "a", T + 5_001, 5_000),
        "does not count",
        1,
    );
}

#[test]
fn a_lease_that_counts_from_before_the_call() {
    illegal(
        before().granted(T..T + 2, "a", 101, T - 20, 5_000),
        "does not count",
        1,
    );
}

#[test]
fn not_held_although_held() {
    let planted = before().granted(T..T + 2, "a", 101, T + 1, 5_000);
    illegal(
        planted.clone().release_not_held(T + 5..T + 6, "a"),
        "although it was held",
        2,
    );
    illegal(
        planted.extend_not_held(T + 5..T + 6, "a"),
        "although it was held",
        2,
    );
}

#[test]
fn found_free_although_held() {
    let planted = before().granted(T..T + 2, "a", 101, T + 1, 5_000);
    illegal(
        planted.clone().free(T + 5..T + 6),
        "although it was held",
        2,
    );
    let is_locked = planted
        .clone()
        .call(T + 5..T + 6, Invocation::IsLocked, Response::Free);
    illegal(is_locked, "although it was held", 2);
    let by_id = planted.call(T + 5..T + 6, lookup("a"), Response::Free);
    illegal(by_id, "although it was held", 2);
}

#[test]
fn refused_although_free() {
    illegal(before().locked(T..T + 1, "a"), "key was free", 2);
    let expired = before().granted(T..T + 2, "a", 101, T + 1, 10);
    illegal(expired.locked(T + 1_011..T + 1_012, "b"), "key was free", 2);
}

#[test]
fn the_holder_is_refused() {
    let planted = before().granted(T..T + 2, "a", 101, T + 1, 5_000);
    illegal(planted.locked(T + 5..T + 6, "a"), "refused its own", 2);
}

#[test]
fn another_fence_while_held() {
    let planted = before().granted(T..T + 2, "a", 101, T + 1, 5_000);
    let again = planted
        .clone()
        .granted(T + 5..T + 6, "a", 102, T + 5, 5_000);
    illegal(again, "another lease was live", 2);
    illegal(
        planted.found(T + 5..T + 6, "a", 99, T + 1..T + 5_001),
        "fence of a lock changed",
        2,
    );
}

#[test]
fn another_time_of_acquisition_while_held() {
    let planted = before().granted(T..T + 2, "a", 101, T + 1, 5_000);
    illegal(
        planted.found(T + 5..T + 6, "a", 101, T + 2..T + 5_001),
        "time of acquisition",
        2,
    );
}

#[test]
fn an_extension_that_did_not_stick() {
    let planted = before().granted(T..T + 2, "a", 101, T + 1, 5_000).extended(
        T + 5..T + 6,
        "a",
        T + 5,
        8_000,
    );
    illegal(
        planted.found(T + 10..T + 11, "a", 101, T + 1..T + 5_001),
        "ends at another time",
        2,
    );
}

#[test]
fn a_lock_that_was_never_granted() {
    let planted = before().found(T..T + 1, "ghost", 101, T - 1..T + 5_000);
    illegal(planted, "never granted", 2);
    // A lost acquire of another id is no excuse.
    let planted = before().lost_acquire(T - 10..T, "x", 5_000).found(
        T + 1..T + 2,
        "ghost",
        101,
        T..T + 5_000,
    );
    illegal(planted, "never granted", 2);
}

#[test]
fn the_lock_of_an_id_on_another_key() {
    let planted = before().granted(T..T + 2, "a", 101, T + 1, 5_000);
    let elsewhere = planted.call(
        T + 5..T + 6,
        lookup("a"),
        found("q", "a", 101, T + 1..T + 5_001),
    );
    illegal(elsewhere, "found on a key", 1);
}

#[test]
fn a_lock_lost_with_a_crash() {
    // The server answered, was killed and forgot.
    let planted = before()
        .granted(T..T + 2, "a", 101, T + 1, 60_000)
        .extended(T + 5..T + 6, "a", T + 5, 60_000)
        .lost_acquire(T + 10..T + 100, "x", 60_000)
        .free(T + 300..T + 301);
    illegal(planted, "although it was held", 2);
}

#[test]
fn one_wrong_answer_among_overlapping_ones() {
    let mut planted = before().granted(T..T + 1, "a", 101, T, 60_000);
    for client in 0..12 {
        planted = planted.locked(T + 2..T + 40, &format!("c{client}"));
    }
    planted = planted.granted(T + 10..T + 30, "b", 102, T + 20, 60_000);
    illegal(
        planted.released(T + 50..T + 51, "a"),
        "another lease was live",
        2,
    );
}

#[test]
fn an_outcome_of_another_operation() {
    illegal(
        before().call(T..T + 1, release("a"), Response::Free),
        "does not have",
        1,
    );
    illegal(
        before().call(T..T + 1, acquire("a", 1), Response::Released),
        "does not have",
        1,
    );
}

#[test]
fn left_held_at_the_end() {
    let held = before().granted(T..T + 2, "a", 101, T + 1, 60_000);
    let looked = held
        .clone()
        .found(T + 9..T + 10, "a", 101, T + 1..T + 60_001);
    let violations = check_ended(&looked.0);
    assert_eq!((violations.len(), violations[0].window.len()), (1, 2));
    assert!(violations[0].reason.contains("left held"));
    // Whether it is free is not known unless somebody looked.
    let unseen = check_ended(&held.released(T + 9..T + 10, "a").0);
    assert!(unseen[0].reason.contains("nobody looked"));
    assert!(check_ended(&before().free(T..T + 1).0).is_empty());
}
