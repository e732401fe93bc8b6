//! [`ServerCpu`]: the CPU time of a server, system calls included.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// A server: its first process, and those that this one has started.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ServerCpu {
    pid: u32,
}

impl ServerCpu {
    pub(crate) const fn of(pid: u32) -> Self {
        Self { pid }
    }

    /// The CPU time so far of each process. `None` where the system has no `/proc/PID/task/TID/schedstat`,
    /// as Linux has.
    pub(crate) fn times(self) -> Option<Times> {
        let first = (self.pid, cpu_time(self.pid)?);
        let others = fs::read_dir("/proc").ok()?.flatten().filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let is_child = parent(pid)? == self.pid;
            is_child.then_some((pid, cpu_time(pid)?))
        });
        Some(others.chain([first]).collect())
    }

    /// What they have computed since then, without those that have ended.
    pub(crate) fn since(self, before: &Times) -> Option<Duration> {
        let of_each = self.times()?.into_iter().map(|(pid, time)| {
            let before = before.get(&pid).copied().unwrap_or_default();
            time.saturating_sub(before)
        });
        Some(of_each.sum())
    }
}

/// By process id.
type Times = BTreeMap<u32, Duration>;

/// Of all its threads: the first word of each `schedstat`, in nanoseconds.
fn cpu_time(pid: u32) -> Option<Duration> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let times = threads.flatten().map(|thread| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split(' ')
            .next()?
            .parse()
            .ok()
            .map(Duration::from_nanos)
    });
    times.sum()
}

/// The second word after the name, which is in parentheses and may have any characters.
fn parent(pid: u32) -> Option<u32> {
    let text = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat")).ok()?;
    let (_, after_the_name) = text.rsplit_once(") ")?;
    after_the_name.split(' ').nth(1)?.parse().ok()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    const ENOUGH: Duration = Duration::from_millis(50);

    fn busy() -> Child {
        let mut shell = Command::new("sh");
        shell.args(["-c", "while :; do :; done"]);
        let child = shell.stdin(Stdio::null()).spawn().unwrap();
        // However slowly it runs, at some time it has computed that long.
        while cpu_time(child.id()).unwrap() < ENOUGH {
            std::thread::sleep(Duration::from_millis(5));
        }
        child
    }

    #[test]
    fn processes_count_that_started_in_between_and_not_those_that_ended() {
        let this = ServerCpu::of(std::process::id());
        let mut ending = busy();
        let before = this.times().unwrap();
        let mut started = busy();
        ending.kill().unwrap();
        ending.wait().unwrap();
        let counted = this.since(&before).unwrap();
        started.kill().unwrap();
        started.wait().unwrap();
        assert!(before[&ending.id()] >= ENOUGH);
        assert!(counted >= ENOUGH, "{counted:?}");
    }

    #[test]
    fn the_parent_is_found() {
        assert_eq!(
            parent(std::process::id()),
            Some(std::os::unix::process::parent_id())
        );
    }
}
