//! The commands of one operation each.

use std::collections::HashSet;
use std::time::Duration;

use serde_json::Value;
use syncguard_core::Locks;
use syncguard_sqlite::{SqliteBackend, SqliteOptions, Synchronous};
use syncguard_testkit::{FirestoreEmulator, PostgresServer};

use crate::common::{Stage, eventually};
use crate::terminal::Terminal;

fn json(stage: &Stage, arguments: &[&str]) -> (i32, Value) {
    let output = stage.syncguard(&[&["--json"][..], arguments].concat());
    let value = serde_json::from_slice(&output.stdout);
    (output.status.code().unwrap(), value.unwrap_or_default())
}

#[test]
fn the_life_of_a_lock() {
    for stage in Stage::each() {
        let output = stage.syncguard(&["acquire", "k", "--ttl", "4m50s"]);
        assert!(output.status.success());
        let id = String::from_utf8(output.stdout).unwrap();
        let id = id.strip_suffix('\n').unwrap();
        assert_eq!(id.len(), 22);

        let (code, text) = stage.outcome(&["status", "k"]);
        assert_eq!(code, 0);
        assert!(
            text.contains("000000000000001") && text.contains("4m "),
            "{text}"
        );
        assert!(!text.contains(id), "{text}");
        let (_, text) = stage.outcome(&["status", "--id", id, "--raw"]);
        assert!(text.contains(id) && text.ends_with("  k\n"), "{text}");

        let (code, value) = json(&stage, &["extend", id, "--ttl", "1h"]);
        assert_eq!((code, &value["ok"]), (0, &Value::Bool(true)));
        let (code, value) = json(&stage, &["status", "k"]);
        assert_eq!((code, &value["held"]), (0, &Value::Bool(true)));
        let lock = &value["lock"];
        assert_eq!(lock["fence"], "000000000000001");
        assert_eq!(lock["keyHash"], syncguard_core::hash_key("k").to_string());
        assert!(lock.get("key").is_none() && lock.get("lockId").is_none());
        let left = lock["expiresAtMs"].as_i64().unwrap() - lock["acquiredAtMs"].as_i64().unwrap();
        assert!(left >= 3_600_000, "{left}");

        let (code, _) = stage.outcome(&["release", id]);
        assert_eq!(code, 0);
        for arguments in [
            &["release", id][..],
            &["extend", id],
            &["status", "--id", id],
        ] {
            assert_eq!(stage.outcome(arguments).0, 1, "{arguments:?}");
        }
        assert!(stage.is_free("k"));
    }
}

#[test]
fn the_command_has_its_streams_and_knows_its_lock() {
    use std::io::Write as _;
    use std::process::Stdio;

    for stage in Stage::each() {
        let script = "cat; echo to standard error >&2; echo \"$SYNCGUARD_KEY\"; \
                      exec \"$0\" status --raw --id \"$SYNCGUARD_LOCK_ID\"";
        let program = env!("CARGO_BIN_EXE_syncguard");
        let mut command = stage.command(&["run", "a key", "--", "sh", "-c", script, program]);
        let streams = [Stdio::piped(), Stdio::piped(), Stdio::piped()];
        let [stdin, stdout, stderr] = streams;
        let mut run = command
            .stdin(stdin)
            .stdout(stdout)
            .stderr(stderr)
            .spawn()
            .unwrap();
        let mut input = run.stdin.take().unwrap();
        input.write_all(b"from standard input\n").unwrap();
        drop(input);
        let output = run.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert_eq!(output.stderr, b"to standard error\n");
        let text = String::from_utf8(output.stdout).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[..2], ["from standard input", "a key"], "{text}");
        assert!(lines[3].starts_with("000000000000001 "), "{text}");
        assert!(lines[3].ends_with("  a key"), "{text}");
    }
}

