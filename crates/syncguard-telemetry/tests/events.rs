//! One call, one event, and it says what happened.

mod common;

use std::time::Duration;

use common::{Counting, Fault, FaultyStore, Observed, TTL};
use syncguard_core::{
    AnyBackend, AutoExtend, Cancellable as _, CancellationToken, ErrorCode, LockBackend as _,
    LockId, LockKey, LockOptions, Lookup, Managed, ManagedBackend as _, Operation, Policy, Ttl,
    acquire, extend, get_by_id, get_by_key, get_by_key_raw, hash_key, is_locked, lock, release,
};
use syncguard_memory::{ManualClock, MemoryBackend, MemoryStore};
use syncguard_telemetry::{EventReason, EventResult, EventType};

const KEY: &str = "invoice:2024";

#[tokio::test]
async fn answers_are_told_as_the_specification_has_them() {
    use EventReason::{Expired, Locked, NotFound};
    use EventResult::{Fail, Ok};
    use EventType::{Acquire, Extend, IsLocked, Lookup, Release};

    let clock = ManualClock::new();
    let observed = Observed::new(MemoryBackend::new(MemoryStore::with_clock(clock.clone())));
    let backend = &observed.backend;

    let lease = acquire(backend, KEY, TTL).await.unwrap().unwrap().detach();
    assert!(acquire(backend, KEY, TTL).await.unwrap().is_none());
    assert!(is_locked(backend, KEY).await.unwrap());
    assert!(!is_locked(backend, "free").await.unwrap());
    assert!(get_by_key(backend, KEY).await.unwrap().is_some());
    assert!(get_by_key(backend, "free").await.unwrap().is_none());
    assert!(get_by_key_raw(backend, KEY).await.unwrap().is_some());
    assert!(get_by_id(backend, lease.lock_id()).await.unwrap().is_some());
    let _ = extend(backend, lease.lock_id(), TTL).await.unwrap();
    let _ = release(backend, lease.lock_id()).await.unwrap();
    let _ = release(backend, lease.lock_id()).await.unwrap();
    let _ = extend(backend, lease.lock_id(), TTL).await.unwrap();
    let overrun = acquire(backend, KEY, TTL).await.unwrap().unwrap().detach();
    clock.advance(TTL * 2);
    let _ = extend(backend, overrun.lock_id(), TTL).await.unwrap();

    let expected = [
        (Acquire, Ok, None),
        (Acquire, Fail, Some(Locked)),
        (IsLocked, Ok, None),
        (IsLocked, Ok, None),
        (Lookup, Ok, None),
        (Lookup, Ok, None),
        (Lookup, Ok, None),
        (Lookup, Ok, None),
        (Extend, Ok, None),
        (Release, Ok, None),
        (Release, Fail, Some(NotFound)),
        (Extend, Fail, Some(NotFound)),
        (Acquire, Ok, None),
        (Extend, Fail, Some(Expired)),
    ];
    let events = observed.events().await;
    let told: Vec<_> = events
        .iter()
        .map(|event| (event.event_type, event.result, event.reason))
        .collect();
    assert_eq!(told, expected);
    for event in events {
        assert_eq!(event.backend, "memory");
        assert!(event.error_code.is_none() && !event.outcome_unknown && !event.abandoned);
    }
}

#[tokio::test]
async fn identifiers_are_told_by_hash_where_the_call_names_them() {
    let observed = Observed::new(MemoryBackend::default());
    let backend = &observed.backend;
    let lease = acquire(backend, KEY, TTL).await.unwrap().unwrap().detach();
    let (key, id) = (hash_key(KEY), hash_key(lease.lock_id().as_str()));

    is_locked(backend, KEY).await.unwrap();
    get_by_id(backend, lease.lock_id()).await.unwrap();
    get_by_key(backend, KEY).await.unwrap();
    let _ = extend(backend, lease.lock_id(), TTL).await.unwrap();
    let _ = release(backend, lease.lock_id()).await.unwrap();

    let told: Vec<_> = observed
        .events()
        .await
        .into_iter()
        .map(|event| (event.key_hash, event.lock_id_hash))
        .collect();
    let expected = [
        (Some(key), Some(id)),
        (Some(key), None),
        (None, Some(id)),
        (Some(key), None),
        (None, Some(id)),
        (None, Some(id)),
    ];
    assert_eq!(told, expected);
}

#[test]
fn types_results_and_reasons_are_spelled_as_on_every_implementation() {
    let types = [
        EventType::Acquire,
        EventType::Release,
        EventType::Extend,
        EventType::IsLocked,
        EventType::Lookup,
    ];
    assert_eq!(
        types.map(EventType::as_str),
        ["acquire", "release", "extend", "isLocked", "lookup"]
    );
    let results = [EventResult::Ok, EventResult::Fail];
    assert_eq!(results.map(EventResult::as_str), ["ok", "fail"]);
    let reasons = [
        EventReason::Locked,
        EventReason::Expired,
        EventReason::NotFound,
    ];
    assert_eq!(
        reasons.map(EventReason::as_str),
        ["locked", "expired", "not-found"]
    );
}

