//! A memory store whose answers can be refused, lost, delayed or withheld.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

use std::collections::{HashMap, VecDeque};
use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use syncguard_core::{
    AcquireResult, Capabilities, ErrorCode, ExtendResult, Fence, LockBackend, LockError, LockId,
    LockInfoDebug, LockKey, Lookup, Managed, Operation, Policy, ReleaseResult, Ttl,
};
use syncguard_memory::MemoryStore;

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
pub struct FaultyStore {
    pub store: MemoryStore,
    /// What it has measured of the clocks.
    skew_ms: Option<i64>,
    plan: Arc<Mutex<HashMap<Operation, VecDeque<Fault>>>>,
    calls: Arc<Mutex<Vec<Operation>>>,
    in_flight: Arc<Mutex<Vec<Operation>>>,
}

impl FaultyStore {
    pub fn with_skew(skew_ms: Option<i64>) -> Self {
        Self {
            skew_ms,
            ..Self::default()
        }
    }

    /// Lets the next calls of an operation meet these faults, in order; later ones pass.
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

    pub fn managed(&self) -> Managed<Self> {
        Managed::new(self.clone())
    }

    pub fn managed_with(&self, policy: Policy) -> Managed<Self> {
        Managed::with_policy(self.clone(), policy)
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

impl LockBackend for FaultyStore {
    type Fence = Fence;

    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    fn clock_skew_ms(&self) -> Option<i64> {
        self.skew_ms
    }

    async fn acquire(
        &self,
        key: &LockKey,
        id: &LockId,
        ttl: Ttl,
    ) -> Result<AcquireResult, LockError> {
        self.run(Operation::Acquire, self.store.acquire(key, id, ttl))
            .await
    }

    async fn release(&self, id: &LockId) -> Result<ReleaseResult, LockError> {
        self.run(Operation::Release, self.store.release(id)).await
    }

    async fn extend(&self, id: &LockId, ttl: Ttl) -> Result<ExtendResult, LockError> {
        self.run(Operation::Extend, self.store.extend(id, ttl))
            .await
    }

    async fn is_locked(&self, key: &LockKey) -> Result<bool, LockError> {
        self.run(Operation::IsLocked, self.store.is_locked(key))
            .await
    }

    async fn lookup_raw(&self, by: Lookup<'_>) -> Result<Option<LockInfoDebug>, LockError> {
        self.run(Operation::Lookup, self.store.lookup_raw(by)).await
    }
}

/// Waits until the store itself says that nobody holds the key.
pub async fn until_free(store: &MemoryStore, key: &str) {
    let key = LockKey::new(key).unwrap();
    let freed = async {
        while store.is_locked(&key).await.unwrap() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), freed)
        .await
        .expect("the key stays held");
}
