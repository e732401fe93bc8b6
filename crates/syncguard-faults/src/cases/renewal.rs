//! Auto-extension over a network that is slow, or away for a while.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use syncguard_core::{
    AutoExtend, ErrorCode, Fence, Lease, LockGuard, ManagedBackend, Operation, Policy, acquire,
    is_locked,
};
use syncguard_testkit::Faults;

use crate::steps::{
    Attempt, BEFORE_LONG, LONG, eventually, held, is_outage_code, soon_taken, take,
    with_longer_ttls, with_ttls,
};
use crate::{Answer, Call, Client, ExtendFault, Fixture, Target};

/// Thirteen twenty-fourths of them, for which a renewal is held, are well below the 5 s within which
/// drivers and policy give a call up.
const TTLS_OF_SLOW_RENEWALS: [Duration; 3] = [
    Duration::from_secs(3),
    Duration::from_secs(5),
    Duration::from_secs(7),
];

/// A renewal that takes longer than half the TTL, on the way there or back, costs nothing.
pub async fn one_slow_renewal_does_not_lose_the_lease<T: Target>(fixture: Fixture<T>) {
    let direct = fixture.direct().await;
    let (fixture, direct) = (&fixture, &direct);
    let faults = [Faults::HOLD_REQUESTS, Faults::HOLD_REPLIES];
    let all = faults.map(|slow| {
        Box::pin(with_ttls(TTLS_OF_SLOW_RENEWALS, async move |ttl| {
            let network = fixture.network();
            let client = network.client(Policy::new()).await;
            let key = fixture.key(&format!("{slow:?}"));
            let started = Instant::now();
            let guard = take(&client, &key, ttl).await;
            let guard = guard.with_auto_extend(AutoExtend::new());
            network.set(slow);
            let store = client.get_ref();
            let first = eventually("a renewal", async || {
                store.calls(Operation::Extend).first().copied()
            });
            let until = first.await.began + ttl * 13 / 24;
            tokio::time::sleep_until(until.into()).await;
            network.set(Faults::NONE);
            let renewal = eventually("its end", async || {
                store
                    .calls(Operation::Extend)
                    .first()
                    .copied()
                    .filter(|call| call.ended.is_some())
            });
            let renewal = renewal.await;
            let (ended, answer) = renewal.ended.expect("it has");
            let attempt = match answer {
                Answer::Done => kept(&guard, direct, &key, started + ttl * 2).await,
                // The machine was too slow for the call to end within its timeout.
                Answer::Dropped | Answer::Failed(ErrorCode::NetworkTimeout) => Attempt::Lost,
                // Or for it to begin within the lease.
                Answer::Refused if !guard.is_valid() => Attempt::Lost,
                other => panic!("{slow:?}: {other:?}"),
            };
            if attempt == Attempt::Proved {
                assert!(ended - renewal.began > ttl / 2, "it was not slow");
            }
            give_back(guard, direct, &key, &attempt).await;
            attempt
        }))
    });
    join_all(all).await;
}

/// A renewal that fails, or finds nobody listening, is tried again soon enough to keep the lease.
pub async fn a_failed_renewal_is_tried_again<T: Target>(fixture: Fixture<T>) {
    let direct = fixture.direct().await;
    let (fixture, direct) = (&fixture, &direct);
    let faults = [Faults::REFUSE, Faults::RESET, Faults::CUT_AT_REPLY];
    let all = faults.map(|fault| {
        Box::pin(with_longer_ttls(async move |ttl| {
            let network = fixture.network();
            let client = network.client(Policy::new()).await;
            let key = fixture.key(&format!("{fault:?}"));
            let started = Instant::now();
            let guard = take(&client, &key, ttl).await;
            let guard = guard.with_auto_extend(AutoExtend::new());
            network.set(fault);
            let store = client.get_ref();
            let first = eventually("a renewal that fails", async || {
                let first = store.calls(Operation::Extend).first().copied()?;
                // Some drivers go on connecting by themselves where nobody listens.
                let waits = fault == Faults::REFUSE && first.began.elapsed() > ttl / 6;
                (first.ended.is_some() || waits).then_some(first)
            });
            let first = first.await;
            network.set(Faults::NONE);
            let attempt = kept(&guard, direct, &key, started + ttl * 2).await;
            if attempt == Attempt::Proved {
                match first.ended {
                    None => {}
                    Some((_, Answer::Failed(code))) => assert!(is_outage_code(code), "{code:?}"),
                    Some(other) => panic!("{fault:?}: it did not strike: {other:?}"),
                }
                let done = store.extends(|answer| answer == Answer::Done);
                assert!(!done.is_empty(), "it was not tried again");
            }
            give_back(guard, direct, &key, &attempt).await;
            attempt
        }))
    });
    join_all(all).await;
}

