//! On a backend without fencing a guard has no fence.

use syncguard_core::backend::NoFence;
use syncguard_core::{Fence, LockGuard};

fn fence_of(guard: &LockGuard<NoFence>) -> Fence {
    guard.fence()
}

fn main() {}
