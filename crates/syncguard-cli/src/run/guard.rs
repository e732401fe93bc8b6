//! The guard on Linux: this program once more, beside the command. If `syncguard` is killed, the system tells
//! the command; the guard kills it after the grace.

use std::env::ArgsOs;
use std::io::{Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::process::{
    Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, pidfd_send_signal,
    test_kill_process_group,
};

use super::shim::SELF;

/// The first argument of the guard.
pub(super) const NAME: &str = "__guard";

/// How often the guard looks whether the command's group is gone.
const LOOK: Duration = Duration::from_millis(50);

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
    if !has_own_group {
        thread::sleep(grace);
        return pidfd_send_signal(&process, Signal::KILL).ok();
    }
    // The command was there a moment ago, and while its group has members, no other process gets its number.
    let ends = Instant::now() + grace;
    let mut told = false;
    while Instant::now() < ends {
        // The system told the command alone. If that ended it, its children are still to be told.
        if !told && has_ended(&process) {
            told = true;
            kill_process_group(pid, Signal::TERM).ok()?;
            let _ = kill_process_group(pid, Signal::CONT);
        }
        thread::sleep(LOOK.min(grace));
        test_kill_process_group(pid).ok()?;
    }
    kill_process_group(pid, Signal::KILL).ok()
}

fn has_ended(process: &OwnedFd) -> bool {
    let mut descriptors = [PollFd::new(process, PollFlags::IN)];
    poll(&mut descriptors, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}
