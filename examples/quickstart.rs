//! The life of a lock: acquired, contended, extended, waited for, fenced, released by its id.
//!
//! ```sh
//! cargo run --example quickstart
//! SYNCGUARD_REDIS_URL=redis://127.0.0.1:6379 cargo run --example quickstart
//! SYNCGUARD_POSTGRES_URL=postgres://postgres@127.0.0.1/postgres cargo run --example quickstart
//! SYNCGUARD_SQLITE_PATH=locks.db cargo run --example quickstart
//! FIRESTORE_EMULATOR_HOST=127.0.0.1:8080 cargo run --example quickstart
//! ```

use std::error::Error;
use std::time::{Duration, Instant};

use syncguard_core::Fence;
use syncguard_examples::connect;

const KEY: &str = "report:daily";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // Clients of one store, as three processes would have them.
    let (alice, bob, carol) = (connect().await?, connect().await?, connect().await?);
    println!("store: {}\n", alice.capabilities().backend);

    // A single attempt. Contention is a value, not an error, and is known at once.
    let ten_seconds = Duration::from_secs(10);
    let Some(guard) = alice.try_lock(KEY).ttl(ten_seconds).await? else {
        return Err(format!("{KEY} is held, perhaps by another run; try again in 10 s").into());
    };
    let old_fence = guard.fence();
    say(
        "Alice",
        "acquires the lock for 10 s",
        format!("fence {old_fence}"),
    );
    if bob.try_lock(KEY).await?.is_some() {
        return Err("two clients hold one key".into());
    }
    say("Bob", "asks for the same key", "refused");

    // Every write carries the fence of the lock that it was made under.
    let mut ledger = Ledger::default();
    say("Alice", "writes", ledger.write(old_fence));

    let before = guard.remaining();
    let extended = guard.extend(Duration::from_secs(30)).await?;
    if !extended.is_extended() {
        return Err("the lease expired before it was extended".into());
    }
    let after = guard.remaining();
    say(
        "Alice",
        "extends her lease",
        format!("{before:.1?} left -> {after:.1?} left"),
    );

    // `lock` waits for the key; `run` runs a section under it, and releases.
    let waiting = tokio::spawn(async move {
        let started = Instant::now();
        bob.lock(KEY)
            .run(async |lease| (started.elapsed(), lease.fence()))
            .await
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    say("Alice", "releases", format!("{:?}", guard.release().await?));
    let (waited, new_fence) = waiting.await??.into_value();
    say(
        "Bob",
        "has waited and gets the lock",
        format!("fence {new_fence}, after {waited:.0?}"),
    );
    say("Bob", "writes", ledger.write(new_fence));

    // A write of Alice's that was delayed on its way. No lock can stop it; the fence does.
    let late = ledger.write(old_fence);
    if late == "accepted" {
        return Err("the ledger accepted a stale write".into());
    }
    say("Alice", "has a late write arrive", late);

    // The lock id alone releases a lock, from any process.
    let job = alice.lock(KEY).ttl(ten_seconds).await?.detach();
    say(
        "Alice",
        "acquires it, passes the lock id on",
        format!("fence {}", job.fence()),
    );
    let first = carol.release(job.lock_id()).await?;
    say(
        "Carol",
        "releases by the lock id alone",
        format!("{first:?}"),
    );
    let second = carol.release(job.lock_id()).await?;
    say("Carol", "releases it once more", format!("{second:?}"));
    Ok(())
}

/// A resource that refuses writes older than the newest it has seen: the other half of a lock.
#[derive(Default)]
struct Ledger {
    newest: Option<Fence>,
}

impl Ledger {
    fn write(&mut self, fence: Fence) -> String {
        if let Some(newest) = self.newest.filter(|newest| fence < *newest) {
            return format!("refused: {fence} is older than {newest}");
        }
        self.newest = Some(fence);
        "accepted".to_owned()
    }
}

fn say(who: &str, does: &str, outcome: impl std::fmt::Display) {
    println!("{who:5} {does:32} {outcome}");
}
