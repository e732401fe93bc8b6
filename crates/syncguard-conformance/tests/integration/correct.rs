//! Correct stores that are slow, or whose clock is coarse: the suite passes them.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use syncguard_conformance::{Harness, RunOptions, Status, Stored, run};
use syncguard_core::backend::{
    AcquireRequest, AcquireResult, ExtendRequest, IsLockedRequest, ListPage, ListRequest,
    LockBackend, LookupRequest, PurgeRequest, ReleaseRequest, Watch, WatchRequest,
};
use syncguard_core::{
    ExtendResult, Fence, LockError, LockInfoDebug, LockKey, ReleaseResult, forward_calls,
};
use syncguard_memory::{ManualClock, MemoryBackend};

/// Something that happens before each call.
trait Pace: std::fmt::Debug + Clone + Send + Sync + 'static {
    fn pace(&self) -> impl Future<Output = ()> + Send;
}

#[derive(Debug, Clone)]
struct Paced<P> {
    memory: MemoryBackend,
    pace: P,
}

#[deny(clippy::missing_trait_methods)]
impl<P: Pace> LockBackend for Paced<P> {
    type Fence = Fence;

    forward_calls! { |paced| &paced.memory =>
        capabilities attach preflight close
    }

    async fn acquire(&self, request: AcquireRequest<'_>) -> Result<AcquireResult, LockError> {
        self.pace.pace().await;
        self.memory.acquire(request).await
    }

    async fn release(&self, request: ReleaseRequest<'_>) -> Result<ReleaseResult, LockError> {
        self.pace.pace().await;
        self.memory.release(request).await
    }

    async fn extend(&self, request: ExtendRequest<'_>) -> Result<ExtendResult, LockError> {
        self.pace.pace().await;
        self.memory.extend(request).await
    }

    async fn lookup_raw(
        &self,
        request: LookupRequest<'_>,
    ) -> Result<Option<LockInfoDebug>, LockError> {
        self.pace.pace().await;
        self.memory.lookup_raw(request).await
    }

    async fn is_locked(&self, request: IsLockedRequest<'_>) -> Result<bool, LockError> {
        self.pace.pace().await;
        self.memory.is_locked(request).await
    }

    async fn watch(&self, request: WatchRequest<'_>) -> Result<Option<Watch>, LockError> {
        self.pace.pace().await;
        self.memory.watch(request).await
    }

    async fn list(&self, request: ListRequest<'_>) -> Result<Option<ListPage>, LockError> {
        self.pace.pace().await;
        self.memory.list(request).await
    }

    async fn purge_expired(&self, request: PurgeRequest) -> Result<u64, LockError> {
        self.pace.pace().await;
        self.memory.purge_expired(request).await
    }
}

impl<P: Pace> Harness for Paced<P> {
    type Backend = Self;

    async fn connect(&self) -> Result<Self, LockError> {
        Ok(self.clone())
    }

    async fn set_fence_counter(&self, key: &LockKey, counter: u64) -> Result<bool, LockError> {
        self.memory.set_fence_counter(key, counter);
        Ok(true)
    }

    async fn stored(&self, beginning: &str) -> Result<Option<Stored>, LockError> {
        Ok(Some(crate::harness::counts(&self.memory, beginning)))
    }
}

/// Runs the suite. It may skip these cases, and must pass the others.
async fn conforms<P: Pace>(store: Paced<P>, skipped: &[&str]) {
    let report = run(Arc::new(store), RunOptions::new().concurrency(32)).await;
    assert!(report.is_success(), "{report}");
    let mut cases = report.cases.iter();
    let conforms = cases.all(|case| case.status == Status::Passed || skipped.contains(&case.name));
    assert!(conforms, "{report}");
}

/// The cases that ask a store within a few milliseconds.
const FOR_NEAR_STORES: &[&str] = &[
    "boundary::its_holder_is_heard_until_the_end",
    "boundary::nobody_is_granted_a_key_in_its_last_milliseconds",
    "expiry::after_the_tolerance_a_lease_is_dead_to_the_millisecond",
];

/// Takes 30 ms for each call, as a store on another continent.
#[derive(Debug, Clone)]
struct Slow;

impl Pace for Slow {
    async fn pace(&self) {
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_store_conforms() {
    let memory = MemoryBackend::new();
    let store = Paced { memory, pace: Slow };
    // Among other cases, calls of those remove the expired locks of this store before a purge does.
    let options = RunOptions::new().filter("halted_purge");
    let alone = run(Arc::new(store.clone()), options).await;
    assert!(alone.is_success() && alone.skipped == 0, "{alone}");
    let passed_alone = alone.cases.iter().map(|case| case.name);
    let may_skip = FOR_NEAR_STORES.iter().copied().chain(passed_alone);
    // On a busy machine it answers more slowly still.
    let may_skip = may_skip.chain(["boundary::nobody_is_granted_a_key_before_its_lease_ends"]);
    conforms(store, &may_skip.collect::<Vec<_>>()).await;
}

/// Moves the store's clock on by whole ticks of 10 ms.
#[derive(Debug, Clone)]
struct Ticking {
    clock: ManualClock,
    began: Instant,
    ticks: Arc<Mutex<u64>>,
}

impl Pace for Ticking {
    async fn pace(&self) {
        const TICK_MS: u64 = 10;
        let mut ticks = self.ticks.lock().unwrap();
        let passed = u64::try_from(self.began.elapsed().as_millis()).unwrap() / TICK_MS;
        let by = Duration::from_millis((passed - *ticks) * TICK_MS);
        self.clock.advance(by);
        *ticks = passed;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_with_coarse_time_conforms() {
    let clock = ManualClock::new();
    let memory = MemoryBackend::with_clock(clock.clone());
    let (began, ticks) = (Instant::now(), Arc::default());
    let pace = Ticking {
        clock,
        began,
        ticks,
    };
    conforms(Paced { memory, pace }, FOR_NEAR_STORES).await;
}

/// The fault cases that need no network, on stores that are correct.
#[cfg(feature = "faults")]
mod faults {
    use syncguard_conformance::faults::cases::renewal;
    use syncguard_conformance::faults::{Fixture, Target};
    use syncguard_testkit::CommandServer;

    use super::*;

    /// Answers one call at a time, each after 30 ms.
    #[derive(Debug, Clone, Default)]
    struct Serial(Arc<tokio::sync::Mutex<()>>);

    impl Pace for Serial {
        async fn pace(&self) {
            let _turn = self.0.lock().await;
            Slow.pace().await;
        }
    }

    impl Target for Serial {
        type Backend = Paced<Self>;
        type Server = CommandServer;

        fn start() -> anyhow::Result<CommandServer> {
            anyhow::bail!("the store is in memory")
        }

        fn shared_port() -> anyhow::Result<Option<u16>> {
            Ok(Some(0))
        }

        async fn connect(_: u16) -> Result<Paced<Self>, LockError> {
            Ok(Paced {
                memory: MemoryBackend::new(),
                pace: Self::default(),
            })
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn locks_are_renewed_on_a_slow_store_that_answers_one_call_at_a_time() {
        let fixture = Fixture::<Serial>::shared("no other process").await;
        renewal::renewed_locks_stay_released_and_leave_no_task(fixture).await;
    }
}
