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
    /// Group and name, such as `acquire::contention_changes_nothing`: also the name of its test.
    pub name: &'static str,
    /// Ids of the [clauses](syncguard_core::backend::clauses) that it proves.
    pub clauses: &'static [&'static str],
    /// What it proves, in one sentence.
    pub summary: &'static str,
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
                canonical_spellings_are_one_lock [K1]
                    "Canonically equivalent spellings of a key are one lock.";
                any_characters_work_in_every_operation [K2 A1 R1 X1 L2]
                    "Every operation works on a key of any characters.";
                any_characters_never_contend [K2]
                    "Keys of any characters can all be held at once: none contends with another.";
                near_identical_keys_do_not_contend [K2]
                    "Keys that differ by a space, case, accent, width or escape do not contend.";
                near_identical_keys_have_their_own_fences [K3]
                    "Grants of a near-identical key do not move a key's fences.";
                dots_alone_are_keys [K2]
                    "The keys `.` and `..`, which name folders elsewhere, are keys like any other.";
                keys_that_imitate_internal_names_do_no_harm [K2 K3]
                    "A key that looks like an internal name of the store is refused, or does not touch what that name stores.";
                the_longest_keys_work [K4 A1 R1 X1 L2]
                    "Keys of the greatest length work through every operation.";
                long_keys_are_not_cut [K4 K2]
                    "Long keys that differ in their last or first character alone do not contend.";
                long_keys_have_their_own_fences [K4 K3]
                    "Long keys that differ in their last character alone have fences of their own.";
                bad_keys_are_refused [K5]
                    "A bad key is `InvalidArgument` to every operation.";
                malformed_ids_are_refused [I1]
                    "A malformed lock id is `InvalidArgument` to every operation.";
                ids_are_taken_to_the_letter [R3 X3 L2]
                    "Ids that differ in the case of one letter are different holders.";
                one_id_on_two_keys_harms_nobody_else [I3 E1 R3]
                    "An id that is used for a second key too soon harms no lock of another id.";
                ids_are_fresh_and_random [I2]
                    "Every lock acquired through `Locks` has a fresh id of 128 random bits.";
            }
            patterns {
                keys_match_themselves_alone [K2 L1 L2 R3]
                    "A key that is a pattern does not contend with the keys that it matches.";
                ids_match_themselves_alone [R3 X3 L2 A2]
                    "An id that is a pattern extends, releases and finds its own lock only.";
            }
            acquire {
                a_free_key_is_granted_to_the_given_id [A1 L2]
                    "A free key is granted to the id that asked, and every client sees that.";
                a_held_key_is_locked_for_everyone_else [A2]
                    "A held key is `Locked` for every other id, on every client.";
                contention_changes_nothing [A2]
                    "Contended attempts of any TTL do not change the holder's lock.";
                a_loser_leaves_no_trace [A2 R3]
                    "An id that was refused holds nothing, and releasing it does no harm.";
                replay_gives_the_same_grant [A5]
                    "An acquire repeated by its holder gives the same grant, from any client.";
                it_never_waits_for_the_holder [A4]
                    "A single attempt never waits for the holder.";
                a_refusal_is_final [A4]
                    "A refused attempt does not acquire the key later, when the holder has released it.";
                replay_moves_no_ttl [A5 A2]
                    "A replay with another TTL moves neither the grant nor the lock at the store.";
                replay_after_an_extend_keeps_the_extension [A5 X4]
                    "A replay after an extend returns the extended lock.";
                replay_after_release_is_a_new_grant [A5 F1]
                    "A released id can acquire the key again: a new grant, with a new fence.";
                replay_does_not_oust_a_successor [A5 A2 E1]
                    "A replay after a successor acquired the key is `Locked`.";
                ttls_are_exact [T1 A6 L2]
                    "The store shows the TTL that was asked for, to the millisecond, up to ten years.";
                the_shortest_ttls_are_granted [T1]
                    "The shortest TTLs are granted like others, or the grant has expired when it arrives.";
                fractions_round_up [T3]
                    "A fraction of a millisecond rounds up.";
                bad_ttls_are_refused [T2]
                    "A TTL of zero or of more than ten years is `InvalidArgument` and uses up no fence.";
                an_id_that_holds_a_key_is_granted_no_held_one [A2 I3]
                    "An id that holds a key is not granted a key that another id holds.";
            }
            release {
                it_frees_the_key_at_once [R1]
                    "A released key is free at once: to reads and to the next holder.";
                it_works_from_any_client [R1]
                    "The lock id alone releases, from another client and another task.";
                again_it_is_not_held [R2]
                    "Every further release is `NotHeld`, from any client.";
                an_unknown_id_is_not_held [R2]
                    "Releasing an id that never held anything is `NotHeld`.";
                it_leaves_a_successor_alone [R3]
                    "A late release by the former holder does not change the successor's lock.";
                of_concurrent_releases_one_succeeds [R5 O1]
                    "Of concurrent releases of one lock exactly one is `Released`.";
                it_leaves_other_locks_alone [R3 K2]
                    "Releasing one lock leaves all others of the client as they are.";
                it_forgets_the_id [R1 L3 X3]
                    "A released id is forgotten, also once another id holds the key.";
                it_leaves_the_fence_counter_alone [R4 F1]
                    "A release leaves the key's fence counter where it was.";
                releases_in_flight_never_free_a_successor [R3 R5]
                    "A release in flight while the key gets a new holder never frees the new holder's lock.";
                a_lock_outlives_its_client [R1 X5 E1]
                    "A lock outlives the client that acquired it: others see it, extend it and release it by its id.";
                a_section_is_told_that_its_lock_was_gone [R2]
                    "A section whose lock was removed returns its value, and the receipt reports the loss.";
            }
            extend {
                it_replaces_the_remaining_time [X1 T1]
                    "The remaining time is replaced by the TTL, counted from now; it may be shortened.";
                a_shortened_lease_ends_early [X1 E2]
                    "A shortened lease ends at its new expiry, not at the old one.";
                a_few_milliseconds_are_done [X1 X2]
                    "An extend by a few milliseconds stores exactly the expiry that it returns.";
                it_returns_the_stores_expiry [X2]
                    "Extend returns the expiry that the store then shows.";
                it_changes_the_expiry_alone [X4]
                    "Key, holder, fence and time of acquisition stay as they were.";
                it_uses_no_fence [X4 F1 R4]
                    "Extends use up no fence of the key.";
                it_works_from_any_client [X5 R1]
                    "The lock id alone extends, from any client, and the holder can still release.";
                it_does_not_bring_back_a_released_lock [X3]
                    "Extending a released lock is `NotHeld` and brings nothing back.";
                an_unknown_id_is_not_held [X3]
                    "Extending an id that never held anything is `NotHeld`.";
                it_leaves_a_successor_alone [X3]
                    "Extending a lock whose key has a new holder is `NotHeld` and does not change the new holder's lock.";
                renewals_keep_others_out [X1 E1 L1 L2]
                    "A lease that is renewed in time lasts much longer than its first TTL, and can still be released.";
                a_holder_learns_that_its_lock_is_gone [X3]
                    "After someone else removed a lock, extend is `NotHeld`, and the guard is not valid any more.";
            }
            lookup {
                is_locked_follows_the_lock [L1]
                    "`is_locked` is true from the grant to the release, for every client, of this key alone.";
                it_shows_the_grant_by_key_and_by_id [L2 A1]
                    "Lookup by key and by id give one answer: that of the grant.";
                it_finds_one_among_many [L2]
                    "Among many locks, lookup finds the one that was asked for.";
                what_is_absent_is_none [L3]
                    "Lookup of what does not exist is `None`: unknown, released, refused.";
                by_id_it_shows_the_ids_own_lock [L2 L3]
                    "Lookup by id shows that id's lock, never the lock of a key's next holder.";
                owns_follows_the_lock [L2 L3]
                    "`owns` is true from the grant to the release.";
                reads_change_nothing [L4]
                    "Reads move no expiry, use no fence and hold nothing.";
                it_shows_hashes [L5]
                    "Lookup shows the hashes of key and id, and otherwise what the raw lookup shows.";
                clean_up_spares_live_locks_and_fences [F2 L4 E1]
                    "The removal of dead locks deletes no live lock and no fence counter.";
            }
            listing {
                every_live_lock_is_shown [N1 L2]
                    "A listing shows every live lock as a lookup shows it, to every client.";
                until_its_end_a_lock_is_shown [N1 E1]
                    "A listing shows a lock until its lease ends.";
                a_lock_is_shown_once [N2 N1]
                    "A listing shows a lock once, whatever the size of its pages.";
                pages_are_bounded [N5]
                    "A page has no more locks than its limit, and a listing comes to an end.";
                the_dead_are_not_shown [N3 E2 L3]
                    "A listing shows no lock that was released or has expired; of a key with a new holder it shows only the new lock.";
                nothing_else_is_shown [N3 K3]
                    "A listing shows no fence counters and no other internal entries of the store.";
                a_prefix_is_no_pattern [N4 N1]
                    "A prefix that is a pattern selects the keys that begin with it, not those that it matches.";
                a_prefix_is_taken_to_the_letter [N4 N1 K1]
                    "A prefix selects the keys that begin with exactly its characters.";
                any_key_is_shown [N1 K2 K4]
                    "A listing shows locks on keys of any characters, and on the longest key.";
                locks_that_come_and_go_hide_no_other [N1 N2]
                    "Locks that are granted and released during a listing hide no other.";
                a_thousand_locks_are_shown [N1 N2 N5]
                    "A listing of a thousand locks shows each of them.";
                it_changes_nothing [N6]
                    "A listing moves no expiry, uses no fence and holds nothing.";
                it_shows_hashes [N1 L5]
                    "`Locks` lists page by page, with hashes unless raw identifiers are asked for.";
            }
            auto_extend {
                a_section_outlives_its_ttl [X1 X2 E1]
                    "A section that is longer than its TTL keeps others out, and releases its lock at the end.";
                a_lock_taken_away_is_lost [X3 R3]
                    "A holder whose lock was removed notices the loss, and does not touch the successor's lock.";
                released_locks_stay_released [X3 R1]
                    "A renewal in flight does not bring back a lock that was released.";
                the_longest_hold_ends [E2]
                    "A section that hangs does not keep its key: renewals stop after `max_hold`.";
            }
            expiry {
                before_it_a_lease_is_live [E1 L1 L2]
                    "Until it expires a lease is live: all reads say so and nobody else is granted the key.";
                before_it_a_lease_is_live_to_the_millisecond [E1 T1]
                    "Until the store's own clock reaches the expiry, the key is held to the millisecond.";
                after_the_tolerance_the_key_is_free [E2 L1 L3 A1]
                    "A second after its expiry a lease is dead: reads find nothing, and the key is granted.";
                after_the_tolerance_a_lease_is_dead_to_the_millisecond [E2 L3 X3 R2]
                    "From expiry + 1000 on, by the store's own clock, a lease is dead to the millisecond.";
                an_expired_lock_is_not_released [R2 E2]
                    "Releasing an expired lock is `NotHeld`.";
                an_expired_lock_is_not_extended [X3 E2]
                    "Extending an expired lock is `NotHeld` and does not bring it back.";
                an_overrun_holder_does_no_harm [R3 X3 L3 F1]
                    "No call of a holder that overran harms its successor.";
                a_replay_after_expiry_is_a_new_grant [A5 A6 F1]
                    "An id whose lease expired can acquire the key again: a new fence and a whole TTL.";
                the_next_lease_is_whole [A6 X1 E2]
                    "A key that is acquired at the moment of its expiry has a whole TTL, and five renewals succeed.";
                in_the_tolerance_only_one_wins [E3 X3 E1]
                    "Between expiry and expiry + 1000 an extend and an acquire never both succeed.";
                a_release_at_the_last_moment_is_no_error [R2 O1]
                    "Releases at the very moment of expiry are `Released` or `NotHeld`, never an error.";
                an_expired_key_has_one_successor [A3 E2 O1]
                    "Of many callers that find a key expired, exactly one is granted it.";
            }
            boundary {
                nobody_is_granted_a_key_before_its_lease_ends [E1 X1 A2]
                    "Nobody else is granted a key before its lease ends, extended or not.";
                nobody_is_granted_a_key_in_its_last_milliseconds [E1 X1]
                    "Nobody else is granted a key in the last two milliseconds of its lease, extended or not.";
                its_holder_is_heard_until_the_end [E1 X1 R1 A5]
                    "Extend, release and replay succeed up to the end of the lease.";
            }
            tolerance {
                all_operations_agree [E3 L1 L2 L4 A2 N6]
                    "In the tolerance a lease is live to every operation, or dead to every operation.";
                an_extend_is_like_any_other [E3 X1 X4]
                    "An extend in the tolerance counts from now, and changes the expiry alone; or it is `NotHeld`.";
                a_refusal_uses_no_fence [E3 F4 R4]
                    "A refusal in the tolerance uses no fence.";
                a_refusal_does_not_wait [A4]
                    "A refusal in the tolerance does not wait for the end of the tolerance.";
                a_halted_extend_takes_nothing_from_a_successor [E3 X3 E1 O1]
                    "An extend that is halted in the tolerance does not succeed beside an acquire by another.";
            }
            waiting {
                a_refusal_says_when_the_key_is_free [W1]
                    "A key is granted when the time that a refusal stated has passed, and not before its lease ends.";
                a_release_wakes_who_watches [W2]
                    "A watch resolves each time that any client releases the key.";
                a_watch_of_a_free_key_resolves_at_once [W2]
                    "A watch that begins after the release resolves at once.";
            }
            fencing {
                fences_strictly_increase [F1]
                    "Fences strictly increase from grant to grant, whichever client asks.";
                every_key_counts_for_itself [K3]
                    "Every key has its own counter: grants of other keys do not move its fences.";
                fences_outlive_clients [F2]
                    "Fences continue to increase after the clients that acquired earlier ones are gone.";
                fences_rise_across_expiries [F1 F2 R4 X4]
                    "Fences continue to increase across expiries.";
                contention_uses_no_fence [F4 A2]
                    "Contended attempts use up no fence of the key.";
                great_fences_are_exact [F1 F3]
                    "Fences are exact up to the greatest, which is granted.";
                past_the_greatest_fence_nothing_is_granted [F3]
                    "Past the greatest fence an acquire is `Internal` and leaves no lock.";
                past_the_greatest_fence_no_expired_lock_is_taken_over [F3 F1]
                    "Past the greatest fence, the acquire of an expired lock fails too: its fence is not granted again.";
            }
            cancel {
                an_acquire_dropped_at_any_poll_leaves_no_lock [C1]
                    "An acquire dropped at any of its polls leaves no lock.";
                acquires_in_random_timeouts_leave_no_lock [C1]
                    "Acquires that random timeouts cut off leave no lock.";
                a_dropped_contender_does_not_disturb_the_holder [C1 R3]
                    "A contended acquire that is dropped does not disturb the holder.";
                a_cancelled_token_leaves_no_trace [C2]
                    "With a token that is already cancelled an operation is `Aborted`, and nothing is sent to the store.";
                a_token_cancelled_in_flight_aborts_at_once [C3 C1]
                    "A token that is cancelled in flight ends the operation at its next poll, and no lock remains.";
                a_cancelled_wait_ends_at_once [C3]
                    "`lock()` that waits for a held key ends with `Aborted` when its token is cancelled.";
                a_release_dropped_at_any_poll_frees_the_key [C4]
                    "A release dropped at any of its polls still frees the key.";
                dropped_guards_free_their_keys [C4]
                    "Dropped guards free their keys, and `drain` waits until they have.";
                a_section_that_ends_early_frees_its_key [C4]
                    "A section that panics or is dropped frees its key.";
                a_dropped_extend_leaves_the_lock_with_its_holder [C1 X4]
                    "An extend that is dropped does not end the lock.";
            }
            concurrency {
                of_many_exactly_one_is_granted [A3 A1 O1]
                    "Of many concurrent acquires of one key, exactly one is granted.";
                of_many_exactly_one_is_granted_a_new_key [A3 A1 K2 O1]
                    "On each of many new keys, exactly one of many concurrent acquires is granted.";
                holders_exclude_each_other [A3 A1 F1 R1 O1]
                    "64 tasks cycle over 16 keys: a key has one holder at a time, and its fences only increase.";
                sections_never_overlap [A3 E1 O1]
                    "`lock()` runs one section at a time: a counter that is read and then written loses no update.";
                concurrent_replays_are_one_grant [A5 A3]
                    "Concurrent replays of one acquire are one grant.";
                different_keys_never_wait_for_each_other [K2 O1]
                    "Concurrent acquires of different keys are all granted.";
                concurrent_extends_all_succeed [X1 X2 O1]
                    "Concurrent extends of one lock all succeed, and the last one counts.";
                a_release_beats_an_extend_in_flight [X3 R1 O1]
                    "A release during an extend frees the key, and the extend does not bring the lock back.";
                grants_are_timed_after_any_wait [A6 O1]
                    "A grant's TTL counts from a time after its predecessor's end, however long the acquire waited inside the store.";
                mixed_operations_give_no_errors [O1 L1 L4]
                    "Concurrent operations of all kinds on one key give results, never errors.";
            }
            races {
                a_halted_extend_brings_nothing_back [X3 R1]
                    "An extend that is halted while its lock is released does not bring it back.";
                a_halted_extend_leaves_a_successor_alone [X3 E1]
                    "An extend that is halted while the key gets a new holder does not change the new holder's lock.";
                a_halted_release_leaves_a_successor_alone [R3 R4 R5]
                    "A release that is halted while the key gets a new holder does not change the new holder's lock.";
                a_halted_release_frees_an_extended_lock [R1 O1]
                    "A release that is halted while its lock is extended still frees the key.";
                a_halted_acquire_and_another_are_one_grant [A3 A1 F1 O1]
                    "An acquire that is halted while another client acquires the key is refused, or was first.";
                a_halted_acquire_leaves_other_keys_free [K2 O1]
                    "An acquire that is halted keeps nobody from another key.";
                a_halted_replay_leaves_a_successor_alone [A5 A2 E1]
                    "A replay that is halted while the key gets a new holder does not change the new holder's lock.";
                a_halted_lookup_shows_one_lock_whole [L2 L3]
                    "A lookup that is halted while the key gets a new holder shows all fields of one of the two locks, or none.";
                a_halted_lookup_shows_one_expiry [L1 L2 X4]
                    "A lookup that is halted while the lock is extended shows the lock before or after the extend.";
                a_halted_call_on_an_expired_lock_leaves_a_successor_alone [E1 R3 X3 L3 L4 N3 N6 F2]
                    "A call that finds an expired lock and is halted while the key gets a new holder does not change the new holder's lock.";
                a_halted_purge_leaves_successors_alone [P1 E1 F2]
                    "A purge that is halted while the keys of expired locks get new holders does not change the new holders' locks.";
            }
            upkeep {
                a_call_after_its_deadline_is_not_sent [D1]
                    "A call after its deadline is not sent, or it returns a result and has taken effect.";
                purging_spares_live_locks_and_fences [P1 E1 F2]
                    "`purge_expired` deletes no live lock, none in the tolerance, and no fence counter.";
                purging_stops_at_its_limit [P2]
                    "`purge_expired` deletes no more than its limit.";
                closing_a_client_ends_nothing_else [S1]
                    "Closing a client changes neither its locks nor other clients; its own calls fail only with `ServiceUnavailable`.";
                thousands_of_locks_are_held_at_once [A1 A2 K2 E1 L2 R1]
                    "Thousands of locks are held at once: as many as ten seconds allow, and at least the harness's capacity.";
            }
            stored {
                a_released_key_leaves_its_counter [G1 K3 R1]
                    "A released key leaves its fence counter, and nothing else.";
                a_key_acquired_again_and_again_leaves_one_counter [G1 K3]
                    "A key that is acquired many times leaves one fence counter.";
                an_expired_lock_leaves_its_counter [G2 G3 E2]
                    "An expired lock leaves its fence counter once it is purged, or once the key is acquired again.";
                a_call_that_changes_nothing_leaves_nothing [G3 A2 L4 R2 X3]
                    "A call that changes nothing leaves nothing.";
                a_watch_leaves_nothing [G3 W2]
                    "A watch that has ended leaves nothing.";
                an_abandoned_acquire_leaves_nothing [G3 C1]
                    "An acquire that is abandoned leaves at most the fence counter of its key.";
                a_halted_call_leaves_nothing [G1 G3 X3 R1 A5]
                    "A call that is halted while its lock is released leaves nothing.";
                a_halted_purge_leaves_nothing [G2 P1]
                    "A purge that is halted while the keys of expired locks get new holders leaves nothing of the expired locks.";
                a_call_in_the_tolerance_leaves_nothing [G3 A2 L4]
                    "A call that changes nothing leaves nothing in the tolerance either.";
                many_at_once_leave_their_counters [G1 G3 A3]
                    "Many contenders leave only the fence counters of their keys.";
            }
            errors {
                debug_of_values_shows_no_identifier [O2]
                    "`Debug` of guards, leases, grants, answers, infos and clients shows no identifier.";
                errors_show_no_identifier [O2 K5 I1]
                    "No error shows a key or an id: neither itself nor its sources.";
                a_wait_that_ran_out_says_how_it_went [O2 A2]
                    "The error of a wait that timed out says how many attempts it made, on which key, and how long it took.";
                events_show_no_identifier [O2]
                    "No event or span shows a key or an id, at any level.";
                events_of_expired_locks_show_no_identifier [O2]
                    "No event or span shows a key or an id when a lease has expired and the key gets a new holder.";
            }
        }
    };
}

macro_rules! define_registry {
    ([] $($group:ident {
        $($case:ident [$($clause:ident)+] $summary:literal;)+
    })+) => {
        const INFOS: &[CaseInfo] = &[$($(CaseInfo {
            name: concat!(stringify!($group), "::", stringify!($case)),
            clauses: &[$(stringify!($clause)),+],
            summary: $summary,
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
