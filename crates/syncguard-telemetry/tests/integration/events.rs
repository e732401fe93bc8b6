//! One call, one event, and it says what happened.

use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use syncguard_core::observe::Operation;
use syncguard_core::{AutoExtend, CancellationToken, ErrorCode, Lease, LockId, Locks, hash_key};
use syncguard_memory::{ManualClock, MemoryBackend};
use syncguard_telemetry::{EventReason, EventResult, EventType, LockEvent};

use crate::common::{Fault, FaultyBackend, Observed, PATIENCE, TTL};

const KEY: &str = "invoice:2024";

/// Polls a call for a moment, then drops it.
async fn abandon(call: impl IntoFuture) {
    drop(tokio::time::timeout(Duration::from_millis(5), call).await);
}

#[tokio::test]
async fn answers_make_the_events_of_the_specification() {
    use EventReason::{Expired, Locked, NotFound};
    use EventResult::{Fail, Ok};
    use EventType::{Acquire, Extend, IsLocked, List, Lookup, Release};

    let clock = ManualClock::new();
    let observed = Observed::new(&Locks::new(MemoryBackend::with_clock(clock.clone())));
    let locks = &observed.locks;
    let acquire = async || locks.try_lock(KEY).ttl(TTL).await.unwrap();

    let lease = acquire().await.unwrap().detach();
    assert!(acquire().await.is_none());
    assert!(locks.is_locked(KEY).await.unwrap());
    assert!(!locks.is_locked("free").await.unwrap());
    assert!(locks.get_by_key(KEY).await.unwrap().is_some());
    assert!(locks.get_by_key("free").await.unwrap().is_none());
    assert!(locks.get_by_key_raw(KEY).await.unwrap().is_some());
    assert!(locks.get_by_id(lease.lock_id()).await.unwrap().is_some());
    assert!(locks.owns(lease.lock_id()).await.unwrap());
    assert_eq!(locks.list().await.unwrap().locks.len(), 1);
    let _ = locks.extend(lease.lock_id(), TTL).await.unwrap();
    let _ = locks.release(lease.lock_id()).await.unwrap();
    let _ = locks.release(lease.lock_id()).await.unwrap();
    let _ = locks.extend(lease.lock_id(), TTL).await.unwrap();
    let overrun = acquire().await.unwrap().detach();
    clock.advance(TTL * 2);
    let _ = locks.extend(overrun.lock_id(), TTL).await.unwrap();

    let expected = [
        (Acquire, Ok, None),
        (Acquire, Fail, Some(Locked)),
        (IsLocked, Ok, None),
        (IsLocked, Ok, None),
        (Lookup, Ok, None),
        (Lookup, Ok, None),
        (Lookup, Ok, None),
        (Lookup, Ok, None),
        (Lookup, Ok, None),
        (List, Ok, None),
        (Extend, Ok, None),
        (Release, Ok, None),
        (Release, Fail, Some(NotFound)),
        (Extend, Fail, Some(NotFound)),
        (Acquire, Ok, None),
        (Extend, Fail, Some(Expired)),
    ];
    let events = observed.events().await;
    let seen: Vec<_> = events
        .iter()
        .map(|event| (event.event_type, event.result, event.reason))
        .collect();
    assert_eq!(seen, expected);
    for event in events {
        assert_eq!(event.backend, "memory");
        assert!(event.error_code.is_none() && !event.outcome_unknown && !event.abandoned);
    }
}

