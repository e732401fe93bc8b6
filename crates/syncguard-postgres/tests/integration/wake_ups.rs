//! Callers that wait are woken when the key becomes free, whichever client releases it.

use std::time::Duration;

use syncguard_core::backend::{Watch, WatchRequest};
use syncguard_core::{LockGuard, Locks};
use syncguard_postgres::{PostgresBackend, PostgresOptions};
use syncguard_testkit::{PgBouncer, PostgresServer, share_a_key};
use tokio::task::{JoinHandle, JoinSet};

use crate::common::proxy::Wire;
use crate::common::{BareCalls as _, Fixture, id, key, ttl};

/// No poll comes within this time: only a wake-up serves a caller.
const NEVER: Duration = Duration::from_secs(3_600);

const LISTENERS: &str = "SELECT count(*) FROM pg_stat_activity WHERE query NOT LIKE '%pg_stat_activity%' AND \
     (query ~ '^LISTEN \"syncguard_' OR query ~ 'advisory_.*lock_shared|^SELECT pg_catalog.pg_is_in')";

const MARKS: &str = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2";

/// A server of its own, to look at what there is in it.
async fn server() -> (PostgresServer, Fixture) {
    let server = PostgresServer::start().unwrap();
    let fixture = Fixture::at(&server.url(), PostgresOptions::new()).await;
    (server, fixture)
}

/// A caller that does not poll.
fn waiter(locks: &Locks, key: &str) -> JoinHandle<LockGuard> {
    let request = locks.lock(key).timeout(NEVER).retry_delay(NEVER);
    tokio::spawn(async move { request.await.unwrap() })
}

/// A caller that polls.
fn polling(locks: &Locks, key: &str) -> JoinHandle<LockGuard> {
    let request = locks.lock(key).timeout(NEVER);
    tokio::spawn(async move { request.await.unwrap() })
}

async fn served(waiter: JoinHandle<LockGuard>) -> LockGuard {
    let served = tokio::time::timeout(Duration::from_secs(30), waiter).await;
    served.expect("the waiter sleeps on").unwrap()
}

async fn granted(locks: &Locks, key: &str) -> LockGuard {
    let guard = locks.try_lock(key).ttl(NEVER).await.unwrap();
    guard.expect("the key is free")
}

async fn released(guard: LockGuard) {
    assert!(guard.release().await.unwrap().is_released());
}

async fn watch(backend: &PostgresBackend, name: &str) -> Option<Watch> {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    let key = key(name);
    let request = WatchRequest::new(&key, deadline);
    syncguard_core::backend::LockBackend::watch(backend, request)
        .await
        .unwrap()
}

/// It has looked at the key, which is held.
async fn waits(watch: &mut Watch) {
    let waits = tokio::time::timeout(Duration::from_secs(1), watch.changed()).await;
    assert!(waits.is_err(), "{waits:?}");
}

