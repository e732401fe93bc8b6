//! The list of cases. It exists once; the registry and the tests of [`suite!`](crate::suite) both
//! expand it.

use std::pin::Pin;

use crate::{Bench, CaseResult, Harness};

/// What a case is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct CaseInfo {
    /// Group and name, such as `acquire::contention_changes_nothing`: also the name of its test.
    pub name: &'static str,
    /// Ids of the [clauses](syncguard_core::clauses) that it proves.
    pub clauses: &'static [&'static str],
    /// What it proves, in a line.
    pub summary: &'static str,
}

pub(crate) struct Case<H> {
    pub(crate) info: CaseInfo,
    pub(crate) run: fn(Bench<H>) -> Pin<Box<dyn Future<Output = CaseResult> + Send>>,
}

/// Hands the list of cases to a macro: `[path::to::macro] [context]`.
#[doc(hidden)]
#[macro_export]
macro_rules! __for_each_case {
    ([$($consumer:tt)+] [$($context:tt)*]) => {
        $($consumer)+! { [$($context)*]
            acquire {
                a_free_key_is_granted_to_the_given_id [A1 L2]
                    "A free key is granted to the id that asked, and everyone sees so.";
                a_held_key_is_locked_for_everyone_else [A2]
                    "A held key is `Locked` for every other id, on every client.";
                contention_changes_nothing [A2]
                    "Contended attempts of any TTL leave the holder's lock exactly as it was.";
                a_loser_leaves_no_trace [A2 R3]
                    "An id that was refused holds nothing, and releasing it does no harm.";
                replay_gives_the_same_grant [A5]
                    "An acquire repeated by its holder gives the same grant, from any client.";
            }
            release {
                it_frees_the_key_at_once [R1]
                    "A released key is free at once: to reads and to the next holder.";
                it_works_from_any_client [R1]
                    "The lock id alone releases, from another client and another task.";
                again_it_is_not_held [R2]
                    "A second release is `NotHeld`, however often and wherever it is asked.";
                an_unknown_id_is_not_held [R2]
                    "Releasing an id that never held anything is `NotHeld`.";
                it_leaves_a_successor_alone [R3]
                    "A late release by the former holder does not touch the successor's lock.";
                of_concurrent_releases_one_succeeds [R5 O1]
                    "Of concurrent releases of one lock exactly one is `Released`.";
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

        fn runners<H: Harness>()
        -> Vec<fn(Bench<H>) -> Pin<Box<dyn Future<Output = CaseResult> + Send>>> {
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

pub(crate) fn registry<H: Harness>() -> Vec<Case<H>> {
    let cases = INFOS.iter().zip(runners());
    cases.map(|(info, run)| Case { info: *info, run }).collect()
}
