//! What is printed while it waits.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::common::Stage;

const WAIT: [&str; 7] = ["run", "k", "--wait", "2500ms", "--", "echo", "ran"];

#[test]
fn a_wait_is_announced_in_one_line_on_standard_error() {
    for stage in Stage::each() {
        assert_eq!(stage.outcome(&["acquire", "k", "--ttl", "10m"]).0, 0);
        let output = stage.syncguard(&WAIT);
        assert_eq!(output.status.code(), Some(75));
        assert!(output.stdout.is_empty());
        let text = String::from_utf8(output.stderr).unwrap();
        let [announced, busy] = text.lines().collect::<Vec<_>>()[..] else {
            panic!("{text}");
        };
        let hash = syncguard_core::hash_key("k").to_string();
        let expected = format!("syncguard: {hash} is held for ");
        assert!(announced.starts_with(&expected), "{text}");
        assert!(announced.contains("its lease ends in 9m "), "{text}");
        assert!(busy.starts_with("syncguard: busy: "), "{text}");

        let output = stage.syncguard(&[&["--raw"][..], &WAIT].concat());
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.starts_with("syncguard: k is held for "), "{text}");

        let output = stage.syncguard(&[&["--json"][..], &WAIT].concat());
        assert!(output.stdout.is_empty());
        let lines = String::from_utf8(output.stderr).unwrap();
        let events: Vec<serde_json::Value> = lines
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(events[0]["event"], "waiting");
        assert_eq!(events[0]["lock"]["keyHash"], hash);
        assert_eq!(events[1]["event"], "error");
        assert_eq!(events[1]["exitCode"], 75);
        assert_eq!(events.len(), 2);
    }
}

#[test]
fn a_quiet_wait_says_nothing() {
    for stage in Stage::each() {
        let script = "echo ready > log; sleep 2";
        let mut holder = stage.start_script("k", &[], script);
        stage.wait_for("log", "ready");
        let output =
            stage.syncguard(&["run", "k", "--quiet", "--wait", "60s", "--", "echo", "ran"]);
        assert!(output.status.success());
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "ran\n");
        assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
        assert_eq!(holder.code(), 0);
    }
}

#[test]
fn a_wait_lasts_ten_seconds_by_default() {
    let stage = Stage::sqlite();
    assert_eq!(stage.outcome(&["acquire", "k", "--ttl", "10m"]).0, 0);
    let started = Instant::now();
    let mut waiting = stage.start(&["run", "k", "--", "touch", "ran"]);
    assert_eq!(waiting.code(), 75);
    let waited = started.elapsed();
    assert!(waited >= Duration::from_secs(9), "{waited:?}");
    assert!(!stage.path("ran").exists());
}

/// The lease of another holder ends while the server hangs. Then the server executes what it was asked for.
fn wait_while_the_server_hangs(stage: &Stage, wait: &str) -> i32 {
    assert_eq!(stage.outcome(&["acquire", "k", "--ttl", "3s"]).0, 0);
    let wait = [
        "run", "k", "--wait", wait, "--ttl", "10m", "--", "touch", "ran",
    ];
    let mut waiting = stage.start(&wait);
    thread::sleep(Duration::from_secs(1));
    let server = stage.server.as_ref().unwrap();
    server.pause().unwrap();
    thread::sleep(Duration::from_secs(8));
    server.resume().unwrap();
    waiting.code()
}

#[test]
fn an_attempt_without_an_answer_leaves_no_lock() {
    let stage = Stage::redis();
    assert_eq!(wait_while_the_server_hangs(&stage, "7s"), 69);
    assert!(stage.is_free("k"));
    assert!(!stage.path("ran").exists());
}

#[test]
fn a_wait_that_was_asked_for_goes_on_after_an_attempt_without_an_answer() {
    let stage = Stage::redis();
    assert_eq!(wait_while_the_server_hangs(&stage, "60s"), 0);
    assert!(stage.is_free("k"));
    assert!(stage.path("ran").exists());
}

#[test]
fn a_wait_that_was_asked_for_covers_a_store_that_is_down() {
    let mut stage = Stage::redis();
    stage.server.as_mut().unwrap().kill();
    for down in [
        &["run", "k"][..],
        &["run", "k", "--no-wait"],
        &["run", "k", "--wait", "0"],
        &["acquire", "k"],
    ] {
        let started = Instant::now();
        let (code, text) = stage.outcome(
            &[
                down,
                &["--", "true"][..if down[0] == "run" { 2 } else { 0 }],
            ]
            .concat(),
        );
        assert_eq!(code, 69, "{text}");
        assert!(started.elapsed() < Duration::from_secs(8), "{text}");
    }
    let wait = ["run", "k", "--wait", "3s", "--", "true"];
    let (code, text) = stage.outcome(&wait);
    assert_eq!(code, 69, "{text}");
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(
        lines[0].starts_with("syncguard: the store cannot be reached: redis at "),
        "{text}"
    );
    assert!(lines[0].ends_with("; waiting for 3s at most"), "{text}");

    let wait = ["run", "k", "--wait", "10m", "--", "touch", "ran"];
    let mut waiting = stage.start(&wait);
    thread::sleep(Duration::from_secs(2));
    assert!(waiting.0.try_wait().unwrap().is_none());
    stage.server.as_mut().unwrap().restart().unwrap();
    assert_eq!(waiting.code(), 0);
    assert!(stage.path("ran").exists());
}

#[test]
fn a_signal_ends_a_wait_for_a_store_that_is_down() {
    let mut stage = Stage::redis();
    stage.server.as_mut().unwrap().kill();
    let mut waiting = stage.start_json(&["run", "k", "--wait", "forever", "--", "true"]);
    let mut events = waiting.events();
    let unavailable = events.next().unwrap();
    assert_eq!(unavailable["event"], "unavailable");
    let store = stage.store.replace("redis://", "redis at ");
    assert_eq!(unavailable["store"], store);
    waiting.signal(rustix::process::Signal::TERM);
    assert_eq!(waiting.code(), 143);
    let interrupted = json!({ "event": "interrupted", "signal": 15, "exitCode": 143 });
    assert!(events.eq([interrupted]));
}

#[test]
fn a_signal_ends_a_wait_and_leaves_no_lock() {
    for stage in Stage::each() {
        let script = "echo ready > log; until [ -e stop ]; do sleep 0.05; done";
        let mut holder = stage.start_script("k", &[], script);
        stage.wait_for("log", "ready");
        let mut waiting = stage.start(&["run", "k", "--wait", "forever", "--", "touch", "ran"]);
        thread::sleep(Duration::from_millis(500));
        waiting.signal(rustix::process::Signal::TERM);
        assert_eq!(waiting.code(), 143);
        stage.touch("stop");
        assert_eq!(holder.code(), 0);
        assert!(stage.is_free("k"));
        assert!(!stage.path("ran").exists());
    }
}
