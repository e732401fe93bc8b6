//! [`Server`]: what a test can do to a server of any store.

use std::fmt;

use anyhow::Result;

use crate::{FirestoreEmulator, PostgresServer, RedisServer};

/// A server that can be paused or killed. It stops on drop.
pub trait Server: fmt::Debug + Send + Sync + 'static {
    /// The loopback port where it answers.
    fn port(&self) -> u16;

    /// Pauses the server without closing a connection (`SIGSTOP`).
    ///
    /// # Errors
    /// If the server has ended.
    fn pause(&self) -> Result<()>;

    /// Ends a [`pause`](Self::pause). The server then executes what clients sent in the meantime.
    ///
    /// # Errors
    /// If the server has ended.
    fn resume(&self) -> Result<()>;

    /// Kills it, as a crash would (`SIGKILL`).
    fn kill(&mut self);

    /// Starts it again on the same port, with the data that it kept. A server that keeps its data in
    /// memory starts empty.
    ///
    /// # Errors
    /// If it does not start.
    fn restart(&mut self) -> Result<()>;
}

macro_rules! servers {
    ($($server:ty),+) => {$(
        impl Server for $server {
            fn port(&self) -> u16 {
                self.port()
            }
            fn pause(&self) -> Result<()> {
                self.pause()
            }
            fn resume(&self) -> Result<()> {
                self.resume()
            }
            fn kill(&mut self) {
                self.kill();
            }
            fn restart(&mut self) -> Result<()> {
                self.restart()
            }
        }
    )+};
}

// Inherent methods come before those of a trait, so these calls do not recurse.
servers!(RedisServer, PostgresServer, FirestoreEmulator);
