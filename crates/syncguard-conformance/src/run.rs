//! [`run`]: all cases on one store, several at once.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::stream;
use syncguard_core::backend::{Capabilities, FenceToken, LockBackend as _};
use tokio::task::{JoinError, JoinHandle};

use crate::bench::Turns;
use crate::erased::Erased;
use crate::harness::Fence;
use crate::known::refused_by;
use crate::registry::{Case, registry};
use crate::{Bench, CaseReport, CaseResult, Failure, Harness, Outcome, Report, Status};

/// Default of how many cases run at once.
pub const DEFAULT_CONCURRENCY: usize = 8;

/// Default of how long a case may take.
pub const DEFAULT_CASE_TIMEOUT: Duration = Duration::from_secs(240);

type OnCase = Arc<dyn Fn(&CaseReport) + Send + Sync>;

/// Options of [`run`].
#[derive(Clone)]
pub struct RunOptions {
    concurrency: usize,
    case_timeout: Duration,
    filter: Option<String>,
    on_case: Option<OnCase>,
}

impl Default for RunOptions {
    fn default() -> Self {
        Self {
            concurrency: DEFAULT_CONCURRENCY,
            case_timeout: DEFAULT_CASE_TIMEOUT,
            filter: None,
            on_case: None,
        }
    }
}

impl RunOptions {
    /// The defaults, each named at its setter.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How many cases run at once; at least one. Default: 8.
    #[must_use]
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.concurrency = concurrency.max(1);
        self
    }

    /// The timeout of a case: after it the case counts as failed. Default: 240 s.
    #[must_use]
    pub fn case_timeout(mut self, timeout: Duration) -> Self {
        self.case_timeout = timeout;
        self
    }

    /// Runs only the cases whose name contains this text. Default: all.
    #[must_use]
    pub fn filter(mut self, part_of_name: impl Into<String>) -> Self {
        self.filter = Some(part_of_name.into());
        self
    }

    /// Called as each case ends, in the order in which they end. Default: nothing.
    #[must_use]
    pub fn on_case(mut self, callback: impl Fn(&CaseReport) + Send + Sync + 'static) -> Self {
        self.on_case = Some(Arc::new(callback));
        self
    }
}

impl fmt::Debug for RunOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunOptions")
            .field("concurrency", &self.concurrency)
            .field("case_timeout", &self.case_timeout)
            .field("filter", &self.filter)
            .finish_non_exhaustive()
    }
}

/// Runs the suite on the harness's store and reports on every case.
///
/// A panic inside a case is a failure of that case.
///
/// # Panics
/// Outside a Tokio runtime with time enabled. Use a multi-threaded one: the cases about concurrency prove
/// more on it.
///
/// # Cancel safety
/// Dropping the future ends the running cases. Their locks expire with their TTL.
pub async fn run<H: Harness>(harness: Arc<H>, options: RunOptions) -> Report {
    let harness = Arc::new(Erased::new(harness));
    let chosen = registry::<Fence<H>>().into_iter().filter(|case| {
        let filter = options.filter.as_deref();
        filter.is_none_or(|part| case.info.name.contains(part))
    });
    let purges = Turns::default();
    let mut done: Vec<(usize, CaseReport)> = stream::iter(chosen.enumerate())
        .map(|(index, case)| {
            let (harness, timeout) = (Arc::clone(&harness), options.case_timeout);
            let bench = Bench::in_run(harness, Arc::clone(&purges));
            async move { (index, report_on(case, bench, timeout).await) }
        })
        .buffer_unordered(options.concurrency)
        .inspect(|(_, report)| {
            if let Some(callback) = &options.on_case {
                callback(report);
            }
        })
        .collect()
        .await;
    done.sort_by_key(|(index, _)| *index);
    let backend = describe(harness, options.case_timeout).await;
    Report::new::<Fence<H>>(
        backend,
        done.into_iter().map(|(_, report)| report).collect(),
    )
}

async fn report_on<F: FenceToken>(
    case: Case<Erased<F>>,
    bench: Result<Bench<Erased<F>>, Failure>,
    timeout: Duration,
) -> CaseReport {
    let started = Instant::now();
    let result = match bench {
        Ok(bench) => settle((case.start)(bench), timeout).await,
        Err(failure) => Err(failure),
    };
    let (status, detail) = match result {
        Ok(Outcome::Passed) => (Status::Passed, None),
        Ok(Outcome::Skipped(reason)) => (Status::Skipped, Some(reason.to_owned())),
        Err(failure) => (Status::Failed, Some(failure.to_string())),
    };
    let leaves_open = match status {
        Status::Skipped => refused_by(case.info.name),
        Status::Passed | Status::Failed => Vec::new(),
    };
    CaseReport {
        name: case.info.name,
        clauses: case.info.clauses,
        status,
        ms: u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
        detail,
        leaves_open,
    }
}

/// What a backend says of itself, if a client of it can be made.
async fn describe<F: FenceToken>(
    harness: Arc<Erased<F>>,
    timeout: Duration,
) -> Option<Capabilities> {
    let mut task = AbortOnDrop(tokio::spawn(async move {
        let client = harness.connect().await.ok()?;
        Some(client.capabilities())
    }));
    let described = tokio::time::timeout(timeout, &mut task.0).await;
    described.ok()?.ok().flatten()
}

/// Runs a case in its own task. A panic or a timeout is a failure.
pub(crate) async fn settle(
    case: impl Future<Output = CaseResult> + Send + 'static,
    timeout: Duration,
) -> CaseResult {
    let mut task = AbortOnDrop(tokio::spawn(case));
    match tokio::time::timeout(timeout, &mut task.0).await {
        Ok(Ok(result)) => result,
        Ok(Err(error)) => Err(Failure::unplaced(format!(
            "it panicked: {}",
            message(error)
        ))),
        Err(_) => Err(Failure::unplaced(format!("no end within {timeout:?}"))),
    }
}

struct AbortOnDrop<T>(JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn message(error: JoinError) -> String {
    let Ok(panic) = error.try_into_panic() else {
        return "cancelled".to_owned();
    };
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "with a value that is no text".to_owned())
}
