//! Guards that are dropped where no release can be awaited.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, Once, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use syncguard_core::{AutoExtend, LockGuard, LocksBuilder};
use tokio::runtime::Runtime;

use crate::faults::client::Client;
use crate::faults::steps::{BEFORE_LONG, LONG, acquire, free_within};
use crate::faults::{Fixture, Target};

/// The name of the threads that must not panic.
const THREAD: &str = "drops-guards";

/// The message of the one panic that the case causes itself.
const ON_PURPOSE: &str = "on purpose";

/// The TTL of a lock that only its expiry can free.
const SHORT: Duration = Duration::from_secs(5);

/// The operation timeout. If a drop waited for its release, it would take that long: longer than the case.
const NEVER: Duration = Duration::from_secs(600);

/// Where a guard is dropped.
#[derive(Debug, Clone, Copy)]
enum Dropped {
    OutsideAnyRuntime,
    InsideAnotherRuntime,
    WhileUnwinding,
    AfterItsRuntime,
    ByItsRuntimeShuttingDown,
    ByItsRuntimeShutDownInTheBackground,
}

impl Dropped {
    const ALL: [Self; 6] = [
        Self::OutsideAnyRuntime,
        Self::InsideAnotherRuntime,
        Self::WhileUnwinding,
        Self::AfterItsRuntime,
        Self::ByItsRuntimeShuttingDown,
        Self::ByItsRuntimeShutDownInTheBackground,
    ];

    /// Whether a runtime still exists that can release the lock.
    fn is_released(self) -> bool {
        matches!(
            self,
            Self::OutsideAnyRuntime | Self::InsideAnotherRuntime | Self::WhileUnwinding
        )
    }
}

/// A guard is dropped outside a runtime, inside another one, while unwinding, or while or after its own
/// runtime shuts down; renewed or not. It neither panics nor blocks, although releases hang. Its key is
/// free as soon as releases pass again, or at the end of its TTL if no runtime is left.
pub async fn guards_dropped_in_any_state_of_a_runtime_neither_panic_nor_block<T: Target>(
    fixture: Fixture<T>,
) {
    note_panics();
    let direct = fixture.direct().await;
    let _ = free_within(&direct.locks, &fixture.key("warm"), BEFORE_LONG).await;
    let mut all = Vec::new();
    for dropped in Dropped::ALL {
        for threads in [0, 2] {
            for renewed in [false, true] {
                all.push(Box::pin(case(&fixture, &direct, dropped, threads, renewed)));
            }
        }
    }
    join_all(all).await;
}

async fn case<T: Target>(
    fixture: &Fixture<T>,
    direct: &Client<T>,
    dropped: Dropped,
    threads: usize,
    renewed: bool,
) {
    let what = format!("{dropped:?}, {threads} threads, renewed: {renewed}");
    let key = fixture.key(&what);
    let (done, is_done) = tokio::sync::oneshot::channel();
    let (port, own_key) = (fixture.port(), key.clone());
    let thread = std::thread::Builder::new().name(THREAD.into());
    let thread = thread.spawn(move || {
        drop_a_guard::<T>(dropped, threads, renewed, port, &own_key);
        let _ = done.send(());
    });
    thread.expect("the thread does not start");
    let returned = tokio::time::timeout(BEFORE_LONG, is_done).await;
    assert!(
        matches!(returned, Ok(Ok(()))),
        "{what}: the drop panicked or blocks: {returned:?}"
    );
    let _ = free_within(&direct.locks, &key, BEFORE_LONG).await;
    let panics = panics().clone();
    assert!(panics.is_empty(), "{what}: {panics:?}");
}

fn drop_a_guard<T: Target>(dropped: Dropped, threads: usize, renewed: bool, port: u16, key: &str) {
    let holder = runtime(threads);
    let ttl = if dropped.is_released() { LONG } else { SHORT };
    let (client, guard) = holder.block_on(Box::pin(async {
        let configure = |builder: LocksBuilder| builder.operation_timeout(NEVER);
        let client = Client::<T>::connect_with(port, configure).await;
        let guard = acquire(&client.locks, key, ttl).await;
        client.watched.hold_releases(true);
        let guard = match renewed {
            true => guard.auto_extend(AutoExtend::new()),
            false => guard,
        };
        (client, guard)
    }));
    let released = |client: &Client<T>| {
        client.watched.hold_releases(false);
        let drained = holder.block_on(client.locks.drain(BEFORE_LONG));
        drained.expect("the release is still pending");
    };
    match dropped {
        Dropped::OutsideAnyRuntime => {
            drop(guard);
            released(&client);
        }
        Dropped::InsideAnotherRuntime => {
            runtime(threads).block_on(async move { drop(guard) });
            released(&client);
        }
        Dropped::WhileUnwinding => {
            let unwound = catch_unwind(AssertUnwindSafe(move || {
                let _guard = guard;
                panic!("{ON_PURPOSE}");
            }));
            assert!(unwound.is_err());
            released(&client);
        }
        Dropped::AfterItsRuntime => {
            drop(client);
            drop(holder);
            drop(guard);
        }
        Dropped::ByItsRuntimeShuttingDown => {
            hold_in_a_task(&holder, guard);
            drop(holder);
        }
        Dropped::ByItsRuntimeShutDownInTheBackground => {
            hold_in_a_task(&holder, guard);
            holder.shutdown_background();
        }
    }
}

/// Moves the guard into a task of the runtime that never ends.
fn hold_in_a_task(runtime: &Runtime, guard: LockGuard) {
    let (started, is_started) = tokio::sync::oneshot::channel();
    runtime.spawn(async move {
        let _guard = guard;
        let _ = started.send(());
        std::future::pending::<()>().await;
    });
    runtime
        .block_on(is_started)
        .expect("the task does not start");
}

fn runtime(threads: usize) -> Runtime {
    let mut builder = match threads {
        0 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    if threads > 0 {
        builder.worker_threads(threads);
    }
    builder
        .thread_name(THREAD)
        .enable_all()
        .build()
        .expect("the runtime does not start")
}

static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn panics() -> std::sync::MutexGuard<'static, Vec<String>> {
    PANICS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes panics on the threads of this case. A runtime catches those of its tasks.
fn note_panics() {
    static NOTED: Once = Once::new();
    NOTED.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let ours = std::thread::current().name() == Some(THREAD);
            let text = panic.to_string();
            if ours && text.contains(ON_PURPOSE) {
                return;
            }
            if ours {
                panics().push(text);
            }
            usual(panic);
        }));
    });
}