#[tokio::test]
async fn an_event_has_the_hashes_that_the_call_or_its_guard_knows() {
    let observed = Observed::on_memory();
    let locks = &observed.locks;
    let guard = locks.lock(KEY).await.unwrap();
    let id = *guard.lock_id();
    let of_key = Some(hash_key(KEY));
    let of_id = Some(hash_key(id.as_str()));

    locks.is_locked(KEY).await.unwrap();
    locks.get_by_id(id).await.unwrap();
    locks.get_by_key(KEY).await.unwrap();
    let _ = guard.extend(TTL).await.unwrap();
    let _ = locks.extend(id, TTL).await.unwrap();
    let _ = guard.release().await.unwrap();
    let _ = locks.release(id).await.unwrap();
    let mut section_id = None;
    let section = async |lease: Lease| section_id = Some(*lease.lock_id());
    let _ = locks.lock(KEY).run(section).await.unwrap();
    let of_section = section_id.map(|id| hash_key(id.as_str()));

    let seen: Vec<_> = observed
        .events()
        .await
        .into_iter()
        .map(|event| (event.key_hash, event.lock_id_hash))
        .collect();
    let expected = [
        (of_key, of_id),
        (of_key, None),
        (None, of_id),
        (of_key, None),
        (of_key, of_id),
        (None, of_id),
        (of_key, of_id),
        (None, of_id),
        (of_key, of_section),
        (of_key, of_section),
    ];
    assert_eq!(seen, expected);
}

#[test]
fn types_results_and_reasons_are_spelled_as_on_every_implementation() {
    let types = [
        EventType::Acquire,
        EventType::Release,
        EventType::Extend,
        EventType::IsLocked,
        EventType::Lookup,
        EventType::List,
    ];
    let spelled = ["acquire", "release", "extend", "isLocked", "lookup", "list"];
    assert_eq!(types.map(EventType::as_str), spelled);
    assert_eq!(
        serde_json::to_value(types).unwrap(),
        serde_json::json!(spelled)
    );
    let results = [EventResult::Ok, EventResult::Fail];
    let spelled = ["ok", "fail"];
    assert_eq!(results.map(EventResult::as_str), spelled);
    assert_eq!(
        serde_json::to_value(results).unwrap(),
        serde_json::json!(spelled)
    );
    let reasons = [
        EventReason::Locked,
        EventReason::Expired,
        EventReason::NotFound,
    ];
    let spelled = ["locked", "expired", "not-found"];
    assert_eq!(reasons.map(EventReason::as_str), spelled);
    assert_eq!(
        serde_json::to_value(reasons).unwrap(),
        serde_json::json!(spelled)
    );
}

#[tokio::test]
async fn an_event_is_json_in_the_shape_of_the_specification() {
    let observed = Observed::on_memory();
    let _guard = observed.locks.lock(KEY).await.unwrap();
    assert!(observed.locks.try_lock(KEY).await.unwrap().is_none());
    let events = observed.events().await;
    for (event, reason) in events.iter().zip([None, Some("locked")]) {
        let mut json = serde_json::to_value(event).unwrap();
        let fields = json.as_object_mut().unwrap();
        let duration = fields.remove("durationMs").unwrap().as_f64().unwrap();
        assert!((duration - event.duration.as_secs_f64() * 1e3).abs() <= 0.001);
        let ended_at = fields.remove("endedAtMs").unwrap().as_u64().unwrap();
        let since_epoch = event.ended_at.duration_since(std::time::UNIX_EPOCH);
        assert_eq!(u128::from(ended_at), since_epoch.unwrap().as_millis());
        let mut expected = serde_json::json!({
            "type": "acquire",
            "result": if reason.is_some() { "fail" } else { "ok" },
            "keyHash": hash_key(KEY).to_string(),
            "lockIdHash": event.lock_id_hash.unwrap().to_string(),
            "outcomeUnknown": false,
            "abandoned": false,
            "backend": "memory",
        });
        if let Some(reason) = reason {
            expected["reason"] = reason.into();
        }
        assert_eq!(json, expected);
    }
}