#[tokio::test]
async fn errors_are_told_with_code_and_doubt() {
    let store = FaultyStore::default();
    let observed = Observed::new(store.managed());
    let backend = &observed.backend;
    let (key, id) = (LockKey::new(KEY).unwrap(), LockId::generate().unwrap());
    let ttl = Ttl::new(TTL).unwrap();

    for operation in [
        Operation::Acquire,
        Operation::Release,
        Operation::Extend,
        Operation::IsLocked,
        Operation::Lookup,
    ] {
        store.plan(operation, [Fault::Refuse(ErrorCode::AuthFailed)]);
        let outcome = match operation {
            Operation::Acquire => backend.acquire(&key, &id, ttl).await.map(drop),
            Operation::Release => backend.release(&id).await.map(drop),
            Operation::Extend => backend.extend(&id, ttl).await.map(drop),
            Operation::IsLocked => backend.is_locked(&key).await.map(drop),
            _ => backend.lookup(Lookup::Key(&key)).await.map(drop),
        };
        assert_eq!(outcome.unwrap_err().code(), ErrorCode::AuthFailed);
        let event = observed.event().await;
        assert_eq!(event.result, EventResult::Fail);
        assert_eq!(event.reason, None);
        assert_eq!(event.error_code, Some(ErrorCode::AuthFailed));
        assert!(!event.outcome_unknown && !event.abandoned);
    }

    store.plan(Operation::Acquire, [Fault::LoseReply]);
    backend.acquire(&key, &id, ttl).await.unwrap_err();
    let event = observed.event().await;
    assert_eq!(event.error_code, Some(ErrorCode::ServiceUnavailable));
    assert!(event.outcome_unknown);
}

#[tokio::test]
async fn a_timeout_of_the_policy_is_an_error_with_its_duration() {
    let store = FaultyStore::default();
    let timeout = Duration::from_millis(40);
    let observed = Observed::new(store.managed_with(Policy::new().with_operation_timeout(timeout)));
    store.plan(Operation::Extend, [Fault::Hang]);
    let id = LockId::generate().unwrap();
    extend(&observed.backend, &id, TTL).await.unwrap_err();

    let event = observed.event().await;
    assert_eq!(event.error_code, Some(ErrorCode::NetworkTimeout));
    assert!(event.outcome_unknown && !event.abandoned);
    assert!(event.duration >= timeout);
}

#[tokio::test]
async fn a_dropped_call_is_told_as_abandoned() {
    let store = FaultyStore::default();
    let observed = Observed::new(store.managed());
    let backend = &observed.backend;

    store.plan(Operation::Acquire, [Fault::Hang]);
    let token = CancellationToken::new();
    let attempt = acquire(backend, KEY, TTL).cancelled_by(&token);
    let (outcome, ()) = tokio::join!(attempt, async { token.cancel() });
    assert_eq!(outcome.unwrap_err().code(), ErrorCode::Aborted);
    let event = observed.event().await;
    assert_eq!(event.event_type, EventType::Acquire);
    assert_eq!(event.result, EventResult::Fail);
    assert!(event.abandoned && event.outcome_unknown);
    assert_eq!((event.error_code, event.reason), (None, None));

    store.plan(Operation::IsLocked, [Fault::Hang]);
    let question = is_locked(backend, KEY);
    drop(tokio::time::timeout(Duration::from_millis(5), question).await);
    let event = observed.event().await;
    assert!(event.abandoned && !event.outcome_unknown, "it only reads");
}

#[tokio::test]
async fn a_call_that_never_began_is_not_told() {
    let observed = Observed::new(MemoryBackend::default());
    drop(is_locked(&observed.backend, KEY));
    let token = CancellationToken::new();
    token.cancel();
    let attempt = acquire(&observed.backend, KEY, TTL).cancelled_by(&token);
    assert!(attempt.await.is_err());
    assert!(acquire(&observed.backend, "", TTL).await.is_err());
    assert_eq!(observed.events().await, []);
}

#[tokio::test]
async fn a_backend_that_panics_is_told_as_abandoned() {
    let panicking = Policy::new().with_monotonic_clock(|| panic!("no clock"));
    let observed = Observed::new(Managed::with_policy(MemoryStore::new(), panicking));
    let backend = observed.backend.clone();
    let id = LockId::generate().unwrap();
    let call = tokio::spawn(async move { backend.release(&id).await });
    assert!(call.await.unwrap_err().is_panic());
    assert!(observed.event().await.abandoned);
}

#[tokio::test]
async fn a_dropped_guard_tells_its_release() {
    let observed = Observed::new(MemoryBackend::default());
    let guard = acquire(&observed.backend, KEY, TTL).await.unwrap().unwrap();
    observed.event().await;
    let id = hash_key(guard.lock_id().as_str());
    drop(guard);

    let event = observed.event().await;
    assert_eq!(event.event_type, EventType::Release);
    assert_eq!(event.result, EventResult::Ok);
    assert_eq!(event.lock_id_hash, Some(id));
}

