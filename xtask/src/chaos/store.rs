//! The stores: the server and the faults of each, and how a worker connects.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use syncguard_chaos::{Broken, Fault, Mutant, Recorder, Work};
use syncguard_core::backend::LockBackend;
use syncguard_core::{Fence, LockError, Locks};
use syncguard_firestore::{FirestoreBackend, FirestoreOptions};
use syncguard_postgres::PostgresBackend;
use syncguard_redis::RedisBackend;
use syncguard_sqlite::SqliteBackend;
use syncguard_telemetry::Telemetry;
use syncguard_testkit::{FirestoreEmulator, PostgresServer, RedisServer, Server, folder_for_files};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::worker::insistently;
use crate::step::announced;

/// Short, so that a short run has many failures.
const OPERATION_TIMEOUT: Duration = Duration::from_millis(500);

/// A store under test.
pub(super) struct Store {
    pub(super) name: &'static str,
    pub(super) faults: &'static [Fault],
    /// The longest time after which an acquire is abandoned: some end before it, some do not.
    pub(super) patience_ms: u64,
    /// Starts a new server, which keeps its data if it can be killed; or names a file.
    pub(super) start: fn() -> Result<Site>,
    /// Creates what must exist before workers connect.
    pub(super) prepare: fn(String) -> Running<(), LockError>,
    /// Connects to the server, or to a proxy before it, at a `host:port`; or opens the file.
    pub(super) connect: fn(String, Option<Mutant>) -> Running<Locks, LockError>,
    /// Connects, although faults may have started, and works.
    pub(super) work: fn(String, Job) -> Running<u64, anyhow::Error>,
}

/// The location of a store. Dropping it removes the store.
pub(super) enum Site {
    Server(Box<dyn Server>),
    /// A file in this folder, which all workers open.
    File(TempDir),
}

impl Site {
    fn server(server: impl Server) -> Result<Self> {
        Ok(Self::Server(Box::new(server)))
    }

    /// The server's `host:port`, or the path of the file.
    pub(super) fn address(&self) -> String {
        match self {
            Self::Server(server) => format!("127.0.0.1:{}", server.port()),
            Self::File(folder) => folder.path().join("locks.db").display().to_string(),
        }
    }
}

pub(super) type Running<T, E> = Pin<Box<dyn Future<Output = Result<T, E>>>>;

/// The work of a process on any backend.
pub(super) struct Job {
    pub(super) work: Work,
    pub(super) recorder: Recorder,
    pub(super) telemetry: Telemetry,
    pub(super) mutant: Option<Mutant>,
}

impl Job {
    /// Returns how many operations were made.
    async fn run(self, backend: impl LockBackend<Fence = Fence>) -> Result<u64> {
        let (work, recorder, telemetry) = (self.work, self.recorder, Arc::new(self.telemetry));
        let configure = |locks: syncguard_core::LocksBuilder| {
            locks
                .operation_timeout(OPERATION_TIMEOUT)
                .observe(telemetry.clone())
        };
        match self.mutant {
            None => syncguard_chaos::work(backend, configure, work, recorder).await,
            Some(mutant) => {
                let broken = Broken::new(backend, mutant);
                syncguard_chaos::work(broken, configure, work, recorder).await
            }
        }
    }
}

impl Store {
    /// A server of its own, ready for workers, its address, and a runtime to call it on. In this
    /// order: the runtime is dropped first.
    pub(super) fn started(&self) -> Result<(Site, String, Runtime)> {
        let site = announced(&format!("start a server for {}", self.name), self.start)?;
        let address = site.address();
        let runtime = Runtime::new()?;
        runtime.block_on((self.prepare)(address.clone()))?;
        Ok((site, address, runtime))
    }
}

pub(super) const STORES: &[Store] = &[REDIS, POSTGRES, FIRESTORE, SQLITE];

/// `connect` and `work` of a store, by how its backend is connected.
macro_rules! store {
    ($connect:path { $($field:ident: $value:expr,)+ }) => {
        Store {
            $($field: $value,)+
            connect: |address, mutant| {
                Box::pin(async move { Ok(locks($connect(address).await?, mutant)) })
            },
            work: |address, job| {
                Box::pin(async move {
                    let backend = insistently(|| $connect(address.clone())).await?;
                    job.run(backend).await
                })
            },
        }
    };
}

async fn redis(address: String) -> Result<RedisBackend, LockError> {
    RedisBackend::connect(&format!("redis://{address}")).await
}

const REDIS: Store = store!(redis {
    name: "redis",
    faults: &Fault::ALL,
    patience_ms: 50,
    start: || Site::server(RedisServer::start_durable()?),
    prepare: |_| Box::pin(async { Ok(()) }),
});

async fn postgres(address: String) -> Result<PostgresBackend, LockError> {
    PostgresBackend::connect(&format!("postgres://postgres@{address}/postgres")).await
}

const POSTGRES: Store = store!(postgres {
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
    patience_ms: 50,
    start: || Site::server(PostgresServer::start_with(&[("fsync", "on")])?),
    prepare: |address| { Box::pin(async move { postgres(address).await?.setup_schema().await }) },
});

async fn firestore(address: String) -> Result<FirestoreBackend, LockError> {
    FirestoreBackend::connect_emulator(&address, "chaos", FirestoreOptions::new()).await
}

/// Its emulator keeps nothing, so it is not killed.
const FIRESTORE: Store = store!(firestore {
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
    patience_ms: 400,
    start: || Site::server(FirestoreEmulator::start()?),
    prepare: |_| Box::pin(async { Ok(()) }),
});

async fn sqlite(path: String) -> Result<SqliteBackend, LockError> {
    SqliteBackend::connect(path).await
}

/// It has no server: the faults are those of the workers, which can hold the file's lock.
const SQLITE: Store = store!(sqlite {
    name: "sqlite",
    faults: &[Fault::Kill, Fault::Pause],
    patience_ms: 50,
    start: || Ok(Site::File(TempDir::new_in(folder_for_files())?)),
    prepare: |_| Box::pin(async { Ok(()) }),
});

/// Locks with short deadlines, on a store that is broken on request.
fn locks(backend: impl LockBackend<Fence = Fence>, mutant: Option<Mutant>) -> Locks {
    let builder = match mutant {
        None => Locks::builder(backend),
        Some(mutant) => Locks::builder(Broken::new(backend, mutant)),
    };
    builder.operation_timeout(OPERATION_TIMEOUT).build()
}

/// The stores of these names; all if none is given.
pub(super) fn chosen(names: &[String]) -> Vec<&'static Store> {
    STORES
        .iter()
        .filter(|store| names.is_empty() || names.iter().any(|name| name == store.name))
        .collect()
}

/// The store of this name.
pub(super) fn named(name: &str) -> Result<&'static Store> {
    let found = STORES.iter().find(|store| store.name == name);
    found.context("no such store")
}

/// The names, for the command line.
pub(super) fn names() -> Vec<&'static str> {
    STORES.iter().map(|store| store.name).collect()
}
