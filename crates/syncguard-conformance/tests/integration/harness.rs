use syncguard_conformance::{Harness, Stored};
use syncguard_core::{LockError, LockKey};
use syncguard_memory::MemoryBackend;

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
        let kept = self.0.kept(beginning);
        let mut stored = Stored::default();
        stored.locks = kept.locks;
        stored.index_entries = kept.ids;
        stored.fence_counters = kept.fence_counters;
        stored.others = kept.watched;
        Ok(Some(stored))
    }

    fn capacity(&self) -> usize {
        5_000
    }
}
