//! Every public future can be spawned on a multi-threaded runtime.

use std::time::Duration;

use syncguard_core::{AnyBackend, Cancellable as _, CancellationToken, LockOptions, acquire, lock};
use syncguard_memory::MemoryBackend;

#[tokio::test]
async fn helpers_can_be_spawned() {
    let backend = AnyBackend::new(MemoryBackend::default());
    let (other, text) = (backend.clone(), String::from("moved in"));
    let section = tokio::spawn(async move {
        lock(&other, "spawned", LockOptions::new(), async |lease| {
            tokio::task::yield_now().await;
            assert!(lease.is_valid());
            text.len()
        })
        .await
    });
    assert_eq!(section.await.unwrap().unwrap().into_value(), 8);

    let token = CancellationToken::new();
    let guard = tokio::spawn(async move {
        acquire(&backend, "spawned", Duration::from_secs(1))
            .cancelled_by(&token)
            .await
    });
    let guard = guard.await.unwrap().unwrap().unwrap();
    assert!(
        tokio::spawn(guard.release())
            .await
            .unwrap()
            .unwrap()
            .is_released()
    );
}
