//! Guards that are dropped where no release can be awaited.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, Once, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use syncguard_core::{LockGuard, ManagedBackend, Policy};
use tokio::runtime::Runtime;

use crate::fixture::client;
use crate::steps::{BEFORE_LONG, LONG, soon_taken, take};
use crate::{Client, Fixture, Target};

/// The name of the threads on which nothing may panic.
const THREAD: &str = "drops-guards";

/// The message of the one panic that is meant.
const ON_PURPOSE: &str = "on purpose";

/// The TTL where it alone can free the key.
const SHORT: Duration = Duration::from_secs(5);

/// The timeout of operations, which a drop that waits for its release would take: longer than the
/// test does.
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

    /// Whether a runtime is left to release the lock.
    fn is_released(self) -> bool {
        matches!(
            self,
            Self::OutsideAnyRuntime | Self::InsideAnotherRuntime | Self::WhileUnwinding
        )
    }
}

/// Dropped outside a runtime, by another, while unwinding, or while or after its own shuts down,
/// renewed or not: a guard neither panics nor blocks, though releases hang, and its key is free as
/// soon as they do not or, where nobody is left to release it, at the end of its TTL.
pub async fn guards_dropped_in_any_state_of_a_runtime_neither_panic_nor_block<T: Target>(
    fixture: Fixture<T>,
) {
    note_panics();
    let direct = fixture.direct().await;
    let _ = soon_taken(&direct, &fixture.key("warm"), BEFORE_LONG).await;
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
    thread.expect("a thread");
    let returned = tokio::time::timeout(BEFORE_LONG, is_done).await;
    assert!(matches!(returned, Ok(Ok(()))), "{what}: {returned:?}");
    let _ = soon_taken(direct, &key, BEFORE_LONG).await;
    let panics = panics().clone();
    assert!(panics.is_empty(), "{what}: {panics:?}");
}

fn drop_a_guard<T: Target>(dropped: Dropped, threads: usize, renewed: bool, port: u16, key: &str) {
    let taker = runtime(threads);
    let ttl = if dropped.is_released() { LONG } else { SHORT };
    let (client, guard) = taker.block_on(Box::pin(async {
        let policy = Policy::new().with_operation_timeout(NEVER);
        let client = client::<T>(port, policy).await;
        let guard = take(&client, key, ttl).await;
        client.get_ref().hold_releases(true);
        let guard = if renewed {
            guard.with_auto_extend(syncguard_core::AutoExtend::new())
        } else {
            guard
        };
        (client, guard)
    }));
    let released = |client: &Client<T>| {
        client.get_ref().hold_releases(false);
        let drained = taker.block_on(client.drain(BEFORE_LONG));
        drained.expect("it is released");
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
            drop(taker);
            drop(guard);
        }
        Dropped::ByItsRuntimeShuttingDown => {
            hold_in_a_task(&taker, guard);
            drop(taker);
        }
        Dropped::ByItsRuntimeShutDownInTheBackground => {
            hold_in_a_task(&taker, guard);
            taker.shutdown_background();
        }
    }
}

/// Has a task of the runtime hold the guard for good.
fn hold_in_a_task<B: ManagedBackend>(runtime: &Runtime, guard: LockGuard<B>) {
    let (started, is_started) = tokio::sync::oneshot::channel();
    runtime.spawn(async move {
        let _guard = guard;
        let _ = started.send(());
        std::future::pending::<()>().await;
    });
    runtime.block_on(is_started).expect("it starts");
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
        .expect("a runtime")
}

static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn panics() -> std::sync::MutexGuard<'static, Vec<String>> {
    PANICS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes the panics of the threads of this case: a runtime keeps those of its tasks to itself.
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