/// Releases what was kept, and waits until a key that was lost is free.
async fn give_back<B: ManagedBackend<Fence = Fence>>(
    guard: LockGuard<B>,
    direct: &B,
    key: &str,
    attempt: &Attempt,
) {
    if *attempt == Attempt::Proved {
        let released = guard.release().await.expect("an answer");
        assert!(released.is_released());
    } else {
        drop(guard);
        let _ = soon_taken(direct, key, BEFORE_LONG).await;
    }
}

/// Whether a lease is kept until a point in time: nobody else gets the key, and its holder is not
/// told that it is lost.
async fn kept<B: ManagedBackend<Fence = Fence>>(
    lease: &Lease<B>,
    other: &B,
    key: &str,
    until: Instant,
) -> Attempt {
    while Instant::now() < until {
        let attempt = acquire(other, key, LONG).await.expect("an answer");
        if !lease.is_valid() {
            return Attempt::Lost;
        }
        assert!(attempt.is_none(), "the key was granted twice");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Attempt::Proved
}

/// However slow the store, a lock has one renewal under way at most; another lock has its own.
pub async fn a_slow_store_sees_one_renewal_of_a_lock_at_a_time<T: Target>(fixture: Fixture<T>) {
    let fixture = &fixture;
    // There and back, three intervals: the lease runs out over the first renewal.
    let far = with_longer_ttls(async move |ttl| {
        let network = fixture.network();
        let client = network.client(Policy::new()).await;
        let slow = || network.set(Faults::delay(ttl / 2));
        one_at_a_time(fixture, &client, ttl, 1, slow).await
    });
    // A little more than an interval: one renewal is due before the other has ended.
    let near = with_longer_ttls(async move |ttl| {
        let client = fixture.direct().await;
        let slow = ExtendFault::DelayRequest(ttl * 2 / 5);
        let slow = || client.get_ref().on_extend(slow);
        one_at_a_time(fixture, &client, ttl, 2, slow).await
    });
    tokio::join!(Box::pin(far), Box::pin(near));
}

/// Whether so many renewals of each of two locks were seen, one at a time.
async fn one_at_a_time<T: Target>(
    fixture: &Fixture<T>,
    client: &Client<T>,
    ttl: Duration,
    least: usize,
    slow_down: impl Fn(),
) -> Attempt {
    let keys = ["one", "two"].map(|name| fixture.key(&format!("{name}, {least}, {ttl:?}")));
    let (one, two) = tokio::join!(take(client, &keys[0], ttl), take(client, &keys[1], ttl));
    let guards = [one, two].map(|guard| guard.with_auto_extend(AutoExtend::new()));
    slow_down();
    tokio::time::sleep(ttl * 3).await;
    let calls = client.get_ref().calls(Operation::Extend);
    let of = |index: usize| {
        let calls = calls.iter();
        let id = guards.get(index).map(|guard| *guard.lock_id());
        calls.filter(|call| call.id == id).collect::<Vec<_>>()
    };
    let [first, second] = [of(0), of(1)];
    for renewals in [&first, &second] {
        let in_turn = renewals.is_sorted_by(|one, next| ended_by(one, next.began));
        assert!(in_turn, "{renewals:?}");
    }
    if first.len() < least || second.len() < least {
        return Attempt::Lost;
    }
    let at_once = !ended_by(first[0], second[0].began) && !ended_by(second[0], first[0].began);
    assert!(at_once, "one lock waits for the other");
    Attempt::Proved
}

fn ended_by(call: &Call, by: Instant) -> bool {
    call.ended.is_some_and(|(ended, _)| ended <= by)
}

/// A release does not wait for a renewal that is under way, and when it is answered the renewal is
/// gone: it brings nothing back.
pub async fn released_while_a_renewal_is_in_flight_the_key_is_free_and_the_renewal_gone<
    T: Target,
>(
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
            let _ = soon_taken(&client, &key, BEFORE_LONG).await;
            client.get_ref().on_extend(fault);
            clients.push((client, key, explicit));
        }
    }
    let before = tasks();
    let releases = clients.iter().map(async |(client, key, explicit)| {
        let ttl = Duration::from_secs(9);
        let guard = take(client, key, ttl).await;
        let lease = guard.lease();
        let guard = guard.with_auto_extend(AutoExtend::new());
        let store = client.get_ref();
        eventually("a renewal under way", async || {
            (store.in_flight(Operation::Extend) == 1).then_some(())
        })
        .await;
        // For the store to have carried out the one that is answered late.
        tokio::time::sleep(ttl / 30).await;
        if *explicit {
            let released = guard.release().await.expect("an answer");
            assert!(released.is_released());
        } else {
            drop(guard);
            client.drain(BEFORE_LONG).await.expect("it is released");
        }
        assert_eq!(store.in_flight(Operation::Extend), 0);
        assert!(!lease.is_valid());
        assert!(!held(&direct, key).await);
    });
    join_all(releases.map(Box::pin)).await;
    eventually("no task is left", async || {
        (tasks() <= before).then_some(())
    })
    .await;
}