#[tokio::test]
async fn errors_are_reported_with_code_and_doubt() {
    let faulty = FaultyBackend::default();
    let observed = Observed::new(&faulty.locks());
    let locks = &observed.locks;
    let id = LockId::generate().unwrap();

    for operation in [
        Operation::Acquire,
        Operation::Release,
        Operation::Extend,
        Operation::IsLocked,
        Operation::Lookup,
        Operation::List,
    ] {
        faulty.plan(operation, [Fault::Refuse(ErrorCode::AuthFailed)]);
        let result = match operation {
            Operation::Acquire => locks.try_lock(KEY).await.map(drop),
            Operation::Release => locks.release(id).await.map(drop),
            Operation::Extend => locks.extend(id, TTL).await.map(drop),
            Operation::IsLocked => locks.is_locked(KEY).await.map(drop),
            Operation::List => locks.list().await.map(drop),
            _ => locks.get_by_key(KEY).await.map(drop),
        };
        assert_eq!(result.unwrap_err().code(), ErrorCode::AuthFailed);
        let event = observed.event().await;
        assert_eq!(event.result, EventResult::Fail);
        assert_eq!(event.reason, None);
        assert_eq!(event.error_code, Some(ErrorCode::AuthFailed));
        assert!(!event.outcome_unknown && !event.abandoned);
    }

    faulty.plan(Operation::Acquire, [Fault::LoseReply]);
    locks.try_lock(KEY).await.unwrap_err();
    let event = observed.event().await;
    assert_eq!(event.error_code, Some(ErrorCode::ServiceUnavailable));
    assert!(event.outcome_unknown);
}

#[tokio::test]
async fn an_operation_timeout_is_an_error_with_its_duration() {
    let faulty = FaultyBackend::default();
    let timeout = Duration::from_millis(40);
    let observed = Observed::new(&faulty.builder().operation_timeout(timeout).build());
    faulty.plan(Operation::Extend, [Fault::Hang]);
    let id = LockId::generate().unwrap();
    observed.locks.extend(id, TTL).await.unwrap_err();

    let event = observed.event().await;
    assert_eq!(event.error_code, Some(ErrorCode::NetworkTimeout));
    assert!(event.outcome_unknown && !event.abandoned);
    assert!(event.duration >= timeout);
}

#[tokio::test]
async fn calls_that_send_nothing_make_events_too() {
    let faulty = FaultyBackend::default();
    let observed = Observed::new(&faulty.locks());
    let locks = &observed.locks;
    locks.try_lock("").await.unwrap_err();
    locks.lock(KEY).ttl(Duration::ZERO).await.unwrap_err();
    locks.release("no id").await.unwrap_err();
    locks.extend("no id", TTL).await.unwrap_err();
    locks.is_locked("a\0b").await.unwrap_err();
    locks.owns("no id").await.unwrap_err();
    locks.list().page_size(0).await.unwrap_err();
    let events = observed.events().await;
    let types: Vec<_> = events.iter().map(|event| event.event_type).collect();
    let expected = [
        EventType::Acquire,
        EventType::Acquire,
        EventType::Release,
        EventType::Extend,
        EventType::IsLocked,
        EventType::Lookup,
        EventType::List,
    ];
    assert_eq!(types, expected);
    for event in events {
        assert_eq!(event.result, EventResult::Fail);
        assert_eq!(event.error_code, Some(ErrorCode::InvalidArgument));
        assert_eq!(event.lock_id_hash, None);
        assert!(!event.outcome_unknown && !event.abandoned);
    }

    let token = CancellationToken::new();
    token.cancel();
    let attempt = locks.try_lock(KEY).cancel_on(&token);
    attempt.await.unwrap_err();
    let event = observed.event().await;
    assert_eq!(event.error_code, Some(ErrorCode::Aborted));
    assert_eq!(event.key_hash, Some(hash_key(KEY)));
    assert!(!event.outcome_unknown && !event.abandoned);

    assert_eq!(faulty.calls(Operation::Acquire), 0);
}

