//! No `Debug`, `Display`, log line or error of any public type shows a raw key or lock id.

use std::error::Error;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use syncguard_core::backend::{AcquireResult, FENCE_WARN, Grant, Lookup};
use syncguard_core::observe::Operation;
use syncguard_core::{
    AutoExtend, CancellationToken, ErrorCode, Fence, Lease, LockError, LockId, LockKey,
    LockOptions, Locks, hash_key,
};
use syncguard_memory::{ManualClock, MemoryBackend};
use tracing_subscriber::fmt::MakeWriter;

use crate::common::{Fault, FaultyBackend};

const SECRET: &str = "customer:eve@example.com";
const MINUTE: Duration = Duration::from_secs(60);

/// All texts that were shown.
#[derive(Clone, Default)]
struct Shown(Arc<Mutex<String>>);

impl Shown {
    fn see(&self, shown: impl fmt::Debug) {
        let text = format!("{shown:?}\n{shown:#?}\n");
        self.0.lock().unwrap().push_str(&text);
    }

    fn see_error(&self, error: &LockError) {
        self.see(error);
        let mut link: Option<&dyn Error> = Some(error);
        while let Some(error) = link {
            self.see(error);
            self.0.lock().unwrap().push_str(&error.to_string());
            link = error.source();
        }
    }
}

