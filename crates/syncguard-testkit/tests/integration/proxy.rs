//! The fault proxy, in front of a server that echoes.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use syncguard_testkit::{Connections, FaultProxy, Faults, Flow, RedisServer};

/// Long against what passes, short against a test.
const HANGS: Duration = Duration::from_millis(300);

/// A server that sends everything back. The channel has what reached it.
fn echo() -> (u16, mpsc::Receiver<Vec<u8>>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let (arrived, arrivals) = mpsc::channel();
    thread::spawn(move || {
        for client in listener.incoming() {
            let (mut client, arrived) = (client.unwrap(), arrived.clone());
            thread::spawn(move || {
                let mut buffer = [0; 4096];
                while let Ok(length @ 1..) = client.read(&mut buffer) {
                    let _ = arrived.send(buffer[..length].to_vec());
                    let _ = client.write_all(&buffer[..length]);
                }
            });
        }
    });
    (port, arrivals)
}

fn connect(proxy: &FaultProxy) -> TcpStream {
    let stream = TcpStream::connect(proxy.address()).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    stream
}

fn exchange(stream: &mut TcpStream, text: &str) -> std::io::Result<String> {
    stream.write_all(text.as_bytes())?;
    let mut reply = vec![0; text.len()];
    stream.read_exact(&mut reply)?;
    Ok(String::from_utf8_lossy(&reply).into_owned())
}

/// What the client sees of a connection that hangs, or else how it ended.
fn next_event(stream: &mut TcpStream, within: Duration) -> std::io::Result<usize> {
    stream.set_read_timeout(Some(within)).unwrap();
    stream.read(&mut [0; 64])
}

fn hangs(stream: &mut TcpStream) -> bool {
    matches!(next_event(stream, HANGS), Err(error) if error.kind() == ErrorKind::WouldBlock)
}

fn is_reset(stream: &mut TcpStream) -> bool {
    let end = next_event(stream, Duration::from_secs(10));
    matches!(end, Err(error) if error.kind() == ErrorKind::ConnectionReset)
}

#[test]
fn passes_everything_by_default_half_closed_streams_too() {
    let (port, _arrivals) = echo();
    let proxy = FaultProxy::start(port).unwrap();
    let mut stream = connect(&proxy);
    assert_eq!(exchange(&mut stream, "hello").unwrap(), "hello");
    let long = "x".repeat(300_000);
    let mut writes = stream.try_clone().unwrap();
    let sent = long.clone();
    let writer = thread::spawn(move || {
        writes.write_all(sent.as_bytes()).unwrap();
        writes.shutdown(Shutdown::Write).unwrap();
    });
    let mut back = String::new();
    stream.read_to_string(&mut back).unwrap();
    writer.join().unwrap();
    assert!(back == long, "{} of {} bytes", back.len(), long.len());
    assert_eq!(proxy.struck(), Default::default());
}

#[test]
fn delays_each_direction_on_its_own() {
    let (port, _arrivals) = echo();
    let proxy = FaultProxy::start(port).unwrap();
    let mut stream = connect(&proxy);
    let by = Duration::from_millis(150);
    let one_way = Faults {
        replies: Flow::Delay(by),
        ..Faults::NONE
    };
    for (faults, least) in [(one_way, by), (Faults::delay(by), 2 * by)] {
        proxy.set(faults);
        let started = Instant::now();
        assert_eq!(exchange(&mut stream, "late").unwrap(), "late");
        assert!(started.elapsed() >= least, "{:?}", started.elapsed());
    }
    assert_eq!(proxy.struck().delayed, 3);
    proxy.set(Faults::NONE);
    let started = Instant::now();
    exchange(&mut stream, "soon").unwrap();
    assert!(started.elapsed() < by);
}

#[test]
fn a_reset_loses_the_request() {
    let (port, arrivals) = echo();
    let proxy = FaultProxy::start(port).unwrap();
    let mut stream = connect(&proxy);
    exchange(&mut stream, "first").unwrap();
    proxy.set(Faults::RESET);
    let _ = stream.write_all(b"second");
    assert!(is_reset(&mut stream));
    assert_eq!(arrivals.iter().next().unwrap(), b"first");
    assert!(arrivals.recv_timeout(HANGS).is_err(), "it arrived");
    assert_eq!(proxy.struck().reset, 1);
}

#[test]
fn all_connections_can_be_reset_at_once() {
    let (port, _arrivals) = echo();
    let proxy = FaultProxy::start(port).unwrap();
    let mut streams = [connect(&proxy), connect(&proxy)];
    for stream in &mut streams {
        exchange(stream, "up").unwrap();
    }
    proxy.reset_all();
    assert!(streams.iter_mut().all(is_reset));
    assert_eq!(exchange(&mut connect(&proxy), "next").unwrap(), "next");
}

