//! Leases that cannot be renewed, and how soon their holders notice.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use syncguard_core::{AutoExtend, ErrorCode, Lease};
use syncguard_testkit::Faults;

use crate::faults::client::Client;
use crate::faults::steps::{
    BEFORE_LONG, LONG, Trial, acquire, eventually, free_within, is_outage, release, resolves_by,
    with_longer_ttls,
};
use crate::faults::watched::{CallEnd, ExtendFault};
use crate::faults::{Fixture, Target};

const TTL: Duration = Duration::from_secs(3);

/// By how much the timer of a lease may be late.
const GRACE: Duration = Duration::from_millis(200);

/// Whatever the failure of renewals, the holder is notified at the latest one TTL after the start of the
/// last successful renewal.
pub async fn a_lease_whose_renewals_keep_failing_is_lost_by_its_deadline<T: Target>(
    fixture: Fixture<T>,
) {
    let direct = fixture.direct().await;
    let faults = [
        Faults::REFUSE,
        Faults::HALF_OPEN,
        Faults::DROP_REPLY,
        Faults::CUT_AT_REPLY,
    ];
    let all = faults.map(|fault| {
        let (fixture, direct) = (&fixture, &direct);
        Box::pin(with_longer_ttls(async move |ttl| {
            lost_by_its_deadline(fixture, direct, fault, ttl).await
        }))
    });
    join_all(all).await;
}

