//! Replies that are lost after the store has done what was asked.

use std::time::Duration;

use syncguard_core::{ErrorCode, LockError, ManagedBackend, Policy, acquire, is_locked, release};
use syncguard_testkit::{Connections, Faults, Flow};

use crate::steps::{BEFORE_LONG, LONG, eventually, held, is_outage, median, soon_taken, take};
use crate::{Fixture, Target};

const OPERATION_TIMEOUT: Duration = Duration::from_millis(200);

/// Longer than the first few attempts at giving a lock back.
const OUTAGE: Duration = Duration::from_millis(800);

/// After which, once the network is back, nobody is to wait for an orphaned lock.
const SETTLED: Duration = Duration::from_secs(1);

const ROUNDS: usize = 5;

/// What was on its way is lost with the connection, and there is no other.
const BROKEN: Faults = Faults {
    connections: Connections::Refuse,
    requests: Flow::Reset,
    replies: Flow::Reset,
};

/// An acquire whose reply is lost fails with an unknown outcome, and its lock is free within a
/// second of the network's return rather than at the end of its TTL.
pub async fn an_acquire_whose_reply_is_lost_is_given_back_once_the_network_is<T: Target>(
    fixture: Fixture<T>,
) {
    given_back(&fixture, Faults::HALF_OPEN).await;
}

/// The same where the connection breaks instead of hanging: the driver has an error to tell, and
/// that error does not say that nothing happened.
pub async fn an_acquire_whose_connection_breaks_at_the_reply_is_given_back<T: Target>(
    fixture: Fixture<T>,
) {
    given_back(&fixture, BROKEN).await;
}

async fn given_back<T: Target>(fixture: &Fixture<T>, loss: Faults) {
    let ttl = Duration::from_secs(30);
    let (direct, network) = (fixture.direct().await, fixture.network());
    let client = network.client(impatient()).await;
    let mut waits = Vec::new();
    for key in (0..100).map(|round| fixture.key(&round.to_string())) {
        reachable(&client, &key).await;
        let call = acquire(&client, &key, ttl);
        let lost = network.without_reply(call, async || held(&direct, &key).await, loss);
        let Some(outcome) = lost.await else {
            continue;
        };
        unknown(&outcome.expect_err("its reply is lost"), loss);
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
    repeated(&fixture, Faults::HALF_OPEN).await;
}

/// The same where the connection breaks instead of hanging.
pub async fn a_release_whose_connection_breaks_at_the_reply_can_be_repeated<T: Target>(
    fixture: Fixture<T>,
) {
    repeated(&fixture, BROKEN).await;
}

async fn repeated<T: Target>(fixture: &Fixture<T>, loss: Faults) {
    let (direct, network) = (fixture.direct().await, fixture.network());
    let client = network.client(impatient()).await;
    let mut rounds = 0;
    for key in (0..100).map(|round| fixture.key(&round.to_string())) {
        reachable(&client, &key).await;
        let lease = take(&direct, &key, LONG).await.detach();
        let call = release(&client, lease.lock_id());
        let lost = network.without_reply(call, async || !held(&direct, &key).await, loss);
        let Some(outcome) = lost.await else {
            continue;
        };
        unknown(&outcome.expect_err("its reply is lost"), loss);
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
        rounds += 1;
        if rounds == ROUNDS {
            break;
        }
    }
    assert_eq!(rounds, ROUNDS, "most attempts end too early");
    client.drain(BEFORE_LONG).await.expect("nothing is left");
}

fn unknown(error: &LockError, loss: Faults) {
    assert!(
        error.outcome_unknown(),
        "the store has applied it, and the error says that it has not: {error:?}"
    );
    if loss == Faults::HALF_OPEN {
        assert_eq!(error.code(), ErrorCode::NetworkTimeout, "{error:?}");
    }
}

fn impatient() -> Policy {
    Policy::new().with_operation_timeout(OPERATION_TIMEOUT)
}

/// Waits until a client has a connection.
async fn reachable<B: ManagedBackend>(client: &B, key: &str) {
    eventually("a connection", async || is_locked(client, key).await.ok()).await;
}
