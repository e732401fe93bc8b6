//! Listings, in the order of keys.

use gcloud_sdk::google::firestore::v1::Document;
use syncguard_core::backend::{ListPage, ListPosition, ListRequest, prefix_end};
use syncguard_core::{LockError, LockInfoDebug};

use crate::FirestoreBackend;
use crate::record::{KEY, LockDocument, text};

impl FirestoreBackend {
    /// Reads one page: as many documents as it may have locks, live or not.
    pub(crate) async fn list_page(&self, request: ListRequest<'_>) -> Result<ListPage, LockError> {
        let (prefix, limit) = (request.prefix.as_str(), request.limit);
        let end = prefix_end(prefix);
        let range = (prefix, end.as_deref());
        let behind = request.after.map(parse).transpose()?;
        let query = self
            .wire
            .find_by_key(range, behind, limit, request.deadline);
        let snapshot = self.read(query).await?;
        let live = |document: &Document| -> Option<LockInfoDebug> {
            let lock = LockDocument::parse(document).ok()?;
            // A copy of a document under another name is not a lock.
            let names = self.wire.names().of(&lock.key).ok()?;
            let is_own = names.lock == document.name;
            (is_own && lock.is_live(snapshot.moment.now_ms)).then(|| lock.info())
        };
        let found = &snapshot.documents;
        let is_full = u32::try_from(found.len()).is_ok_and(|count| count >= limit);
        let last = found.last().filter(|_| is_full);
        let next = last.map(position).transpose()?;
        Ok(ListPage::new(found.iter().filter_map(live).collect(), next))
    }
}

/// The key and the name of a document. The name alone would do for a lock, but not for a foreign document.
fn position(document: &Document) -> Result<ListPosition, LockError> {
    let (key, name) = (text(document, KEY)?, &document.name);
    Ok(ListPosition::new(format!("{} {key}{name}", key.len())))
}

fn parse(position: &ListPosition) -> Result<(&str, &str), LockError> {
    let parsed = || {
        let (length, rest) = position.as_str().split_once(' ')?;
        rest.split_at_checked(length.parse().ok()?)
    };
    parsed().ok_or_else(|| LockError::invalid_argument("not a cursor of a listing on Firestore"))
}
