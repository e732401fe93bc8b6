//! The list of cases. It exists once; the registry and the tests of [`suite!`](crate::suite) both
//! expand it.

use std::any::Any;
use std::pin::Pin;

use syncguard_core::Fence;
use syncguard_core::backend::{FenceToken, NoFence};

use crate::erased::Erased;
use crate::{Bench, CaseResult, Harness};

/// A case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct CaseInfo {
    /// Group and name, such as `acquire::contention_changes_nothing`: also the name of its test, and of the function
    /// in [`cases`](mod@crate::cases) whose page says what it proves.
    pub name: &'static str,
    /// Ids of the [clauses](syncguard_core::backend::clauses) that it proves.
    pub clauses: &'static [&'static str],
}

/// Starts a case on its bench.
pub(crate) type Start<H> = fn(Bench<H>) -> Pin<Box<dyn Future<Output = CaseResult> + Send>>;

pub(crate) struct Case<H> {
    pub(crate) info: CaseInfo,
    pub(crate) start: Start<H>,
}

/// Hands the list of cases to a macro: `[path::to::macro] [context]`.
#[doc(hidden)]
#[macro_export]
macro_rules! __for_each_case {
    ([$($consumer:tt)+] [$($context:tt)*]) => {
        $($consumer)+! { [$($context)*]
            keys {
                canonical_spellings_are_one_lock [K1];
                any_characters_work_in_every_operation [K2 A1 R1 X1 L2];
                any_characters_never_contend [K2];
                near_identical_keys_do_not_contend [K2];
                near_identical_keys_have_their_own_fences [K3];
                dots_alone_are_keys [K2];
                keys_that_imitate_internal_names_do_no_harm [K2 K3];
                the_longest_keys_work [K4 A1 R1 X1 L2];
                long_keys_are_not_cut [K4 K2];
                long_keys_have_their_own_fences [K4 K3];
                bad_keys_are_refused [K5];
                malformed_ids_are_refused [I1];
                ids_are_taken_to_the_letter [R3 X3 L2];
                one_id_on_two_keys_harms_nobody_else [I3 E1 R3 F2 G3 O1];
                ids_are_fresh_and_random [I2];
            }
            patterns {
                keys_match_themselves_alone [K2 L1 L2 R3];
                ids_match_themselves_alone [R3 X3 L2 A2];
            }
            acquire {
                a_free_key_is_granted_to_the_given_id [A1 L2];
                a_held_key_is_locked_for_everyone_else [A2];
                contention_changes_nothing [A2];
                a_loser_leaves_no_trace [A2 R3];
                replay_gives_the_same_grant [A5];
                it_never_waits_for_the_holder [A4];
                a_refusal_is_final [A4];
                replay_moves_no_ttl [A5 A2];
                replay_after_an_extend_keeps_the_extension [A5 X4];
                replay_after_release_is_a_new_grant [A5 F1];
                replay_does_not_oust_a_successor [A5 A2 E1];
                ttls_are_exact [T1 A6 L2];
                the_shortest_ttls_are_granted [T1];
                fractions_round_up [T3];
                bad_ttls_are_refused [T2];
                an_id_that_holds_a_key_is_granted_no_held_one [A2 I3];
            }
            release {
                it_frees_the_key_at_once [R1];
                it_works_from_any_client [R1];
                again_it_is_not_held [R2];
                an_unknown_id_is_not_held [R2];
                it_leaves_a_successor_alone [R3];
                of_concurrent_releases_one_succeeds [R5 O1];
                it_leaves_other_locks_alone [R3 K2];
                it_forgets_the_id [R1 L3 X3];
                it_leaves_the_fence_counter_alone [R4 F1];
                releases_in_flight_never_free_a_successor [R3 R5];
                a_lock_outlives_its_client [R1 X5 E1];
                a_section_is_told_that_its_lock_was_gone [R2];
            }
            extend {
                it_replaces_the_remaining_time [X1 T1];
                a_shortened_lease_ends_early [X1 E2];
                a_few_milliseconds_are_done [X1 X2];
                it_returns_the_stores_expiry [X2];
                it_changes_the_expiry_alone [X4];
                it_uses_no_fence [X4 F1 R4];
                it_works_from_any_client [X5 R1];
                it_does_not_bring_back_a_released_lock [X3];
                an_unknown_id_is_not_held [X3];
                it_leaves_a_successor_alone [X3];
                renewals_keep_others_out [X1 E1 L1 L2];
                a_holder_learns_that_its_lock_is_gone [X3];
            }
            lookup {
                is_locked_follows_the_lock [L1];
                it_shows_the_grant_by_key_and_by_id [L2 A1];
                it_finds_one_among_many [L2];
                what_is_absent_is_none [L3];
                by_id_it_shows_the_ids_own_lock [L2 L3];
                owns_follows_the_lock [L2 L3];
                reads_change_nothing [L4];
                it_shows_hashes [L5];
                clean_up_spares_live_locks_and_fences [F2 L4 E1];
            }
            listing {
                every_live_lock_is_shown [N1 L2];
                until_its_end_a_lock_is_shown [N1 E1];
                a_lock_is_shown_once [N2 N1];
                pages_are_bounded [N5];
                the_dead_are_not_shown [N3 E2 L3];
                nothing_else_is_shown [N3 N1 K3];
                a_prefix_is_no_pattern [N4 N1 N5];
                a_prefix_is_taken_to_the_letter [N4 N1 K1];
                any_key_is_shown [N1 K2 K4];
                locks_that_come_and_go_hide_no_other [N1 N2];
                locks_that_change_are_shown_once [N1 N2];
                it_changes_nothing [N6];
                it_shows_hashes [N1 L5];
            }
            auto_extend {
                a_section_outlives_its_ttl [X1 X2 E1];
                a_lock_taken_away_is_lost [X3 R3];
                released_locks_stay_released [X3 R1];
                the_longest_hold_ends [E2];
            }
            expiry {
                before_it_a_lease_is_live [E1 L1 L2];
                before_it_a_lease_is_live_to_the_millisecond [E1 T1];
                after_the_tolerance_the_key_is_free [E2 L1 L3 A1];
                after_the_tolerance_a_lease_is_dead_to_the_millisecond [E2 L3 X3 R2];
                an_expired_lock_is_not_released [R2 E2];
                an_expired_lock_is_not_extended [X3 E2];
                an_overrun_holder_does_no_harm [R3 X3 L3 F1 A5];
                a_replay_after_expiry_is_a_new_grant [A5 A6 F1];
                the_next_lease_is_whole [A6 X1 E2];
                in_the_tolerance_only_one_wins [E3 X3 E1];
                a_release_at_the_last_moment_is_no_error [R2 O1];
                an_expired_key_has_one_successor [A3 E2 O1];
            }
            tolerance {
                all_operations_agree [E3 L1 L2 L4 A2 N6];
                an_extend_is_like_any_other [E3 X1 X4];
                a_refusal_uses_no_fence [E3 F4 R4];
                a_refusal_does_not_wait [A4];
                a_halted_call_takes_nothing_from_a_successor [E3 X3 R3 E1 O1];
            }
            waiting {
                a_refusal_says_when_the_key_is_free [W1];
                a_release_wakes_who_watches [W2];
                a_release_wakes_all_who_watch [W2];
                keys_of_all_kinds_are_watched_at_once [W2];
                a_watch_of_a_free_key_resolves_at_once [W2];
            }
            fencing {
                fences_strictly_increase [F1];
                every_key_counts_for_itself [K3];
                fences_outlive_clients [F2];
                fences_rise_across_expiries [F1 F2 R4 X4];
                contention_uses_no_fence [F4 A2];
                great_fences_are_exact [F1 F3];
                past_the_greatest_fence_nothing_is_granted [F3 A5 G3];
                past_the_greatest_fence_no_expired_lock_is_taken_over [F3 F1];
            }
            cancel {
                an_acquire_dropped_at_any_poll_leaves_no_lock [C1];
                acquires_in_random_timeouts_leave_no_lock [C1];
                a_dropped_contender_does_not_disturb_the_holder [C1 R3];
                a_cancelled_token_leaves_no_trace [C2];
                a_token_cancelled_in_flight_aborts_at_once [C3 C1];
                a_cancelled_wait_ends_at_once [C3];
                a_release_dropped_at_any_poll_frees_the_key [C4];
                dropped_guards_free_their_keys [C4];
                a_section_that_ends_early_frees_its_key [C4];
                a_dropped_extend_leaves_the_lock_with_its_holder [C1 X4];
            }
            concurrency {
                of_many_exactly_one_is_granted [A3 A1 O1];
                of_many_exactly_one_is_granted_a_new_key [A3 A1 K2 O1];
                holders_exclude_each_other [A3 A1 F1 R1 O1];
                sections_never_overlap [A3 E1 O1];
                concurrent_replays_are_one_grant [A5 A3];
                different_keys_never_wait_for_each_other [K2 O1];
                concurrent_extends_all_succeed [X1 X2 O1];
                a_release_beats_an_extend_in_flight [X3 R1 O1];
                grants_are_timed_after_any_wait [A6 O1];
                mixed_operations_give_no_errors [O1 L1 L4];
            }
            races {
                a_halted_extend_brings_nothing_back [X3 R1];
                a_halted_extend_leaves_a_successor_alone [X3 E1];
                a_halted_release_leaves_a_successor_alone [R3 R4 R5];
                a_halted_release_frees_an_extended_lock [R1 O1];
                a_halted_acquire_and_another_are_one_grant [A3 A1 F1 O1];
                a_halted_acquire_leaves_other_keys_free [K2 O1 L2];
                a_halted_replay_leaves_a_successor_alone [A5 A2 E1];
                a_halted_lookup_shows_one_lock_whole [L2 L3];
                a_halted_lookup_shows_one_expiry [L1 L2 X4 N1];
                a_halted_read_does_not_answer_for_a_later_one [L1 L2 L3 N1 N3];
                a_halted_call_on_an_expired_lock_leaves_a_successor_alone [E1 R3 X3 L3 L4 N3 N6 F2];
                a_halted_purge_leaves_successors_alone [P1 E1 F2];
            }
            upkeep {
                a_call_after_its_deadline_is_not_sent [D1];
                purging_spares_live_locks_and_fences [P1 P2 E1 F2];
                purging_stops_at_its_limit [P2];
                closing_a_client_ends_nothing_else [S1];
            }
            boundary {
                nobody_is_granted_a_key_before_its_lease_ends [E1 E3 X1 A2];
                nobody_is_granted_a_key_in_its_last_milliseconds [E1 E3 X1];
                its_holder_is_heard_until_the_end [E1 X1 R1 A5];
            }
            stored {
                a_released_key_leaves_its_counter [G1 K3 R1];
                a_key_acquired_again_and_again_leaves_one_counter [G1 K3];
                an_expired_lock_leaves_its_counter [G2 G3 E2];
                a_call_that_changes_nothing_leaves_nothing [G3 A2 L4 R2 X3];
                a_watch_leaves_nothing [G3 W2];
                an_abandoned_acquire_leaves_nothing [G3 C1];
                an_abandoned_release_leaves_nothing [G1 C4];
                a_halted_call_leaves_nothing [G1 G3 X3 R1 A5];
                a_halted_purge_leaves_nothing [G2 P1];
                a_call_in_the_tolerance_leaves_nothing [G3 A2 L4];
                many_at_once_leave_their_counters [G1 G3 A3];
            }
            errors {
                debug_of_values_shows_no_identifier [O2];
                errors_show_no_identifier [O2 K5 I1];
                a_wait_that_ran_out_says_how_it_went [O2 A2];
                events_show_no_identifier [O2];
                events_of_expired_locks_show_no_identifier [O2];
            }
            capacity {
                a_thousand_locks_are_shown [N1 N2 N5];
                thousands_of_locks_are_held_at_once [A1 A2 K2 E1 E3 L2 R1];
            }
        }
    };
}

