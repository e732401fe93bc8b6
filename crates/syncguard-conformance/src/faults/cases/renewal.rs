//! Auto-extension over a network that is slow, or down for a while.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use syncguard_core::{AutoExtend, ErrorCode, Lease, LockGuard, Locks};
use syncguard_testkit::Faults;

use crate::faults::client::Client;
use crate::faults::steps::{
    BEFORE_LONG, LONG, Trial, acquire, eventually, free_within, is_held, is_outage_code, release,
    with_longer_ttls, with_ttls,
};
use crate::faults::watched::{CallEnd, ExtendFault, NotedCall};
use crate::faults::{Fixture, Target};

/// A renewal is held for 13/24 of these, well below the 5 s after which drivers and `Locks` give up
/// on a call.
const TTLS_OF_SLOW_RENEWALS: [Duration; 3] = [
    Duration::from_secs(3),
    Duration::from_secs(5),
    Duration::from_secs(7),
];

/// One renewal takes longer than half the TTL: its request or its reply is slow. The lease is kept.
pub async fn one_slow_renewal_does_not_lose_the_lease<T: Target>(fixture: Fixture<T>) {
    let direct = fixture.direct().await;
    let (fixture, direct) = (&fixture, &direct.locks);
    let faults = [Faults::HOLD_REQUESTS, Faults::HOLD_REPLIES];
    let all = faults.map(|slow| {
        Box::pin(with_ttls(TTLS_OF_SLOW_RENEWALS, async move |ttl| {
            let network = fixture.network();
            let client = network.client().await;
            let key = fixture.key(&format!("{slow:?}"));
            let started = Instant::now();
            let guard = acquire(&client.locks, &key, ttl).await;
            let guard = guard.auto_extend(AutoExtend::new());
            network.set(slow);
            let first = async || client.watched.extends().first().copied();
            let until = eventually("a renewal", first).await.began + ttl * 13 / 24;
            tokio::time::sleep_until(until.into()).await;
            network.set(Faults::NONE);
            let (began, (ended, end)) = eventually("the end of the renewal", async || {
                let first = first().await?;
                Some((first.began, first.ended?))
            })
            .await;
            let trial = match end {
                CallEnd::Applied => kept(&guard, direct, &key, started + ttl * 2).await,
                // The machine was too slow for the call to end within its timeout.
                CallEnd::Abandoned | CallEnd::Failed(ErrorCode::NetworkTimeout) => Trial::LeaseLost,
                // Or for it to begin within the lease.
                CallEnd::NotHeld if !guard.is_valid() => Trial::LeaseLost,
                other => panic!("{slow:?}: the renewal ended with {other:?}"),
            };
            if trial == Trial::Proved {
                assert!(ended - began > ttl / 2, "the renewal was not slow");
            }
            end_trial(guard, direct, &key, &trial).await;
            trial
        }))
    });
    join_all(all).await;
}

/// A renewal that fails, or cannot connect, is retried soon enough to keep the lease.
pub async fn a_failed_renewal_is_retried<T: Target>(fixture: Fixture<T>) {
    let direct = fixture.direct().await;
    let (fixture, direct) = (&fixture, &direct.locks);
    let faults = [Faults::REFUSE, Faults::RESET, Faults::CUT_AT_REPLY];
    let all = faults.map(|fault| {
        Box::pin(with_longer_ttls(async move |ttl| {
            let network = fixture.network();
            let client = network.client().await;
            let key = fixture.key(&format!("{fault:?}"));
            let started = Instant::now();
            let guard = acquire(&client.locks, &key, ttl).await;
            let guard = guard.auto_extend(AutoExtend::new());
            network.set(fault);
            let first = eventually("a renewal that fails", async || {
                let first = client.watched.extends().first().copied()?;
                // If connections are refused, some drivers retry by themselves.
                let waits = fault == Faults::REFUSE && first.began.elapsed() > ttl / 6;
                (first.ended.is_some() || waits).then_some(first)
            });
            let first = first.await;
            network.set(Faults::NONE);
            let trial = kept(&guard, direct, &key, started + ttl * 2).await;
            if trial == Trial::Proved {
                match first.ended {
                    None => {}
                    Some((_, CallEnd::Failed(code))) => assert!(is_outage_code(code), "{code:?}"),
                    Some((_, other)) => panic!("{fault:?}: the renewal ended with {other:?}"),
                }
                let applied = client.watched.ended_extends(|end| end == CallEnd::Applied);
                assert!(!applied.is_empty(), "no renewal was applied");
            }
            end_trial(guard, direct, &key, &trial).await;
            trial
        }))
    });
    join_all(all).await;
}

