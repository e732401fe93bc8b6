//! A bare store has no deadlines: helpers do not take it.

use syncguard_core::ManagedBackend;
use syncguard_memory::MemoryStore;

fn helper<B: ManagedBackend>() {}

fn main() {
    helper::<MemoryStore>();
}