#[test]
fn the_other_stores_are_set_up_by_the_first_run() {
    let (postgres, emulator) = (
        PostgresServer::start().unwrap(),
        FirestoreEmulator::start().unwrap(),
    );
    let stage = Stage {
        store: postgres.url(),
        ..Stage::sqlite()
    };
    let (code, text) = stage.outcome(&["status", "k"]);
    assert_eq!(code, 64, "{text}");
    assert!(text.contains("`syncguard run`"), "{text}");

    let firestore = format!("firestore://{}/p", emulator.host());
    for store in [postgres.url(), firestore] {
        let stage = Stage {
            store,
            ..Stage::sqlite()
        };
        // The emulator's first answers take longer than an operation may.
        let run = ["run", "k", "--", "sh", "-c", "echo $SYNCGUARD_FENCE > log"];
        eventually("a first run", || stage.outcome(&run).0 == 0);
        assert_eq!(stage.lines("log")[0].len(), 15);
        assert!(stage.is_free("k"));
        assert_eq!(stage.outcome(&["acquire", "k", "--ttl", "10m"]).0, 0);
        assert_eq!(
            stage.outcome(&["run", "k", "--no-wait", "--", "true"]).0,
            75
        );
        let (code, text) = stage.outcome(&["list", "--raw"]);
        assert_eq!(code, 0, "{text}");
        assert!(text.ends_with("  k\n"), "{text}");
        assert_eq!(stage.outcome(&["release", "--force", "k", "--yes"]).0, 0);
        assert_eq!(stage.outcome(&["purge"]).0, 0);
    }
}

#[test]
fn acquire_prints_json() {
    let stage = Stage::sqlite();
    let (code, value) = json(&stage, &["acquire", "k"]);
    assert_eq!(code, 0);
    assert_eq!(value["fence"], "000000000000001");
    let id = value["lockId"].as_str().unwrap();
    let (code, value) = json(&stage, &["release", id]);
    assert_eq!((code, &value["ok"]), (0, &Value::Bool(true)));
}

#[test]
fn a_release_by_force_needs_a_yes() {
    for stage in Stage::each() {
        assert_eq!(stage.outcome(&["acquire", "k", "--ttl", "10m"]).0, 0);
        let (code, text) = stage.outcome(&["release", "--force", "k"]);
        assert_eq!(code, 64, "{text}");
        assert!(text.contains("--yes"), "{text}");
        assert!(!stage.is_free("k"));
        assert_eq!(stage.outcome(&["release", "--force", "k", "--yes"]).0, 0);
        assert!(stage.is_free("k"));
        assert_eq!(stage.outcome(&["release", "--force", "k", "--yes"]).0, 1);
    }
}

#[test]
fn a_release_by_force_shows_the_lock_and_asks() {
    for stage in Stage::each() {
        assert_eq!(stage.outcome(&["acquire", "k", "--ttl", "9m50s"]).0, 0);
        for (answer, code) in [("n", 1), ("", 1), ("y", 0)] {
            let mut terminal = Terminal::start(&stage, &["release", "--force", "k"]);
            let said = terminal.read_until("[y/N]");
            assert!(said.contains("000000000000001"), "{said}");
            assert!(said.contains("9m "), "{said}");
            assert!(!stage.is_free("k"));
            terminal.press(&format!("{answer}\n"));
            assert_eq!(terminal.syncguard.code(), code);
            assert_eq!(stage.is_free("k"), code == 0);
        }
    }
}

#[test]
fn a_release_by_force_leaves_a_lock_that_it_did_not_show() {
    for stage in Stage::each() {
        let output = stage.syncguard(&["acquire", "k", "--ttl", "10m"]);
        let id = String::from_utf8(output.stdout).unwrap();
        let mut terminal = Terminal::start(&stage, &["release", "--force", "k"]);
        terminal.read_until("[y/N]");
        assert_eq!(stage.outcome(&["release", id.trim()]).0, 0);
        assert_eq!(stage.outcome(&["acquire", "k", "--ttl", "10m"]).0, 0);
        terminal.press("y\n");
        assert_eq!(terminal.syncguard.code(), 1);
        assert!(!stage.is_free("k"), "the second lock was not shown");
    }
}

