//! [`suite!`](crate::suite): one test per case.

use std::future::Future;

use crate::{Fixture, Target};

/// Makes one `#[test]` of every case, on a multi-threaded runtime of its own.
///
/// The argument is a type that is a [`Target`].
#[macro_export]
macro_rules! suite {
    ($target:ty) => {
        $crate::__for_each_case! { [$crate::__suite_tests] [$target] }
    };
}

/// The list of cases: by each, whether it needs a server of its own or shares one.
#[doc(hidden)]
#[macro_export]
macro_rules! __for_each_case {
    ([$($consumer:tt)+] [$($context:tt)*]) => {
        $($consumer)+! { [$($context)*]
            outcomes {
                shared an_acquire_whose_reply_is_lost_is_given_back_once_the_network_is;
                shared an_acquire_whose_connection_breaks_at_the_reply_is_given_back;
                shared a_release_whose_reply_is_lost_can_be_repeated;
                shared a_release_whose_connection_breaks_at_the_reply_can_be_repeated;
            }
            waiting {
                own the_timeout_of_a_wait_holds_against_a_stopped_server;
            }
            shutdown {
                shared guards_dropped_in_any_state_of_a_runtime_neither_panic_nor_block;
            }
            renewal {
                shared one_slow_renewal_does_not_lose_the_lease;
                shared a_failed_renewal_is_tried_again;
                shared a_slow_store_sees_one_renewal_of_a_lock_at_a_time;
                shared released_while_a_renewal_is_in_flight_the_key_is_free_and_the_renewal_gone;
                shared renewed_locks_stay_released_and_leave_no_task;
            }
            loss {
                shared when_renewals_keep_failing_the_lease_is_lost_by_its_deadline;
                shared a_lookup_does_not_move_the_local_deadline;
                shared a_section_that_lost_its_lock_ends_at_once_and_nothing_is_repeated;
                shared a_holder_that_was_paused_past_its_ttl_finds_out_on_waking;
                shared the_local_deadline_counts_through_suspend;
            }
            processes {
                shared another_process_releases_by_the_lock_id;
            }
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __suite_tests {
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
                    $crate::__run_test(
                        $crate::Fixture::<$target>::$server(test),
                        $crate::cases::$group::$case,
                    );
                }
            )+
        })+
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
        .expect("a runtime");
    // Boxed, since a test has a small stack, and futures of drivers are large.
    let fixture = runtime.block_on(Box::pin(fixture));
    runtime.block_on(Box::pin(case(fixture)));
}
