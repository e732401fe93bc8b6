//! [`PgBouncer`]: a pooler in transaction mode.

use std::fs;
use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::Result;

use crate::PostgresServer;
use crate::install;
use crate::postgres::{answers, service_user, url};
use crate::process::{Process, command};
use crate::slot::Slot;

const TIMEOUT: Duration = Duration::from_secs(20);

/// A `pgbouncer` in transaction mode in front of a [`PostgresServer`]. It stops on drop.
#[derive(Debug)]
pub struct PgBouncer {
    process: Process,
    slot: Slot,
}

impl PgBouncer {
    /// Starts a pooler with two connections to the server, so that clients often get another one.
    ///
    /// # Errors
    /// If `pgbouncer` is not installed or does not start.
    pub fn start(server: &PostgresServer) -> Result<Self> {
        Self::start_with(server, &[])
    }

    /// Starts a pooler with further settings, such as `[("default_pool_size", "10")]`.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with(server: &PostgresServer, settings: &[(&str, &str)]) -> Result<Self> {
        let slot = Slot::claim()?;
        let file = slot.folder().join("pgbouncer.ini");
        fs::write(&file, configuration(server, &slot, settings))?;
        let mut command = command(install::PGBOUNCER.find()?, service_user())?;
        command.arg(file);
        let mut process = Process::spawn("pgbouncer", command, &slot.folder().join("log"))?;
        process.wait_until(TIMEOUT, || answers(slot.port()))?;
        Ok(Self { process, slot })
    }

    /// The URL of the server: `postgres://postgres@127.0.0.1:PORT/postgres`.
    #[must_use]
    pub fn url(&self) -> String {
        url(self.port())
    }

    /// The port where it answers.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.slot.port()
    }

    /// Pauses the server without closing a connection (`SIGSTOP`).
    ///
    /// # Errors
    /// If the pooler has ended.
    pub fn pause(&self) -> Result<()> {
        self.process.pause()
    }

    /// Ends a [`pause`](Self::pause).
    ///
    /// # Errors
    /// If the pooler has ended.
    pub fn resume(&self) -> Result<()> {
        self.process.resume()
    }
}

fn configuration(server: &PostgresServer, slot: &Slot, settings: &[(&str, &str)]) -> String {
    let host = Ipv4Addr::LOCALHOST;
    let mut text = format!(
        "[databases]\n\
         * = host={host} port={} user=postgres\n\
         [pgbouncer]\n\
         listen_addr = {host}\n\
         listen_port = {}\n\
         unix_socket_dir =\n\
         auth_type = any\n\
         pool_mode = transaction\n\
         default_pool_size = 2\n\
         max_client_conn = 1000\n\
         ignore_startup_parameters = extra_float_digits\n",
        server.port(),
        slot.port(),
    );
    // If a setting occurs twice, the later one takes effect.
    for (name, value) in settings {
        text.push_str(&format!("{name} = {value}\n"));
    }
    text
}
