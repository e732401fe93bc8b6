//! [`pages`]: a whole listing.

use syncguard_core::{LockError, LockInfoDebug, Locks};

/// The locks of every page of a listing, from the first to the last.
///
/// # Errors
/// That of the first page that fails.
pub async fn pages(
    locks: &Locks,
    prefix: &str,
    page_size: u32,
) -> Result<Vec<Vec<LockInfoDebug>>, LockError> {
    let (mut pages, mut after) = (Vec::new(), None);
    loop {
        let request = locks.list_raw().prefix(prefix).page_size(page_size);
        let page = request.after(after).await?;
        pages.push(page.locks);
        after = page.next;
        if after.is_none() {
            return Ok(pages);
        }
    }
}
