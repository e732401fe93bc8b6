//! [`Locks::list`]: the live locks, page by page.

use std::fmt;
use std::future::IntoFuture;

use tokio_util::sync::CancellationToken;

use crate::backend::{FenceToken, ListPage, ListPosition, ListRequest, MAX_PAGE_SIZE};
use crate::call::Subject;
use crate::error::{Operation, parse};
use crate::store::Store;
use crate::{Fence, LockError, LockInfo, LockInfoDebug, Locks, Request};

pub use crate::key::KeyPrefix;

/// Default of [`ListLocks::page_size`].
pub const DEFAULT_PAGE_SIZE: u32 = 100;

impl<F: FenceToken> Locks<F> {
    /// Lists the live locks, page by page, with hashes for identifiers.
    ///
    /// For operators and user interfaces. Do not use it to decide who may work: the result can be out of
    /// date when it arrives. See [`ListLocks`] for what a listing shows.
    ///
    /// ```
    /// # use syncguard_core::{LockError, Locks};
    /// # use syncguard_memory::MemoryBackend;
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), LockError> {
    /// # let locks = Locks::new(MemoryBackend::default());
    /// # let _guard = locks.lock("payment:42").await?;
    /// let mut after = None;
    /// loop {
    ///     let page = locks.list().prefix("payment:").after(after).await?;
    ///     for lock in &page.locks {
    ///         println!("{} until {}", lock.key_hash, lock.expires_at_ms);
    ///     }
    /// #   assert_eq!(page.locks.len(), 1);
    ///     after = page.next;
    ///     if after.is_none() {
    ///         break;
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    pub fn list(&self) -> ListLocks<LockInfo<F>, F> {
        ListLocks::new(self.store().clone(), |lock| lock.sanitized())
    }

    /// As [`list`](Self::list), with the raw keys and ids. Both are sensitive: a process that knows an id
    /// can release its lock.
    pub fn list_raw(&self) -> ListLocks<LockInfoDebug<F>, F> {
        ListLocks::new(self.store().clone(), |lock| lock)
    }
}

/// Lists one page of the live locks: made by [`Locks::list`] and [`Locks::list_raw`].
///
/// Await it for a [`LockPage`], and pass the page's cursor to [`after`](Self::after) for the next one.
///
/// A lock that is live from the first page to the last is listed. A lock that is acquired or released in
/// between may be listed or not. A lock is listed once, unless the pages say that they [may
/// repeat](LockPage::may_repeat). A listing only reads. It skips stored values that are not locks of
/// SyncGuard.
///
/// A store looks at a bounded number of its entries for each page. So a page can have fewer locks than its
/// size, or none, and still have a next one.
///
/// # Errors
/// - `InvalidArgument`, before anything is sent, for a bad prefix or page size and for a cursor of another
///   listing; and if the backend cannot list its locks.
/// - `AuthFailed` if listing needs a permission that is missing, as `+scan` on Redis.
/// - `Aborted` if the token was cancelled.
/// - A failure of the store.
///
/// # Cancel safety
/// Safe: it only reads.
#[must_use = "a request does nothing unless it is awaited"]
pub struct ListLocks<T, F: FenceToken = Fence> {
    store: Store<F>,
    prefix: Result<KeyPrefix, LockError>,
    page_size: u32,
    after: Option<ListCursor>,
    token: Option<CancellationToken>,
    show: fn(LockInfoDebug<F>) -> T,
}

impl<T, F: FenceToken> ListLocks<T, F> {
    fn new(store: Store<F>, show: fn(LockInfoDebug<F>) -> T) -> Self {
        Self {
            store,
            prefix: Ok(KeyPrefix::default()),
            page_size: DEFAULT_PAGE_SIZE,
            after: None,
            token: None,
            show,
        }
    }

    /// Lists only locks whose key begins with this text. Default: all.
    ///
    /// SyncGuard compares the text with the keys that callers of `lock` use, without the backend's own
    /// prefix, character by character in NFC. No character is a wildcard. A key that the store shortened to
    /// a hash may be listed only without a prefix: see the backend's documentation.
    pub fn prefix<P>(mut self, prefix: P) -> Self
    where
        P: TryInto<KeyPrefix>,
        LockError: From<P::Error>,
    {
        self.prefix = parse(prefix);
        self
    }

    /// The most locks of a page: 1 to 1,000 ([`MAX_PAGE_SIZE`]). Default: 100 ([`DEFAULT_PAGE_SIZE`]).
    pub fn page_size(mut self, page_size: u32) -> Self {
        self.page_size = page_size;
        self
    }

