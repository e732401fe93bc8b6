//! Many callers at once while the store is down, connections break, or callers leave.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use syncguard_core::{ErrorCode, LockError};
use syncguard_testkit::Faults;

use crate::faults::client::Client;
use crate::faults::steps::{
    BEFORE_LONG, LONG, acquire, by, eventually, is_held, is_outage_code, median, release,
};
use crate::faults::{Fixture, Target};

/// How many callers ask repeatedly.
const CALLERS: usize = 64;

/// Each of them asks about a hundred times a second.
const PAUSE: Duration = Duration::from_millis(10);

/// For how long the store is down.
const TROUBLE: Duration = Duration::from_secs(3);

/// Within this time of the store's return, all background releases have ended.
const SETTLED_WITHIN: Duration = Duration::from_secs(30);

/// The store is down for some seconds under many acquires. Only acquires that may have reached it are
/// released in the background, not those that fail without a connection. Once the store is back, they are
/// soon released, and acquires are as fast as before.
pub async fn the_store_is_away_under_many_acquires<T: Target>(fixture: Fixture<T>) {
    away_under_many_acquires(&fixture, Faults::REFUSE).await;
}

/// The same if connections hang instead of breaking. No acquire then takes twice its timeout.
pub async fn the_store_hangs_under_many_acquires<T: Target>(fixture: Fixture<T>) {
    away_under_many_acquires(&fixture, Faults::HALF_OPEN).await;
}

