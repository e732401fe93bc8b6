//! A memory backend whose answers can be refused, lost or delayed.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

use std::collections::{HashMap, VecDeque};
use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use syncguard_core::backend::{
    AcquireRequest, AcquireResult, Capabilities, CloseRequest, ExtendRequest, IsLockedRequest,
    ListPage, ListRequest, LockBackend, LookupRequest, PreflightRequest, PurgeRequest,
    ReleaseRequest, Reporter, TimeAuthority, Watch, WatchRequest,
};
use syncguard_core::observe::Operation;
use syncguard_core::{
    ErrorCode, ExtendResult, Fence, Finding, LockError, LockInfoDebug, Locks, LocksBuilder,
    ReleaseResult,
};
use syncguard_memory::MemoryBackend;

/// What happens to one call.
#[derive(Debug, Clone, Copy)]
pub enum Fault {
    /// Fails before it is applied.
    Refuse(ErrorCode),
    /// Is applied, then fails with an unknown outcome.
    LoseReply,
    /// Is applied, then takes this long to answer.
    DelayReply(Duration),
    /// Is not applied before this long.
    DelayRequest(Duration),
    /// Never answers, and is never applied.
    Hang,
    /// Goes through.
    Pass,
}

/// Clones share the plan and the store.
#[derive(Debug, Clone, Default)]
pub struct FaultyBackend {
    pub store: MemoryBackend,
    findings: Arc<Mutex<Vec<Finding>>>,
    reporters: Arc<Mutex<Vec<Reporter>>>,
    plan: Arc<Mutex<HashMap<Operation, VecDeque<Fault>>>>,
    calls: Arc<Mutex<Vec<Operation>>>,
    in_flight: Arc<Mutex<Vec<Operation>>>,
    /// That of another backend, which cannot list.
    name: Option<&'static str>,
}

impl FaultyBackend {
    /// A backend of another name, which cannot list.
    pub fn named(name: &'static str) -> Self {
        Self {
            name: Some(name),
            ..Self::default()
        }
    }

    /// Lets the next calls of an operation meet these faults, in order; later ones pass. A watch counts as
    /// [`Operation::Lock`].
    pub fn plan(&self, operation: Operation, faults: impl IntoIterator<Item = Fault>) {
        self.plan
            .lock()
            .unwrap()
            .entry(operation)
            .or_default()
            .extend(faults);
    }

    /// How many calls of an operation have been begun.
    pub fn calls(&self, operation: Operation) -> usize {
        self.calls
            .lock()
            .unwrap()
            .iter()
            .filter(|call| **call == operation)
            .count()
    }

    /// How many calls of an operation have neither been answered nor been dropped.
    pub fn in_flight(&self, operation: Operation) -> usize {
        let in_flight = self.in_flight.lock().unwrap();
        in_flight.iter().filter(|call| **call == operation).count()
    }

    /// What preflight finds.
    pub fn find(&self, findings: impl IntoIterator<Item = Finding>) {
        self.findings.lock().unwrap().extend(findings);
    }

    /// Reports a clock skew, as a backend does that compares clocks.
    pub fn report_skew(&self, skew_ms: i64) {
        let reporters = self.reporters.lock().unwrap();
        for reporter in reporters.iter() {
            reporter.clock_skew_ms(skew_ms);
        }
    }

    pub fn reporters(&self) -> Vec<Reporter> {
        self.reporters.lock().unwrap().clone()
    }

    pub fn locks(&self) -> Locks {
        self.builder().build()
    }

    pub fn builder(&self) -> LocksBuilder {
        Locks::builder(self.clone())
    }

