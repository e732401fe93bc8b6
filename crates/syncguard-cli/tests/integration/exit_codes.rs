//! Each ending has its own documented exit code.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use serde_json::{Value, json};

use crate::common::Stage;

#[test]
fn the_commands_own_code_is_passed_on() {
    for stage in Stage::each() {
        for code in [0, 1, 75, 255] {
            let script = format!("exit {code}");
            let (ended, text) = stage.outcome(&["run", "k", "--", "sh", "-c", &script]);
            assert_eq!((ended, text.as_str()), (code, ""), "{}", stage.store);
        }
        let (code, _) = stage.outcome(&["run", "k", "--", "sh", "-c", "kill -TERM $$"]);
        assert_eq!(code, 143);
        assert!(stage.is_free("k"));
    }
}

#[test]
fn a_command_that_cannot_be_started() {
    let stage = Stage::sqlite();
    let (code, text) = stage.outcome(&["run", "k", "--", "no-such-command"]);
    assert_eq!(code, 127);
    assert_eq!(text, "syncguard: no-such-command: command not found\n");

    let file = stage.path("plain");
    fs::write(&file, "#!/bin/sh\n").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    for file in [file, stage.folder.path().to_path_buf()] {
        let (code, text) = stage.outcome(&["run", "k", "--", file.to_str().unwrap()]);
        assert_eq!(code, 126, "{text}");
        assert!(text.contains("cannot be executed"), "{text}");
    }
    assert!(stage.is_free("k"));
}

/// What `--json` prints on standard error: an object a line, the last one with the exit code.
fn events(stage: &Stage, arguments: &[&str], code: i32) -> Vec<Value> {
    let output = stage.syncguard(&[&["--json"][..], arguments].concat());
    assert_eq!(
        output.status.code(),
        Some(code),
        "{arguments:?}: {output:?}"
    );
    assert!(output.stdout.is_empty(), "{arguments:?}: {output:?}");
    let text = String::from_utf8(output.stderr).unwrap();
    let events: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect(line))
        .collect();
    let last = events.last().expect("an event");
    assert_eq!(last["exitCode"], code, "{text}");
    events
}

#[test]
fn a_program_is_told_how_a_run_ended() {
    for stage in Stage::each() {
        let run = |script: &str, code| {
            let arguments = ["run", "k", "--", "sh", "-c", script];
            events(&stage, &arguments, code)
        };
        let told = |exit: i32, status: Option<i32>, signal: Option<i32>, lost: bool| {
            json!({
                "event": "ended",
                "exitCode": exit,
                "status": status,
                "signal": signal,
                "lost": lost,
            })
        };
        assert_eq!(run("exit 3", 3), [told(3, Some(3), None, false)]);
        assert_eq!(
            run("kill -TERM $$", 143),
            [told(143, None, Some(15), false)]
        );
        let release = format!(
            "{} release \"$SYNCGUARD_LOCK_ID\" > released",
            env!("CARGO_BIN_EXE_syncguard")
        );
        let lost = run(&release, 76);
        assert_eq!(lost[0]["event"], "lost");
        assert_eq!(lost[0]["graceMs"], Value::Null, "the command has ended");
        assert_eq!(lost[1], told(76, Some(0), None, true));

        assert_eq!(stage.outcome(&["acquire", "k", "--ttl", "10m"]).0, 0);
        let busy = events(&stage, &["run", "k", "--no-wait", "--", "true"], 75);
        assert_eq!(busy[0]["event"], "error");
    }
    let stage = Stage::sqlite();
    fs::write(stage.path("plain"), "").unwrap();
    for (command, code) in [("no-such-command", 127), ("./plain", 126)] {
        let told = events(&stage, &["run", "k", "--", command], code);
        assert_eq!(told.len(), 2, "{told:?}");
        assert_eq!(told[0]["event"], "error");
        assert_eq!(told[0]["exitCode"], code);
        assert_eq!(told[1]["status"], code);
    }
}

#[test]
fn a_program_is_told_why_a_lock_was_not_released() {
    let mut stage = Stage::redis();
    let script = "echo ready > log; until [ -e stop ]; do sleep 0.05; done; exit 3";
    let mut syncguard = stage.start_json(&["run", "k", "--ttl", "10m", "--", "sh", "-c", script]);
    stage.wait_for("log", "ready");
    let (_, lock) = stage.outcome(&["--json", "status", "k"]);
    let lock: Value = serde_json::from_str(&lock).unwrap();
    stage.server.as_mut().unwrap().kill();
    stage.touch("stop");
    let events: Vec<_> = syncguard.events().collect();
    assert_eq!(syncguard.code(), 3);
    assert_eq!(events.len(), 2, "{events:?}");
    assert_eq!(events[0]["event"], "unreleased");
    assert_eq!(events[0]["expiresAtMs"], lock["lock"]["expiresAtMs"]);
    assert!(events[0]["error"]["code"].is_string(), "{events:?}");
    assert_eq!(events[1]["event"], "ended");
    assert_eq!(events[1]["lost"], false);
}

