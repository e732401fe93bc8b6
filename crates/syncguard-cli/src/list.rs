//! `syncguard list`: the locks that are held, page by page.

use std::collections::HashSet;
use std::mem;

use crate::args::ListArgs;
use crate::exit::Failure;
use crate::output::Output;
use crate::store::{Purpose, Store};

/// How many locks a page has.
const PAGE_SIZE: u32 = 500;

pub(crate) async fn list(args: &ListArgs, store: &Store, output: Output) -> Result<u8, Failure> {
    let locks = store.open(Purpose::Look).await?;
    let (mut after, mut listed) = (None, HashSet::new());
    let mut header = !output.is_json();
    loop {
        let listing = locks.list_raw().prefix(&args.prefix).page_size(PAGE_SIZE);
        let page = listing.after(after).await?;
        if mem::take(&mut header) {
            output.result(&output.header(), &())?;
        }
        for lock in page.locks {
            if page.may_repeat && !listed.insert(lock.lock_id) {
                continue;
            }
            output.result(&output.row(&lock), &output.lock_value(&lock))?;
        }
        after = page.next;
        if after.is_none() {
            return Ok(0);
        }
    }
}
