//! [`PostgresServer`]: a PostgreSQL for one test.

use std::fs::{self, Permissions};
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use crate::PrivateCa;
use crate::install::{self, find_beside_server, is_root};
use crate::process::{Process, command};
use crate::slot::Slot;

const TIMEOUT: Duration = Duration::from_secs(30);

/// Settings of a test server that differ from a new installation's, unless a test overrides them.
const SETTINGS: &[(&str, &str)] = &[
    ("listen_addresses", "127.0.0.1"),
    ("unix_socket_directories", ""),
    ("max_connections", "200"),
    // With these a crash of the server loses nothing; a crash of the machine would.
    ("fsync", "off"),
    ("full_page_writes", "off"),
];

/// A PostgreSQL server that stops on drop.
///
/// Its superuser is `postgres`, without a password; its database is `postgres`.
#[derive(Debug)]
pub struct PostgresServer {
    process: Process,
    slot: Slot,
    settings: Vec<(String, String)>,
}

impl PostgresServer {
    /// Starts a server whose data survives its own crash, but not the machine's (`fsync` is off).
    ///
    /// # Errors
    /// If PostgreSQL is not installed or does not start.
    pub fn start() -> Result<Self> {
        Self::start_with(&[])
    }

    /// Starts a server with further settings, such as `[("fsync", "on")]`.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with(settings: &[(&str, &str)]) -> Result<Self> {
        let slot = Slot::claim()?;
        create_cluster(&data_folder(&slot))?;
        Self::launched(slot, settings)
    }

    /// Starts a server that refuses connections without TLS, with a certificate of this authority.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_tls(ca: &PrivateCa) -> Result<Self> {
        let slot = Slot::claim()?;
        let data = data_folder(&slot);
        create_cluster(&data)?;
        let files = ca.issue(&data)?;
        // The server refuses a key that others can read.
        fs::set_permissions(&files.key, Permissions::from_mode(0o600))?;
        fs::write(
            data.join("pg_hba.conf"),
            "hostssl all all 127.0.0.1/32 trust\n",
        )?;
        if let Some(user) = service_user() {
            run(Command::new("chown").args(["-R", user]).arg(&data))?;
        }
        let (certificate, key) = (files.certificate.display(), files.key.display());
        Self::launched(
            slot,
            &[
                ("ssl", "on"),
                ("ssl_cert_file", &certificate.to_string()),
                ("ssl_key_file", &key.to_string()),
            ],
        )
    }

    fn launched(slot: Slot, settings: &[(&str, &str)]) -> Result<Self> {
        let settings: Vec<_> = SETTINGS
            .iter()
            .chain(settings)
            .map(|(name, value)| (name.to_string(), value.to_string()))
            .collect();
        let process = launch(&slot, &settings)?;
        Ok(Self {
            process,
            slot,
            settings,
        })
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

    /// The id of the server's first process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Makes it hang without closing a connection (`SIGSTOP` to all of its processes).
    ///
    /// # Errors
    /// If the server has ended.
    pub fn pause(&self) -> Result<()> {
        self.process.pause()
    }

    /// Ends a [`pause`](Self::pause). The server then executes what clients sent in the meantime.
    ///
    /// # Errors
    /// If the server has ended.
    pub fn resume(&self) -> Result<()> {
        self.process.resume()
    }

    /// Restarts it as a standby that waits for a primary: it answers reads and refuses writes.
    ///
    /// # Errors
    /// As [`restart`](Self::restart).
    pub fn demote(&mut self) -> Result<()> {
        self.stop()?;
        fs::write(data_folder(&self.slot).join("standby.signal"), "")?;
        self.restart()
    }

    /// Shuts it down, which closes all connections. [`restart`](Self::restart) starts it again.
    ///
    /// # Errors
    /// If it does not stop.
    pub fn stop(&mut self) -> Result<()> {
        if self.process.is_running() {
            self.process.stop(Signal::INT, TIMEOUT)?;
        }
        Ok(())
    }

    /// Kills all of its processes, as a crash would. [`restart`](Self::restart) starts it again.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Shuts it down if it runs, and starts it again on the same port and data folder.
    ///
    /// # Errors
    /// If it does not stop or start.
    pub fn restart(&mut self) -> Result<()> {
        self.stop()?;
        self.process = launch(&self.slot, &self.settings)?;
        Ok(())
    }
}

/// The URL in `SYNCGUARD_POSTGRES_URL`, or else that of a server that this process starts once.
///
/// # Errors
/// As [`PostgresServer::start`].
pub fn shared_postgres_url() -> Result<String> {
    static SHARED: OnceLock<Result<PostgresServer, String>> = OnceLock::new();
    crate::shared(
        "SYNCGUARD_POSTGRES_URL",
        &SHARED,
        PostgresServer::start,
        PostgresServer::url,
    )
}

/// The server refuses to run as root. Its package creates a user for it.
pub(crate) fn service_user() -> Option<&'static str> {
    is_root().then_some("postgres")
}

pub(crate) fn url(port: u16) -> String {
    format!(
        "postgres://postgres@{}:{port}/postgres",
        Ipv4Addr::LOCALHOST
    )
}

/// Whether a server, or a pooler in front of one, accepts connections.
pub(crate) fn answers(port: u16) -> bool {
    let check = || -> Result<bool> {
        let output = Command::new(beside_server("pg_isready")?)
            .args(["-q", "-h", "127.0.0.1", "-U", "postgres"])
            .args(["-p", &port.to_string()])
            .output()?;
        Ok(output.status.success())
    };
    check().unwrap_or(false)
}

fn data_folder(slot: &Slot) -> PathBuf {
    slot.folder().join("data")
}

fn beside_server(program: &str) -> Result<PathBuf> {
    find_beside_server(program).with_context(|| match install::POSTGRES.find() {
        Err(missing) => missing.to_string(),
        Ok(_) => format!("PostgreSQL's {program} is not installed"),
    })
}

fn create_cluster(data: &Path) -> Result<()> {
    fs::create_dir(data)?;
    if let Some(user) = service_user() {
        run(Command::new("chown").arg(user).arg(data))?;
    }
    run(command(beside_server("initdb")?, service_user())?
        .args(["--username", "postgres", "--auth", "trust"])
        .args(["--encoding", "UTF8", "--locale", "C"])
        .args(["--no-sync", "--no-instructions", "--pgdata"])
        .arg(data))
}

fn launch(slot: &Slot, settings: &[(String, String)]) -> Result<Process> {
    let mut command = command(install::POSTGRES.find()?, service_user())?;
    command
        .arg("-D")
        .arg(data_folder(slot))
        .args(["-p", &slot.port().to_string()]);
    for (name, value) in settings {
        command.arg("-c").arg(format!("{name}={value}"));
    }
    let mut process = Process::spawn("postgres", command, &slot.folder().join("log"))?;
    process.wait_until(TIMEOUT, || answers(slot.port()))?;
    Ok(process)
}

fn run(command: &mut Command) -> Result<()> {
    // Not in the current folder: the user that the command runs as may have no access to it.
    let output = command.current_dir("/").output()?;
    ensure!(
        output.status.success(),
        "{command:?} failed:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}