async fn until(fixture: &Fixture, sql: &str, expected: impl Fn(i64) -> bool) {
    for _ in 0..600 {
        if expected(fixture.number(sql).await) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{} of {sql}", fixture.number(sql).await);
}

async fn until_watching(fixture: &Fixture) {
    until(fixture, MARKS, |marks| marks > 0).await;
    // The look at the key that goes with it.
    tokio::time::sleep(Duration::from_millis(50)).await;
}

#[tokio::test]
async fn a_release_by_another_client_wakes_and_nothing_is_left_afterwards() {
    let (_server, fixture) = server().await;
    let elsewhere = fixture.another(PostgresOptions::new()).await;
    released(fixture.locks.lock("k").await.unwrap()).await;
    assert_eq!(fixture.number(LISTENERS).await, 0);
    for _ in 0..3 {
        let holder = granted(&elsewhere, "k").await;
        let waiting = waiter(&fixture.locks, "k");
        until_watching(&fixture).await;
        released(holder).await;
        released(served(waiting).await).await;
        until(&fixture, MARKS, |marks| marks == 0).await;
    }
    assert_eq!(fixture.number(LISTENERS).await, 1);
    until(&fixture, LISTENERS, |listeners| listeners == 0).await;

    let holder = granted(&elsewhere, "k").await;
    let waiting = waiter(&fixture.locks, "k");
    until_watching(&fixture).await;
    waiting.abort();
    until(&fixture, MARKS, |marks| marks == 0).await;
    released(holder).await;
}

#[tokio::test]
async fn no_wake_up_is_lost_between_the_first_question_and_the_watch() {
    let (_server, fixture) = server().await;
    let elsewhere = fixture.another(PostgresOptions::new()).await;
    for round in 0..1_000_u64 {
        let holder = granted(&elsewhere, "k").await;
        let waiting = waiter(&fixture.locks, "k");
        // Released at about the time of each step that leads to the watch.
        tokio::time::sleep(Duration::from_micros(round % 20 * 200)).await;
        for _ in 0..round % 40 {
            tokio::task::yield_now().await;
        }
        released(holder).await;
        released(served(waiting).await).await;
    }
}

#[tokio::test]
async fn nobody_is_notified_unless_somebody_waits() {
    let (_server, fixture) = server().await;
    // It listens, and does not read on: what is sent stays in the queue.
    let mut reader = fixture.sql.acquire().await.unwrap();
    sqlx::raw_sql("LISTEN other")
        .execute(&mut *reader)
        .await
        .unwrap();
    sqlx::raw_sql("BEGIN; SELECT 1")
        .execute(&mut *reader)
        .await
        .unwrap();
    // In pages of the queue, and each has less than 200 notifications.
    let used = "SELECT (pg_notification_queue_usage() > 0)::int::bigint";
    let releases = async || {
        for _ in 0..300 {
            let id = id();
            let grant = fixture.backend.acquire(&key("k"), &id, ttl(60_000)).await;
            assert!(grant.unwrap().granted().is_some());
            assert!(fixture.backend.release(&id).await.unwrap().is_released());
        }
    };
    releases().await;
    assert_eq!(fixture.number(used).await, 0);
    assert_eq!(fixture.number(MARKS).await, 0);

    let elsewhere = fixture.another_backend(PostgresOptions::new()).await;
    let watch = watch(&elsewhere, "k").await.unwrap();
    releases().await;
    assert_eq!(fixture.number(used).await, 1);
    drop(watch);
}

#[tokio::test]
async fn a_watching_connection_that_ends_costs_a_poll_and_comes_back() {
    let (_server, fixture) = server().await;
    let elsewhere = fixture.another(PostgresOptions::new()).await;
    let holder = granted(&elsewhere, "k").await;
    let waiting = polling(&fixture.locks, "k");
    until_watching(&fixture).await;
    let ended = "SELECT count(pg_terminate_backend(pid)) FROM pg_locks \
                 WHERE locktype = 'advisory' AND objsubid = 2";
    assert_eq!(fixture.number(ended).await, 1);
    released(holder).await;
    released(served(waiting).await).await;

    let holder = granted(&elsewhere, "k").await;
    let waiting = waiter(&fixture.locks, "k");
    until_watching(&fixture).await;
    released(holder).await;
    released(served(waiting).await).await;
}

#[tokio::test]
async fn a_watch_whose_server_is_silent_is_lost() {
    let (_server, fixture) = server().await;
    let (wire, url) = Wire::to(&fixture.url);
    let options = fixture.named(PostgresOptions::new());
    let backend = PostgresBackend::connect_with(&url, options).await.unwrap();
    let _holder = granted(&fixture.locks, "k").await;
    let mut watch = watch(&backend, "k").await.unwrap();
    waits(&mut watch).await;
    wire.hold_replies(true);
    let lost = tokio::time::timeout(Duration::from_secs(60), watch.changed()).await;
    assert!(lost.expect("it was not noticed").is_err());
}

#[tokio::test]
async fn a_server_that_became_a_standby_gives_no_wake_ups() {
    let (mut server, fixture) = server().await;
    let _holder = granted(&fixture.locks, "k").await;
    let elsewhere = fixture.another_backend(PostgresOptions::new()).await;
    let mut before = watch(&elsewhere, "k").await.unwrap();
    waits(&mut before).await;
    server.demote().unwrap();
    let lost = tokio::time::timeout(Duration::from_secs(60), before.changed()).await;
    assert!(lost.expect("it was not noticed").is_err());
    assert!(watch(&elsewhere, "k").await.is_none());
}

/// A backend of a role that has all permissions on the tables, and not this one.
async fn without(fixture: &Fixture, function: &str, url: &str) -> PostgresBackend {
    let sql = format!(
        "CREATE ROLE app LOGIN; GRANT ALL ON {{locks}}, {{fences}} TO app; \
         REVOKE EXECUTE ON FUNCTION {function} FROM PUBLIC"
    );
    fixture.run(&sql).await;
    let url = url.replace("postgres@", "app@");
    let options = fixture.named(PostgresOptions::new());
    PostgresBackend::connect_with(&url, options).await.unwrap()
}

#[tokio::test]
async fn without_the_permission_to_mark_a_caller_polls() {
    let (_server, fixture) = server().await;
    let function = "pg_try_advisory_lock_shared(int, int)";
    let locks = Locks::new(without(&fixture, function, &fixture.url).await);
    let holder = granted(&fixture.locks, "k").await;
    let waiting = polling(&locks, "k");
    tokio::time::sleep(Duration::from_secs(3)).await;
    // It is not tried again and again.
    assert_eq!(fixture.number(LISTENERS).await, 0);
    released(holder).await;
    released(served(waiting).await).await;
    let findings = locks.preflight().await.unwrap();
    let told =
        |finding: &syncguard_core::Finding| finding.code() == "postgres-wake-ups-unavailable";
    assert!(findings.iter().any(told), "{findings:?}");
}

#[tokio::test]
async fn without_the_permission_to_notify_a_release_succeeds_and_callers_poll() {
    let (_server, fixture) = server().await;
    let (wire, url) = Wire::to(&fixture.url);
    let backend = without(&fixture, "pg_notify(text, text)", &url).await;
    for round in 0..3 {
        let id = id();
        let grant = backend.acquire(&key("k"), &id, ttl(60_000)).await.unwrap();
        assert!(grant.granted().is_some());
        let waiting = polling(&fixture.locks, "k");
        until_watching(&fixture).await;
        let _ = wire.sent();
        assert!(backend.release(&id).await.unwrap().is_released());
        released(served(waiting).await).await;
        // From the second time on it asks for what it may.
        let executed = wire.sent().matches('E').count();
        assert_eq!(executed == 1, round > 0, "{round}: {executed}");
    }
}

#[tokio::test]
async fn a_notification_that_has_no_room_at_commit_costs_the_wake_up_alone() {
    let (_server, fixture) = server().await;
    // As a full queue does.
    fixture
        .run(
            "CREATE FUNCTION full_queue() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN \
             IF current_query() LIKE '%pg_notify%' THEN \
             RAISE 'too many notifications in the NOTIFY queue' USING ERRCODE = '54000'; \
             END IF; RETURN NULL; END$$; \
             CREATE CONSTRAINT TRIGGER full_queue AFTER DELETE ON {locks} \
             DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION full_queue()",
        )
        .await;
    for pooled in [false, true] {
        let options = PostgresOptions::new().transaction_pooler(pooled);
        let backend = fixture.another_backend(options).await;
        let id = id();
        let grant = backend.acquire(&key("k"), &id, ttl(60_000)).await.unwrap();
        assert!(grant.granted().is_some());
        let waiting = polling(&fixture.locks, "k");
        until_watching(&fixture).await;
        assert!(backend.release(&id).await.unwrap().is_released());
        assert!(!backend.release(&id).await.unwrap().is_released());
        released(served(waiting).await).await;
    }
}

#[tokio::test]
async fn a_lock_that_another_implementation_deletes_is_found_by_polling() {
    let (_server, fixture) = server().await;
    let elsewhere = fixture.another(PostgresOptions::new()).await;
    let holder = granted(&elsewhere, "k").await;
    let waiting = polling(&fixture.locks, "k");
    until_watching(&fixture).await;
    fixture.run("DELETE FROM {locks}").await;
    released(served(waiting).await).await;
    drop(holder.detach());
}

#[tokio::test]
async fn behind_a_pooler_in_transaction_mode_nobody_listens_and_its_releases_wake() {
    let (server, fixture) = server().await;
    let bouncer = PgBouncer::start(&server).unwrap();
    let client = async |configured| {
        let options = PostgresOptions::new().transaction_pooler(configured);
        let (url, options) = (bouncer.url(), fixture.named(options));
        PostgresBackend::connect_with(&url, options).await.unwrap()
    };
    for configured in [true, false] {
        assert!(watch(&client(configured).await, "k").await.is_none());
        assert_eq!(fixture.number(LISTENERS).await, 0);
    }
    let locks = Locks::new(client(true).await);
    let holder = granted(&locks, "k").await;
    let waiting = waiter(&fixture.locks, "k");
    until_watching(&fixture).await;
    released(holder).await;
    let holder = served(waiting).await;
    let waiting = polling(&locks, "k");
    released(holder).await;
    released(served(waiting).await).await;
    assert_eq!(fixture.number(LISTENERS).await, 1);
}

#[tokio::test]
async fn a_thousand_keys_are_watched_on_one_connection_each_woken_by_its_slot() {
    const KEYS: usize = 1_000;
    let (_server, fixture) = server().await;
    let elsewhere = fixture.another(PostgresOptions::new()).await;
    let mut holders = Vec::new();
    let mut watching = JoinSet::new();
    for index in 0..KEYS {
        let name = format!("k{index}");
        holders.push(granted(&elsewhere, &name).await);
        let mut watch = watch(&fixture.backend, &name).await.unwrap();
        watching.spawn(async move {
            watch.changed().await.unwrap();
            index
        });
    }
    assert_eq!(fixture.number(LISTENERS).await, 1);
    let marks = fixture.number(MARKS).await;
    assert!((500..=1_000).contains(&marks), "{marks}");
    assert!(watching.try_join_next().is_none());
    let (mut woken, mut released_keys) = (Vec::new(), 0);
    for (index, holder) in holders.into_iter().enumerate() {
        released(holder).await;
        released_keys += 1;
        while !woken.contains(&index) {
            let next = tokio::time::timeout(Duration::from_secs(30), watching.join_next()).await;
            woken.push(next.expect("it sleeps on").unwrap().unwrap());
        }
        if released_keys == 10 {
            // Those of the same slots, too.
            assert!(woken.len() <= 100, "{}", woken.len());
        }
    }
    until(&fixture, MARKS, |marks| marks == 0).await;
}

#[tokio::test]
async fn close_ends_the_watching_session() {
    let (_server, fixture) = server().await;
    let elsewhere = fixture.another(PostgresOptions::new()).await;
    let holder = granted(&fixture.locks, "k").await;
    let waiting = waiter(&elsewhere, "k");
    until_watching(&fixture).await;
    elsewhere.close().await.unwrap();
    assert_eq!(fixture.number(LISTENERS).await, 0);
    assert_eq!(fixture.number(MARKS).await, 0);
    waiting.abort();
    released(holder).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_takes_a_key_without_pause_leaves_a_third_to_another() {
    let (_server, fixture) = server().await;
    let other = fixture.another(PostgresOptions::new()).await;
    share_a_key([fixture.locks.clone(), other]).await.unwrap();
}

#[tokio::test]
async fn while_a_release_hangs_a_caller_asks_now_and_then() {
    let (_server, fixture) = server().await;
    let elsewhere = fixture.another(PostgresOptions::new()).await;
    let holder = granted(&elsewhere, "k").await;
    let placed = watch(&fixture.backend, "k").await.unwrap();
    // As a release does whose commit waits for a standby.
    let mut hanging = fixture.sql.begin().await.unwrap();
    let mark = "SELECT classid::bigint << 32 | objid::bigint FROM pg_locks \
                WHERE locktype = 'advisory' AND objsubid = 2";
    let mark = fixture.number(mark).await;
    drop(placed);
    until(&fixture, MARKS, |marks| marks == 0).await;
    sqlx::query("SELECT pg_advisory_xact_lock(($1 >> 32)::bit(32)::int, $1::bit(32)::int)")
        .bind(mark)
        .execute(&mut *hanging)
        .await
        .unwrap();
    let waiting = waiter(&fixture.locks, "k");
    let mut watch = watch(&fixture.backend, "k").await.unwrap();
    for _ in 0..5 {
        let asks = tokio::time::timeout(Duration::from_secs(30), watch.changed()).await;
        asks.expect("it sleeps on").unwrap();
    }
    released(holder).await;
    released(served(waiting).await).await;
    hanging.rollback().await.unwrap();
}

#[tokio::test]
async fn the_server_ends_the_watch_of_a_process_that_reads_nothing() {
    let (_server, fixture) = server().await;
    let holder = granted(&fixture.locks, "k").await;
    let (watches, watching) = std::sync::mpsc::channel();
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let options = fixture.named(PostgresOptions::new());
    let url = fixture.url.clone();
    let stopped = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let backend = PostgresBackend::connect_with(&url, options).await.unwrap();
            let _watch = watch(&backend, "k").await.unwrap();
            watches.send(()).unwrap();
            // Nothing of this runtime runs now.
            let _ = ended.recv();
        });
    });
    watching.recv().unwrap();
    assert_eq!(fixture.number(MARKS).await, 1);
    released(holder).await;
    // More than the network's buffers hold, on the channel of that release.
    let flood = "SELECT count(pg_notify(channel, number || repeat('x', 7000))) \
                 FROM generate_series(1, 5000) AS number, (SELECT DISTINCT \
                 substring(query FROM 'syncguard_[0-9a-f]{24}') AS channel FROM pg_stat_activity \
                 WHERE query LIKE '%DELETE FROM%syncguard_%' AND pid <> pg_backend_pid()) AS release";
    assert_eq!(fixture.number(flood).await, 5_000);
    until(&fixture, MARKS, |marks| marks == 0).await;
    let old = "SELECT count(*) FROM pg_stat_activity WHERE backend_xmin IS NOT NULL \
               AND pid <> pg_backend_pid() AND datname IS NOT NULL";
    until(&fixture, old, |old| old == 0).await;
    drop(end);
    stopped.join().unwrap();
}
