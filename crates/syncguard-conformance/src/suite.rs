//! [`suite!`](crate::suite): one test per case.

use std::ffi::OsStr;
use std::fs::File;
use std::future::Future;
use std::io::{self, Write as _};
use std::sync::Arc;

use crate::erased::Erased;
use crate::harness::Fence;
use crate::registry::registry;
use crate::run::settle;
use crate::{Bench, DEFAULT_CASE_TIMEOUT, Harness, Outcome};

/// Makes one `#[test]` of every case, under the name it has in [`cases`](crate::cases()).
///
/// The argument makes a [`Harness`]. It is evaluated for every test, inside that test's runtime, and may
/// await: `suite!(RedisHarness::from_env())`, `suite!(PgHarness::start().await)`. A harness that all tests
/// share can live in a static: an `Arc` of a harness is a harness.
///
/// The tests live in modules (`keys`, `acquire`, ...) beside the macro. To run the suite on
/// several set-ups in one file, put each into a module of its own:
///
/// ```
/// # mod harness { include!("../tests/integration/harness.rs"); }
/// # use harness::MemoryHarness;
/// mod fresh {
///     use super::*;
///     syncguard_conformance::suite!(MemoryHarness::default());
/// }
/// ```
///
/// A case that does not apply says so on stderr, whether or not output is captured. With
/// `SYNCGUARD_CONFORMANCE_SKIPS=deny` in the environment, its test fails. With the path of a file in
/// `SYNCGUARD_CONFORMANCE_SKIPPED`, the test adds a line to that file.
#[macro_export]
macro_rules! suite {
    ($harness:expr $(,)?) => {
        $crate::__for_each_case! { [$crate::__suite_tests] [$harness] }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __suite_tests {
    ([$harness:expr] $($group:ident {
        $($case:ident [$($clause:ident)+];)+
    })+) => {
        $(mod $group {
            #[allow(unused_imports)]
            use super::*;
            $(
                #[test]
                fn $case() {
                    $crate::__run_test(
                        concat!(module_path!(), "::", stringify!($case)),
                        concat!(stringify!($group), "::", stringify!($case)),
                        async { $harness },
                    );
                }
            )+
        })+
    };
}

/// The variable that decides whether a skipped case fails its test.
const SKIPS: &str = "SYNCGUARD_CONFORMANCE_SKIPS";

/// The variable with the file that lists skipped cases.
const SKIPPED: &str = "SYNCGUARD_CONFORMANCE_SKIPPED";

/// Runs one case on a runtime of its own.
///
/// # Panics
/// If the case fails: it is the body of a test.
#[doc(hidden)]
#[track_caller]
#[expect(clippy::expect_used, clippy::panic, reason = "the body of a test")]
pub fn __run_test<H: Harness>(name: &str, case: &str, harness: impl Future<Output = H>) {
    let cases = registry::<Fence<H>>();
    let case = cases.into_iter().find(|listed| listed.info.name == case);
    let case = case.expect("a case of the list");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let result = runtime.block_on(async {
        let harness = Erased::new(Arc::new(harness.await));
        let bench = Bench::new(Arc::new(harness))?;
        settle((case.start)(bench), DEFAULT_CASE_TIMEOUT).await
    });
    match result {
        Ok(Outcome::Passed) => {}
        // Not by `eprintln!`: the test harness would capture that.
        Ok(Outcome::Skipped(reason)) => {
            let line = format!("skipped: {name}: {reason}\n");
            if let Some(path) = std::env::var_os(SKIPPED) {
                append(&path, &line).expect("a file for skipped cases");
            }
            let deny = std::env::var_os(SKIPS).is_some_and(|value| value == "deny");
            assert!(!deny, "{SKIPS} is `deny`, and {line}");
            let _ = std::io::stderr().write_all(line.as_bytes());
        }
        Err(failure) => panic!("{name} [{}]: {failure}", case.info.clauses.join(" ")),
    }
}

/// Adds a line to a file that other processes add lines to.
fn append(path: &OsStr, line: &str) -> io::Result<()> {
    let mut file = File::options().append(true).create(true).open(path)?;
    file.write_all(line.as_bytes())
}