async fn lost_by_its_deadline<T: Target>(
    fixture: &Fixture<T>,
    direct: &Client<T>,
    fault: Faults,
    ttl: Duration,
) -> Trial {
    let network = fixture.network();
    let client = network.client().await;
    let key = fixture.key(&format!("{fault:?}, {ttl:?}"));
    let guard = acquire(&client.locks, &key, ttl).await;
    let guard = guard.auto_extend(AutoExtend::new());
    let applied = || client.watched.ended_extends(|end| end == CallEnd::Applied);
    while applied().is_empty() {
        if !guard.is_valid() {
            return Trial::LeaseLost;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    network.set(fault);
    // Replies that were already in flight still arrive.
    tokio::time::sleep(GRACE).await;
    let last = applied().pop().expect("one renewal was applied");
    let deadline = last.began + ttl;
    assert!(
        resolves_by(guard.lost(), deadline + GRACE).await,
        "{fault:?}: the holder is not notified by its deadline"
    );
    assert!(!guard.is_valid());
    let early = deadline.saturating_duration_since(Instant::now());
    assert!(early < ttl / 4, "{fault:?}: lost {early:?} too early");
    let latest = applied().pop().expect("one renewal was applied");
    assert_eq!(
        latest.began, last.began,
        "{fault:?}: a renewal was applied despite the fault"
    );
    drop(guard);
    network.set(Faults::NONE);
    let _ = free_within(&direct.locks, &key, BEFORE_LONG).await;
    Trial::Proved
}

/// A lookup that still finds the lock does not renew the lease.
pub async fn a_lookup_does_not_move_the_local_deadline<T: Target>(fixture: Fixture<T>) {
    let client = fixture.direct().await;
    let locks = &client.locks;
    let key = fixture.key("seen");
    let started = Instant::now();
    let guard = acquire(locks, &key, TTL).await;
    let granted = Instant::now();
    client.watched.on_extend(ExtendFault::Refuse);
    let guard = guard.auto_extend(AutoExtend::new());
    let seen = AtomicU64::new(0);
    let asking = async {
        loop {
            let info = locks.get_by_key(&key).await.expect("lookup failed");
            let owned = locks.owns(guard.lock_id()).await.expect("lookup failed");
            let failed = client.watched.ended_extends(|end| end != CallEnd::Applied);
            if info.is_some() && owned && !failed.is_empty() {
                seen.fetch_add(1, Ordering::Relaxed);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let lost = tokio::select! {
        biased;
        lost = resolves_by(guard.lost(), granted + TTL + GRACE) => lost,
        () = Box::pin(asking) => unreachable!("it asks for ever"),
    };
    assert!(lost, "the deadline was moved");
    assert!(!guard.is_valid());
    assert!(started.elapsed() >= TTL, "the lease was lost too early");
    assert!(
        seen.into_inner() > 0,
        "no lookup found the lock while renewals failed"
    );
}

/// When the store answers that the lock is gone, `run` ends its section within 100 ms, and no release is
/// sent for a lock that is gone.
pub async fn a_section_that_lost_its_lock_ends_at_once_and_nothing_is_retried<T: Target>(
    fixture: Fixture<T>,
) {
    // The answers come between two whole seconds, when a holder that looks only once a second would
    // be late; and at different times, so that one stall of the machine does not spoil all rounds.
    let ttls = [4, 7, 10].map(Duration::from_secs);
    let rounds = ttls.map(|ttl| Box::pin(ends_at_once(&fixture, ttl)));
    let at_once = join_all(rounds).await;
    let late = at_once.iter().filter(|at_once| !**at_once).count();
    assert!(
        late <= 1,
        "{late} of {} sections went on for more than 100 ms",
        at_once.len()
    );
}

/// Whether the section ends as soon as the store has answered that its lock is gone.
async fn ends_at_once<T: Target>(fixture: &Fixture<T>, ttl: Duration) -> bool {
    let (client, other) = (fixture.direct().await, fixture.direct().await);
    let key = fixture.key(&format!("{ttl:?}"));
    let section = async |lease: Lease| {
        let removed = other.locks.release(lease.lock_id()).await;
        assert!(removed.expect("release failed").is_released());
        pending::<()>().await;
    };
    let late = async {
        let answered = eventually("the answer that the lock is gone", async || {
            let not_held = client.watched.ended_extends(|end| end == CallEnd::NotHeld);
            not_held.first()?.ended
        });
        let (answered, _) = answered.await;
        tokio::time::sleep_until((answered + Duration::from_millis(100)).into()).await;
    };
    let request = client.locks.lock(&key).ttl(ttl);
    let run = request.auto_extend(AutoExtend::new()).run(section);
    let mut run = std::pin::pin!(run);
    let (at_once, outcome) = tokio::select! {
        biased;
        outcome = &mut run => (true, outcome),
        () = late => (false, run.await),
    };
    let error = outcome.expect_err("its lock is gone");
    assert_eq!(error.code(), ErrorCode::LockLost, "{error:?}");
    assert_eq!(client.locks.pending(), 0, "a background release is pending");
    tokio::time::sleep(Duration::from_secs(2)).await;
    let releases = client.watched.releases();
    assert!(releases.is_empty(), "{releases:?}");
    at_once
}

/// A holder was stopped past its TTL, and meanwhile another acquired the key and released it. When it
/// continues, it knows that its lease is lost and does not extend it, and no fence is used twice.
pub async fn a_holder_that_was_paused_past_its_ttl_finds_out_on_waking<T: Target>(
    fixture: Fixture<T>,
) {
    let (port, key) = (fixture.port(), fixture.key("paused"));
    let (pausing, paused) = tokio::sync::oneshot::channel();
    let (wake, woken) = std::sync::mpsc::channel();
    let holder = std::thread::spawn({
        let key = key.clone();
        move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("the runtime does not start");
            runtime.block_on(async {
                let locks = Client::<T>::connect(port).await.locks;
                let guard = acquire(&locks, &key, TTL).await;
                let guard = guard.auto_extend(AutoExtend::new());
                pausing.send(guard.fence()).expect("the case has ended");
                // The thread sleeps, and its runtime with it: the same as a stopped process.
                let others_fence = woken.recv().expect("the case has ended");
                assert!(!guard.is_valid());
                assert!(resolves_by(guard.lost(), Instant::now() + GRACE).await);
                let late = eventually("an answer to the late extend", async || {
                    let answer = guard.extend(LONG).await;
                    answer.inspect_err(is_outage).ok()
                });
                assert_eq!(late.await.expires_at_ms(), None);
                let next = acquire(&locks, &key, LONG).await;
                let fence = next.fence();
                assert!(
                    fence > others_fence,
                    "fence {fence} was granted after {others_fence}"
                );
                release(next).await;
            });
        }
    });
    let first = paused.await.expect("the holder has ended");
    let other = fixture.direct().await;
    let request = other.locks.lock(&key).timeout(BEFORE_LONG);
    let others = request
        .retry_delay(Duration::from_millis(20))
        .run(async |lease| lease.fence())
        .await;
    let fence = others.expect("the key does not expire").into_value();
    assert!(fence > first, "fence {fence} was granted after {first}");
    wake.send(fence).expect("the holder has ended");
    let holder = tokio::task::spawn_blocking(|| holder.join());
    let holder = holder.await.expect("the blocking task panicked");
    holder.expect("the holder panicked");
}

/// After an hour of suspend the holder knows by its own clock that its lease has ended.
pub async fn the_local_deadline_counts_through_suspend<T: Target>(fixture: Fixture<T>) {
    let suspended = Arc::new(AtomicU64::new(0));
    let (start, hours) = (Instant::now(), Arc::clone(&suspended));
    let now = move || start.elapsed() + Duration::from_secs(3_600 * hours.load(Ordering::SeqCst));
    let client = Client::<T>::connect_with(fixture.port(), |builder| builder.monotonic_clock(now));
    let (client, other) = (client.await, fixture.direct().await);
    let key = fixture.key("suspended");
    let guard = acquire(&client.locks, &key, LONG).await;
    let guard = guard.auto_extend(AutoExtend::new());
    // For the others the lock expired during that hour, and another holds the key.
    let removed = other.locks.release(guard.lock_id()).await;
    assert!(removed.expect("release failed").is_released());
    let successor = acquire(&other.locks, &key, LONG).await;
    let notified = tokio::spawn({
        let lease = guard.lease();
        async move { lease.lost().await }
    });
    tokio::time::sleep(GRACE).await;
    assert!(guard.is_valid() && !notified.is_finished());
    suspended.store(1, Ordering::SeqCst);
    assert!(!guard.is_valid());
    assert_eq!(guard.remaining(), Duration::ZERO);
    // Timers have not moved: `lost` looks at the clock once a second.
    let notified = tokio::time::timeout(BEFORE_LONG, notified).await;
    let notified = notified.expect("the holder is not notified");
    notified.expect("`lost` panicked");
    let late = guard.extend(LONG).await.expect("extend failed");
    assert_eq!(late.expires_at_ms(), None);
    drop(guard);
    let drained = client.locks.drain(BEFORE_LONG).await;
    drained.expect("background releases are still pending");
    // The late holder did not touch the successor's lock.
    release(successor).await;
}
