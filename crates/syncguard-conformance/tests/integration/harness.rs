use syncguard_conformance::{Harness, Stored};
use syncguard_core::{LockError, LockKey};
use syncguard_memory::MemoryBackend;

/// What the store keeps of the keys that begin like this.
pub(crate) fn counts(memory: &MemoryBackend, beginning: &str) -> Stored {
    let kept = memory.kept(beginning);
    let mut stored = Stored::default();
    stored.locks = kept.locks;
    stored.index_entries = kept.ids;
    stored.fence_counters = kept.fence_counters;
    stored.others = kept.watched;
    stored
}

#[derive(Debug, Default)]
pub(crate) struct MemoryHarness(MemoryBackend);

impl Harness for MemoryHarness {
    type Backend = MemoryBackend;

    async fn connect(&self) -> Result<MemoryBackend, LockError> {
        Ok(self.0.clone())
    }

    async fn set_fence_counter(&self, key: &LockKey, counter: u64) -> Result<bool, LockError> {
        self.0.set_fence_counter(key, counter);
        Ok(true)
    }

    async fn stored(&self, beginning: &str) -> Result<Option<Stored>, LockError> {
        Ok(Some(counts(&self.0, beginning)))
    }

    fn capacity(&self) -> usize {
        5_000
    }
}
