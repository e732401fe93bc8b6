//! [`Watch`]: how a backend says that a key may have become free.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

/// Watches one key: what [`LockBackend::watch`](super::LockBackend::watch) returns.
///
/// Dropping it ends it.
#[must_use = "dropped, it watches nothing"]
pub struct Watch(Pin<Box<dyn Future<Output = ()> + Send>>);

impl Watch {
    /// A watch that ends when `changed` resolves.
    pub fn new(changed: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(Box::pin(changed))
    }

    /// Resolves when the key may have become free, or when nobody watches it any more. False alarms
    /// are allowed. It resolves once: then watch the key anew.
    ///
    /// # Cancel safety
    /// Safe: it goes on watching.
    pub async fn changed(&mut self) {
        self.0.as_mut().await;
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch")
    }
}
