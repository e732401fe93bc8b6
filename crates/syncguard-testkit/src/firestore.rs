//! [`FirestoreEmulator`]: a Firestore emulator for one test.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::install::{self, on_path};
use crate::process::{Process, command};
use crate::slot::Slot;

/// A start takes 2 to 8 s, and longer on a machine that is compiling.
const TIMEOUT: Duration = Duration::from_secs(180);

/// A Firestore emulator that stops on drop. It keeps its data in memory.
#[derive(Debug)]
pub struct FirestoreEmulator {
    process: Process,
    slot: Slot,
    rules: Option<PathBuf>,
}

impl FirestoreEmulator {
    /// Starts an emulator, which takes some seconds.
    ///
    /// # Errors
    /// If the emulator or Java is not installed, or it does not start.
    pub fn start() -> Result<Self> {
        Self::launched(Slot::claim()?, None)
    }

    /// Starts an emulator with security rules. They apply to clients that do not present themselves
    /// as the owner.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with_rules(rules: &str) -> Result<Self> {
        let slot = Slot::claim()?;
        let file = slot.folder().join("firestore.rules");
        fs::write(&file, rules)?;
        Self::launched(slot, Some(file))
    }

    fn launched(slot: Slot, rules: Option<PathBuf>) -> Result<Self> {
        let process = launch(&slot, rules.as_deref())?;
        Ok(Self {
            process,
            slot,
            rules,
        })
    }

    /// Where it answers, as `FIRESTORE_EMULATOR_HOST` has it: `127.0.0.1:PORT`.
    #[must_use]
    pub fn host(&self) -> String {
        format!("{}:{}", Ipv4Addr::LOCALHOST, self.port())
    }

    /// The port where it answers.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.slot.port()
    }

    /// Pauses the server without closing a connection (`SIGSTOP`).
    ///
    /// # Errors
    /// If the emulator has ended.
    pub fn pause(&self) -> Result<()> {
        self.process.pause()
    }

    /// Ends a [`pause`](Self::pause). The emulator then executes what clients sent in the meantime.
    ///
    /// # Errors
    /// If the emulator has ended.
    pub fn resume(&self) -> Result<()> {
        self.process.resume()
    }

    /// Kills it, as a crash would (`SIGKILL`). Its data is lost.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Kills it and starts it again on the same port, empty.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn restart(&mut self) -> Result<()> {
        self.kill();
        self.process = launch(&self.slot, self.rules.as_deref())?;
        Ok(())
    }
}

fn launch(slot: &Slot, rules: Option<&Path>) -> Result<Process> {
    let java = on_path("java").context("the Firestore emulator needs a Java runtime")?;
    // What the emulator's own launcher runs, without a shell in between.
    let mut command = command(java, None)?;
    command
        // The default garbage collector has threads of its own, and a small machine no cores for them. Most objects
        // last for one call: a small young generation would be collected all the time.
        .args(["-XX:+UseSerialGC", "-Xms1g", "-Xmn768m"])
        .args(["-Duser.language=en", "-cp"])
        .arg(install::FIRESTORE.find()?)
        .arg("com.google.cloud.datastore.emulator.firestore.CloudFirestore")
        .args(["start", "--host=127.0.0.1"])
        .arg(format!("--port={}", slot.port()));
    if let Some(rules) = rules {
        command.arg(format!("--rules={}", rules.display()));
    }
    let mut process = Process::spawn("firestore emulator", command, &slot.folder().join("log"))?;
    process.wait_until(TIMEOUT, || answers(slot.port()).unwrap_or(false))?;
    Ok(process)
}

/// The host in `FIRESTORE_EMULATOR_HOST`, or else that of an emulator that this process starts once.
///
/// # Errors
/// As [`FirestoreEmulator::start`].
pub fn shared_firestore_host() -> Result<String> {
    static SHARED: OnceLock<Result<FirestoreEmulator, String>> = OnceLock::new();
    crate::shared(
        "FIRESTORE_EMULATOR_HOST",
        &SHARED,
        FirestoreEmulator::start,
        FirestoreEmulator::host,
    )
}

/// Its front page says `Ok` once it serves.
fn answers(port: u16) -> Result<bool> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
    let mut reply = [0; 64];
    let length = stream.read(&mut reply)?;
    Ok(reply[..length].starts_with(b"HTTP/1.") && reply[..length].windows(3).any(|w| w == b"200"))
}
