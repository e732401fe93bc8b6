//! The stores: which server each needs, what can befall it, and how a worker connects.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use anyhow::Result;
use syncguard_chaos::{Broken, Fault, Mutant};
use syncguard_core::{AnyBackend, Fence, LockBackend, LockError, Managed, Policy};
use syncguard_firestore::{FirestoreOptions, FirestoreStore};
use syncguard_postgres::PostgresStore;
use syncguard_redis::RedisStore;
use syncguard_testkit::{FirestoreEmulator, PostgresServer, RedisServer, Server};
use tokio::runtime::Runtime;

use crate::step::announced;

/// Short, so that much goes wrong in a short run.
const OPERATION_TIMEOUT: Duration = Duration::from_millis(500);

/// A store under test.
pub(super) struct Store {
    pub(super) name: &'static str,
    pub(super) faults: &'static [Fault],
    /// Starts a server of its own, which keeps its data if it can be killed.
    pub(super) start: fn() -> Result<Box<dyn Server>>,
    /// Connects to the server, or to a proxy before it, at a `host:port`.
    pub(super) connect: fn(String, Option<Mutant>) -> Connecting,
    /// Makes ready what must exist before workers come.
    pub(super) prepare: fn(String) -> Preparing,
}

impl Store {
    /// A server of its own that is made ready, where it answers, and a runtime to ask it on. In
    /// this order: the runtime is dropped first.
    pub(super) fn started(&self) -> Result<(Box<dyn Server>, String, Runtime)> {
        let server = announced(&format!("start a server for {}", self.name), self.start)?;
        let address = format!("127.0.0.1:{}", server.port());
        let runtime = Runtime::new()?;
        runtime.block_on((self.prepare)(address.clone()))?;
        Ok((server, address, runtime))
    }
}

pub(super) type Connecting = Pin<Box<dyn Future<Output = Result<AnyBackend, LockError>>>>;
pub(super) type Preparing = Pin<Box<dyn Future<Output = Result<(), LockError>>>>;

pub(super) const STORES: &[Store] = &[REDIS, POSTGRES, FIRESTORE];

const REDIS: Store = Store {
    name: "redis",
    faults: &Fault::ALL,
    start: || Ok(Box::new(RedisServer::start_durable()?)),
    connect: |address, mutant| {
        Box::pin(async move {
            let store = RedisStore::connect(&format!("redis://{address}")).await?;
            Ok(managed(store, mutant))
        })
    },
    prepare: |_| Box::pin(async { Ok(()) }),
};

const POSTGRES: Store = Store {
    name: "postgres",
    faults: &[
        Fault::Kill,
        Fault::Pause,
        Fault::Delay,
        Fault::Reset,
        Fault::Refuse,
        Fault::DropReply,
        Fault::CutAtReply,
        Fault::HalfOpen,
    ],
    start: || Ok(Box::new(PostgresServer::start_with(&[("fsync", "on")])?)),
    connect: |address, mutant| {
        Box::pin(async move {
            let store = PostgresStore::connect(&postgres_url(&address)).await?;
            Ok(managed(store, mutant))
        })
    },
    prepare: |address| {
        Box::pin(async move {
            let store = PostgresStore::connect(&postgres_url(&address)).await?;
            store.setup_schema().await
        })
    },
};

/// Its emulator keeps nothing, so it is not killed.
const FIRESTORE: Store = Store {
    name: "firestore",
    faults: &[
        Fault::Pause,
        Fault::Delay,
        Fault::Reset,
        Fault::Refuse,
        Fault::DropReply,
        Fault::CutAtReply,
        Fault::HalfOpen,
    ],
    start: || Ok(Box::new(FirestoreEmulator::start()?)),
    connect: |address, mutant| {
        Box::pin(async move {
            let options = FirestoreOptions::new();
            let store = FirestoreStore::connect_emulator(&address, "chaos", options).await?;
            Ok(managed(store, mutant))
        })
    },
    prepare: |_| Box::pin(async { Ok(()) }),
};

fn postgres_url(address: &str) -> String {
    format!("postgres://postgres@{address}/postgres")
}

/// The store with a policy, and broken if so desired.
fn managed(store: impl LockBackend<Fence = Fence>, mutant: Option<Mutant>) -> AnyBackend {
    let policy = Policy::new().with_operation_timeout(OPERATION_TIMEOUT);
    match mutant {
        None => AnyBackend::new(Managed::with_policy(store, policy)),
        Some(mutant) => AnyBackend::new(Managed::with_policy(Broken::new(store, mutant), policy)),
    }
}

/// The stores of these names; all if none is given.
pub(super) fn chosen(names: &[String]) -> Vec<&'static Store> {
    STORES
        .iter()
        .filter(|store| names.is_empty() || names.iter().any(|name| name == store.name))
        .collect()
}

/// The names, for the command line.
pub(super) fn names() -> Vec<&'static str> {
    STORES.iter().map(|store| store.name).collect()
}
