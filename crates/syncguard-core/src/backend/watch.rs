//! [`Watch`]: how a backend says that a key may have become free.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use crate::LockError;

/// Watches one key for a caller that waits. Drop it to stop watching.
pub trait WatchKey: Send + 'static {
    /// Resolves when the key may have become free. False alarms are allowed.
    ///
    /// The caller calls it again while the key is held. Each call must first make sure that the watch is in
    /// place, and then read the key: it must not miss a release between two calls.
    ///
    /// # Errors
    /// The watch is lost, for example by a broken connection. The caller asks the store, and then watches
    /// again.
    ///
    /// # Cancel safety
    /// Must be safe: if the key becomes free between two calls, the next call resolves.
    fn changed(&mut self) -> impl Future<Output = Result<(), LockError>> + Send;
}

/// What [`LockBackend::watch`](super::LockBackend::watch) returns.
#[must_use = "dropped, it watches nothing"]
pub struct Watch(Box<dyn Erased>);

trait Erased: Send {
    fn changed(&mut self) -> Pin<Box<dyn Future<Output = Result<(), LockError>> + Send + '_>>;
}

impl<W: WatchKey> Erased for W {
    fn changed(&mut self) -> Pin<Box<dyn Future<Output = Result<(), LockError>> + Send + '_>> {
        Box::pin(WatchKey::changed(self))
    }
}

impl Watch {
    /// A watch by this implementation.
    pub fn new(watch: impl WatchKey) -> Self {
        Self(Box::new(watch))
    }

    /// See [`WatchKey::changed`].
    ///
    /// # Errors
    /// The watch is lost.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn changed(&mut self) -> Result<(), LockError> {
        self.0.changed().await
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch")
    }
}