    /// Continues behind the page that returned this cursor. The listing must have the same prefix. Default:
    /// the first page.
    pub fn after(mut self, cursor: impl Into<Option<ListCursor>>) -> Self {
        self.after = cursor.into();
        self
    }

    /// Ends the operation with `Aborted` when the token is cancelled.
    pub fn cancel_on(mut self, token: &CancellationToken) -> Self {
        self.token = Some(token.clone());
        self
    }
}

impl<T: 'static, F: FenceToken> IntoFuture for ListLocks<T, F> {
    type Output = Result<LockPage<T>, LockError>;
    type IntoFuture = Request<LockPage<T>>;

    fn into_future(self) -> Self::IntoFuture {
        let Self {
            store,
            prefix,
            page_size,
            after,
            token,
            show,
        } = self;
        let request = Request::new(move |limits| async move {
            let subject = Subject::new(Operation::List);
            let prefix = store.admit(subject, prefix)?;
            store.admit(subject, check_page_size(page_size))?;
            if let Some(cursor) = &after {
                store.admit(subject, cursor.check(store.number, &prefix))?;
            }
            let position = after.as_ref().map(|cursor| &cursor.position);
            let send = |deadline| {
                let request = ListRequest::new(&prefix, position, page_size, deadline);
                let page = store.backend.list(request);
                let backend = store.capabilities.backend;
                Box::pin(async move { page.await?.ok_or_else(|| unsupported(backend)) }) as _
            };
            let page: ListPage<F> = store.call(subject, &limits, send).await?;
            Ok(LockPage {
                locks: page.locks.into_iter().map(show).collect(),
                next: page.next.map(|position| ListCursor {
                    store: store.number,
                    prefix,
                    position,
                }),
                may_repeat: page.may_repeat,
            })
        });
        match token {
            Some(token) => request.cancel_on(&token),
            None => request,
        }
    }
}

impl<T, F: FenceToken> Clone for ListLocks<T, F> {
    fn clone(&self) -> Self {
        Self {
            store: self.store.clone(),
            prefix: self.prefix.clone(),
            page_size: self.page_size,
            after: self.after.clone(),
            token: self.token.clone(),
            show: self.show,
        }
    }
}

impl<T, F: FenceToken> fmt::Debug for ListLocks<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ListLocks")
            .field("prefix", &self.prefix)
            .field("page_size", &self.page_size)
            .field("after", &self.after)
            .finish_non_exhaustive()
    }
}

/// A page of a listing.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LockPage<T> {
    /// The locks, in no particular order. A page can have no locks and still have a next page.
    pub locks: Vec<T>,
    /// Where the next page begins; `None` at the end of the listing.
    pub next: Option<ListCursor>,
    /// Whether a later page may list locks of an earlier one again, as on Redis. A page itself lists each
    /// lock once. To recognize a repeated lock, compare the lock ids or their hashes.
    pub may_repeat: bool,
}

/// Where a page of a listing ended. Pass it to [`ListLocks::after`].
///
/// It is valid for the [`Locks`] that returned it, its clones and its observed handles, and for the prefix
/// of its listing. It uses no resource of the store, and does not expire.
#[derive(Clone)]
pub struct ListCursor {
    store: u64,
    prefix: KeyPrefix,
    position: ListPosition,
}

impl ListCursor {
    fn check(&self, store: u64, prefix: &KeyPrefix) -> Result<(), LockError> {
        if self.store != store {
            return Err(LockError::invalid_argument(
                "the cursor belongs to a listing by another `Locks`; start without a cursor",
            ));
        }
        if self.prefix != *prefix {
            return Err(LockError::invalid_argument(
                "the cursor belongs to a listing with another prefix; start without a cursor",
            ));
        }
        Ok(())
    }
}

impl fmt::Debug for ListCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The position can contain a key.
        f.debug_struct("ListCursor")
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

fn check_page_size(page_size: u32) -> Result<(), LockError> {
    if (1..=MAX_PAGE_SIZE).contains(&page_size) {
        return Ok(());
    }
    Err(LockError::invalid_argument(format!(
        "a page has 1 to {MAX_PAGE_SIZE} locks, not {page_size}"
    )))
}

fn unsupported(backend: &str) -> LockError {
    LockError::invalid_argument(format!("the backend `{backend}` cannot list its locks"))
}
