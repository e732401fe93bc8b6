//! [`RedisServer`]: a Redis for one test.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::Result;
use rustix::process::Signal;

use crate::PrivateCa;
use crate::install;
use crate::process::{Process, command};
use crate::slot::Slot;

const TIMEOUT: Duration = Duration::from_secs(20);

/// A `redis-server` that stops on drop.
#[derive(Debug)]
pub struct RedisServer {
    process: Process,
    slot: Slot,
    arguments: Vec<String>,
    encrypted: bool,
}

impl RedisServer {
    /// Starts a server that keeps its data in memory only.
    ///
    /// # Errors
    /// If `redis-server` is not installed or does not start.
    pub fn start() -> Result<Self> {
        Self::start_with(&[])
    }

    /// Starts a server that writes to disk before it answers. It keeps its data through
    /// [`kill`](Self::kill) and [`restart`](Self::restart).
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_durable() -> Result<Self> {
        Self::start_with(&["--appendonly", "yes", "--appendfsync", "always"])
    }

    /// Starts a server with further arguments, such as `["--requirepass", "secret"]`.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with(arguments: &[&str]) -> Result<Self> {
        let arguments = arguments.iter().map(ToString::to_string).collect();
        Self::launched(Slot::claim()?, arguments, false)
    }

    /// Starts a server that accepts only TLS, with a certificate of this authority.
    ///
    /// # Errors
    /// As [`start`](Self::start), and if its Redis was built without TLS.
    pub fn start_tls(ca: &PrivateCa) -> Result<Self> {
        let slot = Slot::claim()?;
        let files = ca.issue(slot.folder())?;
        let (port, ca) = (slot.port().to_string(), ca.file());
        let mut arguments: Vec<_> = ["--port", "0", "--tls-auth-clients", "no", "--tls-port"]
            .map(ToOwned::to_owned)
            .into();
        arguments.push(port);
        for (name, file) in [
            ("--tls-ca-cert-file", &ca),
            ("--tls-cert-file", &files.certificate),
            ("--tls-key-file", &files.key),
        ] {
            arguments.extend([name.to_owned(), file.display().to_string()]);
        }
        Self::launched(slot, arguments, true)
    }

    fn launched(slot: Slot, arguments: Vec<String>, encrypted: bool) -> Result<Self> {
        let process = launch(&slot, &arguments, encrypted)?;
        Ok(Self {
            process,
            slot,
            arguments,
            encrypted,
        })
    }

    /// The URL of the server: `redis://127.0.0.1:PORT`, or `rediss://` with TLS.
    #[must_use]
    pub fn url(&self) -> String {
        let scheme = if self.encrypted { "rediss" } else { "redis" };
        format!("{scheme}://{}:{}", Ipv4Addr::LOCALHOST, self.port())
    }

    /// The port where it answers.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.slot.port()
    }

    /// The server's process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Pauses the server without closing a connection (`SIGSTOP`).
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

    /// Kills it, as a crash would (`SIGKILL`). [`restart`](Self::restart) starts it again.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Shuts it down if it runs, and starts it again on the same port and data folder.
    ///
    /// # Errors
    /// If it does not stop or start.
    pub fn restart(&mut self) -> Result<()> {
        if self.process.is_running() {
            self.process.stop(Signal::TERM, TIMEOUT)?;
        }
        self.process = launch(&self.slot, &self.arguments, self.encrypted)?;
        Ok(())
    }
}

/// The URL in `SYNCGUARD_REDIS_URL`, or else that of a server that this process starts once.
///
/// # Errors
/// As [`RedisServer::start`].
pub fn shared_redis_url() -> Result<String> {
    static SHARED: OnceLock<Result<RedisServer, String>> = OnceLock::new();
    crate::shared(
        "SYNCGUARD_REDIS_URL",
        &SHARED,
        RedisServer::start,
        RedisServer::url,
    )
}

fn launch(slot: &Slot, arguments: &[String], encrypted: bool) -> Result<Process> {
    let mut command = command(install::REDIS.find()?, None)?;
    command
        .args(["--bind", "127.0.0.1", "--daemonize", "no", "--save", ""])
        .args(["--port", &slot.port().to_string()])
        .arg("--dir")
        .arg(slot.folder())
        .args(arguments);
    let mut process = Process::spawn("redis-server", command, &slot.folder().join("log"))?;
    process.wait_until(TIMEOUT, || match encrypted {
        false => answers(slot.port()),
        true => listens(slot.port()),
    })?;
    Ok(process)
}

/// Whether it executes commands: a server that is still loading its data answers `-LOADING`.
fn answers(port: u16) -> bool {
    ask(port, "PING").is_ok_and(|reply| reply.starts_with("+PONG") || reply.starts_with("-NOAUTH"))
}

/// Whether it accepts connections: without TLS nothing more can be asked.
fn listens(port: u16) -> bool {
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
}

/// Sends a command over a new connection; returns the beginning of the reply.
pub(crate) fn ask(port: u16, command: &str) -> Result<String> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    write!(stream, "{command}\r\n")?;
    let mut reply = [0; 256];
    let length = stream.read(&mut reply)?;
    Ok(String::from_utf8_lossy(&reply[..length]).into_owned())
}
