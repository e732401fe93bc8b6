//! Signals, with a terminal and without one.

use std::process::Command;
use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use crate::common::{Stage, Started, eventually, kill, runs};
use crate::terminal::Terminal;

/// Logs the signals that it gets, until the file `stop` is there.
const LOGGER: &str = "for it in HUP INT QUIT TERM USR1 USR2; do trap \"echo $it >> log\" $it; done; \
                      echo $$ > pid; echo ready >> log; \
                      until [ -e stop ]; do sleep 0.05; done; exit 3";

/// Long enough for a signal that would come a second time to be logged.
const A_WHILE: Duration = Duration::from_millis(500);

#[test]
fn ctrl_c_in_a_terminal_reaches_the_command_once() {
    for stage in Stage::each() {
        let mut terminal = Terminal::start(&stage, &["run", "k", "--", "sh", "-c", LOGGER]);
        stage.wait_for("log", "ready");
        terminal.press("\x03");
        stage.wait_for("log", "INT");
        thread::sleep(A_WHILE);
        assert_eq!(stage.count("log", "INT"), 1);
        assert!(!stage.is_free("k"), "the command still runs");
        stage.touch("stop");
        assert_eq!(terminal.syncguard.code(), 3);
        assert_eq!(stage.count("log", "INT"), 1);
        assert!(stage.is_free("k"));
    }
}

#[test]
fn a_signal_to_the_wrapper_reaches_a_command_with_a_terminal_once() {
    for stage in Stage::each() {
        let mut terminal = Terminal::start(&stage, &["run", "k", "--", "sh", "-c", LOGGER]);
        stage.wait_for("log", "ready");
        for (signal, line) in [
            (Signal::INT, "INT"),
            (Signal::TERM, "TERM"),
            (Signal::USR1, "USR1"),
        ] {
            terminal.syncguard.signal(signal);
            stage.wait_for("log", line);
        }
        thread::sleep(A_WHILE);
        for line in ["INT", "TERM", "USR1"] {
            assert_eq!(stage.count("log", line), 1, "{line}");
        }
        stage.touch("stop");
        assert_eq!(terminal.syncguard.code(), 3);
    }
}

#[test]
fn each_of_two_presses_of_ctrl_c_reaches_the_command_and_the_wrapper_waits() {
    for stage in Stage::each() {
        let mut terminal = Terminal::start(&stage, &["run", "k", "--", "sh", "-c", LOGGER]);
        stage.wait_for("log", "ready");
        for count in 1..=2 {
            terminal.press("\x03");
            eventually("a signal", || stage.count("log", "INT") == count);
            thread::sleep(A_WHILE);
            assert_eq!(stage.count("log", "INT"), count);
            assert!(!stage.is_free("k"), "the command still runs");
        }
        stage.touch("stop");
        assert_eq!(terminal.syncguard.code(), 3);
        assert!(stage.is_free("k"));
    }
}

#[test]
fn a_command_reads_from_the_terminal() {
    for stage in Stage::each() {
        let script = "read line < /dev/tty; echo \"$line\" > log";
        let mut terminal = Terminal::start(&stage, &["run", "k", "--", "sh", "-c", script]);
        terminal.press("hello\n");
        assert_eq!(terminal.syncguard.code(), 0);
        assert_eq!(stage.lines("log"), ["hello"]);
    }
}

#[test]
fn ctrl_c_ends_a_wait() {
    for stage in Stage::each() {
        assert_eq!(stage.outcome(&["acquire", "k", "--ttl", "10m"]).0, 0);
        let wait = ["run", "k", "--wait", "forever", "--", "touch", "ran"];
        let mut terminal = Terminal::start(&stage, &wait);
        terminal.read_until("is held for");
        terminal.press("\x03");
        assert_eq!(terminal.syncguard.code(), 130);
        assert!(!stage.path("ran").exists());
    }
}

/// The first one ends the wait; what may be held has to be released then, and the store does not answer.
#[test]
fn a_second_ctrl_c_ends_the_clean_up_after_a_wait() {
    let stage = Stage::redis();
    let server = stage.server.as_ref().unwrap();
    // The release of what it may have acquired takes up to ten seconds.
    assert_eq!(stage.outcome(&["acquire", "k", "--ttl", "2s"]).0, 0);
    let wait = ["run", "k", "--wait", "forever", "--", "touch", "ran"];
    let mut terminal = Terminal::start(&stage, &wait);
    terminal.read_until("is held for");
    server.pause().unwrap();
    // An attempt is in flight once the lease has ended.
    thread::sleep(Duration::from_secs(4));
    terminal.press("\x03");
    thread::sleep(Duration::from_secs(1));
    assert!(
        terminal.syncguard.0.try_wait().unwrap().is_none(),
        "no clean-up"
    );
    let pressed = std::time::Instant::now();
    terminal.press("\x03");
    assert_eq!(terminal.syncguard.code(), 130);
    assert!(
        pressed.elapsed() < Duration::from_secs(5),
        "{:?}",
        pressed.elapsed()
    );
    server.resume().unwrap();
    assert!(!stage.path("ran").exists());
}

