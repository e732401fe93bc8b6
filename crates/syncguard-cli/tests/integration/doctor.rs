//! `syncguard doctor` on real servers: what it prints, and how it ends.

use std::fs;
use std::process::{Command, Output};

use syncguard_testkit::{FirestoreEmulator, PostgresServer, PrivateCa, RedisServer};

use crate::common::Stage;

const PASSWORD: &str = "correct%20horse";
const DECODED: &str = "correct horse";

fn doctor(arguments: &[&str]) -> (Output, String) {
    doctor_with(arguments, &[])
}

fn doctor_with(arguments: &[&str], environment: &[(&str, &str)]) -> (Output, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_syncguard"));
    for variable in ["SYNCGUARD_STORE", "FIRESTORE_EMULATOR_HOST"] {
        command.env_remove(variable);
    }
    command.envs(environment.iter().copied());
    let output = command.arg("doctor").args(arguments).output().unwrap();
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    let text = String::from_utf8(text).unwrap();
    for secret in [PASSWORD, DECODED] {
        assert!(!text.contains(secret), "{text}");
    }
    (output, text)
}

#[test]
fn a_store_in_order_passes() {
    let server = RedisServer::start_durable().unwrap();
    let (output, text) = doctor(&["--store", &server.url()]);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("in order"), "{text}");
}

#[test]
fn an_error_fails_and_comes_with_its_fix() {
    let arguments = [
        "--requirepass",
        DECODED,
        "--maxmemory-policy",
        "volatile-lru",
    ];
    let server = RedisServer::start_with(&arguments).unwrap();
    let url = format!("redis://:{PASSWORD}@127.0.0.1:{}/3", server.port());
    let (output, text) = doctor(&["--store", &url]);
    assert_eq!(output.status.code(), Some(1), "{text}");
    let error = text.find("error [redis-persistence-off]").expect(&text);
    let info = text.find("info [redis-evicts-locks]").expect(&text);
    assert!(error < info, "{text}");
    assert!(text.contains("fix: set `appendonly yes`"), "{text}");
    assert!(text.contains("errors: 1, warnings: 0"), "{text}");
}

#[test]
fn stores_with_tls_and_a_private_authority() {
    let ca = PrivateCa::new().unwrap();
    let file = ca.file().display().to_string();
    let redis = RedisServer::start_tls(&ca).unwrap();
    let (_, text) = doctor(&["--store", &redis.url()]);
    assert!(text.contains("ServiceUnavailable"), "{text}");
    let trusting = [("SSL_CERT_FILE", file.as_str())];
    let (_, text) = doctor_with(&["--store", &redis.url()], &trusting);
    assert!(text.contains("[redis-persistence-off]"), "{text}");

    let postgres = PostgresServer::start_tls(&ca).unwrap();
    let url = format!("{}?sslmode=verify-full&sslrootcert={file}", postgres.url());
    let (_, text) = doctor(&["--store", &url]);
    assert!(text.contains("[postgres-table-missing]"), "{text}");
}

#[test]
fn firestore_by_its_emulators_address() {
    let emulator = FirestoreEmulator::start().unwrap();
    let host = emulator.host();
    let url = format!("firestore://{host}/p");
    // Its first answers take longer than an operation may.
    let soon = |ask: &dyn Fn() -> (Output, String)| {
        let mut answers = (0..20).map(|_| ask());
        answers.find(|(_, text)| text.contains("in order"))
    };
    let variable = vec![("FIRESTORE_EMULATOR_HOST", host.as_str())];
    let elsewhere = vec![("FIRESTORE_EMULATOR_HOST", "127.0.0.1:1")];
    for (arguments, environment) in [
        (vec!["--store", &url], vec![]),
        (vec!["--store", &url], elsewhere),
        (vec!["--store", "firestore://p"], variable),
    ] {
        let found = soon(&|| doctor_with(&arguments, &environment));
        let (output, text) = found.expect("a store in order");
        assert!(output.status.success(), "{text}");
        let first = format!("firestore at {host}, an emulator\n");
        assert!(text.contains(&first), "{text}");
    }
}

