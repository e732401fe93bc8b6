//! Leases that cannot be kept, and how soon their holders know.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use syncguard_core::{
    AutoExtend, ErrorCode, Lease, LockOptions, ManagedBackend as _, Operation, Policy, get_by_key,
    lock, owns, release,
};
use syncguard_testkit::Faults;

use crate::fixture::client;
use crate::steps::{
    Attempt, BEFORE_LONG, LONG, eventually, is_outage, resolves_by, soon_taken, take,
    with_longer_ttls,
};
use crate::{Answer, Client, ExtendFault, Fixture, Target};

const TTL: Duration = Duration::from_secs(3);

/// What the timer of a lease may be behind.
const GRACE: Duration = Duration::from_millis(200);

/// However renewals fail, the holder is told no later than a TTL after the start of the last one
/// that was good.
pub async fn when_renewals_keep_failing_the_lease_is_lost_by_its_deadline<T: Target>(
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
) -> Attempt {
    let network = fixture.network();
    let client = network.client(Policy::new()).await;
    let key = fixture.key(&format!("{fault:?}, {ttl:?}"));
    let guard = take(&client, &key, ttl).await;
    let guard = guard.with_auto_extend(AutoExtend::new());
    let good = |answer| answer == Answer::Done;
    let store = client.get_ref();
    while store.extends(good).is_empty() {
        if !guard.is_valid() {
            return Attempt::Lost;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    network.set(fault);
    // Answers that were on their way already.
    tokio::time::sleep(GRACE).await;
    let last_good = store.extends(good).pop().expect("there was one");
    let deadline = last_good.began + ttl;
    assert!(
        resolves_by(guard.lost(), deadline + GRACE).await,
        "{fault:?}: the holder is not told by its deadline"
    );
    assert!(!guard.is_valid());
    let early = deadline.saturating_duration_since(Instant::now());
    assert!(early < ttl / 4, "{fault:?}: given up {early:?} early");
    let latest = store.extends(good).pop().expect("there was one");
    assert_eq!(
        latest.began, last_good.began,
        "{fault:?}: it did not strike"
    );
    drop(guard);
    network.set(Faults::NONE);
    let _ = soon_taken(direct, &key, BEFORE_LONG).await;
    Attempt::Proved
}

/// That the store still shows the lock is no renewal of it.
pub async fn a_lookup_does_not_move_the_local_deadline<T: Target>(fixture: Fixture<T>) {
    let client = fixture.direct().await;
    let key = fixture.key("seen");
    let started = Instant::now();
    let guard = take(&client, &key, TTL).await;
    let granted = Instant::now();
    client.get_ref().on_extend(ExtendFault::Refuse);
    let guard = guard.with_auto_extend(AutoExtend::new());
    let seen = AtomicU64::new(0);
    let asking = async {
        loop {
            let info = get_by_key(&client, &key).await.expect("an answer");
            let owned = owns(&client, guard.lock_id()).await.expect("an answer");
            let failed = client.get_ref().extends(|answer| answer != Answer::Done);
            if info.is_some() && owned && !failed.is_empty() {
                seen.fetch_add(1, Ordering::Relaxed);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let told = tokio::select! {
        biased;
        told = resolves_by(guard.lost(), granted + TTL + GRACE) => told,
        () = Box::pin(asking) => unreachable!("it asks for ever"),
    };
    assert!(told, "the deadline was moved");
    assert!(!guard.is_valid());
    assert!(started.elapsed() >= TTL, "given up early");
    assert!(
        seen.into_inner() > 0,
        "nothing was seen while renewals failed"
    );
}

/// When the store says that the lock is gone, the helper ends its section within 100 ms, and
/// nobody asks to release what is not there.
pub async fn a_section_that_lost_its_lock_ends_at_once_and_nothing_is_repeated<T: Target>(
    fixture: Fixture<T>,
) {
    // Told between two whole seconds, when a holder that looks up once a second would be late; and
    // not all at once, lest one stall of the machine spoil them all.
    let ttls = [4, 7, 10].map(Duration::from_secs);
    let rounds = ttls.map(|ttl| Box::pin(ends_at_once(&fixture, ttl)));
    let at_once = join_all(rounds).await;
    let late = at_once.iter().filter(|at_once| !**at_once).count();
    assert!(late <= 1, "{late} of {} sections go on", at_once.len());
}

/// Whether the section ends as soon as the store has said that its lock is gone.
async fn ends_at_once<T: Target>(fixture: &Fixture<T>, ttl: Duration) -> bool {
    let (client, other) = (fixture.direct().await, fixture.direct().await);
    let key = fixture.key(&format!("{ttl:?}"));
    let options = LockOptions::new()
        .with_ttl(ttl)
        .with_auto_extend(AutoExtend::new());
    let section = async |lease: Lease<_>| {
        let removed = release(&other, lease.lock_id()).await.expect("an answer");
        assert!(removed.is_released());
        pending::<()>().await;
    };
    let refused = |answer| answer == Answer::Refused;
    let late = async {
        let told = eventually("the store's word", async || {
            client.get_ref().extends(refused).first()?.ended
        });
        let (told, _) = told.await;
        tokio::time::sleep_until((told + Duration::from_millis(100)).into()).await;
    };
    let mut held = std::pin::pin!(lock(&client, &key, options, section));
    let (at_once, outcome) = tokio::select! {
        biased;
        outcome = &mut held => (true, outcome),
        () = late => (false, held.await),
    };
    let error = outcome.expect_err("its lock is gone");
    assert_eq!(error.code(), ErrorCode::LockLost, "{error:?}");
    assert_eq!(client.policy().pending(), 0, "something goes on behind it");
    tokio::time::sleep(Duration::from_secs(2)).await;
    let releases = client.get_ref().calls(Operation::Release);
    assert!(releases.is_empty(), "{releases:?}");
    at_once
}

/// A holder that was stopped past its TTL, while another took the key and gave it back, knows on
/// waking, extends nothing, and no fence is used twice.
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
                .expect("a runtime");
            runtime.block_on(async {
                let client = client::<T>(port, Policy::new()).await;
                let guard = take(&client, &key, TTL).await;
                let guard = guard.with_auto_extend(AutoExtend::new());
                pausing.send(guard.fence()).expect("someone waits");
                // The thread sleeps, and with it the runtime: the same as a stopped process.
                let others_fence = woken.recv().expect("a fence");
                assert!(!guard.is_valid());
                assert!(resolves_by(guard.lost(), Instant::now() + GRACE).await);
                let late = eventually("an answer", async || {
                    let answer = guard.extend(LONG).await;
                    answer.inspect_err(is_outage).ok()
                });
                assert_eq!(late.await.expires_at_ms(), None);
                let next = take(&client, &key, LONG).await;
                let fence = next.fence();
                assert!(fence > others_fence, "fence {fence}, after {others_fence}");
                let released = next.release().await.expect("an answer");
                assert!(released.is_released());
            });
        }
    });
    let first = paused.await.expect("a fence");
    let other = fixture.direct().await;
    let options = LockOptions::new()
        .with_timeout(BEFORE_LONG)
        .with_max_retries(u32::MAX)
        .with_retry_delay(Duration::from_millis(20));
    let others = lock(&other, &key, options, async |lease| lease.fence()).await;
    let fence = others.expect("the key runs out").into_value();
    assert!(
        fence > first,
        "fence {fence} of the successor, after {first}"
    );
    wake.send(fence).expect("someone waits");
    let holder = tokio::task::spawn_blocking(|| holder.join());
    holder.await.expect("it ends").expect("it does not panic");
}

/// After an hour of suspend the holder knows by its own clock that its lease is over.
pub async fn the_local_deadline_counts_through_suspend<T: Target>(fixture: Fixture<T>) {
    let suspended = Arc::new(AtomicU64::new(0));
    let (start, hours) = (Instant::now(), Arc::clone(&suspended));
    let policy = Policy::new().with_monotonic_clock(move || {
        start.elapsed() + Duration::from_secs(3_600 * hours.load(Ordering::SeqCst))
    });
    let client = client::<T>(fixture.port(), policy).await;
    let other = fixture.direct().await;
    let key = fixture.key("suspended");
    let guard = take(&client, &key, LONG).await;
    let guard = guard.with_auto_extend(AutoExtend::new());
    // To the others the lock has gone in that hour, and another holds the key.
    let removed = release(&other, guard.lock_id()).await.expect("an answer");
    assert!(removed.is_released());
    let successor = take(&other, &key, LONG).await;
    let told = tokio::spawn({
        let lease = guard.lease();
        async move { lease.lost().await }
    });
    tokio::time::sleep(GRACE).await;
    assert!(guard.is_valid() && !told.is_finished());
    suspended.store(1, Ordering::SeqCst);
    assert!(!guard.is_valid());
    assert_eq!(guard.remaining(), Duration::ZERO);
    // Timers have not moved: it looks up once a second.
    let told = tokio::time::timeout(BEFORE_LONG, told).await;
    told.expect("it is told").expect("it does not panic");
    let late = guard.extend(LONG).await.expect("an answer");
    assert_eq!(late.expires_at_ms(), None);
    drop(guard);
    client.drain(BEFORE_LONG).await.expect("nothing is left");
    let released = successor.release().await.expect("an answer");
    assert!(released.is_released(), "the successor's was left alone");
}
