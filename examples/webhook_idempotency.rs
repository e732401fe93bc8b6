//! A webhook that is delivered many times, sometimes at once, and handled once.
//!
//! ```sh
//! cargo run --example webhook_idempotency
//! ```
//!
//! Deliveries of one event wait for each other. The first does the work and records it, the others
//! find the record. The record makes "once" last; the lock keeps two deliveries from doing the work
//! concurrently before there is a record.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use syncguard_core::{Fence, Lease, LockError, Locks};
use syncguard_examples::connect;
use tokio::task::JoinSet;

/// What the sender of the event gets as a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reply {
    /// 200
    Handled,
    /// 200: a success as well, or the sender would not stop.
    HandledBefore,
    /// 503: the outcome is unknown, so the sender has to deliver the event again.
    TryAgain,
}

#[derive(Clone)]
struct Webhook {
    locks: Locks,
    shop: Arc<Shop>,
}

impl Webhook {
    async fn deliver(&self, event: &str) -> Reply {
        let handle = async |lease: Lease| {
            if self.shop.is_shipped(event) {
                return Reply::HandledBefore;
            }
            self.shop.ship(event, lease.fence()).await;
            Reply::Handled
        };
        // Answer before the sender gives up, and well before it stops sending.
        let request = self
            .locks
            .lock(lock_key(event))
            .timeout(Duration::from_secs(5));
        let handled = request.run(handle).await;
        match handled {
            Ok(receipt) => receipt.into_value(),
            Err(error) => {
                eprintln!("{error}");
                Reply::TryAgain
            }
        }
    }
}

/// Events share a thousand keys. A key of its own for each would leave a fence counter behind, and
/// there is no end of events. Every replica must come to the same key.
fn lock_key(event: &str) -> String {
    let mix = |hash: u32, byte| hash.wrapping_mul(31).wrapping_add(u32::from(byte));
    format!("webhook:{}", event.bytes().fold(0, mix) % 1000)
}

/// In production, a table with the event's id as its primary key.
#[derive(Default)]
struct Shop {
    shipments: Mutex<HashMap<String, Vec<Fence>>>,
}

impl Shop {
    fn is_shipped(&self, event: &str) -> bool {
        self.shipments().contains_key(event)
    }

    async fn ship(&self, event: &str, fence: Fence) {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let mut shipments = self.shipments();
        shipments.entry(event.to_owned()).or_default().push(fence);
    }

    fn shipments(&self) -> std::sync::MutexGuard<'_, HashMap<String, Vec<Fence>>> {
        // Only an insertion happens while it is locked, so no state is half changed.
        self.shipments
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Three deliveries at once, to three replicas, and one more afterwards.
async fn deliver_four_times(event: &'static str) -> Result<(Vec<Reply>, Arc<Shop>), LockError> {
    let shop = Arc::<Shop>::default();
    let mut deliveries = JoinSet::new();
    for _ in 0..3 {
        let (locks, shop) = (connect().await?, Arc::clone(&shop));
        let replica = Webhook { locks, shop };
        deliveries.spawn(async move { replica.deliver(event).await });
    }
    let mut replies = deliveries.join_all().await;
    let (locks, shop_again) = (connect().await?, Arc::clone(&shop));
    let replica = Webhook {
        locks,
        shop: shop_again,
    };
    replies.push(replica.deliver(event).await);
    Ok((replies, shop))
}

#[tokio::main]
async fn main() -> Result<(), LockError> {
    let (replies, shop) = deliver_four_times("order-paid:1001").await?;
    println!("replies in the order of their coming: {replies:?}");
    for (event, fences) in shop.shipments().iter() {
        println!("{event}: shipped {} time, under {fences:?}", fences.len());
    }
    Ok(())
}

#[cfg(test)]
#[tokio::test]
async fn an_event_is_handled_once() -> Result<(), LockError> {
    let (replies, shop) = deliver_four_times("order-paid:1002").await?;
    let times = |wanted| replies.iter().filter(|reply| **reply == wanted).count();
    assert_eq!((times(Reply::Handled), times(Reply::HandledBefore)), (1, 3));
    assert_eq!(shop.shipments()["order-paid:1002"].len(), 1);
    Ok(())
}
