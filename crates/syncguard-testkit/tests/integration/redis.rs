//! A Redis server answers once started, hangs when paused, and keeps its data if it is durable.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use syncguard_testkit::{RedisCluster, RedisServer};

fn ask(port: u16, command: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_millis(500)))?;
    stream.write_all(format!("{command}\r\n").as_bytes())?;
    let mut reply = [0; 256];
    let length = stream.read(&mut reply)?;
    Ok(String::from_utf8_lossy(&reply[..length]).into_owned())
}

#[test]
fn answers_until_dropped() {
    let server = RedisServer::start().unwrap();
    let port = server.port();
    assert_eq!(server.url(), format!("redis://127.0.0.1:{port}"));
    assert_eq!(ask(port, "PING").unwrap(), "+PONG\r\n");
    drop(server);
    let refused = ask(port, "PING").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn servers_are_apart() {
    let (one, other) = (RedisServer::start().unwrap(), RedisServer::start().unwrap());
    assert_ne!(one.port(), other.port());
    assert_eq!(ask(one.port(), "SET key value").unwrap(), "+OK\r\n");
    assert_eq!(ask(other.port(), "GET key").unwrap(), "$-1\r\n");
}

#[test]
fn a_paused_server_hangs_and_then_goes_on() {
    let server = RedisServer::start().unwrap();
    server.pause().unwrap();
    let silent = ask(server.port(), "PING").unwrap_err();
    assert!(matches!(
        silent.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut
    ));
    server.resume().unwrap();
    assert_eq!(ask(server.port(), "PING").unwrap(), "+PONG\r\n");
}

#[test]
fn a_durable_server_keeps_its_data_through_a_crash() {
    let mut server = RedisServer::start_durable().unwrap();
    let port = server.port();
    assert_eq!(ask(port, "SET key value").unwrap(), "+OK\r\n");
    server.kill();
    server.restart().unwrap();
    assert_eq!(server.port(), port);
    assert_eq!(ask(port, "GET key").unwrap(), "$5\r\nvalue\r\n");
}

#[test]
fn arguments_take_effect() {
    let server = RedisServer::start_with(&["--requirepass", "secret"]).unwrap();
    assert!(ask(server.port(), "PING").unwrap().starts_with("-NOAUTH"));
}

#[test]
fn a_server_that_refuses_to_start_says_why() {
    let error = RedisServer::start_with(&["--no-such-option", "1"]).unwrap_err();
    let text = format!("{error:#}");
    assert!(text.contains("no-such-option"), "{text}");
}

#[test]
fn a_cluster_shares_the_slots() {
    let cluster = RedisCluster::start().unwrap();
    let replies: Vec<_> = cluster
        .nodes()
        .iter()
        .map(|node| ask(node.port(), "GET key").unwrap())
        .collect();
    let at_home = replies.iter().filter(|reply| *reply == "$-1\r\n");
    let elsewhere = replies.iter().filter(|reply| reply.starts_with("-MOVED"));
    assert_eq!((at_home.count(), elsewhere.count()), (1, 2), "{replies:?}");
}