#[test]
fn locks_are_listed() {
    for stage in Stage::each() {
        for key in ["deploy:a", "deploy:b", "report", "deploy"] {
            assert_eq!(stage.outcome(&["acquire", key, "--ttl", "10m"]).0, 0);
        }
        let (code, text) = stage.outcome(&["list"]);
        assert_eq!(code, 0, "{text}");
        assert_eq!(text.lines().count(), 5, "{text}");
        let hash = syncguard_core::hash_key("report").to_string();
        assert!(text.contains(&hash) && !text.contains("report"), "{text}");

        let (code, text) = stage.outcome(&["list", "--prefix", "deploy:", "--raw"]);
        assert_eq!(code, 0, "{text}");
        let mut keys: Vec<_> = text
            .lines()
            .filter_map(|line| line.split_whitespace().last())
            .collect();
        keys.sort_unstable();
        assert_eq!(keys, ["KEY", "deploy:a", "deploy:b"]);

        let output = stage.syncguard(&["--json", "list", "--prefix", "deploy"]);
        let text = String::from_utf8(output.stdout).unwrap();
        let locks: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(locks.len(), 3);
        assert!(locks.iter().all(|lock| lock["fence"] == "000000000000001"));

        let output = stage.syncguard(&["--json", "list", "--prefix", "nobody"]);
        assert!(output.status.success() && output.stdout.is_empty());
    }
}

