//! Checks what many holders of one key report: one at a time, with ever greater fences.

use std::sync::Mutex;

use syncguard_core::LockId;

#[derive(Default)]
pub(crate) struct History {
    holder: Mutex<Option<Holder>>,
    last_fence: Mutex<u64>,
    grants: Mutex<usize>,
}

struct Holder {
    id: LockId,
    /// When it may be succeeded although it never said that it was done.
    until_ms: i64,
}

impl History {
    /// A lock was granted, from and to these times of the server.
    pub(crate) fn granted(&self, id: LockId, fence: u64, acquired_at_ms: i64, expires_at_ms: i64) {
        let mut holder = self.holder.lock().unwrap();
        if let Some(holder) = holder.as_ref() {
            assert!(
                acquired_at_ms >= holder.until_ms,
                "two holders: granted {} ms before the former lease ended",
                holder.until_ms - acquired_at_ms
            );
        }
        *holder = Some(Holder {
            id,
            until_ms: expires_at_ms,
        });
        let mut last_fence = self.last_fence.lock().unwrap();
        assert!(fence > *last_fence, "fence {fence} after {last_fence}");
        *last_fence = fence;
        *self.grants.lock().unwrap() += 1;
    }

    /// The holder's extend succeeded: nobody may have been granted the key since its grant.
    pub(crate) fn extended(&self, id: LockId, expires_at_ms: i64) {
        let mut holder = self.holder.lock().unwrap();
        let holder = holder.as_mut().expect("someone holds it");
        assert_eq!(holder.id, id, "extended although someone else holds it");
        holder.until_ms = expires_at_ms;
    }

    /// The holder is about to release.
    pub(crate) fn releasing(&self, id: LockId) {
        let mut holder = self.holder.lock().unwrap();
        if holder.as_ref().is_some_and(|holder| holder.id == id) {
            *holder = None;
        }
    }

    pub(crate) fn grants(&self) -> usize {
        *self.grants.lock().unwrap()
    }
}
