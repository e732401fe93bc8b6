//! Replies that are lost after the store has done what was asked.

use std::time::Duration;

use syncguard_core::{ErrorCode, ManagedBackend, Policy, acquire, is_locked, release};
use syncguard_testkit::Faults;

use crate::steps::{BEFORE_LONG, LONG, eventually, held, is_outage, median, soon_taken, take};
use crate::{Fixture, Target};

const OPERATION_TIMEOUT: Duration = Duration::from_millis(200);

/// Longer than the first few attempts at giving a lock back.
const OUTAGE: Duration = Duration::from_millis(800);

/// After which, once the network is back, nobody is to wait for an orphaned lock.
const SETTLED: Duration = Duration::from_secs(1);

const ROUNDS: usize = 5;

/// An acquire whose reply is lost fails with an unknown outcome, and its lock is free within a
/// second of the network's return rather than at the end of its TTL.
pub async fn an_acquire_whose_reply_is_lost_is_given_back_once_the_network_is<T: Target>(
    fixture: Fixture<T>,
) {
    let ttl = Duration::from_secs(30);
    let (direct, network) = (fixture.direct().await, fixture.network());
    let client = network.client(impatient()).await;
    let mut waits = Vec::new();
    for key in (0..100).map(|round| fixture.key(&round.to_string())) {
        reachable(&client, &key).await;
        let call = acquire(&client, &key, ttl);
        let lost = network.without_reply(call, async || held(&direct, &key).await);
        let Some(outcome) = lost.await else {
            continue;
        };
        let error = outcome.expect_err("its reply is lost");
        assert!(error.outcome_unknown(), "{error:?}");
        assert_eq!(error.code(), ErrorCode::NetworkTimeout, "{error:?}");
        tokio::time::sleep(OUTAGE).await;
        assert!(held(&direct, &key).await, "no way leads to the store");
        network.set(Faults::NONE);
        waits.push(soon_taken(&direct, &key, ttl / 2).await);
        if waits.len() == ROUNDS {
            break;
        }
    }
    assert_eq!(waits.len(), ROUNDS, "most attempts end too early");
    assert!(median(waits.clone()) < SETTLED, "{waits:?}");
    client.drain(BEFORE_LONG).await.expect("nothing is left");
}

/// A release whose reply is lost fails with an unknown outcome; the key is free, and releasing
/// again is no error.
pub async fn a_release_whose_reply_is_lost_can_be_repeated<T: Target>(fixture: Fixture<T>) {
    let (direct, network) = (fixture.direct().await, fixture.network());
    let client = network.client(impatient()).await;
    let mut lost = 0;
    for key in (0..100).map(|round| fixture.key(&round.to_string())) {
        reachable(&client, &key).await;
        let lease = take(&direct, &key, LONG).await.detach();
        let call = release(&client, lease.lock_id());
        let outcome = network.without_reply(call, async || !held(&direct, &key).await);
        let Some(outcome) = outcome.await else {
            continue;
        };
        let error = outcome.expect_err("its reply is lost");
        assert!(error.outcome_unknown(), "{error:?}");
        network.set(Faults::NONE);
        let again = async || match release(&client, lease.lock_id()).await {
            Ok(released_or_not_held) => Some(released_or_not_held),
            // The client has yet to notice that there is a network again.
            Err(error) => {
                is_outage(&error);
                None
            }
        };
        let _ = eventually("an answer to the repeated release", again).await;
        assert!(!held(&direct, &key).await);
        let _ = soon_taken(&direct, &key, BEFORE_LONG).await;
        lost += 1;
        if lost == ROUNDS {
            break;
        }
    }
    assert_eq!(lost, ROUNDS, "most attempts end too early");
    client.drain(BEFORE_LONG).await.expect("nothing is left");
}

fn impatient() -> Policy {
    Policy::new().with_operation_timeout(OPERATION_TIMEOUT)
}

/// Waits until a client has a connection.
async fn reachable<B: ManagedBackend>(client: &B, key: &str) {
    eventually("a connection", async || is_locked(client, key).await.ok()).await;
}