macro_rules! define_registry {
    ([] $($group:ident {
        $($case:ident [$($clause:ident)+];)+
    })+) => {
        const INFOS: &[CaseInfo] = &[$($(CaseInfo {
            name: concat!(stringify!($group), "::", stringify!($case)),
            clauses: &[$(stringify!($clause)),+],
        }),+),+];

        fn starts<H: Harness>() -> Vec<Start<H>> {
            vec![$($(|bench| Box::pin(crate::cases::$group::$case(bench))),+),+]
        }
    };
}

crate::__for_each_case! { [define_registry] [] }

/// All cases, in the order of the groups.
#[must_use]
pub fn cases() -> Vec<CaseInfo> {
    INFOS.to_vec()
}

/// The cases on backends with this fence.
#[expect(clippy::expect_used, reason = "there are two types of fence")]
pub(crate) fn registry<F: FenceToken>() -> Vec<Case<Erased<F>>> {
    let cases: Box<dyn Any> = match F::SUPPORTED {
        true => Box::new(fenced()),
        false => Box::new(unfenced()),
    };
    *cases.downcast().expect("a fence, or none")
}

// Not generic, so that the cases are compiled with this crate and not again with each that uses it.

fn fenced() -> Vec<Case<Erased<Fence>>> {
    listed()
}

fn unfenced() -> Vec<Case<Erased<NoFence>>> {
    listed()
}

fn listed<H: Harness>() -> Vec<Case<H>> {
    let cases = INFOS.iter().zip(starts());
    cases
        .map(|(info, start)| Case { info: *info, start })
        .collect()
}
