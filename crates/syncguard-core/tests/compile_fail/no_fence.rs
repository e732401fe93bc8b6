//! On a backend without fencing a guard has no fence.

use syncguard_core::{AnyBackend, Fence, LockGuard, NoFence};

fn fence_of(guard: &LockGuard<AnyBackend<NoFence>>) -> Fence {
    guard.fence()
}

fn main() {}
