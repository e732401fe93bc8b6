//! Deliberately broken backends: the suite proves itself by refusing each, on the case of the
//! clause that it breaks.
//!
//! A mutant is the memory store with one fault: it overrides the operation at fault and nothing
//! else. Its line below says which clause it breaks and which case must fail. The same list is
//! the table of the crate's page `mutants`.

mod broken;
mod on_acquire;
mod on_boundary;
mod on_clearing;
mod on_clients;
mod on_extend;
mod on_fences;
mod on_flights;
mod on_halts;
mod on_keys;
mod on_listing;
mod on_patterns;
mod on_races;
mod on_reads;
mod on_release;
mod on_replay;
mod on_stored;
mod on_time;
mod on_tolerance;
mod on_upkeep;
mod on_waiting;
mod on_words;
mod store;
mod table;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use broken::{BrokenHarness, Fault};
use syncguard_conformance::{RunOptions, Status, cases, run};
use syncguard_core::backend::clauses;

use on_fences::Shared;
use on_waiting::{
    Extended, In32Bits, InSteps, LongInSteps, LongKeys, Overdue, SoonInTheTolerance, TakenOver,
};

use on_keys::{
    Compatible, CutAt200, Dots, Fold, Folded, Length, Number, Printable, Quotes, Refuses, Spoilt,
    Tag, Trim, Undoubled, Without,
};
use on_time::DAY_MS;

/// Name, clause, kind of fault, case.
type Mutant = (&'static str, &'static str, &'static str, &'static str);

macro_rules! mutants {
    ($($test:ident: $fault:ty, $clause:ident, $kind:ident, $case:literal;)+) => {
        const MUTANTS: &[Mutant] = &[
            $((stringify!($test), stringify!($clause), stringify!($kind), $case)),+
        ];

        $(
            #[tokio::test(flavor = "multi_thread")]
            async fn $test() {
                refuses::<$fault>(stringify!($clause), $case).await;
            }
        )+
    };
}

