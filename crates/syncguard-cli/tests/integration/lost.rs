//! A lease that is lost while the command runs.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};

use crate::common::{Stage, Started, eventually, kill, runs};
use crate::terminal::Terminal;

/// Ends with 0 on TERM.
const OBEDIENT: &str = "trap 'echo TERM >> log; exit 0' TERM; echo ready >> log; \
                        while :; do sleep 0.05; done";
/// Ignores TERM, and so does its child.
const STUBBORN: &str = "trap 'echo TERM >> log' TERM; echo $$ > pid; \
                        (trap '' HUP TERM; exec sleep 1000) & echo $! > child; echo ready >> log; \
                        while :; do sleep 0.05; done";

/// Ends by TERM; its child ends only if it gets TERM, too.
const ORPHANING: &str = "(trap 'echo TERM >> log; exit 0' TERM; echo ready >> log; \
                         while :; do sleep 0.05; done) & wait";

fn release_by_force(stage: &Stage) {
    let (code, text) = stage.outcome(&["release", "--force", "k", "--yes"]);
    assert_eq!(code, 0, "{text}");
}

#[test]
fn the_command_is_told_and_the_loss_has_its_own_code() {
    for stage in Stage::each() {
        let mut syncguard = stage.start_script("k", &["--ttl", "3s"], OBEDIENT);
        stage.wait_for("log", "ready");
        release_by_force(&stage);
        assert_eq!(syncguard.code(), 76, "{}", stage.store);
        assert_eq!(stage.lines("log"), ["ready", "TERM"]);
    }
}

#[test]
fn a_loss_that_nobody_noticed_has_the_same_code() {
    for stage in Stage::each() {
        let release = format!(
            "{} release \"$SYNCGUARD_LOCK_ID\"",
            env!("CARGO_BIN_EXE_syncguard")
        );
        let (code, text) = stage.outcome(&["run", "k", "--ttl", "10m", "--", "sh", "-c", &release]);
        assert_eq!(code, 76, "{text}");
        assert!(text.contains("lost"), "{text}");
    }
}

#[test]
fn a_command_that_ends_within_the_grace_is_not_killed() {
    for stage in Stage::each() {
        let script = "exec 2> /dev/null; trap 'sleep 1; echo done >> log; exit 0' TERM; \
                      echo ready >> log; while :; do sleep 0.05; done";
        let options = [
            "run", "k", "--ttl", "3s", "--grace", "20s", "--", "sh", "-c",
        ];
        let mut syncguard = stage.start_json(&[&options[..], &[script]].concat());
        stage.wait_for("log", "ready");
        release_by_force(&stage);
        let events: Vec<_> = syncguard.events().collect();
        assert_eq!(syncguard.code(), 76);
        assert_eq!(stage.lines("log"), ["ready", "done"]);
        assert_eq!(events[0]["event"], "lost");
        assert_eq!(events[0]["graceMs"], 20_000);
    }
}

#[test]
fn a_command_that_does_not_end_is_killed_with_its_group() {
    for stage in Stage::each() {
        let options = ["--ttl", "3s", "--grace", "500ms"];
        let mut syncguard = stage.start_script("k", &options, STUBBORN);
        stage.wait_for("log", "ready");
        release_by_force(&stage);
        assert_eq!(syncguard.code(), 76);
        assert_eq!(stage.lines("log"), ["ready", "TERM"]);
        for name in ["pid", "child"] {
            let pid = stage.lines(name).concat();
            eventually("the end of the group", || !runs(&pid));
        }
    }
}

#[test]
fn a_message_that_nobody_reads_holds_nothing_up() {
    let stage = Stage::sqlite();
    let (_reader, mut full) = std::io::pipe().unwrap();
    rustix::io::ioctl_fionbio(&full, true).unwrap();
    while full.write(&[b'.'; 4096]).is_ok() {}
    rustix::io::ioctl_fionbio(&full, false).unwrap();
    let options = [
        "run", "k", "--ttl", "3s", "--grace", "500ms", "--", "sh", "-c",
    ];
    let mut command = stage.command(&[&options[..], &[STUBBORN]].concat());
    let mut syncguard = Started(command.stdout(Stdio::null()).stderr(full).spawn().unwrap());
    stage.wait_for("log", "ready");
    release_by_force(&stage);
    assert_eq!(syncguard.code(), 76);
    for name in ["pid", "child"] {
        let pid = stage.lines(name).concat();
        eventually("the end of the group", || !runs(&pid));
    }
}

#[test]
fn a_command_whose_wrapper_was_killed_is_killed_with_its_group_after_the_grace() {
    for stage in Stage::each() {
        let options = ["--ttl", "10m", "--grace", "1s"];
        let mut syncguard = stage.start_script("k", &options, STUBBORN);
        stage.wait_for("log", "ready");
        syncguard.signal(Signal::KILL);
        syncguard.end();
        stage.wait_for("log", "TERM");
        for name in ["pid", "child"] {
            let pid = stage.lines(name).concat();
            eventually("the end of the group", || !runs(&pid));
        }
        assert_eq!(stage.distinct_lines("log"), ["ready", "TERM"]);
    }
}

#[test]
fn the_children_of_a_command_that_dies_with_its_wrapper_are_told_at_once() {
    for stage in Stage::each() {
        let options = ["--ttl", "10m", "--grace", "10m"];
        let mut syncguard = stage.start_script("k", &options, ORPHANING);
        stage.wait_for("log", "ready");
        syncguard.signal(Signal::KILL);
        syncguard.end();
        stage.wait_for("log", "TERM");
        assert_eq!(stage.lines("log"), ["ready", "TERM"]);
    }
}

