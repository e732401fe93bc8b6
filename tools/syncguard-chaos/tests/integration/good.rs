//! Histories that are legal, however odd they look.

use syncguard_chaos::{Invocation, Response, check};

use crate::support::{Script, acquire, extend, found, lookup, script};

#[track_caller]
#[expect(clippy::needless_pass_by_value, reason = "built for it")]
fn legal(script: Script) {
    let violations = check(&script.0);
    assert!(violations.is_empty(), "{}", violations[0]);
}

#[test]
fn nothing_at_all() {
    legal(script());
}

#[test]
fn ordinary_use() {
    legal(script().quiet(0, 1, 50).free(600..601));
}

#[test]
fn fences_may_skip_numbers() {
    legal(script().quiet(0, 7, 1).quiet(20, 12, 1));
}

#[test]
fn overlapping_calls_take_effect_in_either_order() {
    // B is granted while A's release is under way; C is refused by either.
    legal(
        script()
            .granted(0..2, "a", 1, 1, 5_000)
            .released(10..40, "a")
            .locked(11..39, "c")
            .granted(5..38, "b", 2, 20, 5_000)
            .found(12..37, "a", 1, 1..5_001)
            .release_not_held(25..45, "a"),
    );
}

#[test]
fn a_slow_refusal_spans_other_holders() {
    legal(
        script()
            .locked(9..195, "slow")
            .quiet(0, 1, 20)
            .free(300..301),
    );
}

#[test]
fn taken_over_at_the_expiry() {
    legal(
        script()
            .granted(0..2, "a", 1, 1, 100)
            .locked(95..99, "c")
            .granted(101..103, "b", 2, 101, 100)
            .extend_not_held(104..105, "a")
            .release_not_held(105..106, "a")
            .released(106..107, "b"),
    );
}

#[test]
fn held_through_the_tolerance() {
    legal(
        script()
            .granted(0..2, "a", 1, 1, 100)
            .locked(900..901, "c")
            .extended(1_095..1_097, "a", 1_096, 100)
            .locked(1_200..1_201, "c")
            .released(1_300..1_301, "a"),
    );
}

#[test]
fn dead_within_the_tolerance() {
    legal(
        script()
            .granted(0..2, "a", 1, 1, 100)
            .free(102..103)
            .release_not_held(104..105, "a"),
    );
}

#[test]
fn an_extension_shortens() {
    legal(
        script()
            .granted(0..2, "a", 1, 1, 60_000)
            .extended(10..12, "a", 11, 50)
            .granted(61..62, "b", 2, 61, 1_000)
            .released(70..71, "b"),
    );
}

#[test]
fn the_holder_asks_again() {
    legal(
        script()
            .granted(0..2, "a", 1, 1, 1_000)
            .granted(3..4, "a", 1, 1, 1_000)
            .extended(10..11, "a", 10, 5_000)
            .call(
                12..13,
                acquire("a", 1_000),
                Response::Granted {
                    fence: 1,
                    expires_at_ms: 5_010,
                },
            )
            .released(20..21, "a"),
    );
}

#[test]
fn an_id_acquires_again_after_its_lease() {
    legal(
        script()
            .granted(0..2, "a", 1, 1, 100)
            .granted(200..201, "a", 2, 200, 100)
            .released(202..203, "a"),
    );
}

#[test]
fn a_lost_acquire_was_applied_and_released() {
    legal(
        script()
            .lost_acquire(0..50, "x", 60_000)
            .locked(20..21, "b")
            .locked(60..61, "b")
            .free(80..81)
            .granted(90..91, "b", 2, 90, 1_000),
    );
}

#[test]
fn a_lost_acquire_was_never_applied() {
    legal(
        script()
            .lost_acquire(0..50, "x", 60_000)
            .free(20..21)
            .granted(60..61, "b", 1, 60, 1_000),
    );
}

#[test]
fn a_lost_acquire_is_applied_long_after_it_failed() {
    legal(
        script()
            .lost_acquire(0..50, "x", 60_000)
            .quiet(100, 1, 3)
            .locked(200..201, "b")
            .found(202..203, "x", 4, 199..60_199)
            .free(300..301)
            .quiet(400, 5, 1),
    );
}

#[test]
fn a_lost_acquire_is_seen_then_extended_and_released_by_its_id() {
    legal(
        script()
            .lost_acquire(0..50, "x", 1_000)
            .extended(60..61, "x", 60, 9_000)
            .found(70..71, "x", 1, 30..9_060)
            .call(71..72, lookup("x"), found("k", "x", 1, 30..9_060))
            .released(80..81, "x")
            .free(90..91),
    );
}