#[tokio::test]
async fn a_cancelled_call_is_an_error_and_a_dropped_one_is_abandoned() {
    let faulty = FaultyBackend::default();
    let observed = Observed::new(&faulty.locks());
    let locks = &observed.locks;
    // The background stops looking for the lock of an abandoned acquire after its TTL.
    let ttl = Duration::from_millis(20);

    faulty.plan(Operation::Acquire, [Fault::Hang]);
    let token = CancellationToken::new();
    let attempt = locks.try_lock(KEY).ttl(ttl).cancel_on(&token);
    let (result, ()) = tokio::join!(attempt.into_future(), async { token.cancel() });
    assert_eq!(result.unwrap_err().code(), ErrorCode::Aborted);
    let event = observed.event().await;
    assert_eq!(event.event_type, EventType::Acquire);
    assert_eq!(event.error_code, Some(ErrorCode::Aborted));
    assert!(event.outcome_unknown && !event.abandoned);

    faulty.plan(Operation::Acquire, [Fault::Hang]);
    abandon(locks.try_lock(KEY).ttl(ttl)).await;
    let event = observed.event().await;
    assert_eq!(event.event_type, EventType::Acquire);
    assert_eq!(event.result, EventResult::Fail);
    assert!(event.abandoned && event.outcome_unknown);
    assert_eq!((event.error_code, event.reason), (None, None));

    faulty.plan(Operation::IsLocked, [Fault::Hang]);
    abandon(locks.is_locked(KEY)).await;
    let event = observed.event().await;
    assert!(event.abandoned && !event.outcome_unknown, "it only reads");
}

#[tokio::test]
async fn a_request_that_was_never_awaited_makes_no_event() {
    let observed = Observed::on_memory();
    drop(observed.locks.is_locked(KEY));
    drop(observed.locks.lock(KEY));
    drop(observed.locks.try_lock(KEY).into_future());
    assert_eq!(observed.events().await, []);
}

#[tokio::test]
async fn what_is_no_operation_on_a_lock_makes_no_event() {
    let observed = Observed::on_memory();
    observed.locks.preflight().await.unwrap();
    observed.locks.purge_expired().await.unwrap();
    observed.locks.drain(PATIENCE).await.unwrap();
    observed.locks.close().await.unwrap();
    assert_eq!(observed.events().await, []);
}

#[tokio::test]
async fn a_call_that_panics_is_abandoned() {
    let broken = Locks::builder(MemoryBackend::default()).monotonic_clock(|| panic!("no clock"));
    let observed = Observed::new(&broken.build());
    let attempt = observed.locks.try_lock(KEY).ttl(Duration::from_millis(20));
    let call = tokio::spawn(attempt.into_future());
    assert!(call.await.unwrap_err().is_panic());
    assert!(observed.event().await.abandoned);
}

#[tokio::test]
async fn a_dropped_guard_reports_its_release() {
    let observed = Observed::on_memory();
    let guard = observed.locks.lock(KEY).await.unwrap();
    observed.event().await;
    let id = hash_key(guard.lock_id().as_str());
    drop(guard);

    let event = observed.event().await;
    assert_eq!(event.event_type, EventType::Release);
    assert_eq!(event.result, EventResult::Ok);
    assert_eq!(event.key_hash, Some(hash_key(KEY)));
    assert_eq!(event.lock_id_hash, Some(id));
}

#[tokio::test]
async fn a_release_that_the_background_repeats_makes_one_event() {
    let faulty = FaultyBackend::default();
    let builder = faulty.builder().dispose_timeout(Duration::from_millis(20));
    let observed = Observed::new(&builder.on_release_error(|_| {}).build());
    let guard = observed.locks.lock(KEY).await.unwrap();
    observed.event().await;
    faulty.plan(Operation::Release, [Fault::Hang]);
    drop(guard);

    let event = observed.event().await;
    assert_eq!(event.event_type, EventType::Release);
    assert_eq!(event.error_code, Some(ErrorCode::NetworkTimeout));
    assert!(event.outcome_unknown && !event.abandoned);
    assert_eq!(faulty.calls(Operation::Release), 2);
}

