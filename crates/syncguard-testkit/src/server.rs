//! [`Server`]: what can befall a server, whichever store it is.

use std::fmt;

use anyhow::Result;

use crate::{FirestoreEmulator, PostgresServer, RedisServer};

/// A server that can be maltreated. It ends with the value.
pub trait Server: fmt::Debug + Send + Sync + 'static {
    /// The loopback port where it answers.
    fn port(&self) -> u16;

    /// Makes it hang without closing a connection (`SIGSTOP`).
    ///
    /// # Errors
    /// If the server is gone.
    fn pause(&self) -> Result<()>;

    /// Ends a [`pause`](Self::pause). What clients sent meanwhile is then carried out.
    ///
    /// # Errors
    /// If the server is gone.
    fn resume(&self) -> Result<()>;

    /// Kills it, as a crash would (`SIGKILL`).
    fn kill(&mut self);

    /// Starts it again on the same port, with the data that it has kept: none if it keeps its data
    /// in memory.
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

// Each has these by itself: the methods of a type come before those of a trait.
servers!(RedisServer, PostgresServer, FirestoreEmulator);