#[test]
fn a_lost_acquire_is_asked_for_again() {
    // The first attempt was granted at 10; the second gets the grant at 60.
    legal(
        script()
            .lost_acquire(0..50, "x", 1_000)
            .locked(20..21, "b")
            .call(
                60..61,
                acquire("x", 1_000),
                Response::Granted {
                    fence: 1,
                    expires_at_ms: 1_010,
                },
            )
            .released(70..71, "x"),
    );
}

#[test]
fn a_lost_release_was_applied() {
    legal(
        script()
            .granted(0..1, "a", 1, 0, 60_000)
            .lost_release(10..20, "a")
            .granted(15..16, "b", 2, 15, 1_000)
            .release_not_held(30..31, "a"),
    );
}

#[test]
fn a_lost_release_was_not_applied_until_later() {
    legal(
        script()
            .granted(0..1, "a", 1, 0, 60_000)
            .lost_release(10..20, "a")
            .locked(30..31, "b")
            .found(35..36, "a", 1, 0..60_000)
            .free(500..501),
    );
}

#[test]
fn a_lost_extension_was_applied_or_was_not() {
    let lost = script()
        .granted(0..1, "a", 1, 0, 100)
        .lost_extend(50..60, "a", 5_000);
    legal(
        lost.clone()
            .locked(3_000..3_001, "b")
            .found(3_002..3_003, "a", 1, 0..5_055),
    );
    legal(
        lost.granted(100..101, "b", 2, 100, 1_000)
            .release_not_held(110..111, "a"),
    );
}

#[test]
fn a_lost_extension_may_have_shortened() {
    legal(
        script()
            .granted(0..1, "a", 1, 0, 60_000)
            .lost_extend(50..60, "a", 100)
            .granted(160..161, "b", 2, 160, 1_000),
    );
}

#[test]
fn a_call_that_never_returned_is_of_unknown_outcome() {
    let mut script = script()
        .granted(0..1, "a", 1, 0, 60_000)
        .released(10..11, "a");
    script.0.calls[1].returned_us = None;
    legal(script.granted(20..21, "b", 2, 20, 1_000));
}

#[test]
fn a_failed_call_did_nothing() {
    legal(
        script()
            .call(0..1, acquire("x", 60_000), Response::Failed)
            .quiet(10, 1, 1)
            .call(30..31, extend("x", 1), Response::Failed),
    );
}

#[test]
fn a_release_delivered_twice_finds_its_work_done() {
    let mut script = script()
        .granted(0..1, "a", 1, 0, 60_000)
        .release_not_held(10..12, "a")
        .granted(20..21, "b", 2, 20, 1_000);
    assert!(
        !check(&script.0).is_empty(),
        "only if it was delivered twice"
    );
    script.0.redelivery = vec![(5_000, 10_500)];
    legal(script);
}

#[test]
fn an_extension_delivered_twice_is_seen_in_between() {
    let mut script = script()
        .granted(0..1, "a", 1, 0, 1_000)
        .extended(10..30, "a", 25, 1_000)
        .found(15..20, "a", 1, 0..1_012);
    assert!(
        !check(&script.0).is_empty(),
        "only if it was delivered twice"
    );
    script.0.redelivery = vec![(5_000, 40_000)];
    legal(script);
}

#[test]
fn keys_do_not_matter_to_each_other() {
    let mut script = script()
        .granted(0..1, "a", 1, 0, 60_000)
        .granted(5..6, "b", 1, 5, 60_000);
    script.0.calls[1].key = "another".into();
    legal(script);
}

#[test]
fn the_clocks_of_store_and_clients_differ() {
    let mut script = script().quiet(1_000_000, 1, 5);
    for call in &mut script.0.calls {
        call.invoked_us -= 999_000_000;
        call.returned_us = call.returned_us.map(|us| us - 999_000_000);
    }
    assert!(!check(&script.0).is_empty(), "an offset that is not told");
    script.0.clock_offset_us = 999_010_000;
    assert!(!check(&script.0).is_empty(), "an offset that is wrong");
    script.0.clock_drift_us = 20_000;
    legal(script);
}

#[test]
fn many_calls_at_once() {
    let mut crowd = script().granted(0..1, "a", 1, 0, 60_000);
    for client in 0..24 {
        crowd = crowd.locked(2..40, &format!("c{client}"));
        crowd = crowd.call(2..40, Invocation::IsLocked, Response::Locked);
    }
    legal(crowd.released(20..30, "a").free(50..51));
}
