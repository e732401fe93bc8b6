//! The guard on Linux: this program once more, beside the command. If `syncguard` is killed, the system tells
//! the command; the guard kills it after the grace.

use std::env::ArgsOs;
use std::io::{Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, pidfd_send_signal};

use super::shim::SELF;

/// The first argument of the guard.
pub(super) const NAME: &str = "__guard";

/// The argument of a guard that kills the command's whole group.
const GROUP: &str = "group";

/// A guard, seen from `syncguard`. It ends with this process at the latest, and then kills the command
/// unless it was [dismissed](Self::dismiss).
#[derive(Debug)]
pub(super) struct Guard(Child);

impl Guard {
    /// Guards a command. Without a guard, if the system has no process to spare, the command runs as well.
    pub(super) fn of(command: Pid, has_own_group: bool, grace: Duration) -> Option<Self> {
        let mut guard = Command::new(SELF);
        guard
            .arg0("syncguard")
            .arg(NAME)
            .arg(command.as_raw_nonzero().to_string())
            .arg(if has_own_group { GROUP } else { "process" })
            .arg(grace.as_millis().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // What is sent to the group of `syncguard` is not for it.
            .process_group(0);
        guard.spawn().ok().map(Self)
    }

    /// Call it once the command has ended.
    pub(super) fn dismiss(&mut self) {
        if let Some(pipe) = &mut self.0.stdin {
            // If it was killed, it is dismissed.
            let _ = pipe.write_all(b".");
        }
    }
}

/// The guard itself: waits for the end of `syncguard`. `None` if there was nothing to kill.
pub(super) fn guard(mut arguments: ArgsOs) -> Option<()> {
    let mut next = || arguments.next()?.into_string().ok();
    let pid = Pid::from_raw(next()?.parse().ok()?)?;
    let has_own_group = next()? == GROUP;
    let grace = Duration::from_millis(next()?.parse().ok()?);
    // Names the process, also after another one has got its number.
    let process = pidfd_open(pid, PidfdFlags::empty()).ok()?;
    let is_dismissed = std::io::stdin().read(&mut [0]).is_ok_and(|read| read > 0);
    if is_dismissed {
        return None;
    }
    thread::sleep(grace);
    let killed = pidfd_send_signal(&process, Signal::KILL);
    if killed.is_ok() && has_own_group {
        // It was there a moment ago, so its number is its group's still.
        let _ = kill_process_group(pid, Signal::KILL);
    }
    Some(())
}
