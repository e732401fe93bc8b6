//! What an observer is told of waits and of reclaimed locks.

mod common;

use std::future::{Future, pending};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Fault, FaultyStore};
use syncguard_core::{
    AnyBackend, Backoff, CancellationToken, ErrorCode, LockOptions, ManagedBackend, Observer,
    Operation, Policy, ReclaimResult, WaitEnd, WaitSummary, acquire, lock, release,
};
use syncguard_memory::MemoryBackend;

const MINUTE: Duration = Duration::from_secs(60);
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    Began,
    Ended(u32, WaitEnd),
    Reclaimed(Operation, ReclaimResult),
}

#[derive(Default)]
struct Notes {
    told: Mutex<Vec<Told>>,
    waited: Mutex<Vec<Duration>>,
}

impl Notes {
    fn take(&self) -> Vec<Told> {
        std::mem::take(&mut self.told.lock().unwrap())
    }

    fn note(&self, told: Told) {
        self.told.lock().unwrap().push(told);
    }
}

impl Observer for Notes {
    fn wait_began(&self) {
        self.note(Told::Began);
    }

    fn wait_ended(&self, wait: WaitSummary, end: WaitEnd) {
        self.waited.lock().unwrap().push(wait.waited);
        self.note(Told::Ended(wait.attempts, end));
    }

    fn reclaimed(&self, after: Operation, result: ReclaimResult) {
        self.note(Told::Reclaimed(after, result));
    }
}

fn observed<B: ManagedBackend>(backend: B) -> (Arc<Notes>, B) {
    let notes = Arc::<Notes>::default();
    (Arc::clone(&notes), backend.observed_by(notes))
}

/// Polls a future for a moment, then drops it.
async fn abandon(call: impl Future) {
    drop(tokio::time::timeout(Duration::from_millis(5), call).await);
}

#[tokio::test(start_paused = true)]
async fn a_wait_is_told_with_its_attempts_and_its_time() {
    let (notes, backend) = observed(MemoryBackend::default());
    let holder = acquire(&backend, "k", MINUTE).await.unwrap().unwrap();
    assert_eq!(notes.take(), [], "a single attempt is no wait");
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(250)).await;
        holder.release().await
    });
    let options = LockOptions::new()
        .with_backoff(Backoff::Fixed)
        .with_jitter(syncguard_core::Jitter::None);
    let seen = Arc::clone(&notes);
    let _ = lock(&backend, "k", options, async |_| {
        // Told before the section runs.
        assert_eq!(seen.take(), [Told::Began, Told::Ended(4, WaitEnd::Granted)]);
    })
    .await
    .unwrap();
    assert_eq!(notes.take(), []);
    assert_eq!(*notes.waited.lock().unwrap(), [Duration::from_millis(300)]);
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_fails_is_told_with_its_code() {
    let store = FaultyStore::default();
    let (notes, backend) = observed(store.managed());
    let _holder = acquire(&backend, "k", MINUTE).await.unwrap().unwrap();
    let timed_out = lock(
        &backend,
        "k",
        LockOptions::new().with_max_retries(2),
        async |_| {},
    );
    timed_out.await.unwrap_err();
    let code = ErrorCode::AcquisitionTimeout;
    assert_eq!(
        notes.take(),
        [Told::Began, Told::Ended(3, WaitEnd::Failed(code))]
    );

    let code = ErrorCode::RateLimited;
    store.plan(Operation::Acquire, [Fault::Pass, Fault::Refuse(code)]);
    lock(&backend, "k", LockOptions::new(), async |_| {})
        .await
        .unwrap_err();
    assert_eq!(
        notes.take(),
        [Told::Began, Told::Ended(2, WaitEnd::Failed(code))]
    );

    let token = CancellationToken::new();
    let options = LockOptions::new().with_cancellation(token.clone());
    let canceller = async {
        tokio::time::sleep(Duration::from_millis(5)).await;
        token.cancel();
    };
    let (outcome, ()) = tokio::join!(
        lock(&backend, "k", options.clone(), async |_| {}),
        canceller
    );
    assert_eq!(outcome.unwrap_err().code(), ErrorCode::Aborted);
    let code = ErrorCode::Aborted;
    assert_eq!(
        notes.take(),
        [Told::Began, Told::Ended(1, WaitEnd::Failed(code))]
    );

    // Nothing began: the token was cancelled, or the arguments were bad.
    lock(&backend, "k", options, async |_| {})
        .await
        .unwrap_err();
    lock(&backend, "", LockOptions::new(), async |_| {})
        .await
        .unwrap_err();
    let zero = LockOptions::new().with_ttl(Duration::ZERO);
    lock(&backend, "k", zero, async |_| {}).await.unwrap_err();
    assert_eq!(notes.take(), []);
}

