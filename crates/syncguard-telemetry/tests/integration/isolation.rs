//! No sink affects operations: neither by panicking nor by blocking.

use std::future::IntoFuture as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use syncguard_core::Locks;
use syncguard_memory::MemoryBackend;
use syncguard_telemetry::{Telemetry, TelemetryOptions, with_telemetry};

use crate::common::{PATIENCE, Panicking, TTL};

/// Locks in memory, observed.
fn observed(options: TelemetryOptions) -> (Locks, Telemetry) {
    let telemetry = Telemetry::new(options);
    let builder = Locks::builder(MemoryBackend::default());
    let locks = builder.observe(Arc::new(telemetry.clone())).build();
    (locks, telemetry)
}

/// Blocks every callback until it is opened.
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
    let (locks, telemetry) = observed(TelemetryOptions::new().on_event(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        panic!("the callback's own fault");
    }));
    let guard = locks.lock("key").await.unwrap();
    assert!(locks.is_locked("key").await.unwrap());
    assert!(guard.release().await.unwrap().is_released());

    assert!(telemetry.flush(PATIENCE).await);
    assert_eq!(calls.load(Ordering::SeqCst), 3);
    assert_eq!(telemetry.dropped_events(), 0);
}

#[tokio::test]
async fn a_blocked_callback_blocks_no_operation_and_dropped_events_are_counted() {
    const CAPACITY: usize = 4;
    const CALLS: usize = 100;
    let (gate, delivered) = (Gate::default(), Arc::new(AtomicUsize::new(0)));
    let (blocked, counted) = (gate.clone(), Arc::clone(&delivered));
    let options = TelemetryOptions::new()
        .queue_capacity(CAPACITY)
        .on_event(move |_| {
            blocked.pass();
            counted.fetch_add(1, Ordering::SeqCst);
        });
    let (locks, telemetry) = observed(options);

    // This test's runtime has one thread: if the callback blocked it, nothing would go on.
    for _ in 0..CALLS {
        assert!(!locks.is_locked("key").await.unwrap());
    }
    assert!(!telemetry.flush(Duration::from_millis(20)).await);
    assert_eq!(delivered.load(Ordering::SeqCst), 0);
    let dropped = usize::try_from(telemetry.dropped_events()).unwrap();
    // The callback may have one, outside the queue.
    assert!((CALLS - CAPACITY - 1..=CALLS - CAPACITY).contains(&dropped));

    gate.open();
    assert!(telemetry.flush(PATIENCE).await);
    assert_eq!(delivered.load(Ordering::SeqCst) + dropped, CALLS);
    locks.is_locked("key").await.unwrap();
    assert!(telemetry.flush(PATIENCE).await);
    assert_eq!(delivered.load(Ordering::SeqCst) + dropped, CALLS + 1);
}

#[tokio::test]
async fn a_slow_callback_slows_no_operation() {
    const CALLS: u32 = 50;
    const SLOWNESS: Duration = Duration::from_millis(20);
    let locks = with_telemetry(
        Locks::new(MemoryBackend::default()),
        TelemetryOptions::new().on_event(|_| thread::sleep(SLOWNESS)),
    );
    let started = Instant::now();
    for _ in 0..CALLS {
        locks.is_locked("key").await.unwrap();
    }
    assert!(started.elapsed() < SLOWNESS * CALLS / 4);
}

#[tokio::test]
async fn a_predicate_that_blocks_blocks_no_operation() {
    let gate = Gate::default();
    let blocked = gate.clone();
    let options = TelemetryOptions::new()
        .include_raw_if(move |_| {
            blocked.pass();
            true
        })
        .on_event(|_| {});
    let (locks, telemetry) = observed(options);
    assert!(!locks.is_locked("key").await.unwrap());
    gate.open();
    assert!(telemetry.flush(PATIENCE).await);
}

#[tokio::test]
async fn events_come_in_the_order_of_the_calls() {
    let (sender, receiver) = mpsc::channel();
    let options = TelemetryOptions::new().on_event(move |event| drop(sender.send(event)));
    let (locks, telemetry) = observed(options);
    for _ in 0..100 {
        let guard = locks.try_lock("key").ttl(TTL).await.unwrap().unwrap();
        assert!(guard.release().await.unwrap().is_released());
    }
    assert!(telemetry.flush(PATIENCE).await);
    let types: Vec<_> = receiver
        .try_iter()
        .map(|event| event.event_type.as_str())
        .collect();
    assert_eq!(types, ["acquire", "release"].repeat(100));
}

#[tokio::test]
async fn the_last_clone_leaves_no_event_undelivered_and_no_thread_behind() {
    let (sender, receiver) = mpsc::channel();
    let options = TelemetryOptions::new().on_event(move |event| drop(sender.send(event)));
    let (locks, telemetry) = observed(options);
    let clone = locks.clone();
    drop((locks, telemetry));
    clone.is_locked("key").await.unwrap();
    clone.is_locked("key").await.unwrap();
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
    let (locks, telemetry) = observed(TelemetryOptions::new());
    locks.is_locked("key").await.unwrap();
    assert!(telemetry.flush(Duration::ZERO).await);
    assert_eq!(telemetry.dropped_events(), 0);
}

#[tokio::test]
async fn a_subscriber_that_panics_fails_no_operation() {
    let _listening = tracing::subscriber::set_default(Panicking);
    let (sender, receiver) = mpsc::channel();
    let options = TelemetryOptions::new()
        .tracing(true)
        .on_event(move |event| drop(sender.send(event)));
    let (locks, telemetry) = observed(options);
    let guard = locks.lock("key").await.unwrap();
    assert!(locks.is_locked("key").await.unwrap());
    assert!(guard.release().await.unwrap().is_released());
    assert!(telemetry.flush(PATIENCE).await);
    assert_eq!(receiver.try_iter().count(), 3);
}

/// An abandoned call is reported while a panic unwinds, where a second panic would abort the process.
#[tokio::test]
async fn a_subscriber_that_panics_during_a_panic_does_not_abort_the_process() {
    let _listening = tracing::subscriber::set_default(Panicking);
    let locks = with_telemetry(
        Locks::builder(MemoryBackend::default())
            .monotonic_clock(|| panic!("no clock"))
            .build(),
        TelemetryOptions::new().tracing(true),
    );
    let attempt = locks.try_lock("key").ttl(Duration::from_millis(20));
    let call = tokio::spawn(attempt.into_future());
    assert!(call.await.unwrap_err().is_panic());
    locks.drain(PATIENCE).await.unwrap();
}
