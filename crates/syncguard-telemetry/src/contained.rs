//! [`contained`]: calls of the application's code, which may panic.

use std::panic::{AssertUnwindSafe, catch_unwind};

pub(crate) fn contained(work: impl FnOnce()) {
    // The panic hook has reported it.
    drop(catch_unwind(AssertUnwindSafe(work)));
}
