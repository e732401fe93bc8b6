//! A server that stops, hangs, restarts, refuses and ends sessions.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use syncguard_core::backend::Lookup;
use syncguard_core::{ErrorCode, LockError, Locks};
use syncguard_postgres::{PostgresBackend, PostgresOptions};
use syncguard_testkit::{PgBouncer, PostgresServer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use crate::common::proxy::Wire;
use crate::common::{BareCalls as _, Fixture, id, key, ttl};

const MINUTE: Duration = Duration::from_secs(60);

fn is_unavailable(error: &LockError) -> bool {
    matches!(
        error.code(),
        ErrorCode::ServiceUnavailable | ErrorCode::NetworkTimeout
    )
}

/// Acquires and releases until that works, within a time.
async fn recovers(locks: &Locks, key: &str) {
    let started = Instant::now();
    loop {
        match locks.try_lock(key).ttl(MINUTE).await {
            Ok(Some(guard)) => match guard.release().await {
                Ok(released) => {
                    assert!(released.is_released());
                    return;
                }
                Err(error) => assert!(error.is_retryable(), "{error:?}"),
            },
            Ok(None) => {}
            Err(error) => assert!(error.is_retryable(), "{error:?}"),
        }
        assert!(
            started.elapsed() < Duration::from_secs(20),
            "it does not recover"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_server_gives_typed_errors_in_time_and_a_restarted_one_works() {
    let mut server = PostgresServer::start().unwrap();
    let fixture = Fixture::at(&server.url(), PostgresOptions::new()).await;
    let locks = Locks::builder(fixture.backend.clone())
        .operation_timeout(Duration::from_secs(5))
        .build();
    let held = locks.try_lock("across").ttl(MINUTE).await.unwrap().unwrap();
    let fence = held.fence();

    server.stop().unwrap();
    let started = Instant::now();
    let attempts = (0..20).map(|_| locks.try_lock("stopped").ttl(MINUTE).attempt());
    for outcome in join_all(attempts).await {
        let error = outcome.unwrap_err();
        assert!(error.is_retryable(), "{error:?}");
    }
    let error = held.extend(MINUTE).await.unwrap_err();
    assert!(is_unavailable(&error), "{error:?}");
    assert!(
        started.elapsed() < Duration::from_secs(14),
        "{:?}",
        started.elapsed()
    );

    server.restart().unwrap();
    recovers(&locks, "stopped").await;
    // The lock and its fence are as they were: the store is durable.
    assert!(locks.is_locked("across").await.unwrap());
    assert!(held.extend(MINUTE).await.unwrap().expires_at_ms().is_some());
    assert!(held.release().await.unwrap().is_released());
    assert!(
        locks
            .try_lock("across")
            .ttl(MINUTE)
            .await
            .unwrap()
            .unwrap()
            .fence()
            > fence
    );

    // A crash. Idle connections are found out before they are used.
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    server.kill();
    server.restart().unwrap();
    recovers(&locks, "crashed").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hanging_server_is_a_timeout_and_leaves_no_lock() {
    let server = PostgresServer::start().unwrap();
    let fixture = Fixture::at(&server.url(), PostgresOptions::new()).await;
    let locks = Locks::builder(fixture.backend.clone())
        .operation_timeout(Duration::from_secs(2))
        .build();
    recovers(&locks, "warm").await;

    server.pause().unwrap();
    let attempts = (0..30).map(|n| {
        let locks = locks.clone();
        tokio::spawn(async move {
            let asked = locks.try_lock(format!("hung:{n}")).ttl(MINUTE);
            // A machine that stalls delays both timers, and the operation's own is polled first.
            timeout(Duration::from_secs(10), asked).await
        })
    });
    let (mut without_connection, mut sent) = (0, 0);
    for outcome in join_all(attempts).await {
        let outcome = outcome.unwrap().expect("an answer in time");
        let error = outcome.unwrap_err();
        let is_without_connection =
            error.code() == ErrorCode::RateLimited && !error.outcome_unknown();
        assert!(is_unavailable(&error) || is_without_connection, "{error:?}");
        without_connection += i32::from(is_without_connection);
        sent += i32::from(error.outcome_unknown());
    }
    // An attempt that begins late may get the connection of one that has given up. One that gives up late learns from
    // those that hang that the server is away.
    assert!(without_connection <= 30 - 10, "{without_connection}");
    assert!(
        sent <= 10,
        "behind as many that hang as there are connections, {sent} were sent"
    );
    server.resume().unwrap();

    locks.drain(Duration::from_secs(30)).await.unwrap();
    recovers(&locks, "warm").await;
    assert_eq!(fixture.number("SELECT count(*) FROM {locks}").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn against_a_hanging_server_every_other_call_ends_as_well() {
    let server = PostgresServer::start().unwrap();
    let fixture = Fixture::at(&server.url(), PostgresOptions::new()).await;
    let locks = Locks::builder(fixture.backend.clone())
        .operation_timeout(Duration::from_secs(3))
        .build();
    server.pause().unwrap();
    let started = Instant::now();
    let calls = async {
        tokio::join!(
            async { locks.purge_expired().await.map(drop) },
            async { locks.preflight().await.map(drop) },
            async { PostgresBackend::connect(&server.url()).await.map(drop) },
            fixture.backend.setup_schema(),
        )
    };
    let calls = timeout(Duration::from_secs(60), calls).await.unwrap();
    assert!(started.elapsed() > Duration::from_secs(3), "it does hang");
    for result in [calls.0, calls.1, calls.2, calls.3] {
        let error = result.unwrap_err();
        assert!(is_unavailable(&error), "{error:?}");
    }
    // One that is busy in the server keeps its connection.
    let busy = tokio::spawn(locks.try_lock("k").ttl(MINUTE).attempt());
    tokio::time::sleep(Duration::from_millis(100)).await;
    let close = timeout(Duration::from_secs(60), locks.close())
        .await
        .unwrap();
    assert!(is_unavailable(&close.unwrap_err()));
    assert!(busy.await.unwrap().is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_failover_the_third_operation_at_the_latest_works() {
    let (old, new) = (
        PostgresServer::start().unwrap(),
        PostgresServer::start().unwrap(),
    );
    let fixture = Fixture::at(&old.url(), PostgresOptions::new()).await;
    let options = fixture.named(PostgresOptions::new());
    let promoted = PostgresBackend::connect_with(&new.url(), options.clone())
        .await
        .unwrap();
    promoted.setup_schema().await.unwrap();

    let (wire, url) = Wire::to(&old.url());
    let url = format!("{url}?application_name=failover");
    let backend = PostgresBackend::connect_with(&url, options).await.unwrap();
    // As many connections as it may have.
    wire.open_connections(&backend, 10).await;
    let open = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'failover'";
    assert!(fixture.number(open).await > 5);

    fixture.refuse_writes().await;
    wire.lead_to(&new.url());
    let mut outcomes = Vec::new();
    for _ in 0..3 {
        outcomes.push(backend.acquire(&key("k"), &id(), ttl(60_000)).await);
    }
    let last = outcomes.pop().unwrap().unwrap();
    assert!(last.granted().is_some() || outcomes.iter().any(Result::is_ok));
    assert!(promoted.is_locked(&key("k")).await.unwrap());
    for error in outcomes.into_iter().filter_map(Result::err) {
        assert_eq!(error.code(), ErrorCode::ServiceUnavailable, "{error:?}");
    }
}

/// Commits wait for the standby of this name, or for none.
async fn set_standby(fixture: &Fixture, name: &str) {
    let set = format!("ALTER SYSTEM SET synchronous_standby_names = '{name}'");
    fixture.run(&set).await;
    fixture.run("SELECT pg_reload_conf()").await;
}

/// Every commit waits for a standby that does not exist, from here on.
///
/// A session that shows the setting is no proof: the checkpointer puts it in force.
async fn commits_wait(fixture: &Fixture) {
    set_standby(fixture, "nobody").await;
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    let started = Instant::now();
    let commit = || {
        let sql = fixture.sql.clone();
        tokio::spawn(async move {
            sqlx::query("SELECT pg_logical_emit_message(true, '', '')")
                .execute(&sql)
                .await
        })
    };
    let mut last = commit();
    while fixture.number(waiting).await == 0 {
        assert!(started.elapsed() < Duration::from_secs(20), "no reload");
        tokio::time::sleep(Duration::from_millis(10)).await;
        if last.is_finished() {
            last = commit();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_waits_for_a_standby_is_settled_when_the_standby_is_back() {
    for abandoned_after in [Duration::from_millis(100), Duration::from_secs(60)] {
        let server = PostgresServer::start().unwrap();
        let fixture = Fixture::at(&server.url(), PostgresOptions::new()).await;
        let locks = Locks::builder(fixture.backend.clone())
            .operation_timeout(Duration::from_secs(1))
            .build();
        recovers(&locks, "warm").await;
        commits_wait(&fixture).await;
        let attempt = locks.try_lock("k").ttl(MINUTE * 60);
        if let Ok(outcome) = timeout(abandoned_after, attempt).await {
            let error = outcome.unwrap_err();
            assert!(error.outcome_unknown(), "{error:?}");
        }
        // Long after the last release that could have overtaken the acquire.
        let drained = locks.drain(Duration::from_secs(8)).await;
        assert!(drained.is_err(), "the commit can still appear");
        set_standby(&fixture, "").await;
        locks.drain(Duration::from_secs(30)).await.unwrap();
        assert!(!fixture.locks.is_locked("k").await.unwrap());
        recovers(&locks, "k").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn while_a_standby_is_away_server_processes_stay_few_and_reads_are_answered() {
    processes_stay_few(async |fixture, server, options| {
        PostgresBackend::connect_with(&away(&server.url()), fixture.named(options)).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_a_standby_is_away_processes_of_a_given_pool_stay_few_and_reads_are_answered() {
    processes_stay_few(async |fixture, server, options| {
        let pool = crate::common::pool(&away(&server.url()), 10).await;
        PostgresBackend::with_pool(pool, fixture.named(options))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_a_standby_is_away_processes_behind_a_pooler_stay_few_and_reads_are_answered() {
    let mut running = None;
    processes_stay_few(async |fixture, server, options| {
        // No connection more than the backend has.
        let bouncer = PgBouncer::start_with(server, &[("default_pool_size", "10")]).unwrap();
        let url = away(&running.insert(bouncer).url());
        let options = fixture.named(options.transaction_pooler(true));
        PostgresBackend::connect_with(&url, options).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_a_standby_is_away_processes_of_a_given_pool_behind_a_pooler_stay_few() {
    let mut running = None;
    processes_stay_few(async |fixture, server, options| {
        // No connection more than the pool has.
        let bouncer = PgBouncer::start_with(server, &[("default_pool_size", "10")]).unwrap();
        let target: PgConnectOptions = away(&running.insert(bouncer).url()).parse().unwrap();
        let pool = PgPoolOptions::new().max_connections(10);
        let pool = pool.connect_with(target.extra_float_digits(None));
        let options = fixture.named(options.transaction_pooler(true));
        PostgresBackend::with_pool(pool.await.unwrap(), options)
    })
    .await;
}

fn away(url: &str) -> String {
    format!("{url}?application_name=away")
}

async fn processes_stay_few(
    connect: impl AsyncFnOnce(
        &Fixture,
        &PostgresServer,
        PostgresOptions,
    ) -> Result<PostgresBackend, LockError>,
) {
    let server = PostgresServer::start().unwrap();
    let fixture = Fixture::at(&server.url(), PostgresOptions::new()).await;
    let options = PostgresOptions::new().max_connections(10);
    let locks = Locks::new(connect(&fixture, &server, options).await.unwrap());
    recovers(&locks, "warm").await;
    commits_wait(&fixture).await;
    let waiting = "SELECT count(*) FROM pg_stat_activity \
                   WHERE wait_event = 'SyncRep' AND application_name = 'away'";
    let rows = "SELECT count(*) FROM {locks}";
    let mut acquires = Vec::new();
    let mut seconds_of_reads = 0;
    let started = Instant::now();
    while seconds_of_reads < 20 {
        // More than the pool has places for, all the time.
        for _ in 0..5 {
            let (locks, key) = (locks.clone(), format!("away:{}", acquires.len()));
            acquires.push(tokio::spawn(async move {
                locks.try_lock(key).ttl(MINUTE * 60).await.map(drop)
            }));
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        let processes = fixture.number(waiting).await;
        assert!(processes <= 10, "{processes}");
        // Reads have connections once the first process was ended. Then the row of its acquire can be seen.
        if seconds_of_reads > 0 || fixture.number(rows).await > 0 {
            assert!(!locks.is_locked("another").await.unwrap());
            seconds_of_reads += 1;
        }
        assert!(started.elapsed() < MINUTE * 2, "no process was ended");
    }
    for acquire in acquires {
        if acquire.is_finished() {
            assert!(acquire.await.unwrap().is_err(), "no standby has it");
        }
    }
    set_standby(&fixture, "").await;
    locks.drain(Duration::from_secs(60)).await.unwrap();
    assert_eq!(fixture.number(waiting).await, 0);
    assert_eq!(fixture.number(rows).await, 0);
    recovers(&locks, "away:0").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_undoes_an_asynchronous_release_and_grants_nothing_twice() {
    // The server itself writes to the disk so seldom.
    let seldom = [("wal_writer_delay", "10s"), ("fsync", "on")];
    for asynchronous in [false, true] {
        let mut server = PostgresServer::start_with(&seldom).unwrap();
        let options = PostgresOptions::new().asynchronous_releases(asynchronous);
        let fixture = Fixture::at(&server.url(), options.clone()).await;
        let first = fixture.locks.try_lock("k").ttl(MINUTE * 60).await;
        let first = first.unwrap().unwrap();
        let (id, fence) = (*first.lock_id(), first.fence());
        assert!(first.release().await.unwrap().is_released());
        server.kill();
        server.restart().unwrap();
        let locks = fixture.another(options.clone()).await;
        assert_eq!(locks.is_locked("k").await.unwrap(), asynchronous);
        // Its next grant is on the disk, and so is what came before.
        assert_eq!(locks.release(id).await.unwrap().is_released(), asynchronous);
        let next = locks.try_lock("k").ttl(MINUTE * 60).await.unwrap().unwrap();
        assert!(next.fence() > fence);
        server.kill();
        server.restart().unwrap();
        let locks = fixture.another(options).await;
        assert!(locks.try_lock("k").await.is_ok_and(|guard| guard.is_none()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ended_sessions_break_nothing_for_good() {
    let server = PostgresServer::start().unwrap();
    let fixture = Fixture::at(&server.url(), PostgresOptions::new()).await;
    let done = Arc::new(AtomicBool::new(false));
    let terminator = tokio::spawn({
        let (done, sql, table) = (
            done.clone(),
            fixture.sql.clone(),
            fixture.locks_table.clone(),
        );
        async move {
            let mut ended = 0_i64;
            while !done.load(Ordering::Relaxed) {
                let statement = "SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM \
                                 pg_stat_activity WHERE query LIKE '%' || $1 || '%' \
                                 AND pid <> pg_backend_pid() ORDER BY random() LIMIT 1) AS one";
                let query = sqlx::query_scalar::<_, i64>(statement).bind(&table);
                ended += query.fetch_one(&sql).await.unwrap();
                tokio::time::sleep(Duration::from_millis(15)).await;
            }
            ended
        }
    });
    let failures = Arc::new(AtomicUsize::new(0));
    let workers = (0..8).map(|worker| {
        let (locks, failures) = (fixture.locks.clone(), failures.clone());
        tokio::spawn(async move {
            for cycle in 0..250 {
                let key = format!("ended:{worker}:{}", cycle % 5);
                let outcome = match locks.try_lock(key).ttl(MINUTE).await {
                    Ok(Some(guard)) => guard.release().await.map(drop),
                    // Its own earlier lock, which the background releases.
                    Ok(None) => Ok(()),
                    Err(error) => Err(error),
                };
                if let Err(error) = outcome {
                    assert_eq!(error.code(), ErrorCode::ServiceUnavailable, "{error:?}");
                    failures.fetch_add(1, Ordering::Relaxed);
                }
            }
        })
    });
    for worker in join_all(workers).await {
        worker.unwrap();
    }
    done.store(true, Ordering::Relaxed);
    let ended = terminator.await.unwrap();
    assert!(ended > 5, "sessions were ended: {ended}");
    fixture.locks.drain(Duration::from_secs(30)).await.unwrap();
    assert_eq!(
        fixture.number("SELECT count(*) FROM {locks}").await,
        0,
        "no lock was left"
    );
    recovers(&fixture.locks, "after").await;
}

/// 64 callers ask again at once, whatever the answer, while all sessions are ended again and again.
async fn hammer(fixture: &Fixture) -> (Duration, usize) {
    let locks = Locks::builder(fixture.backend.clone())
        .operation_timeout(Duration::from_secs(2))
        .build();
    let done = Arc::new(AtomicBool::new(false));
    let callers = (0..64).map(|caller| {
        let (locks, done) = (locks.clone(), done.clone());
        tokio::spawn(async move {
            let (mut longest, mut failures) = (Duration::ZERO, 0);
            while !done.load(Ordering::Relaxed) {
                let started = Instant::now();
                let outcome = locks
                    .try_lock(format!("hammered:{caller}"))
                    .ttl(MINUTE)
                    .await;
                longest = longest.max(started.elapsed());
                failures += usize::from(outcome.is_err());
                let Ok(Some(guard)) = outcome else {
                    continue;
                };
                let started = Instant::now();
                let outcome = guard.release().await;
                longest = longest.max(started.elapsed());
                failures += usize::from(outcome.is_err());
            }
            (longest, failures)
        })
    });
    let callers: Vec<_> = callers.collect();
    let end = format!(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
         WHERE query LIKE '%{}%' AND pid <> pg_backend_pid()",
        fixture.locks_table
    );
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(10) {
        fixture.number(&end).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    done.store(true, Ordering::Relaxed);
    let (mut longest, mut failures) = (Duration::ZERO, 0);
    for caller in callers {
        let seen = caller.await.unwrap();
        (longest, failures) = (longest.max(seen.0), failures + seen.1);
    }
    (longest, failures)
}

#[tokio::test]
async fn no_call_outlasts_its_deadline_while_connections_are_killed() {
    let server = PostgresServer::start().unwrap();
    let fixture = Fixture::at(&server.url(), PostgresOptions::new()).await;
    let (longest, failures) = hammer(&fixture).await;
    assert!(failures > 0, "connections are killed");
    assert!(longest < Duration::from_secs(2 + 4), "{longest:?}");
    recovers(&fixture.locks, "after").await;
}

#[tokio::test]
async fn an_exhausted_pool_is_rate_limited_and_recovers() {
    let fixture = Fixture::new().await;
    // The pool's own limit of the wait: shorter than the operation's, and the default of 30 s.
    for pool_waits in [Some(300), None].map(|millis| millis.map(Duration::from_millis)) {
        let mut pool = PgPoolOptions::new().max_connections(1);
        if let Some(pool_waits) = pool_waits {
            pool = pool.acquire_timeout(pool_waits);
        }
        let pool = pool.connect(&fixture.url).await.unwrap();
        let options = fixture.named(PostgresOptions::new());
        let backend = PostgresBackend::with_pool(pool.clone(), options).unwrap();
        let locks = Locks::builder(backend)
            .operation_timeout(Duration::from_secs(1))
            .build();
        let taken = pool.acquire().await.unwrap();
        let error = locks.try_lock("full").ttl(MINUTE).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::RateLimited);
        assert!(!error.outcome_unknown());
        assert_eq!(locks.pending(), 0, "there is nothing to settle");
        drop(taken);
        recovers(&locks, "full").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_out_of_connections_is_reported_and_recovers() {
    let server = PostgresServer::start_with(&[
        ("max_connections", "8"),
        ("superuser_reserved_connections", "0"),
    ])
    .unwrap();
    let fixture = Fixture::at(&server.url(), PostgresOptions::new()).await;
    let others = crate::common::pool(&server.url(), 8).await;
    let mut taken = Vec::new();
    while let Ok(Ok(connection)) =
        tokio::time::timeout(Duration::from_millis(300), others.acquire()).await
    {
        taken.push(connection);
    }
    // The fixture has its connections already; a new client gets none.
    let error = PostgresBackend::connect(&server.url()).await.unwrap_err();
    assert!(error.is_retryable(), "{error:?}");
    taken.clear();
    others.close().await;
    recovers(&fixture.locks, "full").await;
}

#[tokio::test]
async fn wrong_credentials_are_auth_failed_and_the_password_is_in_no_text() {
    let fixture = Fixture::new().await;
    let secret = "hunter2-secret";
    for user in ["no_such_role", "postgres"] {
        let url = fixture
            .url
            .replacen("postgres@", &format!("{user}:{secret}@"), 1);
        let database = if user == "postgres" {
            "no_such_database"
        } else {
            "postgres"
        };
        let url = format!("{}/{database}", url.rsplit_once('/').unwrap().0);
        let error = PostgresBackend::connect(&url).await.unwrap_err();
        let expected = if user == "postgres" {
            ErrorCode::InvalidArgument
        } else {
            ErrorCode::AuthFailed
        };
        assert_eq!(error.code(), expected, "{error:?}");
        assert!(!format!("{error} {error:?}").contains(secret));
    }
    for url in [
        "",
        "not a url",
        "postgres://x:hunter2-secret@127.0.0.1:port/x",
        "redis://x:hunter2-secret@127.0.0.1:6379",
        "http://hunter2-secret/",
    ] {
        let error = PostgresBackend::connect(url).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument);
        assert!(!format!("{error} {error:?}").contains(secret));
    }
}

#[tokio::test]
async fn where_nobody_listens_the_source_says_so_at_once() {
    // A port that was free a moment ago.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let url = format!("postgres://app@127.0.0.1:{port}/app");
    // Half of the time that a server gets that was reached before.
    let connecting = tokio::time::timeout(Duration::from_secs(2), PostgresBackend::connect(&url));
    let error = connecting.await.unwrap().unwrap_err();
    assert_eq!(error.code(), ErrorCode::ServiceUnavailable);
    let texts = syncguard_testkit::texts(&error);
    assert!(texts.contains("refused"), "{texts}");
}

#[tokio::test]
async fn a_server_that_is_no_postgresql_is_unavailable_and_the_source_says_what_it_sent() {
    let redis = syncguard_testkit::RedisServer::start().unwrap();
    let mut ports = vec![(redis.port(), "a real Redis".to_owned())];
    let greetings: [&[u8]; 9] = [
        b"",
        b"-ERR unknown command\r\n",
        b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"ERROR\r\n",
        b"J\0\0\0\n8.0.36\0",
        b"220 mail.example.com ESMTP\r\n",
        // Messages of the protocol, with nonsense inside.
        b"E\0\0\0\x05\0",
        b"R\0\0\0\x08\0\0\0\x63",
    ];
    for greeting in greetings {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        ports.push((port, String::from_utf8_lossy(greeting).into_owned()));
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let mut request = [0; 1024];
                let _ = client.read(&mut request).await;
                let _ = client.write_all(greeting).await;
            }
        });
    }
    let connecting = ports.iter().map(|(port, _)| async move {
        let url = format!("postgres://app@127.0.0.1:{port}/app?sslmode=disable");
        timeout(Duration::from_secs(60), PostgresBackend::connect(&url)).await
    });
    for (outcome, (port, what)) in join_all(connecting).await.into_iter().zip(&ports) {
        let error = outcome.expect("an answer in time").unwrap_err();
        assert_eq!(
            error.code(),
            ErrorCode::ServiceUnavailable,
            "{what}: {error:?}"
        );
        assert!(
            std::error::Error::source(&error).is_some(),
            "{what}: {error:?}"
        );
        assert!(!error.outcome_unknown(), "{what}: {error:?}");
        // What of it can be read.
        let visible = what.split(|c: char| c.is_control()).next().unwrap();
        let texts = syncguard_testkit::texts(&error);
        assert!(
            *port == redis.port() || texts.contains(visible),
            "{what}: {texts}"
        );
    }
}

#[tokio::test]
async fn a_read_only_server_is_unavailable() {
    let fixture = Fixture::new().await;
    let url = format!("{}?options[default_transaction_read_only]=on", fixture.url);
    let options = fixture.named(PostgresOptions::new());
    let backend = PostgresBackend::connect_with(&url, options).await.unwrap();
    let error = backend
        .acquire(&key("standby"), &id(), ttl(1_000))
        .await
        .unwrap_err();
    assert_eq!(error.code(), ErrorCode::ServiceUnavailable);
    assert!(!error.outcome_unknown());
}

#[tokio::test]
async fn no_text_shows_a_key_or_a_lock_id() {
    let fixture = Fixture::new().await;
    let (secret, id) = (key("customer:4711"), id());
    let _ = fixture
        .backend
        .acquire(&secret, &id, ttl(60_000))
        .await
        .unwrap();
    // An id holds one key: the server's error quotes the row.
    let another = key("another");
    let error = fixture
        .backend
        .acquire(&another, &id, ttl(60_000))
        .await
        .unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidArgument);
    // As `Locks` describes it.
    let described = error.clone().with_key(&another).with_lock_id(&id);
    fixture
        .run("ALTER TABLE {locks} ADD CHECK (expires_at_ms < 99999999999999)")
        .await;
    fixture
        .run("ALTER TABLE {locks} ADD CONSTRAINT c CHECK (fence <> '000000000000009')")
        .await;
    fixture
        .run("UPDATE {fences} SET fence = 8 WHERE fence_key = 'fence:customer:4711'")
        .await;
    let _ = fixture.backend.release(&id).await.unwrap();
    let bare = fixture
        .backend
        .acquire(&secret, &id, ttl(60_000))
        .await
        .unwrap_err();
    fixture
        .run("UPDATE {fences} SET fence = 8 WHERE fence_key = 'fence:customer:4711'")
        .await;
    let refused = fixture
        .locks
        .try_lock(&secret)
        .ttl(MINUTE)
        .await
        .unwrap_err();
    assert_eq!(refused.code(), ErrorCode::InvalidArgument);
    let info = fixture
        .backend
        .lookup_raw(Lookup::Key(&secret))
        .await
        .unwrap();
    for text in [
        format!("{error} {error:?} {described} {described:?} {info:?}"),
        format!("{bare} {bare:?} {refused} {refused:?}"),
        format!("{:?} {:?}", fixture.backend, fixture.locks),
    ] {
        assert!(
            !text.contains("4711") && !text.contains(id.as_str()),
            "{text}"
        );
    }
}
