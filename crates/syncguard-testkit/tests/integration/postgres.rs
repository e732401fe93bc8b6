//! A PostgreSQL server answers once started, hangs when paused, and keeps its data. A pooler in front
//! of it gives a client another connection with each transaction.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use syncguard_testkit::{PgBouncer, PostgresServer};

/// What `psql` prints for a statement, or its error.
fn ask(url: &str, statement: &str) -> Result<String> {
    let output = Command::new("psql")
        .args([url, "-XAtq", "-c", statement])
        .output()?;
    let errors = String::from_utf8(output.stderr)?;
    ensure!(output.status.success(), errors);
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

#[test]
fn it_answers_until_dropped_and_takes_settings() {
    let server = PostgresServer::start_with(&[("work_mem", "7MB"), ("fsync", "on")]).unwrap();
    let url = server.url();
    assert_eq!(ask(&url, "show work_mem").unwrap(), "7MB");
    assert_eq!(ask(&url, "show fsync").unwrap(), "on");
    drop(server);
    let refused = ask(&url, "select 1").unwrap_err().to_string();
    assert!(refused.contains("refused"), "{refused}");
}

#[test]
fn it_keeps_its_data_through_a_restart_and_a_crash() {
    let mut server = PostgresServer::start().unwrap();
    let url = server.url();
    ask(
        &url,
        "create table words (word text); insert into words values ('kept')",
    )
    .unwrap();
    server.restart().unwrap();
    assert_eq!(ask(&url, "select word from words").unwrap(), "kept");
    server.kill();
    ask(&url, "select 1").unwrap_err();
    server.restart().unwrap();
    assert_eq!(ask(&url, "select word from words").unwrap(), "kept");
}

#[test]
fn a_pause_stops_sessions_that_are_open_too() {
    let server = PostgresServer::start().unwrap();
    let mut session = Command::new("psql")
        .args([&server.url(), "-Xq", "-c", "select pg_sleep(1.5)"])
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let asleep = "select count(*) from pg_stat_activity where wait_event = 'PgSleep'";
    while ask(&server.url(), asleep).unwrap() != "1" {
        thread::sleep(Duration::from_millis(20));
    }
    server.pause().unwrap();
    thread::sleep(Duration::from_secs(2));
    assert_eq!(session.try_wait().unwrap(), None, "the session went on");
    server.resume().unwrap();
    assert!(session.wait().unwrap().success());
}

#[test]
fn the_pooler_takes_a_connection_per_transaction() {
    let server = PostgresServer::start().unwrap();
    let pooler = PgBouncer::start_with(&server, &[("default_pool_size", "1")]).unwrap();
    let url = pooler.url();
    assert_ne!(pooler.port(), server.port());
    // Two sessions at once on one connection: only a pooler in transaction mode can do that.
    let mut idle = Command::new("psql")
        .args([&url, "-XAtq"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut commands = idle.stdin.take().unwrap();
    commands.write_all(b"select 1;\n").unwrap();
    let mut answer = String::new();
    BufReader::new(idle.stdout.take().unwrap())
        .read_line(&mut answer)
        .unwrap();
    assert_eq!(answer, "1\n");
    assert_eq!(ask(&url, "select 2").unwrap(), "2");
    let backends = "select count(*) from pg_stat_activity where client_port is not null \
                    and pid <> pg_backend_pid() and backend_type = 'client backend'";
    assert_eq!(ask(&server.url(), backends).unwrap(), "1");
    drop(commands);
    assert!(idle.wait().unwrap().success());
}