mutants! {
    keys_are_folded: Spoilt<Fold>, K2, wrong_key, "keys::near_identical_keys_do_not_contend";
    keys_are_trimmed: Spoilt<Trim>, K2, by_one, "keys::near_identical_keys_do_not_contend";
    keys_are_normalized_by_compatibility: Spoilt<Compatible>, K2, wrong_key, "keys::near_identical_keys_do_not_contend";
    keys_count_by_their_tag_alone: Spoilt<Tag>, K2, wrong_key, "keys::near_identical_keys_do_not_contend";
    keys_lose_wide_spaces: Spoilt<Without<'\u{3000}'>>, K2, by_one, "keys::near_identical_keys_do_not_contend";
    keys_lose_the_greatest_character: Spoilt<Without<'\u{10ffff}'>>, K2, by_one, "keys::near_identical_keys_do_not_contend";
    keys_lose_hyphens: Spoilt<Without<'-'>>, K2, by_one, "keys::near_identical_keys_do_not_contend";
    keys_lose_strokes: Spoilt<Folded<'\u{f8}', 'o'>>, K2, wrong_key, "keys::near_identical_keys_do_not_contend";
    keys_lose_the_kind_of_kana: Spoilt<Folded<'\u{30ab}', '\u{304b}'>>, K2, wrong_key, "keys::near_identical_keys_do_not_contend";
    keys_lose_doubled_quotes: Spoilt<Undoubled<'\''>>, K2, by_one, "keys::near_identical_keys_do_not_contend";
    keys_lose_doubled_backslashes: Spoilt<Undoubled<'\\'>>, K2, by_one, "keys::near_identical_keys_do_not_contend";
    keys_are_kept_as_numbers: Spoilt<Number>, K2, wrong_key, "keys::near_identical_keys_do_not_contend";
    keys_lose_control_characters: Spoilt<Printable>, K2, by_one, "keys::any_characters_never_contend";
    keys_with_quotes_are_refused: Refuses<Quotes>, K2, lost, "keys::any_characters_work_in_every_operation";
    keys_of_dots_are_refused: Refuses<Dots>, K2, lost, "keys::dots_alone_are_keys";
    keys_share_a_space_with_the_index: on_keys::ShareTheIndex, K2, wrong_owner, "keys::keys_that_imitate_internal_names_do_no_harm";
    keys_are_matched_by_like: on_patterns::KeysMatch<false>, K2, wrong_key, "patterns::keys_match_themselves_alone";
    keys_are_matched_as_globs: on_patterns::KeysMatch<true>, K2, wrong_key, "patterns::keys_match_themselves_alone";
    is_locked_matches_by_like: on_patterns::IsLockedMatches, K2, wrong_key, "patterns::keys_match_themselves_alone";
    acquire_refuses_while_another_is_under_way: on_races::RefusesMeanwhile, K2, raced, "races::a_halted_acquire_leaves_other_keys_free";
    a_store_forgets_the_oldest: on_upkeep::ForgetsTheOldest, K2, lost, "capacity::thousands_of_locks_are_held_at_once";
    fences_count_per_store: on_fences::PerStore, K3, wrong_key, "fencing::every_key_counts_for_itself";
    fence_names_are_folded: Shared<Fold>, K3, wrong_key, "keys::near_identical_keys_have_their_own_fences";
    fence_names_lose_carriage_returns: Shared<Without<'\r'>>, K3, by_one, "keys::near_identical_keys_have_their_own_fences";
    fence_names_lose_wildcards: Shared<Folded<'*', '?'>>, K3, wrong_key, "keys::near_identical_keys_have_their_own_fences";
    fence_names_are_cut: Shared<CutAt200>, K3, by_one, "keys::long_keys_have_their_own_fences";
    long_keys_are_cut: Spoilt<CutAt200>, K4, by_one, "keys::long_keys_are_not_cut";
    long_keys_are_refused: Refuses<Length>, K4, lost, "keys::the_longest_keys_work";
    long_keys_are_read_unshortened: on_keys::ReadUnshortened, K4, wrong_key, "keys::the_longest_keys_work";

    ids_are_kept_with_all_their_keys: on_release::FreesEveryKeyOfTheId, I3, wrong_key, "keys::one_id_on_two_keys_harms_nobody_else";
    ids_move_their_lock: on_acquire::MovesTheLock, I3, lost, "keys::one_id_on_two_keys_harms_nobody_else";
    ids_take_what_others_hold: on_acquire::GrantsWhatOthersHold, I3, wrong_owner, "acquire::an_id_that_holds_a_key_is_granted_no_held_one";
    a_second_key_moves_the_first_lock: on_acquire::SecondKeyMovesTheFirst, I3, late, "keys::one_id_on_two_keys_harms_nobody_else";

    ttl_in_seconds: on_time::TtlInSeconds, T1, early, "acquire::ttls_are_exact";
    ttl_in_32_bits: on_time::TtlIn32Bits, T1, lost, "acquire::ttls_are_exact";
    ttl_has_a_minimum: on_time::TtlHasAMinimum, T1, late, "acquire::the_shortest_ttls_are_granted";
    ttl_is_a_millisecond_short: on_time::TtlIsOneShort, T1, by_one, "acquire::ttls_are_exact";
    extend_counts_in_seconds: on_time::ExtendTtlInSeconds<0>, T1, after_extend, "extend::it_replaces_the_remaining_time";
    extend_counts_days_in_seconds: on_time::ExtendTtlInSeconds<DAY_MS>, T1, after_extend, "extend::it_replaces_the_remaining_time";

    acquire_grants_another_id: on_acquire::GrantsAnotherId, A1, wrong_owner, "acquire::a_free_key_is_granted_to_the_given_id";
    a_grant_is_not_kept: on_acquire::GrantIsNotKept, A1, lost, "acquire::a_free_key_is_granted_to_the_given_id";
    a_grant_is_kept_later: on_acquire::GrantIsKeptLater, A1, late, "acquire::a_free_key_is_granted_to_the_given_id";
    acquire_grants_another_key: on_acquire::GrantsAnotherKey, A1, wrong_key, "acquire::a_free_key_is_granted_to_the_given_id";
    a_take_over_keeps_the_former_id: on_acquire::TakeOverKeepsTheFormerId, A1, after_expiry, "expiry::after_the_tolerance_the_key_is_free";
    a_store_is_full_at_some_thousands: on_upkeep::IsFull, A1, lost, "capacity::thousands_of_locks_are_held_at_once";
    acquire_steals: on_acquire::Steals, A2, wrong_owner, "acquire::a_held_key_is_locked_for_everyone_else";
    replay_matches_ids_by_like: on_patterns::ReplayMatches, A2, wrong_owner, "patterns::ids_match_themselves_alone";
    acquire_steals_the_extended: on_acquire::StealsTheExtended, A2, after_extend, "boundary::nobody_is_granted_a_key_before_its_lease_ends";
    refusal_releases: on_acquire::RefusalReleases, A2, lost, "acquire::contention_changes_nothing";
    refusal_shortens_by_a_millisecond: on_acquire::RefusalShortens, A2, by_one, "acquire::contention_changes_nothing";
    refusal_undoes_extends: on_acquire::RefusalUndoesExtends, A2, after_extend, "acquire::contention_changes_nothing";
    refusal_rounds_the_long: on_acquire::RefusalRoundsTheLong, A2, by_one, "acquire::contention_changes_nothing";
    contention_moves_the_ttl: on_acquire::ContentionMovesTtl, A2, late, "acquire::contention_changes_nothing";
    refusal_removes_in_the_tolerance: on_tolerance::RefusalRemoves, A2, in_tolerance, "tolerance::all_operations_agree";
    acquire_indexes_losers: on_acquire::IndexesLosers, A2, doubled, "acquire::a_loser_leaves_no_trace";
    acquire_is_not_atomic: on_races::LooksThenTakes, A3, raced, "races::a_halted_acquire_and_another_are_one_grant";
    acquire_of_a_new_key_is_not_atomic: on_races::InsertsUnguarded, A3, doubled, "races::a_halted_acquire_and_another_are_one_grant";
    acquire_of_an_expired_key_is_not_atomic: on_races::TakesOverUnguarded, A3, after_expiry, "races::a_halted_acquire_and_another_are_one_grant";
    acquire_waits_for_the_holder: on_acquire::Waits, A4, late, "acquire::it_never_waits_for_the_holder";
    acquire_waits_for_the_extended: on_acquire::WaitsWhere<true>, A4, after_extend, "acquire::it_never_waits_for_the_holder";
    acquire_waits_in_the_tolerance: on_acquire::WaitsWhere<false>, A4, in_tolerance, "tolerance::a_refusal_does_not_wait";
    acquire_waits_for_the_end_of_the_tolerance: on_acquire::WaitsForTheEnd<1_000>, A4, in_tolerance, "tolerance::a_refusal_does_not_wait";
    acquire_waits_near_the_end_of_the_tolerance: on_acquire::WaitsForTheEnd<150>, A4, in_tolerance, "tolerance::a_refusal_does_not_wait";
    acquire_lies_in_wait: on_acquire::LiesInWait, A4, doubled, "acquire::a_refusal_is_final";
    replay_is_refused: on_replay::IsRefused, A5, lost, "acquire::replay_gives_the_same_grant";
    replay_is_granted_anew: on_replay::IsGrantedAnew, A5, doubled, "acquire::replay_gives_the_same_grant";
    replay_extends: on_replay::Extends, A5, late, "acquire::replay_moves_no_ttl";
    replay_is_exhausted: on_replay::IsExhausted, A5, lost, "fencing::past_the_greatest_fence_nothing_is_granted";
    replay_forgets_extensions: on_replay::IsTheFirst<false>, A5, after_extend, "acquire::replay_after_an_extend_keeps_the_extension";
    replay_forgets_the_latest_extension: on_replay::ForgetsTheLatestExtension, A5, after_extend, "acquire::replay_after_an_extend_keeps_the_extension";
    replay_is_the_first_grant_of_the_id: on_replay::IsTheFirst<true>, A5, doubled, "acquire::replay_after_release_is_a_new_grant";
    replay_is_answered_from_memory: on_replay::IsAnsweredFromMemory, A5, wrong_key, "acquire::replay_after_release_is_a_new_grant";
    replay_ousts_the_successor: on_replay::OustsTheSuccessor, A5, wrong_owner, "acquire::replay_does_not_oust_a_successor";
    replay_revives_the_expired: on_replay::RevivesTheExpired, A5, after_expiry, "expiry::a_replay_after_expiry_is_a_new_grant";
    replay_revives_what_was_taken_over: on_replay::RevivesTheTakenOver, A5, after_expiry, "expiry::an_overrun_holder_does_no_harm";
    replay_is_a_millisecond_off: on_replay::IsOffByOne, A5, by_one, "acquire::replay_gives_the_same_grant";
    replay_restores_what_was_released: on_races::ReplayRestores, A5, raced, "races::a_halted_replay_leaves_a_successor_alone";
    replay_gives_up_before_the_end: on_boundary::ReplayGivesUpBefore, A5, early, "boundary::its_holder_is_heard_until_the_end";
    expiry_is_a_second_late: on_time::ExpiryIsLate, A6, late, "acquire::ttls_are_exact";
    expiry_is_a_millisecond_late: on_time::ExpiryIsOneLate, A6, by_one, "acquire::ttls_are_exact";
    a_take_over_counts_from_the_old_expiry: on_time::TakeOverCountsFromTheOldExpiry, A6, after_expiry, "expiry::the_next_lease_is_whole";
    expiry_is_timed_before_the_wait: on_races::TimedBeforeTheWait, A6, early, "concurrency::grants_are_timed_after_any_wait";
    expiry_is_timed_before_a_short_wait: on_races::TimedBeforeAShortWait, A6, raced, "concurrency::grants_are_timed_after_any_wait";

    release_is_lazy: on_release::IsLazy, R1, late, "release::it_frees_the_key_at_once";
    release_works_from_its_client_alone: on_clients::ReleasesItsOwn, R1, wrong_owner, "release::it_works_from_any_client";
    release_does_nothing: on_release::DoesNothing, R1, lost, "release::it_frees_the_key_at_once";
    release_forgets_the_extended: on_release::ForgetsTheExtended, R1, after_extend, "extend::it_works_from_any_client";
    release_gives_up_before_the_end: on_boundary::ReleaseGivesUpBefore, R1, early, "boundary::its_holder_is_heard_until_the_end";
    release_loses_to_an_extend: on_races::ReleaseLosesToAnExtend, R1, raced, "races::a_halted_release_frees_an_extended_lock";
    release_is_released_twice: on_release::Twice, R2, doubled, "release::again_it_is_not_held";
    release_succeeds_on_the_expired: on_time::ReleasesTheExpired, R2, after_expiry, "expiry::an_expired_lock_is_not_released";
    release_ignores_the_owner: on_release::IgnoresOwner, R3, wrong_owner, "release::it_leaves_a_successor_alone";
    release_folds_ids: on_release::FoldsIds<true>, R3, by_one, "keys::ids_are_taken_to_the_letter";
    release_takes_hyphens_for_underscores: on_release::FoldsIds<false>, R3, by_one, "keys::ids_are_taken_to_the_letter";
    release_frees_all_of_the_client: on_release::FreesAll, R3, wrong_key, "release::it_leaves_other_locks_alone";
    release_checks_then_removes: on_races::ReleaseRemovesByKey, R3, raced, "races::a_halted_release_leaves_a_successor_alone";
    release_removes_in_the_next_step: on_races::ReleaseRemovesTheSuccessor, R3, raced, "races::a_halted_release_leaves_a_successor_alone";
    release_clears_the_expired_by_key: on_clearing::ReleaseClears, R3, raced, "races::a_halted_call_on_an_expired_lock_leaves_a_successor_alone";
    release_matches_ids_by_like: on_patterns::ReleaseMatches, R3, wrong_owner, "patterns::ids_match_themselves_alone";
    release_frees_the_successor_of_the_expired: on_release::FreesTheSuccessorOfTheExpired, R3, after_expiry, "expiry::an_overrun_holder_does_no_harm";
    release_removes_the_successor_in_the_tolerance: on_tolerance::ReleaseRemovesTheSuccessor, R3, in_tolerance, "tolerance::a_halted_call_takes_nothing_from_a_successor";
    release_resets_the_fence: on_release::ResetsFence, R4, lost, "release::it_leaves_the_fence_counter_alone";
    release_of_nothing_burns_fences: on_release::BurnsFence, R4, doubled, "release::it_leaves_the_fence_counter_alone";
    release_of_the_extended_resets_the_fence: on_release::ResetsTheFenceOf<true>, R4, after_extend, "extend::it_uses_no_fence";
    release_of_the_expired_resets_the_fence: on_release::ResetsTheFenceOf<false>, R4, after_expiry, "fencing::fences_rise_across_expiries";
    release_of_the_overdue_resets_the_fence: on_tolerance::ReleaseResetsTheFence, R4, in_tolerance, "tolerance::a_refusal_uses_no_fence";
    release_restores_the_counter: on_races::ReleaseRestoresTheCounter, R4, raced, "races::a_halted_release_leaves_a_successor_alone";
    release_counts_twice: on_races::ReleaseCountsTwice<false>, R5, raced, "races::a_halted_release_leaves_a_successor_alone";
    release_counts_the_extended_twice: on_races::ReleaseCountsTwice<true>, R5, after_extend, "races::a_halted_release_leaves_a_successor_alone";

    extend_adds: on_extend::Adds, X1, doubled, "extend::it_replaces_the_remaining_time";
    extend_counts_from_the_grant: on_extend::CountsFromTheGrant, X1, early, "extend::it_replaces_the_remaining_time";
    extend_never_shortens: on_extend::NeverShortens, X1, late, "extend::a_shortened_lease_ends_early";
    extend_forgets_the_index: on_extend::ForgetsTheIndex, X1, after_extend, "extend::renewals_keep_others_out";
    extend_gives_up_before_the_end: on_boundary::ExtendGivesUpBefore, X1, early, "boundary::its_holder_is_heard_until_the_end";
    extend_skips_a_few_milliseconds: on_boundary::ShortExtendsAreNotDone, X1, lost, "extend::a_few_milliseconds_are_done";
    extend_skips_a_small_change: on_extend::SkipsASmallChange<5, false>, X1, by_one, "extend::a_few_milliseconds_are_done";
    extend_keeps_an_expiry_that_is_near: on_extend::SkipsASmallChange<49, true>, X1, early, "extend::a_few_milliseconds_are_done";
    extend_adds_in_the_tolerance: on_tolerance::ExtendAdds, X1, in_tolerance, "tolerance::an_extend_is_like_any_other";
    extend_estimates: on_extend::Estimates, X2, by_one, "extend::it_returns_the_stores_expiry";
    extend_loses_zeros: on_extend::LosesZeros, X2, by_one, "extend::it_returns_the_stores_expiry";
    extend_answers_the_old_expiry: on_extend::AnswersTheOldExpiry, X2, early, "extend::it_returns_the_stores_expiry";
    extend_resurrects: on_extend::Resurrects, X3, doubled, "extend::it_does_not_bring_back_a_released_lock";
    extend_forgets_the_expiry: on_extend::ForgetsTheExpiry, X3, after_expiry, "expiry::an_expired_lock_is_not_extended";
    extend_revives_what_was_taken_over: on_extend::RevivesTheTakenOver, X3, after_expiry, "expiry::an_overrun_holder_does_no_harm";
    extend_revives_what_was_never_extended: on_tolerance::Extended<on_time::ExtendsTheDead, 0, 0>, X3, after_expiry, "expiry::after_the_tolerance_a_lease_is_dead_to_the_millisecond";
    extend_revives_what_was_often_extended: on_tolerance::Extended<on_time::ExtendsTheDead, 2, 9>, X3, after_extend, "expiry::after_the_tolerance_a_lease_is_dead_to_the_millisecond";
    extend_ignores_the_owner: on_extend::IgnoresOwner, X3, wrong_owner, "extend::it_leaves_a_successor_alone";
    extend_always_succeeds: on_extend::AlwaysSucceeds, X3, lost, "extend::an_unknown_id_is_not_held";
    extend_writes_back: on_races::ExtendWritesBack, X3, raced, "races::a_halted_extend_brings_nothing_back";
    extend_writes_back_in_the_next_step: on_races::ExtendWritesBackAtOnce, X3, raced, "races::a_halted_extend_brings_nothing_back";
    extend_extends_the_successor: on_races::ExtendExtendsTheSuccessor, X3, raced, "races::a_halted_extend_leaves_a_successor_alone";
    extend_ousts_the_successor_of_the_overdue: on_tolerance::ExtendIsUnguarded<false>, X3, raced, "tolerance::a_halted_call_takes_nothing_from_a_successor";
    extend_revives_what_was_overdue: on_tolerance::ExtendChecksTheOwnerAlone, X3, raced, "tolerance::a_halted_call_takes_nothing_from_a_successor";
    extend_clears_the_expired_by_key: on_clearing::ExtendClears, X3, raced, "races::a_halted_call_on_an_expired_lock_leaves_a_successor_alone";
    extend_matches_ids_by_like: on_patterns::ExtendMatches, X3, wrong_owner, "patterns::ids_match_themselves_alone";
    extend_changes_the_fence: on_extend::ChangesFence, X4, doubled, "extend::it_changes_the_expiry_alone";
    extend_changes_the_time_of_acquisition: on_extend::ChangesAcquiredAt<0>, X4, late, "extend::it_changes_the_expiry_alone";
    extend_by_years_changes_the_time_of_acquisition: on_extend::ChangesAcquiredAt<{ 366 * DAY_MS }>, X4, late, "extend::it_changes_the_expiry_alone";
    extend_burns_fences: on_extend::BurnsFence, X4, by_one, "extend::it_uses_no_fence";
    extend_deletes_first: on_races::ExtendDeletesFirst, X4, raced, "cancel::a_dropped_extend_leaves_the_lock_with_its_holder";
    extend_changes_the_fence_in_the_tolerance: on_tolerance::ExtendTakesAnew<false>, X4, in_tolerance, "tolerance::an_extend_is_like_any_other";
    extend_is_a_new_grant_in_the_tolerance: on_tolerance::ExtendTakesAnew<true>, X4, in_tolerance, "tolerance::an_extend_is_like_any_other";
    extend_works_from_its_client_alone: on_clients::ExtendsItsOwn, X5, wrong_owner, "extend::it_works_from_any_client";

    is_locked_is_always_true: on_reads::AlwaysLocked, L1, doubled, "lookup::is_locked_follows_the_lock";
    is_locked_is_always_false: on_reads::NeverLocked, L1, lost, "lookup::is_locked_follows_the_lock";
    is_locked_matches_prefixes: on_reads::MatchesPrefixes, L1, wrong_key, "lookup::is_locked_follows_the_lock";
    is_locked_is_cached: on_clients::CachesIsLocked, L1, late, "lookup::is_locked_follows_the_lock";
    is_locked_forgets_extends: on_reads::IsLockedForgetsExtends, L1, after_extend, "extend::renewals_keep_others_out";
    is_locked_sees_the_expired: on_reads::IsLockedSeesTheExpired, L1, after_expiry, "expiry::after_the_tolerance_the_key_is_free";
    is_locked_misses_the_extended: on_races::IsLockedMissesTheExtended, L1, raced, "races::a_halted_lookup_shows_one_expiry";
    is_locked_joins_one_under_way: on_flights::IsLockedJoins, L1, raced, "races::a_halted_read_does_not_answer_for_a_later_one";
    is_locked_repeats_a_dropped_one: on_flights::IsLockedRepeatsTheDropped, L1, raced, "races::a_halted_read_does_not_answer_for_a_later_one";
    lookup_by_id_ignores_the_owner: on_reads::IgnoresOwner, L2, wrong_owner, "lookup::by_id_it_shows_the_ids_own_lock";
    lookup_by_id_shows_the_newest: on_reads::ShowsTheNewest, L2, wrong_key, "lookup::it_finds_one_among_many";
    lookup_shows_local_time: on_reads::ShowsLocalTime, L2, late, "lookup::it_shows_the_grant_by_key_and_by_id";
    lookup_forgets_extends: on_reads::LookupForgetsExtends, L2, after_extend, "extend::renewals_keep_others_out";
    lookup_is_a_millisecond_off: on_reads::LookupIsOffByOne, L2, by_one, "lookup::it_shows_the_grant_by_key_and_by_id";
    lookup_is_torn: on_races::LookupIsTorn, L2, raced, "races::a_halted_lookup_shows_one_lock_whole";
    lookup_by_id_follows_the_key: on_races::LookupByIdFollowsTheKey, L2, raced, "races::a_halted_lookup_shows_one_lock_whole";
    lookup_misses_the_extended: on_races::LookupMissesTheExtended, L2, raced, "races::a_halted_lookup_shows_one_expiry";
    lookup_joins_one_under_way: on_flights::LookupJoins, L2, raced, "races::a_halted_read_does_not_answer_for_a_later_one";
    lookup_misses_what_is_acquired: on_flights::AcquireIndexesAfterwards, L2, raced, "races::a_halted_acquire_leaves_other_keys_free";
    lookup_misses_what_is_extended: on_flights::ExtendReindexes, L2, raced, "races::a_halted_lookup_shows_one_expiry";
    lookup_matches_ids_by_like: on_patterns::LookupMatches, L2, wrong_owner, "patterns::ids_match_themselves_alone";
    lookup_shows_the_released: on_reads::ShowsTheReleased, L3, late, "release::it_forgets_the_id";
    lookup_shows_the_expired: on_reads::ShowsTheExpired, L3, after_expiry, "expiry::after_the_tolerance_the_key_is_free";
    is_locked_keeps_alive: on_reads::KeepsAlive, L4, late, "lookup::reads_change_nothing";
    lookup_burns_fences: on_reads::BurnsFence, L4, by_one, "lookup::reads_change_nothing";
    is_locked_removes_in_the_tolerance: on_tolerance::IsLockedRemoves, L4, in_tolerance, "tolerance::all_operations_agree";
    lookup_removes_in_the_tolerance: on_tolerance::LookupRemoves, L4, in_tolerance, "tolerance::all_operations_agree";
    is_locked_clears_the_expired_by_key: on_clearing::IsLockedClears, L4, raced, "races::a_halted_call_on_an_expired_lock_leaves_a_successor_alone";
    lookup_by_id_clears_the_expired_by_key: on_clearing::LookupClears<false>, L4, raced, "races::a_halted_call_on_an_expired_lock_leaves_a_successor_alone";
    lookup_hashes_the_storage_key: on_reads::HashesTheStorageKey, L5, wrong_key, "lookup::it_shows_hashes";

    listing_takes_a_lease_for_dead_early: on_listing::EndsEarly, N1, early, "listing::until_its_end_a_lock_is_shown";
    listing_is_cached: on_listing::IsCached, N1, late, "listing::every_live_lock_is_shown";
    listing_stops_at_the_page: on_listing::StopsAtThePage, N1, lost, "listing::a_lock_is_shown_once";
    listing_stops_at_a_thousand: on_listing::StopsAtAThousand, N1, lost, "capacity::a_thousand_locks_are_shown";
    listing_shows_storage_keys: on_listing::ShowsTheStorageKey, N1, wrong_key, "listing::every_live_lock_is_shown";
    listing_hides_keys_like_counters: on_listing::HidesNames<false>, N1, wrong_key, "listing::nothing_else_is_shown";
    listing_hides_keys_like_ids: on_listing::HidesNames<true>, N1, wrong_key, "listing::nothing_else_is_shown";
    listing_shows_its_clients_locks_alone: on_listing::ShowsItsOwn, N1, wrong_owner, "listing::every_live_lock_is_shown";
    listing_skips_one_between_pages: on_listing::SkipsOne, N1, by_one, "listing::a_lock_is_shown_once";
    listing_forgets_extends: on_listing::ForgetsExtends, N1, after_extend, "listing::every_live_lock_is_shown";
    listing_lags_behind_extends: on_listing::LagsBehindExtends, N1, after_extend, "listing::every_live_lock_is_shown";
    listing_misses_what_has_changed: on_listing::MissesWhatHasChanged, N1, after_extend, "listing::locks_that_change_are_shown_once";
    listing_pages_by_expiry: on_listing::PagesByExpiry<true>, N1, after_extend, "listing::locks_that_change_are_shown_once";
    listing_pages_by_number: on_listing::PagesByNumber, N1, raced, "listing::locks_that_come_and_go_hide_no_other";
    listing_joins_one_under_way: on_flights::ListingJoins, N1, raced, "races::a_halted_read_does_not_answer_for_a_later_one";
    listing_misses_what_is_extended: on_flights::ExtendRelists, N1, raced, "races::a_halted_lookup_shows_one_expiry";
    listing_repeats_in_a_page: on_listing::RepeatsInThePage, N2, doubled, "listing::a_lock_is_shown_once";
    listing_begins_again_where_a_lock_is_gone: on_listing::BeginsAgain, N2, doubled, "listing::locks_that_change_are_shown_once";
    listing_repeats_the_last_of_a_page: on_listing::RepeatsTheLast, N2, by_one, "listing::a_lock_is_shown_once";
    listing_repeats_what_was_extended: on_listing::PagesByExpiry<false>, N2, after_extend, "listing::locks_that_change_are_shown_once";
    listing_shows_the_released: on_listing::ShowsTheReleased, N3, late, "listing::the_dead_are_not_shown";
    listing_shows_counters: on_listing::ShowsCounters, N3, wrong_key, "listing::nothing_else_is_shown";
    listing_shows_the_former_holder: on_listing::ShowsTheFormer, N3, wrong_owner, "listing::the_dead_are_not_shown";
    listing_shows_the_expired: on_listing::ShowsTheExpired, N3, after_expiry, "listing::the_dead_are_not_shown";
    prefixes_lose_the_last_characters: on_listing::CutsTheRange, N4, lost, "listing::a_prefix_is_taken_to_the_letter";
    prefixes_end_at_the_surrogates: on_listing::EndsAtTheSurrogates, N4, lost, "listing::a_prefix_is_taken_to_the_letter";
    prefixes_are_matched_by_like: on_listing::PrefixesMatch<false>, N4, wrong_key, "listing::a_prefix_is_no_pattern";
    prefixes_are_matched_as_globs: on_listing::PrefixesMatch<true>, N4, wrong_key, "listing::a_prefix_is_no_pattern";
    prefixes_are_folded: on_listing::FoldsPrefixes, N4, wrong_key, "listing::a_prefix_is_taken_to_the_letter";
    prefixes_exclude_themselves: on_listing::LeavesThePrefixOut, N4, by_one, "listing::a_prefix_is_taken_to_the_letter";
    prefixes_lose_their_colons: on_listing::CutsPrefixes<false>, N4, by_one, "listing::a_prefix_is_taken_to_the_letter";
    long_prefixes_are_cut: on_listing::CutsPrefixes<true>, N4, by_one, "listing::a_prefix_is_taken_to_the_letter";
    listing_never_ends: on_listing::NeverEnds, N5, late, "listing::pages_are_bounded";
    listing_cuts_positions_at_a_bar: on_listing::CutsPositionsAtABar, N5, late, "listing::a_prefix_is_no_pattern";
    listing_ignores_the_limit: on_listing::IgnoresTheLimit, N5, doubled, "listing::pages_are_bounded";
    listing_shows_one_more: on_listing::ShowsOneMore, N5, by_one, "listing::pages_are_bounded";
    listing_shows_one_more_than_the_greatest: on_listing::ShowsOneMoreThanTheGreatest, N5, by_one, "capacity::a_thousand_locks_are_shown";
    listing_keeps_alive: on_listing::KeepsAlive, N6, late, "listing::it_changes_nothing";
    listing_takes_fences: on_listing::CleansFences, N6, after_expiry, "listing::it_changes_nothing";
    listing_removes_in_the_tolerance: on_listing::RemovesTheOverdue, N6, in_tolerance, "tolerance::all_operations_agree";
    listing_burns_fences: on_listing::BurnsFences, N6, by_one, "listing::it_changes_nothing";
    listing_clears_the_expired_by_key: on_clearing::ListingClears, N6, raced, "races::a_halted_call_on_an_expired_lock_leaves_a_successor_alone";

    reads_take_a_lease_for_dead_early: on_time::ReadsDeadEarly, E1, early, "expiry::before_it_a_lease_is_live_to_the_millisecond";
    acquire_takes_a_lease_for_dead_early: on_time::GrantsEarly<1_000>, E1, early, "expiry::before_it_a_lease_is_live";
    extended_leases_end_300_ms_early: on_boundary::GrantsBefore<300, true>, E1, after_extend, "boundary::nobody_is_granted_a_key_before_its_lease_ends";
    extended_leases_end_100_ms_early: on_boundary::GrantsBefore<100, true>, E1, after_extend, "boundary::nobody_is_granted_a_key_before_its_lease_ends";
    extended_leases_end_30_ms_early: on_boundary::GrantsBefore<30, true>, E1, after_extend, "boundary::nobody_is_granted_a_key_before_its_lease_ends";
    leases_end_10_ms_early: on_boundary::GrantsBefore<10, false>, E1, early, "boundary::nobody_is_granted_a_key_before_its_lease_ends";
    leases_end_20_ms_early_for_one_client: on_clients::OneOf<on_time::GrantsEarly<20>, 3, 2>, E1, early, "boundary::nobody_is_granted_a_key_before_its_lease_ends";
    extended_leases_end_3_ms_early: on_boundary::GrantsBefore<3, true>, E1, after_extend, "boundary::nobody_is_granted_a_key_in_its_last_milliseconds";
    clean_up_takes_live_locks: on_reads::CleansLiveLocks, E1, after_expiry, "lookup::clean_up_spares_live_locks_and_fences";
    lookup_by_key_clears_the_expired_by_key: on_clearing::LookupClears<true>, E1, raced, "races::a_halted_call_on_an_expired_lock_leaves_a_successor_alone";
    locks_end_with_their_client: on_clients::LocksEndWithIt, E1, lost, "release::a_lock_outlives_its_client";
    tolerance_is_doubled: on_time::ToleranceIsLonger<1_000>, E2, late, "expiry::after_the_tolerance_the_key_is_free";
    tolerance_of_the_never_extended_is_5_ms_longer: on_tolerance::Extended<on_time::ToleranceIsLonger<5>, 0, 0>, E2, late, "expiry::after_the_tolerance_a_lease_is_dead_to_the_millisecond";
    tolerance_is_doubled_once_extended: on_time::ExtendedLivesOn, E2, after_extend, "extend::a_shortened_lease_ends_early";
    leases_live_at_the_boundary: on_time::LiveAtTheBoundary, E2, by_one, "expiry::after_the_tolerance_a_lease_is_dead_to_the_millisecond";
    tolerances_differ: on_time::TolerancesDiffer, E3, in_tolerance, "expiry::in_the_tolerance_only_one_wins";
    is_locked_ends_at_the_expiry: on_tolerance::IsLockedEnds<0>, E3, in_tolerance, "tolerance::all_operations_agree";
    lookup_by_key_ends_at_the_expiry: on_tolerance::LookupByKeyEnds<0>, E3, in_tolerance, "tolerance::all_operations_agree";
    lookup_by_id_ends_at_the_expiry: on_tolerance::LookupByIdEnds<0>, E3, in_tolerance, "tolerance::all_operations_agree";
    listing_ends_at_the_expiry: on_listing::EndsAtTheExpiry, E3, in_tolerance, "tolerance::all_operations_agree";
    acquire_ends_at_the_expiry: on_tolerance::AcquireEnds<0>, E3, in_tolerance, "tolerance::all_operations_agree";
    replay_ends_at_the_expiry: on_tolerance::ReplayEnds<0>, E3, in_tolerance, "tolerance::all_operations_agree";
    extend_ends_at_the_expiry: on_tolerance::ExtendEnds<0>, E3, in_tolerance, "tolerance::all_operations_agree";
    release_ends_at_the_expiry: on_tolerance::ReleaseEnds<0>, E3, in_tolerance, "tolerance::all_operations_agree";
    is_locked_ends_late_in_the_tolerance: on_tolerance::IsLockedEnds<600>, E3, in_tolerance, "tolerance::all_operations_agree";
    lookup_by_key_ends_late_in_the_tolerance: on_tolerance::LookupByKeyEnds<600>, E3, in_tolerance, "tolerance::all_operations_agree";
    lookup_by_id_ends_late_in_the_tolerance: on_tolerance::LookupByIdEnds<600>, E3, in_tolerance, "tolerance::all_operations_agree";
    acquire_ends_late_in_the_tolerance: on_tolerance::AcquireEnds<600>, E3, in_tolerance, "tolerance::all_operations_agree";
    extend_ends_late_in_the_tolerance: on_tolerance::ExtendEnds<600>, E3, in_tolerance, "tolerance::all_operations_agree";
    release_ends_late_in_the_tolerance: on_tolerance::ReleaseEnds<600>, E3, in_tolerance, "tolerance::all_operations_agree";
    is_locked_of_the_never_extended_ends_at_the_expiry: on_tolerance::Extended<on_tolerance::IsLockedEnds<0>, 0, 0>, E3, in_tolerance, "tolerance::all_operations_agree";
    acquire_of_the_never_extended_ends_at_the_expiry: on_tolerance::Extended<on_tolerance::AcquireEnds<0>, 0, 0>, E3, in_tolerance, "tolerance::all_operations_agree";
    extend_of_the_never_extended_ends_at_the_expiry: on_tolerance::Extended<on_tolerance::ExtendEnds<0>, 0, 0>, E3, in_tolerance, "tolerance::all_operations_agree";
    acquire_of_the_often_extended_ends_at_the_expiry: on_tolerance::Extended<on_tolerance::AcquireEnds<0>, 2, 9>, E3, after_extend, "tolerance::all_operations_agree";
    acquire_of_the_holders_client_ends_at_the_expiry: on_clients::OneOf<on_tolerance::AcquireEnds<0>, 3, 0>, E3, in_tolerance, "tolerance::all_operations_agree";
    acquire_of_every_second_client_ends_at_the_expiry: on_clients::OneOf<on_tolerance::AcquireEnds<0>, 2, 1>, E3, in_tolerance, "tolerance::all_operations_agree";
    tolerance_ends_10_ms_early: on_tolerance::AcquireEnds<990>, E3, early, "boundary::nobody_is_granted_a_key_before_its_lease_ends";
    tolerance_ends_a_millisecond_early: on_tolerance::AcquireEnds<999>, E3, by_one, "boundary::nobody_is_granted_a_key_in_its_last_milliseconds";
    acquire_sweeps_in_the_tolerance: on_tolerance::AcquireSweeps, E3, in_tolerance, "capacity::thousands_of_locks_are_held_at_once";
    extend_is_unguarded_in_the_tolerance: on_tolerance::ExtendIsUnguarded<true>, E3, raced, "tolerance::a_halted_call_takes_nothing_from_a_successor";

    refusals_forget_the_tolerance: on_waiting::ForgetsTheTolerance, W1, in_tolerance, "waiting::a_refusal_says_when_the_key_is_free";
    refusals_promise_too_much: on_waiting::PromisesTooMuch, W1, early, "waiting::a_refusal_says_when_the_key_is_free";
    refusals_promise_too_little: on_waiting::PromisesTooLittle, W1, late, "waiting::a_refusal_says_when_the_key_is_free";
    refusals_forget_extends: on_waiting::ForgetsExtends, W1, after_extend, "waiting::a_refusal_says_when_the_key_is_free";
    refusals_count_the_whole_lease: on_waiting::StatesTheWholeLease, W1, late, "waiting::a_refusal_says_when_the_key_is_free";
    refusals_round_down: on_waiting::States<InSteps>, W1, early, "waiting::a_refusal_says_when_the_key_is_free";
    refusals_round_up: on_waiting::States<LongInSteps>, W1, late, "waiting::a_refusal_says_when_the_key_is_free";
    refusals_count_in_32_bits: on_waiting::States<In32Bits>, W1, early, "waiting::a_refusal_says_when_the_key_is_free";
    refusals_take_the_overdue_for_dead: on_waiting::States<SoonInTheTolerance>, W1, in_tolerance, "waiting::a_refusal_says_when_the_key_is_free";
    watches_hear_nothing: on_waiting::HearsNothing, W2, lost, "waiting::a_release_wakes_who_watches";
    watches_hear_once: on_waiting::HearsOnce, W2, doubled, "waiting::a_release_wakes_who_watches";
    watches_wake_one: on_waiting::WakesOne, W2, doubled, "waiting::a_release_wakes_all_who_watch";
    watches_end_others: on_waiting::EndsTheOthers, W2, wrong_owner, "waiting::a_release_wakes_all_who_watch";
    watches_miss_long_keys: on_waiting::Misses<LongKeys>, W2, wrong_key, "waiting::keys_of_all_kinds_are_watched_at_once";
    watches_are_few: on_waiting::HasSlots, W2, lost, "waiting::keys_of_all_kinds_are_watched_at_once";
    watches_miss_the_extended: on_waiting::Misses<Extended>, W2, after_extend, "waiting::a_release_wakes_who_watches";
    watches_miss_a_take_over: on_waiting::Misses<TakenOver>, W2, after_expiry, "waiting::a_release_wakes_who_watches";
    watches_miss_the_overdue: on_waiting::Misses<Overdue>, W2, in_tolerance, "waiting::a_release_wakes_who_watches";
    watches_look_once: on_waiting::LooksOnce, W2, raced, "waiting::a_release_wakes_who_watches";
    watches_do_not_look: on_waiting::DoesNotLook, W2, raced, "waiting::a_watch_of_a_free_key_resolves_at_once";

    fences_repeat: on_fences::Repeats, F1, doubled, "fencing::fences_strictly_increase";
    fences_in_32_bits: on_fences::In32Bits, F1, lost, "fencing::great_fences_are_exact";
    fences_end_with_the_lease: on_fences::EndWithTheLease, F2, after_expiry, "fencing::fences_rise_across_expiries";
    fences_count_in_the_client: on_fences::CountInTheClient, F2, wrong_owner, "fencing::fences_outlive_clients";
    fences_end_with_the_close: on_fences::EndWithTheClose, F2, lost, "fencing::fences_outlive_clients";
    clean_up_takes_fences: on_reads::CleansFences, F2, lost, "lookup::clean_up_spares_live_locks_and_fences";
    clean_up_restores_the_counter: on_clearing::ClearingRestoresTheCounter, F2, raced, "races::a_halted_call_on_an_expired_lock_leaves_a_successor_alone";
    a_second_key_resets_its_fence: on_acquire::SecondKeyResetsTheFence, F2, after_expiry, "keys::one_id_on_two_keys_harms_nobody_else";
    fences_saturate: on_fences::Saturate, F3, doubled, "fencing::past_the_greatest_fence_nothing_is_granted";
    fences_are_checked_too_late: on_fences::CheckedTooLate, F3, late, "fencing::past_the_greatest_fence_nothing_is_granted";
    fences_end_one_early: on_fences::EndOneEarly<false>, F3, by_one, "fencing::great_fences_are_exact";
    fences_end_one_early_for_a_take_over: on_fences::EndOneEarly<true>, F3, after_expiry, "fencing::past_the_greatest_fence_no_expired_lock_is_taken_over";
    the_last_fence_is_granted_again: on_fences::LastIsGrantedAgain, F3, after_expiry, "fencing::past_the_greatest_fence_no_expired_lock_is_taken_over";
    contention_burns_fences: on_fences::BurntByContention, F4, lost, "fencing::contention_uses_no_fence";
    replay_burns_fences: on_fences::BurntByReplay, F4, doubled, "fencing::contention_uses_no_fence";
    contention_burns_fences_once_extended: on_fences::BurntWhere<true>, F4, after_extend, "fencing::contention_uses_no_fence";
    contention_burns_fences_in_the_tolerance: on_fences::BurntWhere<false>, F4, in_tolerance, "tolerance::a_refusal_uses_no_fence";

    acquire_arrives_late: on_acquire::ArrivesLate<false>, C1, late, "cancel::an_acquire_dropped_at_any_poll_leaves_no_lock";
    acquire_arrives_after_the_holder: on_acquire::ArrivesLate<true>, C1, late, "cancel::a_dropped_contender_does_not_disturb_the_holder";
    acquire_stays_under_way: on_acquire::StaysUnderWay, C1, lost, "cancel::an_acquire_dropped_at_any_poll_leaves_no_lock";
    acquire_indexes_later: on_acquire::IndexesLater, C1, lost, "cancel::an_acquire_dropped_at_any_poll_leaves_no_lock";
    release_is_once_only: on_races::ReleaseIsOnceOnly, C4, lost, "cancel::a_release_dropped_at_any_poll_frees_the_key";
    conflicts_are_errors: on_races::ConflictIsAnError<false>, O1, raced, "races::a_halted_acquire_and_another_are_one_grant";
    conflicts_over_an_expired_key_are_errors: on_races::ConflictIsAnError<true>, O1, after_expiry, "races::a_halted_acquire_and_another_are_one_grant";
    two_keys_of_one_id_conflict: on_acquire::SecondKeyConflicts, O1, raced, "keys::one_id_on_two_keys_harms_nobody_else";
    conflicts_in_the_tolerance_are_errors: on_tolerance::ExtendConflicts, O1, in_tolerance, "tolerance::a_halted_call_takes_nothing_from_a_successor";
    events_show_the_key: on_words::LogsTheKey, O2, wrong_key, "errors::events_show_no_identifier";
    events_show_the_key_of_an_expired_lock: on_words::LogsTheTakeOver, O2, after_expiry, "errors::events_of_expired_locks_show_no_identifier";
    events_show_the_key_of_an_overdue_lock: on_words::LogsTheOverdue, O2, in_tolerance, "errors::events_of_expired_locks_show_no_identifier";
    events_show_the_id_of_an_extend: on_words::LogsTheExtended, O2, after_extend, "errors::events_show_no_identifier";
    debug_shows_keys: on_words::DebugShowsKeys, O2, lost, "errors::debug_of_values_shows_no_identifier";
    events_show_the_id_of_a_replay: on_words::LogsTheUsedId<true>, O2, doubled, "errors::events_show_no_identifier";
    events_show_the_id_on_a_second_key: on_words::LogsTheUsedId<false>, O2, wrong_key, "errors::events_show_no_identifier";
    events_show_the_key_of_a_watch: on_words::LogsTheWatched, O2, wrong_key, "errors::events_show_no_identifier";
    events_show_the_prefix_of_a_listing: on_words::LogsTheListed, O2, wrong_key, "errors::events_show_no_identifier";
    errors_quote_the_key: on_words::ErrorsQuoteTheKey, O2, wrong_owner, "errors::errors_show_no_identifier";
    errors_quote_the_id_on_a_second_key: on_words::SecondKeyQuotesTheId, O2, wrong_key, "errors::errors_show_no_identifier";
    errors_of_late_calls_quote_the_key: on_words::LateCallQuotesTheKey, O2, late, "errors::errors_show_no_identifier";
    errors_of_a_closed_client_quote_the_key: on_words::ClosedQuotesTheKey, O2, lost, "errors::errors_show_no_identifier";

    late_calls_are_sent: on_upkeep::SendsTheLate, D1, late, "upkeep::a_call_after_its_deadline_is_not_sent";
    late_calls_are_in_doubt: on_upkeep::DoubtsTheLate, D1, lost, "upkeep::a_call_after_its_deadline_is_not_sent";
    purging_takes_live_locks: on_upkeep::PurgesTheLive, P1, early, "upkeep::purging_spares_live_locks_and_fences";
    purging_takes_extended_locks: on_upkeep::PurgesTheExtended<{ i64::MAX }>, P1, after_extend, "upkeep::purging_spares_live_locks_and_fences";
    purging_takes_extended_locks_near_their_end: on_upkeep::PurgesTheExtended<500>, P1, after_extend, "upkeep::purging_spares_live_locks_and_fences";
    purging_takes_locks_in_the_tolerance: on_upkeep::PurgesTheOverdue<true>, P1, in_tolerance, "upkeep::purging_spares_live_locks_and_fences";
    purging_takes_the_never_extended_in_the_tolerance: on_upkeep::PurgesTheOverdue<false>, P1, in_tolerance, "upkeep::purging_spares_live_locks_and_fences";
    purging_takes_fences: on_upkeep::PurgesFences<0, false>, P1, lost, "upkeep::purging_spares_live_locks_and_fences";
    purging_takes_fences_of_long_keys: on_upkeep::PurgesFences<256, false>, P1, lost, "upkeep::purging_spares_live_locks_and_fences";
    purging_takes_the_first_fences: on_upkeep::PurgesFences<0, true>, P1, lost, "upkeep::purging_spares_live_locks_and_fences";
    purging_deletes_by_key: on_clearing::PurgeDeletesByKey, P1, raced, "races::a_halted_purge_leaves_successors_alone";
    purging_ignores_its_limit: on_upkeep::PurgesPastTheLimit, P2, doubled, "upkeep::purging_stops_at_its_limit";
    purging_takes_zero_as_no_limit: on_upkeep::PurgesAllForNone, P2, doubled, "upkeep::purging_stops_at_its_limit";
    purging_takes_whole_batches: on_upkeep::PurgesInBatches, P2, doubled, "upkeep::purging_stops_at_its_limit";
    purging_counts_one_less: on_upkeep::PurgeCountsOneLess, P2, by_one, "upkeep::purging_stops_at_its_limit";
    purging_stops_at_extended_locks: on_upkeep::PurgeStopsAtTheExtended, P2, after_extend, "upkeep::purging_spares_live_locks_and_fences";
    purging_takes_one_more: on_upkeep::PurgesOneMore, P2, by_one, "upkeep::purging_stops_at_its_limit";
    closing_releases: on_upkeep::CloseReleases<false>, S1, lost, "upkeep::closing_a_client_ends_nothing_else";
    closing_releases_what_was_extended: on_upkeep::CloseReleases<true>, S1, after_extend, "upkeep::closing_a_client_ends_nothing_else";
    closing_ends_watches: on_upkeep::CloseEndsWatches, S1, wrong_owner, "upkeep::closing_a_client_ends_nothing_else";
    a_closed_client_releases: on_upkeep::ClosesAllBut<'r'>, S1, late, "upkeep::closing_a_client_ends_nothing_else";
    a_closed_client_extends: on_upkeep::ClosesAllBut<'e'>, S1, late, "upkeep::closing_a_client_ends_nothing_else";
    a_closed_client_answers_is_locked: on_upkeep::ClosesAllBut<'i'>, S1, late, "upkeep::closing_a_client_ends_nothing_else";
    a_closed_client_looks_up: on_upkeep::ClosesAllBut<'k'>, S1, late, "upkeep::closing_a_client_ends_nothing_else";
    a_closed_client_watches: on_upkeep::ClosesAllBut<'w'>, S1, late, "upkeep::closing_a_client_ends_nothing_else";
    a_closed_client_lists: on_upkeep::ClosesAllBut<'l'>, S1, late, "upkeep::closing_a_client_ends_nothing_else";
    a_closed_client_purges: on_upkeep::ClosesAllBut<'p'>, S1, late, "upkeep::closing_a_client_ends_nothing_else";
    closing_ends_other_clients: on_upkeep::CloseEndsTheOthers, S1, wrong_owner, "upkeep::closing_a_client_ends_nothing_else";

    releases_unindex_later: on_stored::ReleaseUnindexesLater, G1, late, "stored::a_released_key_leaves_its_counter";
    releases_leave_the_index: on_stored::ReleaseLeavesTheIndex, G1, lost, "stored::a_released_key_leaves_its_counter";
    counters_go_with_the_lock: on_stored::CounterGoesWithTheLock, G1, lost, "stored::a_released_key_leaves_its_counter";
    every_grant_has_a_counter: on_stored::EveryGrantHasACounter, G1, doubled, "stored::a_key_acquired_again_and_again_leaves_one_counter";
    every_client_has_a_counter: on_stored::EveryClientHasACounter, G1, wrong_owner, "stored::a_key_acquired_again_and_again_leaves_one_counter";
    the_latest_lock_stays: on_stored::LatestLockStays, G1, by_one, "stored::a_released_key_leaves_its_counter";
    extends_index_anew: on_stored::ExtendIndexesAnew, G1, after_extend, "stored::a_released_key_leaves_its_counter";
    extends_index_anew_each_time: on_stored::ReleaseForgetsFormerExtends, G1, after_extend, "stored::a_released_key_leaves_its_counter";
    extends_index_what_was_released: on_stored::ExtendIndexesTheReleased, G1, raced, "stored::a_halted_call_leaves_nothing";
    abandoned_releases_leave_their_index: on_stored::AbandonedReleasesLeaveTheIndex, G1, raced, "stored::an_abandoned_release_leaves_nothing";
    purging_leaves_the_index: on_stored::PurgingLeavesTheIndex, G2, lost, "stored::an_expired_lock_leaves_its_counter";
    purging_leaves_what_was_refused: on_stored::PurgingLeavesTheRefused, G2, lost, "stored::an_expired_lock_leaves_its_counter";
    purging_skips_the_extended: on_stored::PurgingSkipsTheExtended, G2, after_extend, "stored::an_expired_lock_leaves_its_counter";
    a_take_over_leaves_the_former_index: on_stored::TakeOverLeavesTheIndex, G2, after_expiry, "stored::an_expired_lock_leaves_its_counter";
    a_second_take_over_leaves_the_former_lock: on_stored::SecondTakeOverLeavesTheLock, G2, after_expiry, "stored::an_expired_lock_leaves_its_counter";
    purging_forgets_what_was_taken_over: on_stored::PurgingForgetsTheTakenOver, G2, raced, "stored::a_halted_purge_leaves_nothing";
    refusals_are_cleared_later: on_stored::RefusalsAreClearedLater, G3, late, "stored::a_call_that_changes_nothing_leaves_nothing";
    watches_are_kept: on_stored::WatchesAreKept, G3, lost, "stored::a_watch_leaves_nothing";
    listings_leave_a_cursor: on_stored::ListingsLeaveACursor, G3, lost, "stored::a_call_that_changes_nothing_leaves_nothing";
    refusals_leave_an_entry: on_stored::RefusalsLeaveAnEntry, G3, doubled, "stored::a_call_that_changes_nothing_leaves_nothing";
    exhausted_acquires_leave_an_entry: on_stored::ExhaustedAcquiresLeaveAnEntry, G3, lost, "fencing::past_the_greatest_fence_nothing_is_granted";
    refusals_leave_an_entry_in_the_tolerance: on_stored::LateRefusalsLeaveAnEntry, G3, in_tolerance, "stored::a_call_in_the_tolerance_leaves_nothing";
    reads_make_counters: on_stored::ReadsMakeCounters, G3, wrong_key, "stored::a_call_that_changes_nothing_leaves_nothing";
    a_second_key_leaves_a_counter: on_acquire::SecondKeyLeavesACounter, G3, wrong_key, "keys::one_id_on_two_keys_harms_nobody_else";
    watches_make_counters: on_stored::WatchesMakeCounters, G3, wrong_key, "stored::a_watch_leaves_nothing";
    failed_extends_leave_an_entry: on_stored::FailedExtendsLeaveAnEntry, G3, wrong_owner, "stored::a_call_that_changes_nothing_leaves_nothing";
    overrun_extends_leave_an_entry: on_stored::OverrunExtendsLeaveAnEntry, G3, wrong_owner, "stored::an_expired_lock_leaves_its_counter";
    failed_releases_leave_a_tombstone: on_stored::FailedReleasesLeaveATombstone, G3, wrong_owner, "stored::a_call_that_changes_nothing_leaves_nothing";
    the_latest_refusal_is_kept: on_stored::LatestRefusalIsKept, G3, by_one, "stored::a_call_that_changes_nothing_leaves_nothing";
    late_extends_leave_an_entry: on_stored::LateExtendsLeaveAnEntry, G3, after_expiry, "stored::an_expired_lock_leaves_its_counter";
    late_lookups_leave_an_entry: on_stored::LateLookupsLeaveAnEntry, G3, after_expiry, "stored::an_expired_lock_leaves_its_counter";
    abandoned_acquires_leave_their_index: on_stored::AbandonedAcquiresLeaveTheIndex, G3, raced, "stored::an_abandoned_acquire_leaves_nothing";
    halted_releases_leave_a_mark: on_stored::ReleaseMarksTheReleased, G3, raced, "stored::a_halted_call_leaves_nothing";
    contenders_leave_marks: on_stored::ContendersLeaveMarks, G3, raced, "stored::many_at_once_leave_their_counters";
}

