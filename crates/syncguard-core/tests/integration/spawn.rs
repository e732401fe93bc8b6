//! Every request and every section can be spawned on a multi-threaded runtime.

use std::future::IntoFuture as _;
use std::time::Duration;

use syncguard_core::{
    Attempt, AutoExtend, CancellationToken, LockError, LockGuard, Locks, Request,
};
use syncguard_memory::MemoryBackend;
use tokio::spawn;

const MINUTE: Duration = Duration::from_secs(60);

/// Keeps a guard and names no backend.
struct Job {
    guard: LockGuard,
}

async fn spawned<T: Send + 'static>(request: Request<T>) -> T {
    spawn(request).await.unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_request_can_be_spawned() {
    let locks = Locks::new(MemoryBackend::default());
    let token = CancellationToken::new();

    let request = locks.lock("k").ttl(MINUTE).cancel_on(&token);
    let job = Job {
        guard: spawn(request.into_future()).await.unwrap().unwrap(),
    };
    let request = locks
        .try_lock(String::from("k"))
        .ttl(MINUTE)
        .cancel_on(&token);
    assert!(
        spawn(request.into_future())
            .await
            .unwrap()
            .unwrap()
            .is_none()
    );
    let attempt = spawn(locks.try_lock("k").attempt()).await.unwrap().unwrap();
    assert!(matches!(attempt, Attempt::Locked { .. }));

    let id = *job.guard.lock_id();
    let text = id.as_str().to_owned();
    assert!(
        spawned(job.guard.extend(MINUTE).cancel_on(&token))
            .await
            .is_extended()
    );
    assert!(
        spawned(locks.extend(id, MINUTE).cancel_on(&token))
            .await
            .is_extended()
    );
    assert!(spawned(locks.is_locked("k").cancel_on(&token)).await);
    assert!(spawned(locks.owns(text).cancel_on(&token)).await);
    assert!(
        spawned(locks.get_by_key("k").cancel_on(&token))
            .await
            .is_some()
    );
    assert!(
        spawned(locks.get_by_id(id).cancel_on(&token))
            .await
            .is_some()
    );
    assert!(
        spawned(locks.get_by_key_raw("k").cancel_on(&token))
            .await
            .is_some()
    );
    assert!(
        spawned(locks.get_by_id_raw(id).cancel_on(&token))
            .await
            .is_some()
    );
    assert!(
        !spawned(locks.preflight().cancel_on(&token))
            .await
            .is_empty()
    );
    assert_eq!(spawned(locks.purge_expired().cancel_on(&token)).await, 0);
    assert!(
        spawned(job.guard.release().cancel_on(&token))
            .await
            .is_released()
    );
    assert!(
        !spawned(locks.release(id).cancel_on(&token))
            .await
            .is_released()
    );
    spawned(locks.drain(MINUTE).cancel_on(&token)).await;
    spawned(locks.close().cancel_on(&token)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_section_can_be_spawned() {
    let locks = Locks::new(MemoryBackend::default());
    let text = String::from("moved in");
    let section = async move |lease: syncguard_core::Lease| {
        tokio::task::yield_now().await;
        assert!(lease.is_valid());
        assert!(lease.extend(MINUTE).await?.is_extended());
        Ok::<_, LockError>(text.len())
    };
    let (waiting, renewed, single) = (locks.clone(), locks.clone(), locks.clone());
    let section = spawn(async move { waiting.lock("k").run(section).await });
    let receipt = section.await.unwrap().unwrap();
    assert_eq!(receipt.into_value().unwrap(), 8);

    let renewal = AutoExtend::new();
    let section = async |lease: syncguard_core::Lease| lease.fence();
    let section = spawn(renewed.lock("k").auto_extend(renewal).run(section));
    let fence = section.await.unwrap().unwrap().into_value();
    let section = spawn(async move { single.try_lock("k").run(async |lease| lease.fence()).await });
    let receipt = section.await.unwrap().unwrap().expect("the key is free");
    assert!(receipt.into_value() > fence);
}
