//! A server stops with the process that started it, and not with the thread that started it.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use syncguard_testkit::{RedisServer, shared_redis_url};

fn refuses(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_err()
}

fn refuses_soon(port: u16) -> bool {
    let started = Instant::now();
    while !refuses(port) {
        if started.elapsed() > Duration::from_secs(10) {
            return false;
        }
        thread::sleep(Duration::from_millis(10));
    }
    true
}

#[test]
fn a_killed_process_takes_its_server_with_it() {
    let mut holder = Command::new(env!("CARGO_BIN_EXE_hold-redis"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(holder.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let port = line.trim().parse().unwrap();
    assert!(!refuses(port));
    holder.kill().unwrap();
    holder.wait().unwrap();
    assert!(refuses_soon(port), "the server lives on");
}

#[test]
fn a_panic_takes_the_server_with_it() {
    let (send, port) = std::sync::mpsc::channel();
    let panicked = thread::spawn(move || {
        let server = RedisServer::start().unwrap();
        send.send(server.port()).unwrap();
        panic!("on purpose");
    });
    let port = port.recv().unwrap();
    panicked.join().unwrap_err();
    assert!(refuses(port));
}

#[test]
fn a_shared_server_outlives_the_thread_that_asked_first() {
    let url = thread::spawn(|| shared_redis_url().unwrap())
        .join()
        .unwrap();
    thread::sleep(Duration::from_millis(200));
    assert_eq!(shared_redis_url().unwrap(), url);
    let address = url.strip_prefix("redis://").unwrap();
    TcpStream::connect(address).unwrap();
}