/// Clauses that no backend can break, since it is the core that keeps them: by the types that it
/// hands on (K1 to T3), and by the combinator around every operation (C2, C3).
const KEPT_BY_THE_CORE: &[&str] = &["K1", "K5", "I1", "I2", "T2", "T3", "C2", "C3"];

/// Without a fault the same decorator passes: it is the fault that fails.
#[tokio::test(flavor = "multi_thread")]
async fn the_decorator_alone_conforms() {
    let harness = BrokenHarness::new::<broken::NoFault>();
    let report = run(Arc::new(harness), RunOptions::new().concurrency(32)).await;
    assert!(report.is_success() && report.skipped == 0, "{report}");
}

/// On a store that answers at once, calls never give way to the timeout by themselves.
#[tokio::test(flavor = "multi_thread")]
async fn a_case_that_never_waits_ends_at_its_timeout() {
    let harness = Arc::new(BrokenHarness::new::<on_listing::NeverEnds>());
    let options = RunOptions::new()
        .filter("listing::locks_that_come_and_go_hide_no_other")
        .case_timeout(Duration::from_millis(50));
    let report = run(harness, options).await;
    assert!(
        report.to_string().contains("no end within 50ms"),
        "{report}"
    );
}

#[test]
fn every_clause_that_a_backend_can_break_is_broken() {
    let broken = MUTANTS.iter().map(|(_, clause, ..)| *clause);
    let broken: BTreeSet<_> = broken.collect();
    let kept: BTreeSet<_> = KEPT_BY_THE_CORE.iter().copied().collect();
    assert!(broken.is_disjoint(&kept));
    let all: BTreeSet<_> = clauses().into_iter().map(|clause| clause.id).collect();
    assert_eq!(&broken | &kept, all);
}