#[test]
fn a_key_that_someone_else_holds() {
    for stage in Stage::each() {
        // Its process has ended: the lease alone counts.
        let (code, _) = stage.outcome(&["acquire", "k", "--ttl", "10m"]);
        assert_eq!(code, 0);
        for options in [
            &["--no-wait"][..],
            &["--quiet", "--wait", "3s"],
            &["--wait", "0"],
        ] {
            let touch = ["--", "touch", "ran"];
            let busy = [&["run", "k"], options, &touch].concat();
            let (code, text) = stage.outcome(&busy);
            assert_eq!(code, 75, "{text}");
            assert!(text.starts_with("syncguard: busy: "), "{text}");
            let chosen = ["--conflict-exit-code", "0"];
            let (code, text) = stage.outcome(&[&["run", "k"], options, &chosen, &touch].concat());
            assert_eq!(code, 0, "{text}");
        }
        assert!(!stage.path("ran").exists());
    }
}

#[test]
fn a_store_that_cannot_be_reached() {
    let mut stage = Stage::redis();
    stage.server.as_mut().unwrap().kill();
    let password = "correct%20horse";
    stage.store = stage.store.replace("//", &format!("//user:{password}@"));
    for arguments in [
        &["run", "k", "--", "touch", "ran"][..],
        &["status", "k"],
        &["acquire", "k"],
        &["purge"],
        &["doctor"],
    ] {
        for form in [&[][..], &["--json"]] {
            let (code, text) = stage.outcome(&[form, arguments].concat());
            assert_eq!(code, 69, "{text}");
            assert!(text.contains("redis at 127.0.0.1:"), "{text}");
            assert!(!text.contains("correct"), "{text}");
        }
    }
    assert!(!stage.path("ran").exists());

    let stage = Stage {
        store: "sqlite:/nowhere/locks.db".to_owned(),
        ..Stage::sqlite()
    };
    let (code, text) = stage.outcome(&["run", "k", "--", "true"]);
    assert_eq!(code, 64, "{text}");
    assert!(text.contains("create it"), "{text}");
}

#[test]
fn credentials_that_the_store_refuses() {
    let mut stage = Stage::redis();
    let server = syncguard_testkit::RedisServer::start_with(&["--requirepass", "secret"]).unwrap();
    stage.store = format!("redis://:wrong@127.0.0.1:{}", server.port());
    let (code, text) = stage.outcome(&["run", "k", "--", "true"]);
    assert_eq!(code, 77, "{text}");
    assert!(!text.contains("wrong"), "{text}");
}

#[test]
fn a_call_that_is_wrong() {
    let stage = Stage::sqlite();
    let long = "k".repeat(513);
    for (arguments, said) in [
        (&["run", "k"][..], "COMMAND"),
        (&["run", "k", "true"], "syncguard run KEY -- COMMAND"),
        (&["run", "k", "--ttl", "30", "--", "true"], "30s"),
        (&["run", "k", "--ttl", "0", "--", "true"], "1 ms"),
        (&["run", "k", "--wait", "soon", "--", "true"], "forever"),
        (&["run", "", "--", "true"], "key"),
        (&["run", &long, "--", "true"], "512"),
        (
            &["run", "k", "--wait", "1s", "--no-wait", "--", "true"],
            "--no-wait",
        ),
        (&["release"], "LOCK_ID"),
        (&["release", "short"], "22 characters"),
        (&["status"], "KEY"),
        (
            &["--store", "http://user:secret@host", "status", "k"],
            "redis://",
        ),
        (&["--store", "locks.db", "status", "k"], "sqlite:PATH"),
        (
            &["--store", "redis:/secret", "status", "k"],
            "redis://HOST:PORT",
        ),
        (
            &["--store", "postgres:/user:secret@host/db", "status", "k"],
            "postgres://USER@HOST/DATABASE",
        ),
        (
            &["--store", "redis-cluster://127.0.0.1:1", "status", "k"],
            "--store-prefix '{syncguard}'",
        ),
        (&["frobnicate"], "frobnicate"),
        (&[], "Usage"),
    ] {
        let (code, text) = stage.outcome(arguments);
        assert_eq!(code, 64, "{arguments:?}: {text}");
        assert!(text.contains(said), "{arguments:?}: {text}");
        assert!(!text.contains("secret"), "{text}");
    }
    for arguments in [
        &["run", "k"][..],
        &["run", "k", "true"],
        &["run", "k", "--ttl", "30", "--", "true"],
        &["release"],
        &["frobnicate"],
        &[],
        &["--store", "redis:/secret", "status", "k"],
    ] {
        let [event] = &events(&stage, arguments, 64)[..] else {
            panic!("{arguments:?}");
        };
        assert_eq!(event["event"], "error", "{arguments:?}");
        assert!(
            event["message"]
                .as_str()
                .is_some_and(|text| !text.is_empty())
        );
    }
    // That is the command's.
    let output = stage.syncguard(&["run", "k", "true", "--", "--json"]);
    assert!(output.stderr.starts_with(b"error: "), "{output:?}");
    for arguments in [&["--help"][..], &["run", "--help"], &["--version"], &["-h"]] {
        let (code, _) = stage.outcome(arguments);
        assert_eq!(code, 0, "{arguments:?}");
    }
}
