//! The servers and the proxy, on real servers.

mod command_server;
mod firestore;
mod lifetime;
mod postgres;
mod proxy;
mod redis;
