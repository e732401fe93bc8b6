//! Without a sink telemetry costs nothing. In a binary of its own: it counts allocations.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use allocation_counter::{AllocationInfo, measure};
use syncguard_core::{LockKey, Locks};
use syncguard_memory::MemoryBackend;
use syncguard_telemetry::{TelemetryOptions, with_telemetry};

/// Locks in memory with these sinks.
fn locks(options: TelemetryOptions) -> Locks {
    with_telemetry(Locks::new(MemoryBackend::default()), options)
}

/// What one round of all operations allocates, once everything is warm.
fn allocations(locks: &Locks) -> AllocationInfo {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let key = &LockKey::new("customer:4711:invoices").unwrap();
    let ttl = Duration::from_secs(60);
    let round = || {
        runtime.block_on(async {
            let guard = locks.try_lock(key).ttl(ttl).await.unwrap().unwrap();
            let _ = guard.extend(ttl).await.unwrap();
            let _ = locks.extend(guard.lock_id(), ttl).await.unwrap();
            locks.is_locked(key).await.unwrap();
            locks.get_by_key_raw(key).await.unwrap();
            locks.get_by_id(guard.lock_id()).await.unwrap();
            locks.is_locked("").await.unwrap_err();
            let _ = guard.release().await.unwrap();
        });
    };
    round();
    measure(round)
}

#[test]
fn without_a_sink_nothing_observes_and_nothing_is_allocated() {
    let bare = Locks::new(MemoryBackend::default());
    for options in [
        TelemetryOptions::new(),
        TelemetryOptions::new().include_raw(true),
        TelemetryOptions::new().tracing(false),
    ] {
        let off = locks(options);
        assert!(format!("{off:?}").contains("Observers(0)"), "{off:?}");
        assert_eq!(allocations(&off), allocations(&bare));
    }
    let on = locks(TelemetryOptions::new().on_event(drop));
    assert!(format!("{on:?}").contains("Observers(1)"), "{on:?}");
}

/// Each event calls the predicate, and making an event is what hashes identifiers.
#[test]
fn without_a_subscriber_no_event_is_made() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let options = TelemetryOptions::new()
        .tracing(true)
        .include_raw_if(move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
            false
        });
    let quiet = locks(options);
    let bare = Locks::new(MemoryBackend::default());
    assert_eq!(allocations(&quiet), allocations(&bare));
    assert_eq!(calls.load(Ordering::SeqCst), 0);
}

#[test]
fn a_callback_costs_the_operation_no_allocation_either() {
    let observed = locks(TelemetryOptions::new().on_event(drop));
    let bare = Locks::new(MemoryBackend::default());
    assert_eq!(allocations(&observed), allocations(&bare));
}