#[test]
fn two_presses_of_ctrl_c_end_a_release_without_an_answer() {
    let stage = Stage::redis();
    let server = stage.server.as_ref().unwrap();
    let script = "echo ready > log; until [ -e stop ]; do sleep 0.05; done; exit 3";
    let options = [
        "run", "k", "--ttl", "10m", "--json", "--", "sh", "-c", script,
    ];
    let mut terminal = Terminal::start(&stage, &options);
    stage.wait_for("log", "ready");
    server.pause().unwrap();
    stage.touch("stop");
    thread::sleep(Duration::from_secs(1));
    let pressed = std::time::Instant::now();
    terminal.press("\x03");
    thread::sleep(A_WHILE);
    assert!(
        terminal.syncguard.0.try_wait().unwrap().is_none(),
        "one is not enough"
    );
    terminal.press("\x03");
    let said = terminal.read_until("at the latest");
    assert!(said.contains("\"expiresAtMs\""), "{said}");
    let expires = ["it expires in 9m", "it expires in 10m"];
    assert!(expires.iter().any(|text| said.contains(text)), "{said}");
    assert_eq!(terminal.syncguard.code(), 3);
    assert!(
        pressed.elapsed() < Duration::from_secs(5),
        "{:?}",
        pressed.elapsed()
    );
    server.resume().unwrap();
}

#[test]
fn each_of_two_signals_is_passed_on_and_the_command_ends_by_itself() {
    for stage in Stage::each() {
        let mut syncguard = stage.start_script("k", &[], LOGGER);
        stage.wait_for("log", "ready");
        for count in 1..=2 {
            syncguard.signal(Signal::TERM);
            eventually("a signal", || stage.count("log", "TERM") == count);
            assert!(!stage.is_free("k"), "the command still runs");
            thread::sleep(Duration::from_millis(200));
        }
        stage.touch("stop");
        assert_eq!(syncguard.code(), 3);
        assert_eq!(stage.count("log", "TERM"), 2);
        assert!(stage.is_free("k"));
    }
}

/// `USR1` and `USR2` reach the command alone: its child would log them.
#[test]
fn without_a_terminal_each_signal_is_passed_on_once() {
    let child = "(trap 'echo child >> log' USR1 USR2; echo > child; \
                 until [ -e stop ]; do sleep 0.05; done) & until [ -e child ]; do sleep 0.05; done";
    for stage in Stage::each() {
        let mut syncguard = stage.start_script("k", &[], &format!("{child}; {LOGGER}"));
        stage.wait_for("log", "ready");
        for (signal, line) in [
            (Signal::USR1, "USR1"),
            (Signal::USR2, "USR2"),
            (Signal::HUP, "HUP"),
            (Signal::INT, "INT"),
            (Signal::QUIT, "QUIT"),
            (Signal::TERM, "TERM"),
        ] {
            syncguard.signal(signal);
            stage.wait_for("log", line);
        }
        thread::sleep(A_WHILE);
        let passed_on = ["ready", "USR1", "USR2", "HUP", "INT", "QUIT", "TERM"];
        assert_eq!(stage.lines("log"), passed_on);
        stage.touch("stop");
        assert_eq!(syncguard.code(), 3);
    }
}

#[test]
fn without_a_terminal_the_whole_group_is_asked_to_end() {
    let stage = Stage::sqlite();
    let script = "sh -c 'echo $$ > pid; echo ready >> log; exec sleep 1000'; true";
    let mut syncguard = stage.start_script("k", &[], script);
    stage.wait_for("log", "ready");
    let pid = stage.lines("pid").concat();
    syncguard.signal(Signal::TERM);
    assert_eq!(syncguard.code(), 143);
    eventually("the end of the grandchild", || !runs(&pid));
    assert!(stage.is_free("k"));
}

#[test]
fn an_ignored_signal_stays_ignored() {
    let stage = Stage::sqlite();
    let bin = env!("CARGO_BIN_EXE_syncguard");
    let mut command = Command::new("setsid");
    let script = "trap '' HUP; exec \"$0\" run k -- sh -c \"$1\"";
    let inner = "grep SigIgn /proc/self/status > mask; echo ready >> log; \
                 until [ -e stop ]; do sleep 0.05; done";
    command
        .args(["sh", "-c", script, bin, inner])
        .env("SYNCGUARD_STORE", &stage.store)
        .current_dir(stage.folder.path());
    let mut syncguard = Started(command.spawn().unwrap());
    stage.wait_for("log", "ready");
    syncguard.signal(Signal::HUP);
    let mask = stage.lines("mask").concat();
    let mask = u64::from_str_radix(mask.trim_start_matches("SigIgn:").trim(), 16).unwrap();
    assert_eq!(mask & 1, 1, "HUP is ignored by the command");
    stage.touch("stop");
    assert_eq!(syncguard.code(), 0);
}

#[test]
fn a_killed_command_releases_at_once() {
    for stage in Stage::each() {
        let mut syncguard = stage.start_script("k", &["--ttl", "10m"], LOGGER);
        stage.wait_for("log", "ready");
        kill(&stage.lines("pid").concat());
        assert_eq!(syncguard.code(), 137);
        assert!(stage.is_free("k"));
    }
}

#[test]
fn a_killed_wrapper_tells_the_command_and_the_key_is_free_after_the_ttl() {
    for stage in Stage::each() {
        let mut syncguard = stage.start_script("k", &["--ttl", "3s"], LOGGER);
        stage.wait_for("log", "ready");
        syncguard.signal(Signal::KILL);
        syncguard.end();
        stage.wait_for("log", "TERM");
        assert_eq!(stage.distinct_lines("log"), ["ready", "TERM"]);
        let (code, text) = stage.outcome(&["run", "k", "--wait", "60s", "--", "true"]);
        assert_eq!(code, 0, "{text}");
        stage.touch("stop");
    }
}