#[tokio::test]
async fn each_attempt_of_a_wait_makes_an_event() {
    let observed = Observed::on_memory();
    let _holder = observed.locks.lock(KEY).await.unwrap();
    observed.event().await;
    let waiting = observed.locks.lock(KEY).max_retries(2);
    waiting
        .retry_delay(Duration::from_millis(1))
        .await
        .unwrap_err();

    let events = observed.events().await;
    assert_eq!(events.len(), 3);
    let mut ids: Vec<_> = events.iter().map(|event| event.lock_id_hash).collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 3, "each attempt makes a fresh id");
    for event in events {
        assert_eq!(event.reason, Some(EventReason::Locked));
        assert_eq!(event.error_code, None, "contention is no error");
    }
}

#[tokio::test]
async fn renewals_are_reported_as_extends() {
    let observed = Observed::on_memory();
    let waiting = observed.locks.lock(KEY).ttl(Duration::from_millis(1500));
    let section = async |_| tokio::time::sleep(Duration::from_millis(1200)).await;
    let _ = waiting
        .auto_extend(AutoExtend::new())
        .run(section)
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
    for event in &events {
        assert_eq!(event.key_hash, Some(hash_key(KEY)));
        assert_eq!(event.lock_id_hash, events[0].lock_id_hash);
    }
}

#[tokio::test]
async fn one_telemetry_observes_several_locks_by_the_names_of_their_backends() {
    let observed = Observed::on_memory();
    let other = Locks::builder(FaultyBackend::named("other"))
        .observe(Arc::new(observed.telemetry.clone()))
        .build();
    observed.locks.is_locked(KEY).await.unwrap();
    other.is_locked(KEY).await.unwrap();
    let events = observed.events().await;
    let backends: Vec<_> = events.iter().map(|event| event.backend).collect();
    assert_eq!(backends, ["memory", "other"]);
}

#[tokio::test]
async fn only_calls_through_the_observed_handle_make_events() {
    let plain = Locks::new(MemoryBackend::default());
    let observed = Observed::new(&plain);
    let guard = plain.lock(KEY).await.unwrap();
    assert!(guard.release().await.unwrap().is_released());
    assert_eq!(observed.events().await, []);
    // Both are one store.
    let guard = observed.locks.lock(KEY).await.unwrap();
    assert!(plain.is_locked(KEY).await.unwrap());
    let released_elsewhere = plain.release(guard.lock_id()).await.unwrap();
    assert!(released_elsewhere.is_released());
    assert_eq!(observed.event().await.event_type, EventType::Acquire);
}

/// Contention, errors, lost replies, timeouts, dropped calls and dropped guards at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn there_are_as_many_events_as_calls() {
    let faulty = FaultyBackend::default();
    let builder = faulty
        .builder()
        .operation_timeout(Duration::from_millis(30));
    let observed = Observed::new(&builder.on_release_error(|_| {}).build());

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
        faulty.plan(operation, faults.into_iter().cycle().take(300));
    }

    let calls = Arc::new(AtomicUsize::new(0));
    let mut workers = tokio::task::JoinSet::new();
    for worker in 0..8_u32 {
        let (locks, calls) = (observed.locks.clone(), Arc::clone(&calls));
        // Each is polled at least once, even with no time at all.
        let call = move || calls.fetch_add(1, Ordering::Relaxed);
        workers.spawn(async move {
            for round in 0..40 {
                let key = format!("key:{}", round % 3);
                let patience = Duration::from_millis(u64::from((worker + round) % 7));
                call();
                let attempt = locks.try_lock(&key).ttl(TTL);
                let Ok(Ok(Some(guard))) = tokio::time::timeout(patience, attempt).await else {
                    call();
                    drop(locks.is_locked(&key).await);
                    continue;
                };
                call();
                drop(tokio::time::timeout(patience, guard.extend(TTL)).await);
                call();
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
    assert_eq!(events.len(), calls.load(Ordering::Relaxed));
    assert_eq!(observed.telemetry.dropped_events(), 0);
    let some = |what: fn(&LockEvent) -> bool| events.iter().any(what);
    assert!(some(|event| event.abandoned));
    assert!(some(|event| event.error_code.is_some()));
    assert!(some(|event| event.reason == Some(EventReason::Locked)));
}
