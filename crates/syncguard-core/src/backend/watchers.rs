//! [`Watchers`]: the watches of this process, by key.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

/// The watches of this process, by key: for backends that get the events of many keys in one place, such as
/// one connection. Clones share everything.
///
/// A key is any text, such as its name in the store. A key without a watch takes no memory.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use syncguard_core::backend::Watchers;
///
/// let watchers = Watchers::default();
/// let mut watcher = watchers.watch("payment:42");
/// watchers.wake("payment:42");
/// watcher.woken().await;
/// drop(watcher);
/// assert!(watchers.is_empty());
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Watchers(Arc<Mutex<Keys>>);

type Keys = HashMap<Arc<str>, watch::Sender<()>>;

impl Watchers {
    /// Watches a key.
    #[must_use]
    pub fn watch(&self, key: &str) -> Watcher {
        let key: Arc<str> = key.into();
        let mut keys = self.keys();
        let sender = keys.entry(Arc::clone(&key));
        Watcher {
            woken: Some(sender.or_insert_with(|| watch::channel(()).0).subscribe()),
            key,
            watchers: self.clone(),
        }
    }

    /// Wakes the watches of this key.
    pub fn wake(&self, key: &str) {
        if let Some(sender) = self.keys().get(key) {
            sender.send_replace(());
        }
    }

    /// Wakes all watches.
    pub fn wake_all(&self) {
        for sender in self.keys().values() {
            sender.send_replace(());
        }
    }

    /// The keys that have a watch.
    #[must_use]
    pub fn watched(&self) -> Vec<Arc<str>> {
        self.keys().keys().cloned().collect()
    }

    /// Whether no key has a watch.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys().is_empty()
    }

    fn keys(&self) -> MutexGuard<'_, Keys> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Watchers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watchers")
            .field("keys", &self.keys().len())
            .finish()
    }
}

/// A watch of one key, made by [`Watchers::watch`].
pub struct Watcher {
    /// `None` only while it is being dropped.
    woken: Option<watch::Receiver<()>>,
    key: Arc<str>,
    watchers: Watchers,
}

impl Watcher {
    /// Resolves after a wake-up. It counts wake-ups since the watch was made, since the last call resolved,
    /// or since the last [reset](Self::reset).
    ///
    /// # Cancel safety
    /// Safe: a wake-up remains until a call has resolved.
    pub async fn woken(&mut self) {
        if let Some(woken) = &mut self.woken {
            // The sender lives while the key has a watch.
            let _ = woken.changed().await;
        }
    }

    /// Forgets a wake-up.
    pub fn reset(&mut self) {
        if let Some(woken) = &mut self.woken {
            woken.mark_unchanged();
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let mut keys = self.watchers.keys();
        // Under the mutex: only so can the last watch see that it is the last.
        self.woken = None;
        let sender = keys.get(&self.key);
        if sender.is_some_and(|sender| sender.receiver_count() == 0) {
            keys.remove(&self.key);
        }
    }
}

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watcher")
    }
}
