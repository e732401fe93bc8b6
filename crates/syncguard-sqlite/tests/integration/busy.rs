//! Another connection has the file's write lock.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sqlx::{SqliteConnection, SqlitePool};
use syncguard_core::backend::{ExtendRequest, LockBackend as _, TIME_TOLERANCE_MS};
use syncguard_core::observe::Operation;
use syncguard_core::{ErrorCode, Ttl};
use syncguard_sqlite::{SqliteBackend, SqliteOptions, sqlx};
use tokio::time::sleep;

use crate::common::{
    MINUTE, PATIENCE, acquire, acquire_by, connection, file, is_held, key, options, release, take,
};

async fn execute(connection: &mut SqliteConnection, sql: &'static str) {
    sqlx::raw_sql(sql).execute(connection).await.unwrap();
}

fn system_now_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(now.as_millis()).unwrap()
}

#[tokio::test]
async fn a_lease_counts_from_after_the_wait() {
    let (_folder, path) = file();
    let backend = SqliteBackend::connect(&path).await.unwrap();
    let mut other = connection(&path).await;
    execute(&mut other, "BEGIN IMMEDIATE").await;
    let ttl = Duration::from_secs(4);
    let waiting = tokio::spawn({
        let backend = backend.clone();
        async move { take(&backend, &key("k"), ttl).await }
    });
    sleep(Duration::from_secs(3)).await;
    assert!(!waiting.is_finished());
    let freed_ms = system_now_ms();
    execute(&mut other, "COMMIT").await;
    let grant = waiting.await.unwrap();
    assert!(grant.expires_at_ms >= freed_ms + 4_000);
}

#[tokio::test]
async fn a_lease_that_ended_during_the_wait_is_not_extended() {
    let (_folder, path) = file();
    let backend = SqliteBackend::connect(&path).await.unwrap();
    let mut other = connection(&path).await;
    let grant = take(&backend, &key("k"), Duration::from_secs(1)).await;
    execute(&mut other, "BEGIN IMMEDIATE").await;
    let waiting = tokio::spawn({
        let (backend, id) = (backend.clone(), grant.lock_id);
        async move {
            let deadline = tokio::time::Instant::now() + PATIENCE;
            let request = ExtendRequest::new(&id, Ttl::new(MINUTE).unwrap(), deadline);
            backend.extend(request).await.unwrap()
        }
    });
    while system_now_ms() <= grant.expires_at_ms + TIME_TOLERANCE_MS {
        sleep(Duration::from_millis(50)).await;
    }
    execute(&mut other, "COMMIT").await;
    assert!(!waiting.await.unwrap().is_extended());
    assert!(!is_held(&backend, &key("k")).await);
}

#[tokio::test]
async fn a_contended_acquire_and_reads_need_no_write_lock() {
    let (_folder, path) = file();
    let backend = SqliteBackend::connect(&path).await.unwrap();
    let grant = take(&backend, &key("k"), MINUTE).await;
    let mut other = connection(&path).await;
    execute(&mut other, "BEGIN IMMEDIATE").await;
    // They end although the write lock is never released meanwhile.
    assert!(
        acquire(&backend, &key("k"), MINUTE)
            .await
            .unwrap()
            .is_locked()
    );
    assert!(is_held(&backend, &key("k")).await);
    // Nor does a release that waits keep them from it.
    let waiting = tokio::spawn({
        let backend = backend.clone();
        async move { release(&backend, &grant.lock_id).await.unwrap() }
    });
    sleep(Duration::from_millis(100)).await;
    assert!(
        acquire(&backend, &key("k"), MINUTE)
            .await
            .unwrap()
            .is_locked()
    );
    assert!(!waiting.is_finished());
    execute(&mut other, "COMMIT").await;
    assert!(waiting.await.unwrap().is_released());
}

