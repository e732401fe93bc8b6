//! The fault cases that need no server, on SQLite.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;

use anyhow::{Result, bail};
use syncguard_conformance::faults::Target;
use syncguard_core::LockError;
use syncguard_sqlite::SqliteBackend;
use syncguard_testkit::{Server, folder_for_files};

/// A folder for a file, under a number that nobody else on this machine has meanwhile.
#[derive(Debug)]
struct Folder {
    number: u16,
    _reserved: TcpListener,
}

fn folder(number: u16) -> PathBuf {
    folder_for_files().join(format!("syncguard-faults-{number}"))
}

impl Server for Folder {
    fn port(&self) -> u16 {
        self.number
    }

    fn pause(&self) -> Result<()> {
        bail!("a file cannot be paused")
    }

    fn resume(&self) -> Result<()> {
        bail!("a file cannot be paused")
    }

    fn kill(&mut self) {}

    fn restart(&mut self) -> Result<()> {
        Ok(())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(folder(self.number));
    }
}

struct Sqlite;

impl Target for Sqlite {
    type Backend = SqliteBackend;
    type Server = Folder;

    fn start() -> Result<Folder> {
        let reserved = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let number = reserved.local_addr()?.port();
        let folder = folder(number);
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir_all(&folder)?;
        Ok(Folder {
            number,
            _reserved: reserved,
        })
    }

    async fn connect(number: u16) -> Result<SqliteBackend, LockError> {
        SqliteBackend::connect(folder(number).join("locks.db")).await
    }
}

syncguard_conformance::local_fault_suite!(Sqlite);