impl std::io::Write for Shown {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0
            .lock()
            .unwrap()
            .push_str(&String::from_utf8_lossy(bytes));
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Shown {
    type Writer = Self;
    fn make_writer(&self) -> Self {
        self.clone()
    }
}

#[tokio::test]
async fn raw_identifiers_are_shown_nowhere() {
    let shown = Shown::default();
    let log = tracing_subscriber::fmt()
        .with_writer(shown.clone())
        .with_max_level(tracing::Level::TRACE)
        .with_ansi(false)
        .finish();
    let _log = tracing::subscriber::set_default(log);

    let key = LockKey::new(SECRET).unwrap();
    let mut ids = Vec::new();
    let faulty = FaultyBackend::default();
    let locks = faulty.locks();

    // Values of every public type that knows an identifier.
    let guard = locks.try_lock(SECRET).ttl(MINUTE).await.unwrap().unwrap();
    let id = *guard.lock_id();
    ids.push(id);
    shown.see((
        &key,
        &id,
        &guard,
        guard.lease(),
        Lookup::Key(&key),
        Lookup::Id(&id),
    ));
    let grant = Grant::new(id, 1, guard.fence());
    shown.see((
        grant.clone(),
        AcquireResult::Acquired(grant),
        AcquireResult::<Fence>::locked(),
    ));
    shown.see((locks.get_by_key(SECRET).await, locks.get_by_id(id).await));
    shown.see((
        locks.get_by_key_raw(SECRET).await,
        locks.get_by_id_raw(id).await,
    ));
    shown.see((
        &locks,
        &faulty.store,
        Locks::builder(faulty.clone()),
        locks.lock(SECRET),
        locks.try_lock(SECRET).attempt().await,
    ));
    shown.see((guard.extend(MINUTE).await, LockOptions::new()));
    let info = locks.get_by_key(SECRET).await.unwrap().unwrap();
    let error = locks
        .lock("")
        .await
        .unwrap_err()
        .with_key(&key)
        .with_lock_id(&id);
    for json in [serde_json::to_string(&info), serde_json::to_string(&error)] {
        shown.0.lock().unwrap().push_str(&json.unwrap());
    }
    drop(guard);
    locks.drain(MINUTE).await.unwrap();

    // Errors of every operation, their sources and the log lines of background work.
    let clock = ManualClock::new();
    let store = MemoryBackend::with_clock(clock.clone());
    let overrun = Locks::new(store.clone());
    let receipt = overrun.lock(SECRET).run(async |lease| {
        clock.advance(MINUTE);
        *lease.lock_id()
    });
    let receipt = receipt.await.unwrap();
    ids.push(*receipt.value());
    shown.see(&receipt);
    store.set_fence_counter(&key, FENCE_WARN + 1);
    let warned = overrun.try_lock(SECRET).ttl(MINUTE).await.unwrap().unwrap();
    ids.push(*warned.lock_id());

    for operation in [
        Operation::Acquire,
        Operation::Extend,
        Operation::IsLocked,
        Operation::Lookup,
    ] {
        faulty.plan(operation, [Fault::Refuse(ErrorCode::Internal)]);
    }
    faulty.plan(Operation::Release, [Fault::Refuse(ErrorCode::Internal)]);
    shown.see_error(&locks.try_lock(SECRET).ttl(MINUTE).await.unwrap_err());
    shown.see_error(&locks.extend(id, MINUTE).await.unwrap_err());
    shown.see_error(&locks.is_locked(SECRET).await.unwrap_err());
    shown.see_error(&locks.get_by_key(SECRET).await.unwrap_err());
    shown.see_error(&locks.release(id).await.unwrap_err());
    locks.drain(MINUTE).await.unwrap();
    faulty.plan(Operation::Release, [Fault::Refuse(ErrorCode::Internal)]);
    drop(locks.try_lock(SECRET).ttl(MINUTE).await.unwrap().unwrap());
    locks.drain(MINUTE).await.unwrap();
    let _holder = locks.try_lock(SECRET).ttl(MINUTE).await.unwrap().unwrap();
    let impatient = LockOptions::new().max_retries(0);
    let error = locks
        .lock(SECRET)
        .options(&impatient)
        .run(async |_| ())
        .await
        .unwrap_err();
    ids.extend(error.lock_id());
    shown.see_error(&error);
    // Lost, aborted, timed out, released too late; and a driver that quotes what it was given.
    let cancelled = CancellationToken::new();
    cancelled.cancel();
    shown.see_error(
        &locks
            .try_lock(SECRET)
            .ttl(MINUTE)
            .cancel_on(&cancelled)
            .await
            .unwrap_err(),
    );
    let hasty = faulty
        .builder()
        .operation_timeout(Duration::from_millis(1))
        .build();
    faulty.plan(Operation::Acquire, [Fault::Hang]);
    let error = hasty.try_lock(SECRET).ttl(MINUTE).await.unwrap_err();
    ids.extend(error.lock_id());
    shown.see_error(&error);
    faulty.plan(
        Operation::Acquire,
        [Fault::DelayReply(Duration::from_millis(20))],
    );
    let other = format!("{SECRET}:other");
    let error = locks
        .try_lock(&other)
        .ttl(Duration::from_millis(5))
        .await
        .unwrap_err();
    ids.extend(error.lock_id());
    shown.see_error(&error);
    let kept = LockOptions::new()
        .ttl(Duration::from_secs(3))
        .auto_extend(AutoExtend::new());
    let third = format!("{SECRET}:third");
    let section = async |lease: Lease<_>| {
        assert!(locks.release(lease.lock_id()).await.unwrap().is_released());
        std::future::pending::<()>().await;
    };
    let error = locks
        .lock(&third)
        .options(&kept)
        .run(section)
        .await
        .unwrap_err();
    assert_eq!(error.code(), ErrorCode::LockLost);
    ids.extend(error.lock_id());
    shown.see_error(&error);
    faulty.plan(
        Operation::Release,
        [Fault::Refuse(ErrorCode::AuthFailed); 2],
    );
    let receipt = locks.lock(&third).run(async |_| ()).await.unwrap();
    assert!(receipt.release_error().is_some());
    shown.see(&receipt);
    locks.drain(MINUTE).await.unwrap();
    for quoted in [SECRET.to_owned(), format!("{:?}", "\"eve@example.com\n")] {
        let driver = std::io::Error::other(format!("duplicate of {quoted}"));
        let key = LockKey::new(if quoted == SECRET {
            SECRET
        } else {
            "\"eve@example.com\n"
        });
        let error = LockError::new(ErrorCode::Internal, "refused").with_source(driver);
        shown.see_error(&error.with_key(&key.unwrap()));
    }
    for malformed in ["", "customer:eve@example.com\0", "too short"] {
        shown.see(LockId::parse(malformed).unwrap_err());
        shown.see(LockKey::new(&format!("{malformed}\0")).unwrap_err());
    }

    let text = shown.0.lock().unwrap();
    assert!(
        text.contains(&hash_key(SECRET).to_string()),
        "the hash is what is shown"
    );
    assert!(
        text.contains("before its section ended"),
        "log lines were captured: {text}"
    );
    assert!(text.contains("is near its end"), "log lines were captured");
    assert!(
        text.contains("failed to release lock"),
        "log lines were captured"
    );
    assert!(
        !text.contains("eve@example"),
        "the raw key is shown in: {text}"
    );
    for id in ids {
        assert!(
            !text.contains(id.as_str()),
            "a raw lock id is shown in: {text}"
        );
    }
}

/// The counter of a key is worth a warning only when its end is near.
#[tokio::test]
async fn fences_up_to_the_threshold_are_not_warned_about() {
    let shown = Shown::default();
    let log = tracing_subscriber::fmt()
        .with_writer(shown.clone())
        .with_max_level(tracing::Level::TRACE)
        .finish();
    let _log = tracing::subscriber::set_default(log);
    let store = MemoryBackend::default();
    let locks = Locks::new(store.clone());
    for (fence, warned) in [(1, false), (FENCE_WARN, false), (FENCE_WARN + 1, true)] {
        let key = LockKey::new(&format!("k{fence}")).unwrap();
        store.set_fence_counter(&key, fence - 1);
        let guard = locks.try_lock(&key).await.unwrap().unwrap();
        assert_eq!(guard.fence().get(), fence);
        let text = shown.0.lock().unwrap().clone();
        assert_eq!(text.contains("near its end"), warned, "{fence}: {text}");
        assert!(guard.release().await.unwrap().is_released());
    }
}