/// Thousands of locks are renewed and released: none is renewed after its release, and no task
/// stays behind.
pub async fn renewed_locks_stay_released_and_leave_no_task<T: Target>(fixture: Fixture<T>) {
    const WORKERS: u32 = 50;
    const ROUNDS: u32 = 40;
    let ttl = Duration::from_millis(300);
    let client = fixture.direct().await;
    let _ = soon_taken(&client, &fixture.key("warm"), BEFORE_LONG).await;
    let before = tasks();
    let workers = (0..WORKERS).map(|worker| {
        let (client, key) = (client.clone(), fixture.key(&worker.to_string()));
        tokio::spawn(async move {
            for round in 0..ROUNDS {
                let guard = free(&client, &key, ttl).await;
                let guard = guard.with_auto_extend(AutoExtend::new());
                // Around the first renewal, mostly.
                let time = u64::from((worker + round * 7) % 40) * 4;
                tokio::time::sleep(Duration::from_millis(time)).await;
                let lease = guard.lease();
                let _ = guard.release().await.expect("an answer");
                let late = lease.extend(ttl).await.expect("an answer");
                assert_eq!(late.expires_at_ms(), None, "it was revived");
                assert!(!is_locked(&client, &key).await.expect("an answer"));
            }
        })
    });
    for worker in workers.collect::<Vec<_>>() {
        worker.await.expect("it does not panic");
    }
    client.drain(BEFORE_LONG).await.expect("nothing is left");
    let store = client.get_ref();
    let renewals = store.extends(|answer| answer == Answer::Done).len();
    assert!(renewals > 100, "{renewals} renewals");
    assert_eq!(store.in_flight(Operation::Extend), 0);
    eventually("no task is left", async || {
        (tasks() <= before).then_some(())
    })
    .await;
}

/// Takes a key that a machine too slow to renew it in time may have left to its TTL.
async fn free<B: ManagedBackend>(client: &B, key: &str, ttl: Duration) -> LockGuard<B> {
    let started = Instant::now();
    loop {
        let answer = acquire(client, key, ttl).await;
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

fn tasks() -> usize {
    tokio::runtime::Handle::current()
        .metrics()
        .num_alive_tasks()
}
