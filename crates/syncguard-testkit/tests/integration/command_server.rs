//! A server that the crate does not know can be paused, killed and restarted like the others.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;
use std::{fs, thread};

use syncguard_testkit::{CommandServer, Server};

const LONG: Duration = Duration::from_secs(20);

fn ask(port: u16, command: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_millis(500)))?;
    stream.write_all(format!("{command}\r\n").as_bytes())?;
    let mut reply = [0; 64];
    let length = stream.read(&mut reply)?;
    Ok(String::from_utf8_lossy(&reply[..length]).into_owned())
}

fn durable_redis() -> CommandServer {
    CommandServer::start(
        "redis-server",
        |port, folder| {
            let port = port.to_string();
            let arguments = ["--bind", "127.0.0.1", "--port", &port, "--dir"];
            let mut arguments: Vec<_> = arguments.map(Into::into).into();
            arguments.push(folder.into());
            arguments.extend(["--appendonly", "yes", "--appendfsync", "always"].map(Into::into));
            arguments
        },
        |port| ask(port, "PING").is_ok_and(|answer| answer.starts_with("+PONG")),
        LONG,
    )
    .unwrap()
}

#[test]
fn it_hangs_when_paused_and_keeps_port_and_data_through_a_crash() {
    let mut server = durable_redis();
    let port = server.port();
    assert_eq!(ask(port, "SET key value").unwrap(), "+OK\r\n");

    server.pause().unwrap();
    let silent = ask(port, "PING").unwrap_err();
    assert!(matches!(
        silent.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut
    ));
    server.resume().unwrap();

    server.kill();
    let refused = ask(port, "PING").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    server.restart().unwrap();
    assert_eq!(server.port(), port);
    assert_eq!(ask(port, "GET key").unwrap(), "$5\r\nvalue\r\n");

    drop(server);
    let refused = ask(port, "PING").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn a_program_that_ends_or_is_not_there_is_an_error_that_says_so() {
    let start = |program, arguments: &'static [&str]| {
        let arguments = |_: u16, _: &_| arguments.iter().map(Into::into).collect();
        CommandServer::start(program, arguments, |_| false, LONG)
    };
    let error = start("sh", &["-c", "echo out of order; exit 3"]).unwrap_err();
    assert!(error.to_string().contains("out of order"), "{error:#}");
    let error = start("no-such-server", &[]).unwrap_err();
    assert!(format!("{error:#}").contains("no-such-server"), "{error:#}");
}

#[test]
fn a_child_that_starts_during_the_kill_is_killed_too() {
    for round in 0..3 {
        let name = format!("survivors-{}-{round}", std::process::id());
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let script = format!(
            "while :; do (sleep 1; echo >> {}) & sleep 0.002; done",
            file.display()
        );
        let arguments = move |_, _: &Path| vec!["-c".into(), script.clone().into()];
        let mut server = CommandServer::start("sh", arguments, |_| true, LONG).unwrap();
        thread::sleep(Duration::from_millis(200));
        server.kill();
        let lines = || fs::read(&file).map_or(0, |text| text.len());
        let before = lines();
        thread::sleep(Duration::from_secs(2));
        assert_eq!(lines(), before, "children that still ran");
        let _ = fs::remove_file(&file);
    }
}
