//! [`Targets`]: the state of the documents on a `Listen` stream.

use std::collections::HashMap;

use gcloud_sdk::google::firestore::v1::TargetChange;
use gcloud_sdk::google::firestore::v1::listen_response::ResponseType;
use gcloud_sdk::google::firestore::v1::target_change::TargetChangeType;
use tokio::sync::watch;
use tonic::Status;

use crate::error::is_refusal;

/// The targets of a stream by their ids, each with one document.
#[derive(Default)]
pub(crate) struct Targets(HashMap<i32, watch::Sender<Seen>>);

/// The state of a document, as the stream has shown it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Seen {
    /// Firestore has sent the state of the document; what follows are changes.
    pub(crate) current: bool,
    pub(crate) exists: bool,
    /// How often there was no document: at first, and by deletions.
    pub(crate) freed: u64,
}

impl Targets {
    /// Adds a target. If its receiver fails, the target is lost.
    pub(crate) fn add(&mut self, target: i32) -> watch::Receiver<Seen> {
        let (sender, seen) = watch::channel(Seen::default());
        self.0.insert(target, sender);
        seen
    }

    /// Removes a target; `false` if there is none.
    pub(crate) fn remove(&mut self, target: i32) -> bool {
        self.0.remove(&target).is_some()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Notes what the stream shows. `false` if Firestore refuses a target.
    pub(crate) fn note(&mut self, response: ResponseType) -> bool {
        match response {
            ResponseType::TargetChange(change) => return self.note_target(change),
            ResponseType::DocumentChange(change) => {
                self.update(change.target_ids, Seen::shown);
                self.update(change.removed_target_ids, Seen::gone);
            }
            ResponseType::DocumentDelete(delete) => {
                self.update(delete.removed_target_ids, Seen::gone);
            }
            ResponseType::DocumentRemove(remove) => {
                self.update(remove.removed_target_ids, Seen::gone);
            }
            ResponseType::Filter(filter) if filter.count == 0 => {
                self.update(vec![filter.target_id], Seen::gone);
            }
            ResponseType::Filter(_) => {}
        }
        true
    }

    fn note_target(&mut self, change: TargetChange) -> bool {
        let kind = change.target_change_type();
        let mut targets = change.target_ids;
        if targets.is_empty() {
            // It means all.
            targets.extend(self.0.keys());
        }
        match kind {
            TargetChangeType::Current => self.update(targets, Seen::current),
            TargetChangeType::Reset => self.update(targets, Seen::reset),
            TargetChangeType::Remove => {
                let before = self.0.len();
                self.0.retain(|target, _| !targets.contains(target));
                let code = change.cause.unwrap_or_default().code;
                return self.0.len() == before || !is_refusal(&Status::new(code.into(), ""));
            }
            TargetChangeType::NoChange | TargetChangeType::Add => {}
        }
        true
    }

    fn update(&mut self, targets: Vec<i32>, change: fn(&mut Seen)) {
        for target in targets {
            // Changes of a target can still arrive after its removal.
            if let Some(seen) = self.0.get(&target) {
                seen.send_modify(change);
            }
        }
    }
}

impl Seen {
    fn shown(&mut self) {
        self.exists = true;
    }

    fn gone(&mut self) {
        self.exists = false;
        self.freed += u64::from(self.current);
    }

    fn current(&mut self) {
        // For a document that does not exist, Firestore may send nothing.
        self.freed += u64::from(!self.current && !self.exists);
        self.current = true;
    }

    /// Firestore sends the state of the document once more.
    fn reset(&mut self) {
        (self.current, self.exists) = (false, false);
    }
}

#[cfg(test)]
mod tests {
    use gcloud_sdk::google::firestore::v1::{
        DocumentChange, DocumentDelete, DocumentRemove, ExistenceFilter,
    };
    use gcloud_sdk::google::rpc;
    use tonic::Code;

    use super::*;

    fn change(kind: TargetChangeType, target_ids: &[i32]) -> ResponseType {
        ResponseType::TargetChange(TargetChange {
            target_change_type: kind.into(),
            target_ids: target_ids.to_vec(),
            ..TargetChange::default()
        })
    }