#[test]
fn new_connections_can_lead_to_another_server() {
    let ((first, at_first), (second, at_second)) = (echo(), echo());
    let proxy = FaultProxy::start(first).unwrap();
    let mut before = connect(&proxy);
    assert_eq!(exchange(&mut before, "one").unwrap(), "one");
    proxy.lead_to(second);
    let mut after = connect(&proxy);
    assert_eq!(exchange(&mut after, "two").unwrap(), "two");
    assert_eq!(exchange(&mut before, "three").unwrap(), "three");
    let arrived =
        |arrivals: mpsc::Receiver<Vec<u8>>| arrivals.try_iter().flatten().collect::<Vec<_>>();
    assert_eq!(arrived(at_first), b"onethree");
    assert_eq!(arrived(at_second), b"two");
}

#[test]
fn refuses_and_listens_again_on_the_same_port() {
    let (port, _arrivals) = echo();
    let proxy = FaultProxy::start(port).unwrap();
    let mut stream = connect(&proxy);
    exchange(&mut stream, "up").unwrap();
    proxy.set(Faults::REFUSE);
    assert!(is_reset(&mut stream));
    let started = Instant::now();
    while let Ok(stream) = TcpStream::connect(proxy.address()) {
        drop(stream);
        assert!(started.elapsed() < Duration::from_secs(5), "never refused");
    }
    proxy.set(Faults::NONE);
    let started = Instant::now();
    let mut stream = loop {
        match TcpStream::connect(proxy.address()) {
            Ok(stream) => break stream,
            Err(_) => assert!(started.elapsed() < Duration::from_secs(5), "never back"),
        }
    };
    assert_eq!(exchange(&mut stream, "back").unwrap(), "back");
}

#[test]
fn drops_the_reply_and_hangs_until_lifted() {
    let (port, arrivals) = echo();
    let proxy = FaultProxy::start(port).unwrap();
    let mut stream = connect(&proxy);
    proxy.set(Faults::DROP_REPLY);
    stream.write_all(b"carried out").unwrap();
    assert_eq!(arrivals.recv().unwrap(), b"carried out");
    assert!(hangs(&mut stream));
    stream.write_all(b"this too").unwrap();
    assert_eq!(arrivals.recv().unwrap(), b"this too");
    assert!(hangs(&mut stream));
    proxy.set(Faults::NONE);
    assert!(is_reset(&mut stream), "a stream with a hole went on");
    assert_eq!(proxy.struck().swallowed, 1);
}

#[test]
fn drops_the_reply_and_cuts() {
    let (port, arrivals) = echo();
    let proxy = FaultProxy::start(port).unwrap();
    let mut stream = connect(&proxy);
    proxy.set(Faults::CUT_AT_REPLY);
    stream.write_all(b"carried out").unwrap();
    assert_eq!(arrivals.recv().unwrap(), b"carried out");
    assert!(is_reset(&mut stream));
}

#[test]
fn what_is_held_arrives_piece_by_piece_or_all_of_it_once_lifted() {
    let (port, arrivals) = echo();
    let proxy = FaultProxy::start(port).unwrap();
    let mut stream = connect(&proxy);
    proxy.set(Faults::HOLD_REPLIES);
    for text in [b"first", b"other"] {
        stream.write_all(text).unwrap();
        assert_eq!(arrivals.recv().unwrap(), text, "requests are not held");
        assert!(hangs(&mut stream));
        proxy.let_through(proxy.struck().held);
        let mut reply = [0; 5];
        stream.read_exact(&mut reply).unwrap();
        assert_eq!(&reply, text);
    }
    stream.write_all(b"third").unwrap();
    assert!(hangs(&mut stream));
    proxy.set(Faults::HOLD_REQUESTS);
    assert_eq!(arrivals.recv().unwrap(), b"third");
    stream.write_all(b"fourth").unwrap();
    assert!(arrivals.recv_timeout(HANGS).is_err(), "it was not held");
    proxy.set(Faults::NONE);
    assert_eq!(arrivals.recv().unwrap(), b"fourth");
    let mut replies = [0; 11];
    stream.read_exact(&mut replies).unwrap();
    assert_eq!(&replies, b"thirdfourth");
    assert_eq!(proxy.struck().held, 4);
}

