//! Many replicas start at once; one migrates the schema, the others wait and find it done.
//!
//! ```sh
//! cargo run --example startup_migration
//! ```
//!
//! The lease is short and renewed: a replica that dies in the middle delays the others by no more than
//! its TTL. Every change carries the fence, so a replica that was paused and overtaken cannot continue.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use syncguard_core::{AutoExtend, Backoff, Fence};
use syncguard_examples::connect;
use tokio::task::JoinSet;

const MIGRATIONS: &[&str] = &["create orders", "add orders.fence", "index orders.customer"];

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Applies what is missing, and returns how many migrations that were.
async fn migrate_at_startup(database: &Database) -> Result<usize, Failure> {
    let locks = connect().await?;
    let receipt = locks
        .lock("migrate:shop")
        .ttl(Duration::from_secs(15))
        .auto_extend(AutoExtend::new().max_hold(Duration::from_secs(3600)))
        .timeout(Duration::from_secs(120))
        .retry_delay(Duration::from_millis(50))
        .backoff(Backoff::Fixed)
        .run(async |lease| {
            let pending = MIGRATIONS.iter().skip(database.version());
            let mut applied = 0;
            for migration in pending {
                database.apply(migration, lease.fence()).await?;
                applied += 1;
            }
            Ok(applied)
        })
        .await?;
    receipt.into_value()
}

/// In production, one row: `UPDATE schema SET version = $1, fence = $2 WHERE fence <= $2`.
#[derive(Default)]
struct Database {
    schema: Mutex<Schema>,
}

#[derive(Default)]
struct Schema {
    applied: Vec<String>,
    newest: Option<Fence>,
}

impl Database {
    fn version(&self) -> usize {
        self.schema().applied.len()
    }

    async fn apply(&self, migration: &str, fence: Fence) -> Result<(), String> {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let mut schema = self.schema();
        if schema.newest.is_some_and(|newest| fence < newest) {
            return Err(format!("{migration}: overtaken, {fence} is an old fence"));
        }
        schema.newest = Some(fence);
        schema.applied.push(migration.to_owned());
        Ok(())
    }

    fn schema(&self) -> MutexGuard<'_, Schema> {
        // No panic can happen while it is locked.
        self.schema.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts replicas side by side, and returns how many migrations each of them applied.
async fn start(replicas: usize, database: &Arc<Database>) -> Result<Vec<usize>, Failure> {
    let mut starting = JoinSet::new();
    for _ in 0..replicas {
        let database = Arc::clone(database);
        starting.spawn(async move { migrate_at_startup(&database).await });
    }
    starting.join_all().await.into_iter().collect()
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let database = Arc::default();
    for applied in start(8, &database).await? {
        match applied {
            0 => println!("a replica found version {}", database.version()),
            _ => println!("a replica applied {applied} migrations"),
        }
    }
    println!("applied in all: {:?}", database.schema().applied);
    Ok(())
}

#[cfg(test)]
#[tokio::test]
async fn one_of_many_replicas_migrates() -> Result<(), Failure> {
    let database = Arc::default();
    let mut applied = start(8, &database).await?;
    applied.sort_unstable();
    assert_eq!(applied, [0, 0, 0, 0, 0, 0, 0, MIGRATIONS.len()]);
    assert_eq!(database.schema().applied, MIGRATIONS);
    Ok(())
}