#[test]
fn an_option_that_the_store_does_not_have_is_refused() {
    let hosts = [
        "redis://127.0.0.1:1",
        "firestore://127.0.0.1:1/p",
        "postgres://127.0.0.1:1/p",
    ];
    let [redis, firestore, postgres] = hosts;
    for (url, option) in [
        (redis, &["--locks", "x"][..]),
        (redis, &["--fence-counters", "x"]),
        (redis, &["--transaction-pooler"]),
        (redis, &["--server-time"]),
        (firestore, &["--store-prefix", "x"]),
        (firestore, &["--transaction-pooler"]),
        (postgres, &["--server-time"]),
        ("sqlite:locks.db", &["--server-time"]),
    ] {
        let (output, text) = doctor(&[&["--store", url], option].concat());
        assert_eq!(output.status.code(), Some(64), "{text}");
        assert!(text.contains(&format!("has no {}", option[0])), "{text}");
    }
}

#[test]
fn warnings_pass_and_options_reach_the_store() {
    // Without fsync, as the test servers are.
    let server = PostgresServer::start().unwrap();
    let (output, text) = doctor(&["--store", &server.url()]);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert_eq!(text.matches("postgres-table-missing").count(), 2, "{text}");
    assert!(text.contains("`syncguard acquire` (in Rust"), "{text}");
    let (_, text) = doctor(&["--store", &server.url(), "--locks", "jobs.locks"]);
    assert!(text.contains(r#""jobs"."locks""#), "{text}");

    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let backend = syncguard_postgres::PostgresBackend::connect(&server.url())
            .await
            .unwrap();
        backend.setup_schema().await.unwrap();
    });
    let (output, text) = doctor(&["--store", &server.url()]);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("warning [postgres-fsync-off]"), "{text}");
}

#[test]
fn a_store_that_cannot_be_asked_fails_and_says_why() {
    let mut server = RedisServer::start().unwrap();
    server.kill();
    let url = format!("redis://user:{PASSWORD}@127.0.0.1:{}", server.port());
    for (url, code, said) in [
        (url.as_str(), 69, "ServiceUnavailable"),
        (
            "redis://user:correct%20horse@host:port",
            64,
            "InvalidArgument",
        ),
        (
            "postgres://user:correct%20horse@host:port",
            64,
            "InvalidArgument",
        ),
        ("http://user:correct%20horse@host", 64, "begins with one of"),
        ("correct%20horse", 64, "a store is a URL"),
        ("sqlite:/nowhere/locks.db", 64, "there is no store yet"),
    ] {
        let (output, text) = doctor(&["--store", url]);
        assert_eq!(output.status.code(), Some(code), "{text}");
        assert!(text.contains(said), "{text}");
    }
}

#[test]
fn a_file_is_checked_and_not_created_or_filled() {
    let stage = Stage::sqlite();
    let (code, text) = stage.outcome(&["doctor"]);
    assert_eq!(code, 64, "{text}");
    assert!(!stage.path("locks.db").exists());

    // An SQLite database without tables.
    stage.touch("locks.db");
    let (code, text) = stage.outcome(&["doctor"]);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("error [sqlite-table-missing]"), "{text}");
    assert_eq!(stage.path("locks.db").metadata().unwrap().len(), 0);

    assert_eq!(stage.outcome(&["run", "k", "--", "true"]).0, 0);
    let output = stage.syncguard(&["doctor", "--json"]);
    assert!(output.status.success());
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(value["errors"], 0);
    assert!(value["findings"].is_array(), "{value}");
}

#[test]
fn every_code_is_explained() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let page = fs::read_to_string(format!("{root}/docs/operations.md")).unwrap();
    let sources = [
        ("memory", "backend.rs"),
        ("redis", "preflight.rs"),
        ("redis", "preflight/server_info.rs"),
        ("postgres", "preflight.rs"),
        ("postgres", "preflight/pooler.rs"),
        ("postgres", "preflight/tables.rs"),
        ("firestore", "preflight.rs"),
        ("sqlite", "preflight.rs"),
    ];
    let mut explained = 0;
    for (name, source) in sources {
        let path = format!("{root}/crates/syncguard-{name}/src/{source}");
        let text = fs::read_to_string(path).unwrap();
        for literal in text.split('"').skip(1).step_by(2) {
            let is_code = literal.starts_with(&format!("{name}-"))
                && literal.bytes().all(|b| b.is_ascii_lowercase() || b == b'-');
            if is_code {
                assert!(page.contains(&format!("`{literal}`")), "{literal}");
                explained += 1;
            }
        }
    }
    assert!(explained >= 34, "{explained} codes were found");
}