/// The table that readers see is this list.
#[test]
fn the_page_shows_the_list() {
    let table: String = MUTANTS
        .iter()
        .map(|(name, clause, kind, case)| {
            let (name, kind) = (name.replace('_', " "), kind.replace('_', " "));
            format!("| {name} | {clause} | {kind} | [`{case}`](crate::cases::{case}) |\n")
        })
        .collect();
    let page = include_str!("../../src/mutants.md");
    let rows: String = page
        .lines()
        .filter(|line| line.contains("](crate::cases::"))
        .map(|line| format!("{line}\n"))
        .collect();
    assert_eq!(rows, table, "src/mutants.md should show:\n{table}");
    for clause in KEPT_BY_THE_CORE {
        let listed = page
            .lines()
            .any(|line| line.starts_with(&format!("| {clause} |")));
        assert!(
            listed,
            "src/mutants.md should say why nobody breaks {clause}"
        );
    }
}

/// With this variable, all cases run on each mutant: the one that is to refuse it must do so among them, too.
const WHOLE_SUITE: &str = "SYNCGUARD_MUTANTS_WHOLE_SUITE";

async fn refuses<F: Fault>(clause: &str, case: &str) {
    if std::env::var_os(WHOLE_SUITE).is_none() {
        return case_refuses::<F>(clause, case).await;
    }
    let harness = Arc::new(BrokenHarness::new::<F>());
    let report = run(harness, RunOptions::new()).await;
    let seen = report.case(case).unwrap();
    assert_eq!(
        seen.status,
        Status::Failed,
        "a broken backend survived {case}: {report}"
    );
}

