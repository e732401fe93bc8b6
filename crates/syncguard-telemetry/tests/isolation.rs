//! No sink can reach the operations: not by panicking, not by blocking.

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use common::{PATIENCE, TTL};
use syncguard_core::{LockId, Policy, acquire, is_locked, release};
use syncguard_memory::{MemoryBackend, MemoryStore};
use syncguard_telemetry::{TelemetryOptions, with_telemetry};

/// Holds every callback up until it is opened.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    fn pass(&self) {
        let (open, changed) = &*self.0;
        drop(
            changed
                .wait_while(open.lock().unwrap(), |open| !*open)
                .unwrap(),
        );
    }

    fn open(&self) {
        let (open, changed) = &*self.0;
        *open.lock().unwrap() = true;
        changed.notify_all();
    }
}

#[tokio::test]
async fn a_callback_that_panics_is_called_for_the_next_event() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let backend = with_telemetry(
        MemoryBackend::default(),
        TelemetryOptions::new().with_on_event(move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
            panic!("the callback's own trouble");
        }),
    );
    let guard = acquire(&backend, "key", TTL).await.unwrap().unwrap();
    assert!(is_locked(&backend, "key").await.unwrap());
    assert!(guard.release().await.unwrap().is_released());

    assert!(backend.flush(PATIENCE).await);
    assert_eq!(calls.load(Ordering::SeqCst), 3);
    assert_eq!(backend.dropped_events(), 0);
}

#[tokio::test]
async fn a_blocked_callback_holds_nothing_up_and_its_losses_are_counted() {
    const CAPACITY: usize = 4;
    const CALLS: usize = 100;
    let (gate, delivered) = (Gate::default(), Arc::new(AtomicUsize::new(0)));
    let (held_up, counted) = (gate.clone(), Arc::clone(&delivered));
    let backend = with_telemetry(
        MemoryBackend::default(),
        TelemetryOptions::new()
            .with_queue_capacity(CAPACITY)
            .with_on_event(move |_| {
                held_up.pass();
                counted.fetch_add(1, Ordering::SeqCst);
            }),
    );

    // This test's runtime has one thread: were the callback to block it, nothing would go on.
    for _ in 0..CALLS {
        assert!(!is_locked(&backend, "key").await.unwrap());
    }
    assert!(!backend.flush(Duration::from_millis(20)).await);
    assert_eq!(delivered.load(Ordering::SeqCst), 0);
    let dropped = usize::try_from(backend.dropped_events()).unwrap();
    // One may be in the callback's hands, outside the queue.
    assert!((CALLS - CAPACITY - 1..=CALLS - CAPACITY).contains(&dropped));

    gate.open();
    assert!(backend.flush(PATIENCE).await);
    assert_eq!(delivered.load(Ordering::SeqCst) + dropped, CALLS);
    is_locked(&backend, "key").await.unwrap();
    assert!(backend.flush(PATIENCE).await);
    assert_eq!(delivered.load(Ordering::SeqCst) + dropped, CALLS + 1);
}

#[tokio::test]
async fn a_slow_callback_slows_nothing_down() {
    const CALLS: u32 = 50;
    const SLOWNESS: Duration = Duration::from_millis(20);
    let backend = with_telemetry(
        MemoryBackend::default(),
        TelemetryOptions::new().with_on_event(|_| thread::sleep(SLOWNESS)),
    );
    let started = Instant::now();
    for _ in 0..CALLS {
        is_locked(&backend, "key").await.unwrap();
    }
    assert!(started.elapsed() < SLOWNESS * CALLS / 4);
}

#[tokio::test]
async fn a_predicate_that_blocks_holds_nothing_up() {
    let gate = Gate::default();
    let held_up = gate.clone();
    let options = TelemetryOptions::new()
        .with_include_raw_if(move |_| {
            held_up.pass();
            true
        })
        .with_on_event(|_| {});
    let backend = with_telemetry(MemoryBackend::default(), options);
    assert!(!is_locked(&backend, "key").await.unwrap());
    gate.open();
    assert!(backend.flush(PATIENCE).await);
}

#[tokio::test]
async fn events_come_in_the_order_of_the_calls() {
    let (sender, receiver) = mpsc::channel();
    let backend = with_telemetry(
        MemoryBackend::default(),
        TelemetryOptions::new().with_on_event(move |event| drop(sender.send(event))),
    );
    for _ in 0..100 {
        let guard = acquire(&backend, "key", TTL).await.unwrap().unwrap();
        let _ = guard.release().await.unwrap();
    }
    assert!(backend.flush(PATIENCE).await);
    let types: Vec<_> = receiver
        .try_iter()
        .map(|event| event.event_type.as_str())
        .collect();
    assert_eq!(types, ["acquire", "release"].repeat(100));
}

#[tokio::test]
async fn the_last_clone_leaves_no_event_undelivered_and_no_thread_behind() {
    let (sender, receiver) = mpsc::channel();
    let backend = with_telemetry(
        MemoryBackend::default(),
        TelemetryOptions::new().with_on_event(move |event| drop(sender.send(event))),
    );
    let clone = backend.clone();
    drop(backend);
    is_locked(&clone, "key").await.unwrap();
    is_locked(&clone, "key").await.unwrap();
    drop(clone);

    assert!(receiver.recv_timeout(PATIENCE).is_ok());
    assert!(receiver.recv_timeout(PATIENCE).is_ok());
    // The callback is gone, and with it the thread that owned it.
    assert_eq!(
        receiver.recv_timeout(PATIENCE),
        Err(mpsc::RecvTimeoutError::Disconnected)
    );
}

#[tokio::test]
async fn without_a_callback_there_is_nothing_to_flush() {
    let backend = with_telemetry(MemoryBackend::default(), TelemetryOptions::new());
    is_locked(&backend, "key").await.unwrap();
    assert!(backend.flush(Duration::ZERO).await);
    assert_eq!(backend.dropped_events(), 0);
}

/// A subscriber that panics at every event.
struct Panicking;

impl tracing::Subscriber for Panicking {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target() == "syncguard"
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        panic!("the subscriber's own trouble");
    }

    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test]
async fn a_subscriber_that_panics_fails_no_operation() {
    let _listening = tracing::subscriber::set_default(Panicking);
    let (sender, receiver) = mpsc::channel();
    let options = TelemetryOptions::new()
        .with_tracing(true)
        .with_on_event(move |event| drop(sender.send(event)));
    let backend = with_telemetry(MemoryBackend::default(), options);
    let guard = acquire(&backend, "key", TTL).await.unwrap().unwrap();
    assert!(is_locked(&backend, "key").await.unwrap());
    assert!(guard.release().await.unwrap().is_released());
    assert!(backend.flush(PATIENCE).await);
    assert_eq!(receiver.try_iter().count(), 3);
}

/// The report of an abandoned call is made while a panic unwinds, where a second one would abort
/// the process.
#[tokio::test]
async fn a_subscriber_that_panics_during_a_panic_does_no_more_harm() {
    let _listening = tracing::subscriber::set_default(Panicking);
    let broken = Policy::new().with_monotonic_clock(|| panic!("no clock"));
    let backend = with_telemetry(
        MemoryBackend::with_policy(MemoryStore::new(), broken),
        TelemetryOptions::new().with_tracing(true),
    );
    let id = LockId::generate().unwrap();
    let call = tokio::spawn(async move { release(&backend, &id).await });
    assert!(call.await.unwrap_err().is_panic());
}
