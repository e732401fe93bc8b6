//! [`Terminal`]: `syncguard` in a pseudo-terminal.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::Command;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::common::{Stage, Started};

/// A pseudo-terminal, and `syncguard` in the foreground of its session.
pub(crate) struct Terminal {
    screen: File,
    pub(crate) syncguard: Started,
}

impl Terminal {
    pub(crate) fn start(stage: &Stage, arguments: &[&str]) -> Self {
        let master =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let terminal = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(i32::try_from(OpenptFlags::NOCTTY.bits()).unwrap())
            .open(OsStr::from_bytes(name.to_bytes()))
            .unwrap();
        let mut command = Command::new("setsid");
        command
            .arg("--ctty")
            .arg(env!("CARGO_BIN_EXE_syncguard"))
            .args(arguments)
            .env("SYNCGUARD_STORE", &stage.store)
            .current_dir(stage.folder.path())
            .stdin(terminal.try_clone().unwrap())
            .stdout(terminal.try_clone().unwrap())
            .stderr(terminal);
        let syncguard = Started(command.spawn().unwrap());
        Self {
            screen: File::from(master),
            syncguard,
        }
    }

    pub(crate) fn press(&mut self, key: &str) {
        self.screen.write_all(key.as_bytes()).unwrap();
    }

    /// Reads until a text is on the screen; returns all that was read.
    pub(crate) fn read_until(&mut self, text: &str) -> String {
        let (mut said, mut buffer) = (String::new(), [0; 1024]);
        while !said.contains(text) {
            let length = self.screen.read(&mut buffer).expect(&said);
            said += &String::from_utf8_lossy(&buffer[..length]);
        }
        said
    }
}
