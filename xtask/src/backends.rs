//! The backends: what each needs, and how the suite runs on it.

use std::any::Any;
use std::env;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::thread;

use anyhow::{Context, Result, anyhow};
use syncguard_conformance::{Report, RunOptions};
use syncguard_testkit::install::{self, Tool};

use crate::step::announced;

mod firestore;
mod memory;
mod observed;
mod postgres;
mod redis;
mod sqlite;

/// All backends. A new one is a file beside this one and an entry here.
pub(crate) const BACKENDS: &[Backend] = &[
    memory::BACKEND,
    redis::BACKEND,
    postgres::BACKEND,
    firestore::BACKEND,
    sqlite::BACKEND,
];

/// A backend.
pub(crate) struct Backend {
    pub(crate) name: &'static str,
    /// Its server; `None` if it needs none.
    pub(crate) service: Option<Service>,
    /// Runs the suite on the store at an address, through telemetry, or fails to reach it.
    pub(crate) conformance: fn(String, RunOptions) -> Suite,
}

/// A suite under way.
pub(crate) type Suite = Pin<Box<dyn Future<Output = Result<Report>> + Send>>;

/// A server, or a file, that a backend needs.
pub(crate) struct Service {
    /// The variable with the address of a running server, from which tests read it.
    pub(crate) variable: &'static str,
    /// The programs to install.
    pub(crate) tools: &'static [Tool],
    pub(crate) start: fn() -> Result<Running>,
}

/// A backend, and its server or why there is none.
pub(crate) type Store = (&'static Backend, Result<Running>);

/// A running server. If it was started here, it stops when this value is dropped.
pub(crate) struct Running {
    pub(crate) address: String,
    _server: Box<dyn Any + Send>,
}

impl Running {
    /// A server that was started for this.
    pub(crate) fn new(address: String, server: impl Any + Send) -> Self {
        Self {
            address,
            _server: Box::new(server),
        }
    }
}

impl Backend {
    /// The store to test on: that of the environment, or else one that is started here. The address of a
    /// backend without a server is empty.
    pub(crate) fn obtain(&self) -> Result<Running> {
        let Some(service) = &self.service else {
            return Ok(Running::new(String::new(), ()));
        };
        let given = env::var(service.variable).ok();
        if let Some(address) = given.filter(|address| !address.is_empty()) {
            eprintln!("==> {}: using {}", self.name, service.variable);
            return Ok(Running::new(address, ()));
        }
        ensure_installed(service.tools)?;
        announced(&format!("start a server for {}", self.name), service.start)
    }
}

impl fmt::Debug for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Installs missing programs.
pub(crate) fn ensure_installed(tools: &[Tool]) -> Result<()> {
    let missing = install::missing(tools);
    if missing.is_empty() {
        return Ok(());
    }
    announced(&format!("install {}", missing.join(", ")), || {
        install::install(tools)
    })
}

/// The backends of these names; all of them if none is given.
pub(crate) fn chosen(names: &[String]) -> Vec<&'static Backend> {
    BACKENDS
        .iter()
        .filter(|backend| names.is_empty() || names.iter().any(|name| name == backend.name))
        .collect()
}

/// The names, for the command line.
pub(crate) fn names() -> Vec<&'static str> {
    BACKENDS.iter().map(|backend| backend.name).collect()
}

/// Obtains the stores of several backends side by side.
pub(crate) fn obtain_all(backends: &[&'static Backend]) -> Vec<Store> {
    thread::scope(|scope| {
        let starting: Vec<_> = backends
            .iter()
            .map(|backend| (*backend, scope.spawn(|| backend.obtain())))
            .collect();
        let joined = starting.into_iter().map(|(backend, thread)| {
            let running = thread
                .join()
                .unwrap_or_else(|_| Err(anyhow!("it panicked")));
            let context = || format!("{} cannot be tested", backend.name);
            (backend, running.with_context(context))
        });
        joined.collect()
    })
}