    fn shown(target: i32) -> ResponseType {
        ResponseType::DocumentChange(DocumentChange {
            target_ids: vec![target],
            ..DocumentChange::default()
        })
    }

    fn removed(target: i32, cause: Code) -> ResponseType {
        let cause = rpc::Status {
            code: cause.into(),
            ..rpc::Status::default()
        };
        ResponseType::TargetChange(TargetChange {
            target_change_type: TargetChangeType::Remove.into(),
            target_ids: vec![target],
            cause: Some(cause),
            ..TargetChange::default()
        })
    }

    /// All ways in which Firestore may say that a document is gone.
    fn gone(target: i32) -> [ResponseType; 4] {
        let removed_target_ids = || vec![target];
        [
            ResponseType::DocumentDelete(DocumentDelete {
                removed_target_ids: removed_target_ids(),
                ..DocumentDelete::default()
            }),
            ResponseType::DocumentRemove(DocumentRemove {
                removed_target_ids: removed_target_ids(),
                ..DocumentRemove::default()
            }),
            ResponseType::DocumentChange(DocumentChange {
                removed_target_ids: removed_target_ids(),
                ..DocumentChange::default()
            }),
            ResponseType::Filter(ExistenceFilter {
                target_id: target,
                ..ExistenceFilter::default()
            }),
        ]
    }

    const CURRENT: TargetChangeType = TargetChangeType::Current;
    const RESET: TargetChangeType = TargetChangeType::Reset;

    #[test]
    fn each_way_in_which_a_document_is_gone_frees_its_target_alone() {
        let mut targets = Targets::default();
        let (one, other) = (targets.add(1), targets.add(2));
        for response in [shown(1), shown(2), change(CURRENT, &[])] {
            assert!(targets.note(response));
        }
        assert_eq!(one.borrow().freed, 0, "its first state is no change");
        for (before, response) in (0..).zip(gone(1)) {
            assert!(targets.note(shown(1)));
            assert_eq!((one.borrow().exists, one.borrow().freed), (true, before));
            assert!(targets.note(response));
            assert_eq!(
                (one.borrow().exists, one.borrow().freed),
                (false, before + 1)
            );
        }
        assert_eq!(other.borrow().freed, 0);
    }

    #[test]
    fn a_document_that_does_not_exist_at_first_frees_its_target_once() {
        let mut targets = Targets::default();
        let (silent, told) = (targets.add(1), targets.add(2));
        let [delete, ..] = gone(2);
        assert!(targets.note(delete));
        assert_eq!(*told.borrow(), Seen::default(), "not current yet");
        for _ in 0..2 {
            assert!(targets.note(change(CURRENT, &[1, 2])));
            assert_eq!((silent.borrow().freed, told.borrow().freed), (1, 1));
        }
    }

    #[test]
    fn after_a_reset_the_state_is_sent_once_more() {
        for (exists, freed) in [(true, 0), (false, 1)] {
            let mut targets = Targets::default();
            let seen = targets.add(1);
            for response in [shown(1), change(CURRENT, &[1]), change(RESET, &[1])] {
                assert!(targets.note(response));
            }
            assert!(!seen.borrow().current);
            if exists {
                assert!(targets.note(shown(1)));
            }
            assert!(targets.note(change(CURRENT, &[1])));
            assert_eq!((seen.borrow().exists, seen.borrow().freed), (exists, freed));
        }
    }

    #[test]
    fn a_target_that_firestore_removes_is_lost_and_may_be_refused() {
        let mut targets = Targets::default();
        let (full, denied, kept) = (targets.add(1), targets.add(2), targets.add(3));
        assert!(targets.note(removed(1, Code::ResourceExhausted)));
        assert!(full.has_changed().is_err() && denied.has_changed().is_ok());
        assert!(!targets.note(removed(2, Code::PermissionDenied)));
        assert!(denied.has_changed().is_err() && kept.has_changed().is_ok());
        // The reply to a removal.
        assert!(targets.remove(3) && !targets.remove(3));
        assert!(targets.note(removed(3, Code::PermissionDenied)));
        assert!(targets.is_empty());
    }
}
