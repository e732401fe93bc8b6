//! [`fault_suite!`](crate::fault_suite): one test per case.

use std::future::Future;

use crate::faults::{Fixture, Target};

/// Makes one `#[test]` of every [fault case](crate::faults::cases), on a multi-threaded runtime of its own.
///
/// The argument is a type that implements [`Target`](crate::faults::Target).
#[macro_export]
macro_rules! fault_suite {
    ($target:ty) => {
        $crate::__for_each_fault_case! { [$crate::__fault_suite_tests] [$target] }
    };
}

/// Makes one `#[test]` of every [fault case](crate::faults::cases) that breaks neither the network nor the server:
/// for a store without a server, such as a file.
///
/// The argument is a type that implements [`Target`](crate::faults::Target). Its
/// [`Server`](syncguard_testkit::Server) is a store of its own for each case, and the port is the number by which
/// clients find that store, in this process or another one. No case pauses or kills it.
#[macro_export]
macro_rules! local_fault_suite {
    ($target:ty) => {
        $crate::__for_each_fault_case! { [$crate::__local_fault_suite_tests] [$target] }
    };
}

/// The list of cases: for each, whether it needs a server of its own, shares one, or needs no server at all.
#[doc(hidden)]
#[macro_export]
macro_rules! __for_each_fault_case {
    ([$($consumer:tt)+] [$($context:tt)*]) => {
        $($consumer)+! { [$($context)*]
            outcomes {
                shared an_acquire_whose_reply_is_lost_is_released_once_the_network_is_back;
                shared an_acquire_whose_connection_breaks_at_the_reply_is_released;
                shared a_release_whose_reply_is_lost_can_be_retried;
                shared a_release_whose_connection_breaks_at_the_reply_can_be_retried;
                shared a_sections_own_error_survives_a_release_that_fails;
            }
            listing {
                shared a_listing_goes_on_after_a_page_that_was_lost;
            }
            waiting {
                own the_timeout_of_a_wait_holds_against_a_stopped_server;
            }
            shutdown {
                local guards_dropped_in_any_state_of_a_runtime_neither_panic_nor_block;
            }
            renewal {
                shared one_slow_renewal_does_not_lose_the_lease;
                shared a_failed_renewal_is_retried;
                shared a_slow_store_sees_one_renewal_of_a_lock_at_a_time;
                local a_release_during_a_renewal_frees_the_key_and_ends_the_renewal;
                local renewed_locks_stay_released_and_leave_no_task;
            }
            loss {
                shared a_lease_whose_renewals_keep_failing_is_lost_by_its_deadline;
                local a_lookup_does_not_move_the_local_deadline;
                local a_section_that_lost_its_lock_ends_at_once_and_nothing_is_retried;
                local a_holder_that_was_paused_past_its_ttl_finds_out_on_waking;
                local the_local_deadline_counts_through_suspend;
            }
            failover {
                shared an_address_that_leads_to_another_server_works_again_by_itself;
            }
            load {
                shared the_store_is_away_under_many_acquires;
                shared the_store_hangs_under_many_acquires;
                shared no_call_outlasts_its_deadline_while_connections_break;
                shared abandoned_acquires_of_a_held_key_do_not_slow_others;
            }
            processes {
                local another_process_releases_by_the_lock_id;
            }
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __fault_suite_tests {
    ([$target:ty] $($group:ident {
        $($server:ident $case:ident;)+
    })+) => {
        $(mod $group {
            #[allow(unused_imports)]
            use super::*;
            $(
                #[test]
                fn $case() {
                    let test = concat!(module_path!(), "::", stringify!($case));
                    $crate::faults::__run_test(
                        $crate::faults::Fixture::<$target>::$server(test),
                        $crate::faults::cases::$group::$case,
                    );
                }
            )+
        })+
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __local_fault_suite_tests {
    ([$target:ty] $($group:ident {
        $($server:ident $case:ident;)+
    })+) => {
        $(
            $crate::__local_fault_suite_group! { [$target] $group {} $($server $case;)+ }
        )+
    };
}

/// Keeps the cases of a group that need no server. A group without any has no module.
#[doc(hidden)]
#[macro_export]
macro_rules! __local_fault_suite_group {
    ([$target:ty] $group:ident {}) => {};
    ([$target:ty] $group:ident { $($kept:tt)+ }) => {
        $crate::__fault_suite_tests! { [$target] $group { $($kept)+ } }
    };
    ([$target:ty] $group:ident { $($kept:tt)* } local $case:ident; $($rest:tt)*) => {
        $crate::__local_fault_suite_group! { [$target] $group { $($kept)* local $case; } $($rest)* }
    };
    ([$target:ty] $group:ident { $($kept:tt)* } $server:ident $case:ident; $($rest:tt)*) => {
        $crate::__local_fault_suite_group! { [$target] $group { $($kept)* } $($rest)* }
    };
}

/// Runs one case on a runtime of its own.
#[doc(hidden)]
pub fn __run_test<T, C>(fixture: impl Future<Output = Fixture<T>>, case: fn(Fixture<T>) -> C)
where
    T: Target,
    C: Future<Output = ()>,
{
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("the runtime does not start");
    // Boxed: a test has a small stack, and a driver's futures are large.
    let fixture = runtime.block_on(Box::pin(fixture));
    runtime.block_on(Box::pin(case(fixture)));
}