/// Releases a lock that was kept; waits until the key of one that was lost is free.
async fn end_trial(guard: LockGuard, direct: &Locks, key: &str, trial: &Trial) {
    match trial {
        Trial::Proved => release(guard).await,
        Trial::LeaseLost => {
            drop(guard);
            let _ = free_within(direct, key, BEFORE_LONG).await;
        }
    }
}

/// Whether a lease is kept until a point in time: nobody else acquires the key, and the lease stays
/// valid for its holder.
async fn kept(lease: &Lease, other: &Locks, key: &str, until: Instant) -> Trial {
    while Instant::now() < until {
        let attempt = other.try_lock(key).ttl(LONG).await.expect("acquire failed");
        if !lease.is_valid() {
            return Trial::LeaseLost;
        }
        assert!(attempt.is_none(), "the key was granted twice");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Trial::Proved
}

/// Even on a slow store, a lock has at most one renewal in flight, and no lock waits for the renewal of
/// another.
pub async fn a_slow_store_sees_one_renewal_of_a_lock_at_a_time<T: Target>(fixture: Fixture<T>) {
    let fixture = &fixture;
    // Three intervals there and back: the lease expires during the first renewal.
    let far = with_longer_ttls(async move |ttl| {
        let network = fixture.network();
        let client = network.client().await;
        let slow_down = || network.set(Faults::delay(ttl / 2));
        one_at_a_time(fixture, &client, ttl, 1, slow_down).await
    });
    // A little more than one interval: a renewal is due before the last has ended.
    let near = with_longer_ttls(async move |ttl| {
        let client = fixture.direct().await;
        let fault = ExtendFault::DelayRequest(ttl * 2 / 5);
        let slow_down = || client.watched.on_extend(fault);
        one_at_a_time(fixture, &client, ttl, 2, slow_down).await
    });
    tokio::join!(Box::pin(far), Box::pin(near));
}

/// Whether each of two locks had `least` renewals, one at a time.
async fn one_at_a_time<T: Target>(
    fixture: &Fixture<T>,
    client: &Client<T>,
    ttl: Duration,
    least: usize,
    slow_down: impl Fn(),
) -> Trial {
    let keys = ["one", "two"].map(|name| fixture.key(&format!("{name}, {least}, {ttl:?}")));
    let (one, two) = tokio::join!(
        acquire(&client.locks, &keys[0], ttl),
        acquire(&client.locks, &keys[1], ttl)
    );
    let guards = [one, two].map(|guard| guard.auto_extend(AutoExtend::new()));
    slow_down();
    tokio::time::sleep(ttl * 3).await;
    let extends = client.watched.extends();
    let [first, second] = guards.each_ref().map(|guard| {
        let of_this = extends.iter().filter(|call| call.id == *guard.lock_id());
        of_this.collect::<Vec<_>>()
    });
    for renewals in [&first, &second] {
        let in_turn = renewals.is_sorted_by(|one, next| ended_by(one, next.began));
        assert!(in_turn, "two renewals of one lock overlap: {renewals:?}");
    }
    if first.len() < least || second.len() < least {
        return Trial::LeaseLost;
    }
    let overlap = !ended_by(first[0], second[0].began) && !ended_by(second[0], first[0].began);
    assert!(overlap, "one lock waits for the renewal of the other");
    Trial::Proved
}

fn ended_by(call: &NotedCall, by: Instant) -> bool {
    call.ended.is_some_and(|(ended, _)| ended <= by)
}

/// A release does not wait for a renewal in flight. When the release has returned, the key is free, and the
/// renewal has ended and does not bring the lock back.
pub async fn a_release_during_a_renewal_frees_the_key_and_ends_the_renewal<T: Target>(
    fixture: Fixture<T>,
) {
    let direct = fixture.direct().await;
    let mut clients = Vec::new();
    for fault in [
        ExtendFault::DelayRequest(LONG),
        ExtendFault::DelayReply(LONG),
    ] {
        for explicit in [true, false] {
            let client = fixture.direct().await;
            let key = fixture.key(&format!("{fault:?}, {explicit}"));
            let _ = free_within(&client.locks, &key, BEFORE_LONG).await;
            client.watched.on_extend(fault);
            clients.push((client, key, explicit));
        }
    }
    let before = tasks();
    let releases = clients.iter().map(async |(client, key, explicit)| {
        let ttl = Duration::from_secs(9);
        let guard = acquire(&client.locks, key, ttl).await;
        let lease = guard.lease();
        let guard = guard.auto_extend(AutoExtend::new());
        eventually("a renewal in flight", async || {
            (client.watched.extends_in_flight() == 1).then_some(())
        })
        .await;
        // By then the store has applied the one whose reply is late.
        tokio::time::sleep(ttl / 30).await;
        if *explicit {
            release(guard).await;
        } else {
            drop(guard);
            let drained = client.locks.drain(BEFORE_LONG).await;
            drained.expect("the release is still pending");
        }
        // Its task ends on another thread, long before its delay.
        eventually("the end of the renewal", async || {
            (client.watched.extends_in_flight() == 0).then_some(())
        })
        .await;
        assert!(!lease.is_valid());
        assert!(!is_held(&direct.locks, key).await);
    });
    join_all(releases.map(Box::pin)).await;
    no_more_tasks_than(before).await;
}

/// Thousands of locks are renewed and released: none is renewed after its release, and no task remains.
pub async fn renewed_locks_stay_released_and_leave_no_task<T: Target>(fixture: Fixture<T>) {
    const WORKERS: u32 = 50;
    const ROUNDS: u32 = 40;
    let ttl = Duration::from_millis(300);
    let client = fixture.direct().await;
    let _ = free_within(&client.locks, &fixture.key("warm"), BEFORE_LONG).await;
    let served = served_by(&client.locks, &fixture.key("served"), WORKERS, ttl).await;
    let watched = Arc::clone(&client.watched);
    let renewals = move || watched.ended_extends(|end| end == CallEnd::Applied).len();
    let enough = usize::try_from(served * ROUNDS / 20).expect("a small number");
    let (before, started) = (tasks(), Instant::now());
    let workers = (0..served).map(|worker| {
        let (locks, key) = (client.locks.clone(), fixture.key(&worker.to_string()));
        let renewals = renewals.clone();
        tokio::spawn(async move {
            for round in 0.. {
                // More rounds where the machine was too slow to renew in time.
                let is_over = || renewals() > enough || started.elapsed() > BEFORE_LONG;
                if round >= ROUNDS && is_over() {
                    break;
                }
                let guard = acquire_freed(&locks, &key, ttl).await;
                let guard = guard.auto_extend(AutoExtend::new());
                // Mostly around the first renewal.
                let time = u64::from((worker + round * 7) % 40) * 4;
                tokio::time::sleep(Duration::from_millis(time)).await;
                let lease = guard.lease();
                let _ = guard.release().await.expect("release failed");
                let late = lease.extend(ttl).await.expect("extend failed");
                assert_eq!(late.expires_at_ms(), None, "the lock was brought back");
                assert!(!is_held(&locks, &key).await);
            }
        })
    });
    for worker in workers.collect::<Vec<_>>() {
        worker.await.expect("a worker panicked");
    }
    let drained = client.locks.drain(BEFORE_LONG).await;
    drained.expect("background releases are still pending");
    let renewals = renewals();
    assert!(
        renewals > enough,
        "only {renewals} renewals were applied by {served} workers"
    );
    assert_eq!(client.watched.extends_in_flight(), 0);
    no_more_tasks_than(before).await;
}

/// How many of these workers use the store at once. A store that takes longer than a lease to answer each of them
/// gets as many as it answers within a sixth of the lease: otherwise it could not renew in time.
async fn served_by(locks: &Locks, key: &str, workers: u32, ttl: Duration) -> u32 {
    let mut fastest = Duration::MAX;
    for _ in 0..3 {
        let started = Instant::now();
        join_all((0..workers).map(|_| is_held(locks, key))).await;
        fastest = fastest.min(started.elapsed());
    }
    if fastest <= ttl {
        return workers;
    }
    let served = (ttl / 6).as_micros() * u128::from(workers) / fastest.as_micros();
    u32::try_from(served).unwrap_or(workers).max(1)
}

/// Acquires a key. If the machine was too slow to renew its last lock in time, that lock may end only with
/// its TTL.
async fn acquire_freed(locks: &Locks, key: &str, ttl: Duration) -> LockGuard {
    let started = Instant::now();
    loop {
        let answer = locks.try_lock(key).ttl(ttl).await;
        if let Ok(Some(guard)) = answer {
            return guard;
        }
        assert!(
            started.elapsed() < BEFORE_LONG,
            "for {BEFORE_LONG:?} no acquire with a TTL of {ttl:?} succeeded; the last one: {answer:?}"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn no_more_tasks_than(before: usize) {
    eventually("no task is left", async || {
        (tasks() <= before).then_some(())
    })
    .await;
}

fn tasks() -> usize {
    tokio::runtime::Handle::current()
        .metrics()
        .num_alive_tasks()
}
