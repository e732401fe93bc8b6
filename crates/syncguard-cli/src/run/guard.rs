//! The guard on Linux: a second process of this program, beside the command. If `syncguard` is killed, the
//! system sends TERM to the command; the guard sends KILL after the grace period.

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

/// How often the guard checks whether the command's group has ended.
const LOOK: Duration = Duration::from_millis(50);

/// The argument of a guard that kills the command's whole group.
const GROUP: &str = "group";

/// A guard, seen from `syncguard`. When this process ends, the guard kills the command, unless it was
/// [dismissed](Self::dismiss).
#[derive(Debug)]
pub(super) struct Guard(Child);

impl Guard {
    /// Guards a command. If the system cannot start the guard, the command runs without one.
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
            // Signals to the group of `syncguard` are not for the guard.
            .process_group(0);
        guard.spawn().ok().map(Self)
    }

    /// Call it once the command has ended.
    pub(super) fn dismiss(&mut self) {
        if let Some(pipe) = &mut self.0.stdin {
            // If the guard was killed, it is dismissed.
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
    // Refers to this process, even if another one gets its number later.
    let process = pidfd_open(pid, PidfdFlags::empty()).ok()?;
    let is_dismissed = std::io::stdin().read(&mut [0]).is_ok_and(|read| read > 0);
    if is_dismissed {
        return None;
    }
    if !has_own_group {
        thread::sleep(grace);
        return pidfd_send_signal(&process, Signal::KILL).ok();
    }
    // The command existed a moment ago. While its group has members, no other process gets its number.
    let ends = Instant::now() + grace;
    let mut told = false;
    while Instant::now() < ends {
        // The system sent TERM only to the command. If that ended it, its children still need the signal.
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
