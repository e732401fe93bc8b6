//! Pages of a listing that the network loses.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use syncguard_core::list::ListCursor;
use syncguard_core::{ErrorCode, LockError, Locks, LocksBuilder};
use syncguard_testkit::Faults;

use crate::faults::steps::{BEFORE_LONG, LONG, acquire, eventually, is_outage, release};
use crate::faults::{Fixture, Target};

const OPERATION_TIMEOUT: Duration = Duration::from_secs(1);

/// A page that the network loses fails by its deadline, with a known outcome. Once the network is back, the
/// listing continues from its cursor.
pub async fn a_listing_goes_on_after_a_page_that_was_lost<T: Target>(fixture: Fixture<T>) {
    let (direct, network) = (fixture.direct().await, fixture.network());
    let client = network.client_with(impatient).await;
    let prefix = fixture.key("listed:");
    let keys: BTreeSet<_> = (0..3).map(|key| format!("{prefix}{key}")).collect();
    let mut guards = Vec::new();
    for key in &keys {
        guards.push(acquire(&direct.locks, key, LONG).await);
    }
    let first = async || reached(page(&client.locks, &prefix, None).await);
    let Some((mut shown, cursor)) = eventually("the first page", first).await else {
        eprintln!("skipped: the backend cannot list its locks");
        return;
    };
    network.set(Faults::HALF_OPEN);
    let begun = Instant::now();
    let lost = page(&client.locks, &prefix, cursor.clone()).await;
    let error = lost.expect_err("the network is broken");
    assert!(begun.elapsed() < BEFORE_LONG, "{error}");
    is_outage(&error);
    assert!(error.is_retryable() && !error.outcome_unknown(), "{error}");
    network.set(Faults::NONE);
    let mut after = cursor;
    while after.is_some() {
        let next = async || reached(page(&client.locks, &prefix, after.clone()).await);
        let next = eventually("the next page", next).await;
        let (keys, cursor) = next.expect("it lists");
        shown.extend(keys);
        after = cursor;
    }
    assert_eq!(shown, keys);
    for guard in guards {
        release(guard).await;
    }
}

type Page = (BTreeSet<String>, Option<ListCursor>);

async fn page(locks: &Locks, prefix: &str, after: Option<ListCursor>) -> Result<Page, LockError> {
    let request = locks.list_raw().prefix(prefix).page_size(1);
    let page = request.after(after).await?;
    let keys = page.locks.iter().map(|lock| lock.key.as_str().to_owned());
    Ok((keys.collect(), page.next))
}

/// A page, `Some(None)` if the backend cannot list, or `None` if the network is down.
fn reached(page: Result<Page, LockError>) -> Option<Option<Page>> {
    match page {
        Ok(page) => Some(Some(page)),
        Err(error) if error.code() == ErrorCode::InvalidArgument => Some(None),
        Err(error) => {
            is_outage(&error);
            None
        }
    }
}

fn impatient(builder: LocksBuilder) -> LocksBuilder {
    builder.operation_timeout(OPERATION_TIMEOUT)
}
