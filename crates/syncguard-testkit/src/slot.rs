//! [`Slot`]: a loopback port and a folder for one server.

use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Once;

use anyhow::{Context, Result};

/// Below the range of ports that the kernel uses for outgoing connections (32768 up), so that a server
/// that is down for a while finds its port free when it restarts. The bus port of a Redis Cluster node,
/// 10,000 above its port, is below that range too.
const FIRST_PORT: u16 = 20_000;
const PORTS: u16 = 2_700;

/// A port and an empty folder that no other process of this user claims until drop.
///
/// The claim is a lock on the folder, which the system releases however the process ends. The next
/// process removes what a killed one left behind.
#[derive(Debug)]
pub(crate) struct Slot {
    port: u16,
    folder: PathBuf,
    _lock: File,
}

impl Slot {
    pub(crate) fn claim() -> Result<Self> {
        static SWEPT: Once = Once::new();
        let root = root();
        fs::create_dir_all(&root).with_context(|| format!("cannot create {}", root.display()))?;
        SWEPT.call_once(|| sweep(&root));
        // At random, so that a client of a stopped server does not reach the next one at the same port.
        let spread = RandomState::new().hash_one(()) % u64::from(PORTS);
        let spread = u16::try_from(spread).unwrap_or_default();
        (0..PORTS)
            .map(|offset| FIRST_PORT + (spread + offset) % PORTS)
            .find_map(|port| Self::try_claim(&root, port))
            .with_context(|| {
                format!(
                    "no free loopback port from {FIRST_PORT} on, or {} is not writable",
                    root.display()
                )
            })
    }

    fn try_claim(root: &Path, port: u16) -> Option<Self> {
        let folder = root.join(port.to_string());
        fs::create_dir(&folder).ok()?;
        let lock = lock(&folder)?;
        let slot = Self {
            port,
            folder,
            _lock: lock,
        };
        TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok()?;
        Some(slot)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // If the folder cannot be removed now, the next process removes it.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn root() -> PathBuf {
    let user = rustix::process::getuid().as_raw();
    std::env::temp_dir().join(format!("syncguard-testkit-{user}"))
}

/// Removes the folders that no running process has locked.
fn sweep(root: &Path) {
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        if let Some(_lock) = lock(&entry.path()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Locks a folder, unless another process has locked it.
fn lock(folder: &Path) -> Option<File> {
    let file = File::open(folder).ok()?;
    file.try_lock().ok()?;
    // Another process may have removed it between opening and locking.
    let still_there = fs::metadata(folder).ok()?.ino() == file.metadata().ok()?.ino();
    still_there.then_some(file)
}