#[tokio::test]
async fn an_operation_waits_until_its_deadline_and_its_outcome_is_known() {
    let (_folder, path) = file();
    let backend = SqliteBackend::connect(&path).await.unwrap();
    let mut other = connection(&path).await;
    execute(&mut other, "BEGIN IMMEDIATE").await;
    let (started, within) = (Instant::now(), Duration::from_secs(3));
    let error = acquire_by(&backend, &key("k"), MINUTE, within)
        .await
        .unwrap_err();
    assert!(started.elapsed() >= within / 2, "{:?}", started.elapsed());
    assert_eq!(error.code(), ErrorCode::NetworkTimeout, "{error}");
    assert!(!error.outcome_unknown());
    assert!(error.to_string().contains("long transaction"), "{error}");
    execute(&mut other, "COMMIT").await;
    take(&backend, &key("k"), MINUTE).await;
}

#[tokio::test]
async fn a_shorter_wait_can_be_chosen() {
    let (_folder, path) = file();
    let options = SqliteOptions::new().busy_timeout(Duration::from_millis(200));
    let backend = SqliteBackend::connect_with(&path, options).await.unwrap();
    let mut other = connection(&path).await;
    execute(&mut other, "BEGIN IMMEDIATE").await;
    let started = Instant::now();
    let error = acquire(&backend, &key("k"), MINUTE).await.unwrap_err();
    assert!(started.elapsed() < PATIENCE / 2, "{:?}", started.elapsed());
    assert_eq!(error.code(), ErrorCode::NetworkTimeout, "{error}");
}

/// The set-up has no option for its deadline: 30 s.
#[tokio::test]
async fn a_set_up_ends_by_its_deadline_and_creates_nothing() {
    let (_folder, path) = file();
    let mut other = connection(&path).await;
    let pool = SqlitePool::connect_with(options(&path)).await.unwrap();
    let backend = SqliteBackend::with_pool(pool, SqliteOptions::new()).unwrap();
    execute(&mut other, "BEGIN IMMEDIATE").await;
    let started = Instant::now();
    let error = backend.setup_schema().await.unwrap_err();
    let took = started.elapsed();
    assert!(took >= PATIENCE / 4 && took < PATIENCE, "{took:?}");
    assert_eq!(error.code(), ErrorCode::NetworkTimeout, "{error}");
    assert_eq!(error.operation(), Some(Operation::Setup));
    assert!(!error.outcome_unknown());
    execute(&mut other, "COMMIT").await;
    let tables = "SELECT count(*) FROM sqlite_master";
    let tables: i64 = sqlx::query_scalar(tables)
        .fetch_one(&mut other)
        .await
        .unwrap();
    assert_eq!(tables, 0);
    backend.setup_schema().await.unwrap();
    take(&backend, &key("k"), MINUTE).await;
}

#[tokio::test]
async fn an_acquire_that_is_dropped_while_it_waits_takes_nothing_later() {
    let (_folder, path) = file();
    let backend = SqliteBackend::connect(&path).await.unwrap();
    let mut other = connection(&path).await;
    execute(&mut other, "BEGIN IMMEDIATE").await;
    for _ in 0..20 {
        let key = key("k");
        let waiting = acquire(&backend, &key, MINUTE);
        let abandoned = tokio::time::timeout(Duration::from_millis(25), waiting).await;
        assert!(abandoned.is_err());
    }
    // An attempt that was under way goes on, and ends before the next write has its turn.
    let next = acquire_by(&backend, &key("next"), MINUTE, Duration::from_secs(2)).await;
    assert!(next.is_err());
    execute(&mut other, "COMMIT").await;
    take(&backend, &key("another"), MINUTE).await;
    assert!(!is_held(&backend, &key("k")).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_file_is_made_by_many_clients_at_once() {
    let (_folder, path) = file();
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let path = path.clone();
        clients.spawn(async move { SqliteBackend::connect(&path).await.map(drop) });
    }
    for made in clients.join_all().await {
        made.unwrap();
    }
}

#[tokio::test]
async fn after_its_deadline_nothing_is_sent() {
    let (_folder, path) = file();
    let backend = SqliteBackend::connect(&path).await.unwrap();
    let late = acquire_by(&backend, &key("k"), MINUTE, Duration::ZERO).await;
    let error = late.unwrap_err();
    assert_eq!(error.code(), ErrorCode::NetworkTimeout, "{error}");
    assert!(!error.outcome_unknown());
    assert!(!is_held(&backend, &key("k")).await);
}
