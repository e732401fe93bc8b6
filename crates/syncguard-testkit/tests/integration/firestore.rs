//! The emulator answers once started and stops on drop.

use std::net::TcpStream;

use syncguard_testkit::FirestoreEmulator;

#[test]
fn it_answers_until_dropped() {
    let emulator = FirestoreEmulator::start().unwrap();
    let host = emulator.host();
    TcpStream::connect(&host).unwrap();
    drop(emulator);
    TcpStream::connect(&host).unwrap_err();
}