#[test]
fn what_is_held_can_still_be_lost() {
    let (port, arrivals) = echo();
    let proxy = FaultProxy::start(port).unwrap();
    let mut stream = connect(&proxy);
    proxy.set(Faults::HOLD_REPLIES);
    stream.write_all(b"carried out").unwrap();
    assert_eq!(arrivals.recv().unwrap(), b"carried out");
    assert!(hangs(&mut stream));
    proxy.set(Faults::DROP_REPLY);
    assert!(hangs(&mut stream));
    proxy.set(Faults::NONE);
    assert!(is_reset(&mut stream), "it arrived");
    assert_eq!(proxy.struck().swallowed, 1);
}

#[test]
fn half_open_accepts_and_forwards_nothing() {
    let (port, arrivals) = echo();
    let proxy = FaultProxy::start(port).unwrap();
    let mut before = connect(&proxy);
    exchange(&mut before, "up").unwrap();
    assert_eq!(arrivals.recv().unwrap(), b"up");
    proxy.set(Faults::HALF_OPEN);
    let mut after = connect(&proxy);
    for stream in [&mut before, &mut after] {
        stream.write_all(b"into the void").unwrap();
        assert!(hangs(stream));
    }
    assert!(arrivals.try_recv().is_err(), "it arrived");
    assert_eq!(proxy.struck().half_open, 2);
    proxy.set(Faults {
        connections: Connections::Forward,
        ..Faults::NONE
    });
    assert!(is_reset(&mut before) && is_reset(&mut after));
}

#[test]
fn a_missing_server_is_a_reset_not_a_refusal() {
    let (port, _arrivals) = echo();
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let absent = free.local_addr().unwrap().port();
    drop(free);
    assert_ne!(absent, port);
    let proxy = FaultProxy::start(absent).unwrap();
    assert!(is_reset(&mut connect(&proxy)));
}

#[test]
fn a_script_is_delivered_twice_and_answered_once() {
    let server = RedisServer::start().unwrap();
    let proxy = FaultProxy::start(server.port()).unwrap();
    proxy.set(Faults::DUPLICATE);
    let mut stream = connect(&proxy);
    let script = "return redis.call('INCR', 'n')";
    let request = format!(
        "*3\r\n$4\r\nEVAL\r\n${}\r\n{script}\r\n$1\r\n0\r\n",
        script.len()
    );
    for reply in [":2\r\n", ":4\r\n"] {
        stream.write_all(request.as_bytes()).unwrap();
        let mut buffer = [0; 64];
        let length = stream.read(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], reply.as_bytes());
    }
    // What is no script is delivered once.
    stream
        .write_all(b"*2\r\n$4\r\nINCR\r\n$1\r\nn\r\n")
        .unwrap();
    let mut buffer = [0; 64];
    let length = stream.read(&mut buffer).unwrap();
    assert_eq!(&buffer[..length], b":5\r\n");
    assert_eq!(proxy.struck().duplicated, 2);
}

#[test]
fn what_is_no_script_passes_where_scripts_are_doubled() {
    let (port, _arrivals) = echo();
    let proxy = FaultProxy::start(port).unwrap();
    proxy.set(Faults::DUPLICATE);
    assert_eq!(exchange(&mut connect(&proxy), "once").unwrap(), "once");
    assert_eq!(proxy.struck().duplicated, 0);
}

#[test]
fn lost_connections_hang_and_new_ones_work() {
    let (port, _arrivals) = echo();
    let proxy = FaultProxy::start(port).unwrap();
    let mut lost = connect(&proxy);
    assert_eq!(exchange(&mut lost, "before").unwrap(), "before");
    proxy.lose_all();
    let mut new = connect(&proxy);
    assert_eq!(exchange(&mut new, "after").unwrap(), "after");
    lost.write_all(b"lost").unwrap();
    assert!(hangs(&mut lost));
    assert_eq!(exchange(&mut new, "still").unwrap(), "still");
}

#[test]
fn a_reader_sees_what_clients_send_and_can_break_it() {
    let (port, _arrivals) = echo();
    let (shown, seen) = mpsc::channel();
    let proxy = FaultProxy::start_reading(port, move |connection, bytes| {
        shown.send((connection, bytes.to_vec())).unwrap();
        (bytes == b"break").then_some(Faults::CUT_AT_REPLY)
    });
    let proxy = proxy.unwrap();
    let mut first = connect(&proxy);
    assert_eq!(exchange(&mut first, "one").unwrap(), "one");
    let mut second = connect(&proxy);
    assert_eq!(exchange(&mut second, "two").unwrap(), "two");
    second.write_all(b"break").unwrap();
    assert!(is_reset(&mut second));
    let expected = [(0, "one"), (1, "two"), (1, "break")];
    for (connection, text) in expected {
        assert_eq!(seen.recv().unwrap(), (connection, text.as_bytes().to_vec()));
    }
}