#[test]
fn a_grace_beyond_the_ttl_does_not_outlast_the_lease() {
    for stage in Stage::each() {
        let options = ["--ttl", "4s", "--grace", "10m"];
        let mut syncguard = stage.start_script("k", &options, STUBBORN);
        stage.wait_for("log", "ready");
        syncguard.signal(Signal::KILL);
        syncguard.end();
        for name in ["pid", "child"] {
            let pid = stage.lines(name).concat();
            eventually("the end of the group", || !runs(&pid));
        }
    }
}

#[test]
fn with_a_terminal_the_command_alone_is_ended() {
    for stage in Stage::each() {
        let options = [
            "run", "k", "--ttl", "3s", "--grace", "500ms", "--", "sh", "-c",
        ];
        let mut terminal = Terminal::start(&stage, &[&options[..], &[STUBBORN]].concat());
        stage.wait_for("log", "ready");
        release_by_force(&stage);
        assert_eq!(terminal.syncguard.code(), 76);
        let (pid, child) = (stage.lines("pid").concat(), stage.lines("child").concat());
        eventually("the end of the command", || !runs(&pid));
        assert!(runs(&child));
        kill(&child);
    }
}

#[test]
fn a_store_that_is_away_for_a_whole_ttl_ends_the_command() {
    let stage = Stage::redis();
    let server = stage.server.as_ref().unwrap();
    let mut syncguard = stage.start_script("k", &["--ttl", "3s"], OBEDIENT);
    stage.wait_for("log", "ready");
    server.pause().unwrap();
    stage.wait_for("log", "TERM");
    server.resume().unwrap();
    assert_eq!(syncguard.code(), 76);
}

#[test]
fn a_store_that_is_away_for_less_than_a_ttl_does_no_harm() {
    let mut stage = Stage::redis();
    let script = "echo ready >> log; until [ -e stop ]; do sleep 0.05; done; exit 4";
    let mut syncguard = stage.start_script("k", &["--ttl", "5m"], script);
    stage.wait_for("log", "ready");
    let server = stage.server.as_mut().unwrap();
    server.pause().unwrap();
    thread::sleep(Duration::from_secs(1));
    server.resume().unwrap();
    stage.touch("stop");
    assert_eq!(syncguard.code(), 4);
    assert!(stage.is_free("k"));
}

/// As by Ctrl-Z. The next holder keeps its lock.
#[test]
fn a_lease_that_expires_while_all_is_stopped_ends_the_command() {
    for stage in Stage::each() {
        let script = format!("echo $$ > pid; {OBEDIENT}");
        let mut syncguard = stage.start_script("k", &["--ttl", "3s"], &script);
        stage.wait_for("log", "ready");
        let group = stage.lines("pid").concat().parse().ok();
        let group = group.and_then(Pid::from_raw).unwrap();
        syncguard.signal(Signal::STOP);
        kill_process_group(group, Signal::STOP).unwrap();
        let next = ["acquire", "k", "--quiet", "--wait", "60s", "--ttl", "10m"];
        let (code, id) = stage.outcome(&next);
        assert_eq!(code, 0, "{id}");
        // It sends CONT to the command, too.
        syncguard.signal(Signal::CONT);
        assert_eq!(syncguard.code(), 76);
        assert_eq!(stage.lines("log"), ["ready", "TERM"]);
        let (code, text) = stage.outcome(&["status", "--id", id.trim_end()]);
        assert_eq!(code, 0, "{text}");
    }
}

#[test]
fn a_command_outlives_its_ttl() {
    for stage in Stage::each() {
        let script = "echo ready >> log; until [ -e stop ]; do sleep 0.05; done; exit 4";
        let mut syncguard = stage.start_script("k", &["--ttl", "5s"], script);
        stage.wait_for("log", "ready");
        thread::sleep(Duration::from_secs(12));
        let (code, text) = stage.outcome(&["run", "k", "--no-wait", "--", "true"]);
        assert_eq!(code, 75, "{text}");
        stage.touch("stop");
        assert_eq!(syncguard.code(), 4);
    }
}

#[test]
fn what_a_command_leaves_in_the_background_is_not_waited_for() {
    for stage in Stage::each() {
        let list = "ls -l /proc/self/fd > descriptors";
        let script = format!("sleep 1000 & echo $! > pid; {list}; exit 0");
        let mut syncguard = stage.start_script("k", &["--ttl", "10m"], &script);
        assert_eq!(syncguard.code(), 0);
        assert!(stage.is_free("k"));
        let pid = stage.lines("pid").concat();
        assert!(runs(&pid));
        kill(&pid);
        // As many as without the wrapper: the tests may have been started with more than three.
        let under_the_lock = stage.lines("descriptors");
        let alone = Command::new("sh")
            .args(["-c", list])
            .current_dir(stage.folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .unwrap();
        assert!(alone.success());
        let alone = stage.lines("descriptors");
        assert_eq!(under_the_lock.len(), alone.len(), "{under_the_lock:?}");
    }
}

#[test]
fn one_run_after_the_other_without_a_pause() {
    for stage in Stage::each() {
        let started = std::time::Instant::now();
        for _ in 0..20 {
            let script = "echo $SYNCGUARD_FENCE >> log";
            let (code, text) = stage.outcome(&["run", "k", "--no-wait", "--", "sh", "-c", script]);
            assert_eq!(code, 0, "{text}");
        }
        // After an expiry, a key rests for a second.
        assert!(
            started.elapsed() < Duration::from_secs(20),
            "{:?}",
            started.elapsed()
        );
        let fences = stage.lines("log");
        assert_eq!(fences.len(), 20);
        assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
    }
}