async fn away_under_many_acquires<T: Target>(fixture: &Fixture<T>, fault: Faults) {
    const DEADLINES: u32 = 3;
    // Some stores wait for a connection until the deadline.
    let timeout = TROUBLE / DEADLINES;
    let (direct, network) = (fixture.direct().await, fixture.network());
    let client = network
        .client_with(|builder| builder.operation_timeout(timeout))
        .await;
    let [failed, unknown_meanwhile, back] = [const { AtomicUsize::new(0) }; 3];
    let [restored, is_back, over] = [const { AtomicBool::new(false) }; 3];
    let callers = (0..CALLERS).map(async |caller| {
        let mut unknown = Vec::new();
        for attempt in 0.. {
            if over.load(Ordering::Relaxed) {
                break;
            }
            let key = fixture.key(&format!("{caller}:{attempt}"));
            let is_before = !restored.load(Ordering::Relaxed);
            let acquire = client.locks.try_lock(&key).ttl(LONG).into_future();
            let acquired = by(acquire, Instant::now() + 2 * timeout).await;
            match acquired.expect("an acquire takes twice its timeout") {
                Ok(guard) => {
                    drop(guard.expect("the key is held"));
                    if is_back.load(Ordering::Relaxed) {
                        back.fetch_add(1, Ordering::Relaxed);
                    }
                }
                Err(error) => {
                    failed.fetch_add(1, Ordering::Relaxed);
                    if error.outcome_unknown() {
                        unknown_meanwhile.fetch_add(is_before.into(), Ordering::Relaxed);
                        unknown.push(key);
                    }
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
        unknown
    });
    let trouble = async {
        tokio::time::sleep(PAUSE * 20).await;
        network.set(fault);
        let mut most_pending = 0;
        let started = Instant::now();
        while started.elapsed() < TROUBLE {
            tokio::time::sleep(PAUSE).await;
            most_pending = most_pending.max(client.locks.pending());
        }
        restored.store(true, Ordering::Relaxed);
        network.set(Faults::NONE);
        let returned = Instant::now();
        let again = async || client.locks.try_lock(fixture.key("again")).await.ok();
        let _ = eventually("an acquire after the store's return", again).await;
        is_back.store(true, Ordering::Relaxed);
        let all = async || (back.load(Ordering::Relaxed) >= 2 * CALLERS).then_some(());
        eventually("acquires of all callers", all).await;
        over.store(true, Ordering::Relaxed);
        (most_pending, returned)
    };
    let before = pairs(&client, &fixture.key("before"), PAUSE).await;
    let (unknown, (most_pending, returned)) = tokio::join!(join_all(callers), trouble);
    let after = pairs(&client, &fixture.key("after"), PAUSE).await;
    let (failed, meanwhile) = (failed.into_inner(), unknown_meanwhile.into_inner());
    assert!(failed >= CALLERS, "only {failed} acquires failed");
    // Each caller may have had one acquire in flight for each deadline, and the release of its guard.
    let most = CALLERS * (2 + DEADLINES as usize);
    assert!(
        most_pending <= most && meanwhile <= most,
        "{most_pending} background releases were pending and the outcome of {meanwhile} acquires was unknown, \
         of {failed} that failed; no more than {most} can have been sent"
    );
    is_as_fast(median(after), median(before));
    let drained = client
        .locks
        .drain(SETTLED_WITHIN.saturating_sub(returned.elapsed()));
    let drained = drained.await;
    drained.expect("background releases are still pending 30 s after the store's return");
    for key in unknown.concat() {
        assert!(!is_held(&direct.locks, &key).await, "a lock stayed behind");
    }
}

/// Callers that ask again at once keep a broken connection busy. No call outlasts its deadline, and the
/// client works once connections last again.
pub async fn no_call_outlasts_its_deadline_while_connections_break<T: Target>(fixture: Fixture<T>) {
    let timeout = Duration::from_secs(2);
    // A call was seen to take 2.5 timeouts.
    let (grace, breaks_for) = (timeout, timeout * 3);
    let network = fixture.network();
    let client = network
        .client_with(|builder| builder.operation_timeout(timeout))
        .await;
    let end = Instant::now() + breaks_for;
    let callers = (0..CALLERS).map(async |caller| {
        let key = fixture.key(&caller.to_string());
        while Instant::now() < end {
            let started = Instant::now();
            let attempt = client.locks.try_lock(&key).ttl(LONG).attempt();
            let attempt = by(attempt, started + timeout + grace).await;
            if let Err(error) = attempt.expect("an acquire outlasts its deadline") {
                expected(&error);
                continue;
            }
            let started = Instant::now();
            let locked = by(client.locks.is_locked(&key), started + timeout + grace).await;
            if let Err(error) = locked.expect("a read outlasts its deadline") {
                expected(&error);
            }
        }
    });
    let breaking = async {
        while Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(50)).await;
            network.break_connections();
        }
    };
    let _ = tokio::join!(join_all(callers), breaking);
    let key = fixture.key("afterwards");
    let works = async || client.locks.is_locked(&key).await.ok();
    let _ = eventually("an answer once connections last", works).await;
    drained(&client).await;
}

/// A thousand acquires of a held key are abandoned. Each causes only a few background releases, and other
/// operations are as fast as before.
pub async fn abandoned_acquires_of_a_held_key_do_not_slow_others<T: Target>(fixture: Fixture<T>) {
    const ABANDONED: usize = 1_000;
    const MOST_RELEASES_OF_EACH: usize = 6;
    let (direct, network) = (fixture.direct().await, fixture.network());
    let client = network.client().await;
    let key = fixture.key("held");
    let holder = acquire(&direct.locks, &key, LONG).await;
    let (other, pause) = (fixture.key("other"), 5 * PAUSE);
    let before = pairs(&client, &other, pause).await;
    network.set(Faults::HOLD_REPLIES);
    let attempts = (0..ABANDONED).map(|_| {
        let attempt = client.locks.try_lock(&key).ttl(LONG).attempt();
        tokio::time::timeout(Duration::from_millis(300), attempt)
    });
    for abandoned in join_all(attempts).await {
        assert!(
            abandoned.is_err(),
            "it ended before its reply: {abandoned:?}"
        );
    }
    network.set(Faults::NONE);
    let after = pairs(&client, &other, pause).await;
    assert!(!after.contains(&FAILED), "an operation failed: {after:?}");
    is_as_fast(median(after), median(before));
    drained(&client).await;
    let releases = client.watched.releases().len();
    assert!(
        releases <= ABANDONED * MOST_RELEASES_OF_EACH,
        "{releases} releases for {ABANDONED} abandoned acquires"
    );
    release(holder).await;
}

/// Stands for the duration of a pair that failed.
const FAILED: Duration = Duration::MAX;

/// The durations of some pairs of an acquire and its release, of keys that begin with `key`.
async fn pairs<T: Target>(client: &Client<T>, key: &str, pause: Duration) -> Vec<Duration> {
    let mut durations = Vec::new();
    for number in 0..20 {
        let started = Instant::now();
        let attempt = client.locks.try_lock(format!("{key}:{number}")).ttl(LONG);
        let released = match attempt.await {
            Ok(guard) => guard.expect("the key is held").release().await,
            Err(error) => Err(error),
        };
        durations.push(match released {
            Ok(released) if released.is_released() => started.elapsed(),
            _ => FAILED,
        });
        tokio::time::sleep(pause).await;
    }
    durations
}

/// Fails if operations take much longer than before the trouble, by more than a busy machine explains.
#[track_caller]
fn is_as_fast(after: Duration, before: Duration) {
    let most = before
        .saturating_mul(10)
        .saturating_add(Duration::from_secs(1));
    let most = most.min(Duration::from_secs(5));
    assert!(
        after <= most,
        "a pair took {before:?} before, and {after:?} after"
    );
}

async fn drained<T: Target>(client: &Client<T>) {
    let drained = client.locks.drain(BEFORE_LONG).await;
    drained.expect("background releases are still pending");
}

/// Fails unless it is an error of a broken connection, or of callers that wait for the few new ones.
#[track_caller]
fn expected(error: &LockError) {
    assert!(
        is_outage_code(error.code()) || error.code() == ErrorCode::RateLimited,
        "{error:?}"
    );
}
