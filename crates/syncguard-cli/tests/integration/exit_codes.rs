//! Each ending has its own documented exit code.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

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

#[test]
fn a_key_that_someone_else_holds() {
    for stage in Stage::each() {
        // Its process has ended: the lease alone counts.
        let (code, _) = stage.outcome(&["acquire", "k", "--ttl", "10m"]);
        assert_eq!(code, 0);
        for options in [&["--no-wait"][..], &["--wait", "300ms"], &["--wait", "0"]] {
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
    for arguments in [&["--help"][..], &["run", "--help"], &["--version"], &["-h"]] {
        let (code, _) = stage.outcome(arguments);
        assert_eq!(code, 0, "{arguments:?}");
    }
}