#[tokio::test]
async fn a_wait_whose_future_is_dropped_ends_too() {
    let (notes, backend) = observed(MemoryBackend::default());
    let _holder = acquire(&backend, "k", MINUTE).await.unwrap().unwrap();
    abandon(lock(&backend, "k", LockOptions::new(), async |_| {})).await;
    assert_eq!(
        notes.take(),
        [Told::Began, Told::Ended(1, WaitEnd::Abandoned)]
    );
    // One that is dropped in its section had ended its wait.
    abandon(lock(&backend, "free", LockOptions::new(), async |_| {
        pending::<()>().await;
    }))
    .await;
    assert_eq!(
        notes.take(),
        [Told::Began, Told::Ended(1, WaitEnd::Granted)]
    );
}

#[tokio::test]
async fn reclaiming_is_told_by_what_it_found() {
    let store = FaultyStore::default();
    let (notes, backend) = observed(store.managed());

    store.plan(Operation::Acquire, [Fault::LoseReply]);
    acquire(&backend, "taken", MINUTE).await.unwrap_err();
    backend.drain(PATIENCE).await.unwrap();
    let released = Told::Reclaimed(Operation::Acquire, ReclaimResult::Released);
    assert_eq!(notes.take(), [released]);

    store.plan(Operation::Acquire, [Fault::Hang]);
    abandon(acquire(&backend, "not taken", Duration::from_millis(20))).await;
    backend.drain(PATIENCE).await.unwrap();
    let not_held = Told::Reclaimed(Operation::Acquire, ReclaimResult::NotHeld);
    assert_eq!(notes.take(), [not_held]);

    let guard = acquire(&backend, "given back", MINUTE)
        .await
        .unwrap()
        .unwrap();
    store.plan(
        Operation::Release,
        [Fault::Refuse(ErrorCode::ServiceUnavailable)],
    );
    release(&backend, guard.lock_id()).await.unwrap_err();
    backend.drain(PATIENCE).await.unwrap();
    let released = Told::Reclaimed(Operation::Release, ReclaimResult::Released);
    assert_eq!(notes.take(), [released]);
    drop(guard.detach());

    let guard = acquire(&backend, "refused", MINUTE).await.unwrap().unwrap();
    let refusal = Fault::Refuse(ErrorCode::AuthFailed);
    store.plan(Operation::Release, [refusal, refusal]);
    release(&backend, guard.lock_id()).await.unwrap_err();
    backend.drain(PATIENCE).await.unwrap();
    let given_up = Told::Reclaimed(Operation::Release, ReclaimResult::GivenUp);
    assert_eq!(notes.take(), [given_up]);
    drop(guard.detach());
}

#[tokio::test]
async fn answered_calls_have_nothing_to_reclaim() {
    let (notes, backend) = observed(MemoryBackend::default());
    let guard = acquire(&backend, "k", MINUTE).await.unwrap().unwrap();
    assert!(acquire(&backend, "k", MINUTE).await.unwrap().is_none());
    drop(guard);
    backend.drain(PATIENCE).await.unwrap();
    assert_eq!(notes.take(), []);
}

#[tokio::test]
async fn all_observers_are_told_and_one_that_panics_harms_nobody() {
    struct Panics;
    impl Observer for Panics {
        fn wait_began(&self) {
            panic!("an observer's own fault");
        }
        fn wait_ended(&self, _: WaitSummary, _: WaitEnd) {
            panic!("an observer's own fault");
        }
    }
    let plain = MemoryBackend::default();
    let (first, backend) = observed(plain.clone().observed_by(Arc::new(Panics)));
    let (second, backend) = observed(backend);
    let receipt = lock(&backend, "k", LockOptions::new(), async |_| 7).await;
    assert_eq!(receipt.unwrap().into_value(), 7);
    let told = [Told::Began, Told::Ended(1, WaitEnd::Granted)];
    assert_eq!(
        (first.take(), second.take()),
        (told.to_vec(), told.to_vec())
    );

    // Clones made before are not observed.
    let _ = lock(&plain, "k", LockOptions::new(), async |_| ())
        .await
        .unwrap();
    assert_eq!((first.take(), second.take()), (vec![], vec![]));
}

#[tokio::test]
async fn a_policy_can_bring_its_observer_and_an_erased_backend_takes_one() {
    let (from_policy, added) = (Arc::<Notes>::default(), Arc::<Notes>::default());
    let policy = Policy::new().with_observer(from_policy.clone());
    let backend = AnyBackend::new(FaultyStore::default().managed_with(policy));
    let backend = backend.observed_by(added.clone());
    let _ = lock(&backend, "k", LockOptions::new(), async |_| ())
        .await
        .unwrap();
    let told = [Told::Began, Told::Ended(1, WaitEnd::Granted)];
    assert_eq!(
        (from_policy.take(), added.take()),
        (told.to_vec(), told.to_vec())
    );
}