async fn case_refuses<F: Fault>(clause: &str, case: &str) {
    let listed = cases().into_iter().find(|listed| listed.name == case);
    let listed = listed.unwrap_or_else(|| panic!("no case {case}"));
    assert!(
        listed.clauses.contains(&clause),
        "{case} does not prove {clause}"
    );

    let harness = Arc::new(BrokenHarness::new::<F>());
    let report = run(harness, RunOptions::new().filter(case)).await;
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
    assert_eq!(case_at_fault(case, detail), case, "{detail}");
}

/// The case whose line a failure names first.
fn case_at_fault(case: &str, detail: &str) -> String {
    let (group, _) = case.split_once("::").unwrap();
    let file = format!("src/cases/{group}.rs");
    let (_, places) = detail.rsplit_once(" (").unwrap();
    let first = places.split([',', ')']).next().unwrap();
    let (place, line) = first.rsplit_once(':').unwrap();
    assert!(place.ends_with(&file), "{case} is not where {detail}");
    let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let source = std::fs::read_to_string(source).unwrap();
    let above = source.lines().take(line.parse().unwrap());
    let name = above
        .filter_map(|line| line.strip_prefix("pub async fn "))
        .last()
        .unwrap();
    format!("{group}::{}", name.split('<').next().unwrap())
}
