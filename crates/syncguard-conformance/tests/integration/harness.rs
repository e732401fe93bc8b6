use syncguard_conformance::Harness;
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
}