#[tokio::test]
async fn a_disposal_that_times_out_is_told_once() {
    let store = FaultyStore::default();
    let policy = Policy::new()
        .with_dispose_timeout(Duration::from_millis(20))
        .with_on_release_error(|_| {});
    let observed = Observed::new(store.managed_with(policy));
    let guard = acquire(&observed.backend, KEY, TTL).await.unwrap().unwrap();
    observed.event().await;
    store.plan(Operation::Release, [Fault::Hang]);
    drop(guard);

    let event = observed.event().await;
    assert_eq!(event.event_type, EventType::Release);
    assert!(event.abandoned && event.outcome_unknown);
    assert_eq!(store.calls(Operation::Release), 2, "given back unseen");
}

#[tokio::test]
async fn renewals_are_told() {
    let observed = Observed::new(MemoryBackend::default());
    let options = LockOptions::new()
        .with_ttl(Duration::from_millis(1500))
        .with_auto_extend(AutoExtend::new());
    let section = async |_| tokio::time::sleep(Duration::from_millis(1200)).await;
    let _ = lock(&observed.backend, KEY, options, section)
        .await
        .unwrap();

    let events = observed.events().await;
    let of = |wanted| {
        events
            .iter()
            .filter(move |event| event.event_type == wanted)
    };
    assert_eq!(of(EventType::Acquire).count(), 1);
    assert!(of(EventType::Extend).count() >= 2);
    assert_eq!(of(EventType::Release).count(), 1);
}

#[tokio::test]
async fn an_erased_backend_is_told_by_its_own_name() {
    let observed = Observed::new(AnyBackend::new(MemoryBackend::default()));
    is_locked(&observed.backend, KEY).await.unwrap();
    assert_eq!(observed.event().await.backend, "memory");
}

#[tokio::test]
async fn the_decorator_passes_everything_through() {
    let inner = MemoryBackend::with_policy(
        MemoryStore::new(),
        Policy::new().with_operation_timeout(Duration::from_secs(7)),
    );
    let observed = Observed::new(inner.clone());
    let backend = &observed.backend;
    assert_eq!(backend.capabilities(), inner.capabilities());
    assert_eq!(backend.policy().operation_timeout(), Duration::from_secs(7));
    let guard = acquire(backend, KEY, TTL).await.unwrap().unwrap();
    let info = get_by_key(backend, KEY).await.unwrap().unwrap();
    assert_eq!(info.fence, guard.fence());
    assert_eq!(
        get_by_key(backend.get_ref(), KEY).await.unwrap(),
        Some(info)
    );
    drop(guard);
    backend.drain(common::PATIENCE).await.unwrap();
    assert!(!is_locked(&backend.clone().into_inner(), KEY).await.unwrap());
}

/// Contention, errors, lost replies, timeouts, cancellations and dropped guards at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn there_are_as_many_events_as_calls() {
    let store = FaultyStore::default();
    let policy = Policy::new()
        .with_operation_timeout(Duration::from_millis(30))
        .with_on_release_error(|_| {});
    let counting = Counting::new(store.managed_with(policy));
    let observed = Observed::new(counting.clone());

    let faults = [
        Fault::Pass,
        Fault::Refuse(ErrorCode::RateLimited),
        Fault::LoseReply,
        Fault::Pass,
        Fault::DelayReply(Duration::from_millis(3)),
        Fault::Hang,
        Fault::DelayRequest(Duration::from_millis(3)),
    ];
    for operation in [
        Operation::Acquire,
        Operation::Release,
        Operation::Extend,
        Operation::IsLocked,
    ] {
        store.plan(operation, faults.into_iter().cycle().take(300));
    }

    let mut workers = tokio::task::JoinSet::new();
    for worker in 0..8_u32 {
        let backend = observed.backend.clone();
        workers.spawn(async move {
            for round in 0..40 {
                let key = format!("key:{}", round % 3);
                let patience = Duration::from_millis(u64::from((worker + round) % 7));
                let attempt = acquire(&backend, &key, TTL);
                let Ok(Ok(Some(guard))) = tokio::time::timeout(patience, attempt).await else {
                    drop(is_locked(&backend, &key).await);
                    continue;
                };
                drop(tokio::time::timeout(patience, guard.extend(TTL)).await);
                if round % 2 == 0 {
                    drop(guard);
                } else {
                    drop(guard.release().await);
                }
            }
        });
    }
    workers.join_all().await;

    let events = observed.events().await;
    assert_eq!(events.len(), counting.calls());
    assert_eq!(observed.backend.dropped_events(), 0);
    let some = |what: fn(&syncguard_telemetry::LockEvent) -> bool| events.iter().any(what);
    assert!(some(|event| event.abandoned));
    assert!(some(|event| event.error_code.is_some()));
    assert!(some(|event| event.reason == Some(EventReason::Locked)));
}