    async fn run<T>(
        &self,
        operation: Operation,
        call: impl Future<Output = Result<T, LockError>>,
    ) -> Result<T, LockError> {
        self.calls.lock().unwrap().push(operation);
        let _in_flight = InFlight::enter(self.in_flight.clone(), operation);
        let planned = self
            .plan
            .lock()
            .unwrap()
            .get_mut(&operation)
            .and_then(VecDeque::pop_front);
        match planned.unwrap_or(Fault::Pass) {
            Fault::Pass => call.await,
            Fault::Hang => pending().await,
            Fault::Refuse(code) => Err(LockError::new(code, "refused by the test")),
            Fault::LoseReply => {
                drop(call.await?);
                let code = ErrorCode::ServiceUnavailable;
                Err(LockError::new(code, "reply lost by the test").with_outcome_unknown())
            }
            Fault::DelayReply(delay) => {
                let answer = call.await;
                tokio::time::sleep(delay).await;
                answer
            }
            Fault::DelayRequest(delay) => {
                tokio::time::sleep(delay).await;
                call.await
            }
        }
    }
}

struct InFlight(Arc<Mutex<Vec<Operation>>>, Operation);

impl InFlight {
    fn enter(all: Arc<Mutex<Vec<Operation>>>, operation: Operation) -> Self {
        all.lock().unwrap().push(operation);
        Self(all, operation)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut all = self.0.lock().unwrap();
        let index = all.iter().position(|call| *call == self.1);
        all.remove(index.expect("it was entered"));
    }
}

#[deny(clippy::missing_trait_methods)]
impl LockBackend for FaultyBackend {
    type Fence = Fence;

    fn capabilities(&self) -> Capabilities {
        match self.name {
            Some(name) => Capabilities::new(name, TimeAuthority::Server),
            None => self.store.capabilities(),
        }
    }

    async fn acquire(&self, request: AcquireRequest<'_>) -> Result<AcquireResult, LockError> {
        self.run(Operation::Acquire, self.store.acquire(request))
            .await
    }

    async fn release(&self, request: ReleaseRequest<'_>) -> Result<ReleaseResult, LockError> {
        self.run(Operation::Release, self.store.release(request))
            .await
    }

    async fn extend(&self, request: ExtendRequest<'_>) -> Result<ExtendResult, LockError> {
        self.run(Operation::Extend, self.store.extend(request))
            .await
    }

    async fn lookup_raw(
        &self,
        request: LookupRequest<'_>,
    ) -> Result<Option<LockInfoDebug>, LockError> {
        self.run(Operation::Lookup, self.store.lookup_raw(request))
            .await
    }

    async fn is_locked(&self, request: IsLockedRequest<'_>) -> Result<bool, LockError> {
        self.run(Operation::IsLocked, self.store.is_locked(request))
            .await
    }

    async fn watch(&self, request: WatchRequest<'_>) -> Result<Option<Watch>, LockError> {
        self.run(Operation::Lock, self.store.watch(request)).await
    }

    async fn list(&self, request: ListRequest<'_>) -> Result<Option<ListPage>, LockError> {
        if self.name.is_some() {
            return Ok(None);
        }
        self.run(Operation::List, self.store.list(request)).await
    }

    fn attach(&self, reporter: Reporter) {
        self.reporters.lock().unwrap().push(reporter);
    }

    async fn preflight(&self, _: PreflightRequest) -> Result<Vec<Finding>, LockError> {
        let findings = self.findings.lock().unwrap().clone();
        self.run(Operation::Preflight, async { Ok(findings) }).await
    }

    async fn purge_expired(&self, request: PurgeRequest) -> Result<u64, LockError> {
        self.run(Operation::PurgeExpired, self.store.purge_expired(request))
            .await
    }

    async fn close(&self, request: CloseRequest) -> Result<(), LockError> {
        self.run(Operation::Close, self.store.close(request)).await
    }
}

/// Whether the store itself says that the key is held.
pub async fn is_held(store: &MemoryBackend, key: &str) -> bool {
    Locks::new(store.clone()).is_locked(key).await.unwrap()
}

/// Waits until the store itself says that nobody holds the key.
pub async fn until_free(store: &MemoryBackend, key: &str) {
    let freed = async {
        while is_held(store, key).await {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), freed)
        .await
        .expect("the key stays held");
}
