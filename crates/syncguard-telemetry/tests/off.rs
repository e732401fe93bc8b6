//! Without a sink the decorator costs nothing. In a binary of its own: it counts allocations.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use allocation_counter::{AllocationInfo, measure};
use syncguard_core::{LockId, LockKey, Lookup, ManagedBackend, Ttl};
use syncguard_memory::MemoryBackend;
use syncguard_telemetry::{TelemetryOptions, with_telemetry};

/// What one round of all operations allocates, once everything is warm.
fn allocations(backend: &impl ManagedBackend) -> AllocationInfo {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let key = LockKey::new("customer:4711:invoices").unwrap();
    let id = LockId::generate().unwrap();
    let ttl = Ttl::new(Duration::from_secs(60)).unwrap();
    let round = || {
        runtime.block_on(async {
            let _ = backend.acquire(&key, &id, ttl).await.unwrap();
            let _ = backend.extend(&id, ttl).await.unwrap();
            backend.is_locked(&key).await.unwrap();
            backend.lookup_raw(Lookup::Key(&key)).await.unwrap();
            backend.lookup(Lookup::Id(&id)).await.unwrap();
            let _ = backend.release(&id).await.unwrap();
        });
    };
    round();
    measure(round)
}

#[test]
fn without_a_sink_nothing_is_allocated() {
    let bare = allocations(&MemoryBackend::default());
    let off = with_telemetry(MemoryBackend::default(), TelemetryOptions::new());
    assert_eq!(allocations(&off), bare);
}

/// The predicate is asked whenever an event is made, and an event is where identifiers are hashed.
#[test]
fn without_a_subscriber_no_event_is_made() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let options = TelemetryOptions::new()
        .with_tracing(true)
        .with_include_raw_if(move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
            false
        });
    let quiet = with_telemetry(MemoryBackend::default(), options);
    assert_eq!(allocations(&quiet), allocations(&MemoryBackend::default()));
    assert_eq!(asked.load(Ordering::SeqCst), 0);
}

#[test]
fn a_callback_costs_the_operation_no_allocation_either() {
    let options = TelemetryOptions::new().with_on_event(drop);
    let told = with_telemetry(MemoryBackend::default(), options);
    assert_eq!(allocations(&told), allocations(&MemoryBackend::default()));
}