#[test]
fn more_locks_than_a_page_are_listed() {
    let stage = Stage::sqlite();
    let path = stage.path("locks.db");
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let options = SqliteOptions::new().synchronous(Synchronous::Normal);
        let backend = SqliteBackend::connect_with(path, options).await.unwrap();
        let locks = Locks::new(backend);
        for number in 0..1100 {
            let held = locks
                .lock(format!("key:{number}"))
                .ttl(Duration::from_secs(600));
            drop(held.await.unwrap().detach());
        }
    });
    let output = stage.syncguard(&["--json", "--raw", "list"]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let keys: HashSet<String> = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .map(|lock| lock["key"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(keys.len(), 1100);
}

#[test]
fn expired_locks_are_purged() {
    let stage = Stage::sqlite();
    assert_eq!(stage.outcome(&["acquire", "short", "--ttl", "2s"]).0, 0);
    assert_eq!(stage.outcome(&["acquire", "long", "--ttl", "10m"]).0, 0);
    let mut purged = 0;
    eventually("the end of a lease", || {
        purged += json(&stage, &["purge"]).1["purged"].as_u64().unwrap();
        purged > 0
    });
    assert_eq!(purged, 1);
    assert!(!stage.is_free("long"));
}

#[test]
fn the_default_store_is_in_the_users_state_folder() {
    use std::os::unix::fs::PermissionsExt as _;

    let stage = Stage::sqlite();
    let home = stage.path("home");
    std::fs::create_dir(&home).unwrap();
    let (inside, xdg) = (home.join(".local/state"), stage.path("xdg"));
    for (state, folder) in [(None, inside), (Some(&xdg), xdg.clone())] {
        let mut command = stage.command(&["run", "k", "--", "true"]);
        command
            .env_remove("SYNCGUARD_STORE")
            .env("HOME", &home)
            .env_remove("XDG_STATE_HOME");
        if let Some(state) = state {
            command.env("XDG_STATE_HOME", state);
        }
        assert!(command.status().unwrap().success());
        let folder = folder.join("syncguard");
        assert!(folder.join("locks.db").is_file());
        let mode = folder.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }
}

/// Nothing is created by looking: no file, no folder, no table.
#[test]
fn a_store_that_does_not_exist_is_only_created_by_acquiring() {
    let id = "A".repeat(22);
    let looks = [
        &["status", "k"][..],
        &["status", "--id", &id],
        &["list"],
        &["extend", &id],
        &["release", &id],
        &["release", "--force", "k", "--yes"],
        &["purge"],
        &["doctor"],
    ];
    let stage = Stage::sqlite();
    let home = stage.path("home");
    std::fs::create_dir(&home).unwrap();
    for look in looks {
        let mut command = stage.command(look);
        command
            .env_remove("SYNCGUARD_STORE")
            .env_remove("XDG_STATE_HOME")
            .env("HOME", &home);
        let output = command.output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(64), "{look:?}: {text}");
        assert!(text.contains("no store yet"), "{look:?}: {text}");
        assert!(text.contains("`syncguard run`"), "{look:?}: {text}");
        assert_eq!(home.read_dir().unwrap().count(), 0, "{look:?}");

        let (code, text) = stage.outcome(look);
        assert_eq!(code, 64, "{look:?}: {text}");
        assert!(!stage.path("locks.db").exists(), "{look:?}");
    }
    // A database without tables.
    stage.touch("locks.db");
    for look in looks {
        let (code, text) = stage.outcome(look);
        let expected = if look[0] == "doctor" { 1 } else { 64 };
        assert_eq!(code, expected, "{look:?}: {text}");
        assert_eq!(stage.path("locks.db").metadata().unwrap().len(), 0);
    }
}

/// What a script gets that forgot to set a variable.
#[test]
fn an_empty_store_and_a_conflict_that_looks_like_a_lock_are_wrong_usage() {
    let stage = Stage::sqlite();
    for arguments in [
        &["--store", "", "run", "k", "--", "true"][..],
        &["acquire", "k", "--conflict-exit-code", "0"],
    ] {
        let (code, text) = stage.outcome(arguments);
        assert_eq!(code, 64, "{text}");
    }
    let mut command = stage.command(&["run", "k", "--", "true"]);
    command.env("SYNCGUARD_STORE", "");
    assert_eq!(command.status().unwrap().code(), Some(64));
}

#[test]
fn completions_and_the_manual_are_printed() {
    let stage = Stage::sqlite();
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let (code, text) = stage.outcome(&["completions", shell]);
        assert_eq!(code, 0);
        assert!(text.contains("conflict-exit-code"), "{shell}");
    }
    let (code, text) = stage.outcome(&["man"]);
    assert_eq!(code, 0);
    assert!(
        text.contains(".TH syncguard 1") && text.contains("syncguard\\-run"),
        "{text}"
    );
    for heading in ["EXIT CODES", "ENVIRONMENT VARIABLES", "UNITS"] {
        assert!(
            text.contains(&format!(".SH \"{heading}\""))
                || text.contains(&format!(".SH {heading}")),
            "{text}"
        );
    }
    let (code, text) = stage.outcome(&["man", "run"]);
    assert_eq!(code, 0);
    assert!(
        text.contains(".TH syncguard-run 1") && text.contains("grace"),
        "{text}"
    );
    assert_eq!(stage.outcome(&["man", "walk"]).0, 64);
}

#[test]
fn help_fits_into_eighty_columns_and_says_how_each_command_ends() {
    let stage = Stage::sqlite();
    let commands = [
        "run", "status", "list", "acquire", "extend", "release", "purge", "doctor",
    ];
    for name in [&[""][..], &commands].concat() {
        for form in ["-h", "--help"] {
            let mut command = stage.command(&[name, form][usize::from(name.is_empty())..]);
            let output = command.env("COLUMNS", "80").output().unwrap();
            assert!(output.status.success(), "{name}");
            let text = String::from_utf8(output.stdout).unwrap();
            for line in text.lines() {
                assert!(line.chars().count() <= 80, "{name} {form}: {line}");
            }
            let is_full = !name.is_empty() || form == "--help";
            assert_eq!(text.contains("Exit codes:"), is_full, "{name} {form}");
            assert_eq!(text.contains("SYNCGUARD_STORE  "), is_full, "{name} {form}");
        }
    }
}
