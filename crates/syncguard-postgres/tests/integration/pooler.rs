//! Behind PgBouncer in transaction mode.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use sqlx::AssertSqlSafe;
use syncguard_core::backend::Lookup;
use syncguard_core::{ErrorCode, LockError, LockInfoDebug, Locks};
use syncguard_postgres::{PostgresBackend, PostgresOptions};
use syncguard_testkit::{PgBouncer, PostgresServer, pages};

use crate::common::history::History;
use crate::common::proxy::Wire;
use crate::common::{BareCalls as _, Fixture, id, key, pool, ttl};

struct Pooled {
    fixture: Fixture,
    bouncer: PgBouncer,
    _server: PostgresServer,
}

async fn pooled() -> Pooled {
    let server = PostgresServer::start().unwrap();
    let bouncer = PgBouncer::start(&server).unwrap();
    Pooled {
        fixture: Fixture::at(&server.url(), PostgresOptions::new()).await,
        bouncer,
        _server: server,
    }
}

impl Pooled {
    async fn client(&self, with_option: bool) -> PostgresBackend {
        let options = PostgresOptions::new().transaction_pooler(with_option);
        PostgresBackend::connect_with(&self.bouncer.url(), self.fixture.named(options))
            .await
            .unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn with_the_option_a_thousand_operations_from_two_pools_are_all_right() {
    let pooled = pooled().await;
    let backends = [pooled.client(true).await, pooled.client(true).await];
    backends[0].setup_schema().await.unwrap();
    let histories: Arc<Vec<History>> = Arc::new((0..4).map(|_| History::default()).collect());
    let tasks = (0..10_usize).map(|task| {
        let (backend, histories) = (backends[task % 2].clone(), histories.clone());
        tokio::spawn(async move {
            let mut operations = 0;
            while operations < 100 {
                let index = (task + operations) % 4;
                let (key, id) = (key(&format!("pooled:{index}")), id());
                operations += 1;
                let answer = backend.acquire(&key, &id, ttl(60_000)).await.unwrap();
                let Some(grant) = answer.granted() else {
                    continue;
                };
                let history = &histories[index];
                let acquired_at_ms = grant.expires_at_ms - 60_000;
                history.granted(id, grant.fence.get(), acquired_at_ms, grant.expires_at_ms);
                assert!(backend.is_locked(&key).await.unwrap());
                let extended = backend.extend(&id, ttl(90_000)).await.unwrap();
                history.extended(id, extended.expires_at_ms().expect("it is held"));
                let by_key = backend
                    .lookup_raw(Lookup::Key(&key))
                    .await
                    .unwrap()
                    .unwrap();
                let by_id = backend.lookup_raw(Lookup::Id(&id)).await.unwrap().unwrap();
                assert_eq!(by_key, by_id);
                assert_eq!((by_key.lock_id, by_key.fence), (id, grant.fence));
                history.releasing(id);
                assert!(backend.release(&id).await.unwrap().is_released());
                operations += 5;
            }
        })
    });
    for task in join_all(tasks).await {
        task.unwrap();
    }
    assert_eq!(backends[1].purge_expired(100).await.unwrap(), 0);
    let fixture = &pooled.fixture;
    assert_eq!(fixture.number("SELECT count(*) FROM {locks}").await, 0);
    let advisory = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
    assert_eq!(fixture.number(advisory).await, 0);
    let idle = "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'";
    assert_eq!(fixture.number(idle).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_option_an_answer_is_right_or_an_error() {
    let pooled = pooled().await;
    // Clients that prepare other statements under the same names as ours.
    let strangers = pool(&pooled.bouncer.url(), 4).await;
    let backends = [pooled.client(false).await, pooled.client(false).await];
    let truth = &pooled.fixture.backend;
    // A lock that no misdirected statement may touch, and a key that stays free.
    let (held, holder, free) = (key("held"), id(), key("free"));
    let grant = truth
        .acquire(&held, &holder, ttl(600_000))
        .await
        .unwrap()
        .granted()
        .unwrap();

    let mut errors = 0;
    let mut right = 0;
    for round in 0..30_i64 {
        let stranger = async {
            let sql = [
                "SELECT $1::text || 'x'",
                "SELECT $1::text, $2::text",
                "SELECT count(*) FROM pg_class WHERE relname = $1 OR relname = $2",
                "SELECT 'other' WHERE $1 = $2",
            ];
            let sql = AssertSqlSafe(format!(
                "{} -- {round}",
                sql[usize::try_from(round).unwrap() % 4]
            ));
            // Their results do not matter.
            let _ = sqlx::query(sql)
                .bind("a")
                .bind("b")
                .fetch_optional(&strangers)
                .await;
        };
        let (a, b) = (&backends[0], &backends[1]);
        let other = id();
        let ((), locked, is_held, is_free, info, contended, released) = tokio::join!(
            stranger,
            a.lookup_raw(Lookup::Id(&holder)),
            b.is_locked(&held),
            a.is_locked(&free),
            b.lookup_raw(Lookup::Key(&held)),
            a.acquire(&held, &other, ttl(1_000)),
            b.release(&other),
        );
        let mut judge = |outcome: Result<bool, LockError>| match outcome {
            Ok(is_right) => {
                assert!(is_right, "a wrong answer");
                right += 1;
            }
            Err(error) => {
                let expected = [
                    ErrorCode::InvalidArgument,
                    ErrorCode::ServiceUnavailable,
                    ErrorCode::RateLimited,
                ];
                assert!(expected.contains(&error.code()), "{error:?}");
                errors += 1;
            }
        };
        let is_ours = |info: Option<LockInfoDebug>| {
            info.is_some_and(|info| info.lock_id == holder && info.fence == grant.fence)
        };
        judge(locked.map(is_ours));
        judge(is_held);
        judge(is_free.map(|is_locked| !is_locked));
        judge(info.map(is_ours));
        judge(contended.map(|answer| answer.is_locked()));
        judge(released.map(|answer| !answer.is_released()));
    }
    eprintln!("{right} right answers, {errors} errors");
    assert!(errors > 0, "the pooler did mix statements up");
    let info = truth
        .lookup_raw(Lookup::Id(&holder))
        .await
        .unwrap()
        .expect("nobody released it");
    assert_eq!(info.expires_at_ms, grant.expires_at_ms);
    assert!(!truth.is_locked(&free).await.unwrap());
}

/// What another client's statement may reply with, in place of our select list.
const FOREIGN_REPLIES: [&str; 9] = [
    "SELECT WHERE $1 IS NOT NULL",
    "SELECT $1 WHERE false",
    "SELECT $1",
    "SELECT NULL",
    "SELECT $1, $2",
    "SELECT $2, $1, 'granted', 1::bigint, lpad('1', 15, '0')",
    "SELECT 1::smallint, now(), ARRAY[1, 2], NULL, true, 1.5",
    "SELECT $1, $2, 'released', 1::bigint, lpad('1', 15, '0'), repeat('x', 22), 'k', 8, 9, 10",
    "SELECT decode('ff', 'hex'), $2",
];

#[tokio::test]
async fn a_reply_of_other_columns_is_an_error_and_no_panic() {
    let fixture = Fixture::new().await;
    for foreign in FOREIGN_REPLIES {
        refuses_replies(&fixture, |_| foreign.to_owned()).await;
    }
}

#[tokio::test]
async fn a_reply_about_another_subject_is_an_error() {
    let fixture = Fixture::new().await;
    refuses_replies(&fixture, |own| {
        assert_eq!(own.matches("$2 AS subject").count(), 1, "{own}");
        own.replace("$2 AS subject", "'another' AS subject")
    })
    .await;
}

/// As if a pooler had led every operation to a session where its statement's name is another statement's.
async fn refuses_replies(fixture: &Fixture, replace: impl Fn(&str) -> String) {
    let session = pool(&fixture.url, 1).await;
    let options = fixture.named(PostgresOptions::new());
    let backend = PostgresBackend::with_pool(session.clone(), options).unwrap();
    let locks = Locks::new(backend.clone());
    let (key, id) = (key("k"), id());
    let _ = backend.acquire(&key, &id, ttl(60_000)).await.unwrap();
    let _ = backend.extend(&id, ttl(60_000)).await.unwrap();
    let _ = backend.is_locked(&key).await.unwrap();
    let _ = backend.lookup_raw(Lookup::Key(&key)).await.unwrap();
    let _ = backend.lookup_raw(Lookup::Id(&id)).await.unwrap();
    let _ = pages(&locks, "", 10).await.unwrap();
    let _ = backend.purge_expired(10).await.unwrap();
    let _ = backend.release(&id).await.unwrap();
    let prepared: Vec<(String, String, String)> = sqlx::query_as(
        "SELECT name, statement, array_to_string(parameter_types, ', ') FROM pg_prepared_statements \
         WHERE statement LIKE '%AS subject%' AND statement NOT LIKE '%pg_prepared_statements%'",
    )
    .fetch_all(&session)
    .await
    .unwrap();
    assert_eq!(prepared.len(), 8);
    for (name, own, types) in prepared {
        let replaced = format!(
            "DEALLOCATE {name}; PREPARE {name} ({types}) AS {}",
            replace(&own)
        );
        let replaced = sqlx::raw_sql(AssertSqlSafe(replaced));
        replaced.execute(&session).await.unwrap();
    }

    let refused = |error: Option<LockError>, writes: bool| {
        let error = error.expect("the reply is another statement's");
        assert_eq!(error.code(), ErrorCode::InvalidArgument, "{error:?}");
        assert!(error.to_string().contains("does not match"), "{error}");
        assert_eq!(error.outcome_unknown(), writes, "{error}");
    };
    let id = crate::common::id();
    let acquired = backend.acquire(&key, &id, ttl(60_000)).await;
    refused(acquired.err(), true);
    refused(backend.extend(&id, ttl(60_000)).await.err(), true);
    refused(backend.is_locked(&key).await.err(), false);
    let by_key = backend.lookup_raw(Lookup::Key(&key)).await;
    refused(by_key.err(), false);
    refused(backend.lookup_raw(Lookup::Id(&id)).await.err(), false);
    refused(pages(&locks, "", 10).await.err(), false);
    refused(backend.purge_expired(10).await.err(), true);
    refused(backend.release(&id).await.err(), true);
    session.close().await;
    // An acquire whose own statement replied about another subject.
    let _ = fixture.backend.release(&id).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operation_dropped_in_its_transaction_leaves_none_open() {
    let pooled = pooled().await;
    let backend = pooled.client(true).await;
    for round in 0..200_u64 {
        let (key, id) = (key("dropped"), id());
        let attempt = backend.acquire(&key, &id, ttl(1));
        let _ = tokio::time::timeout(Duration::from_micros(100 + round * 40), attempt).await;
    }
    let fixture = &pooled.fixture;
    let open = "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'";
    for _ in 0..200 {
        if fixture.number(open).await == 0 {
            let answer = backend.is_locked(&key("other")).await.unwrap();
            assert!(!answer);
            return;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("a transaction stays open");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_vanishes_before_its_commit_blocks_the_key_for_a_short_time() {
    let pooled = pooled().await;
    let (wire, url) = Wire::to(&pooled.bouncer.url());
    let options = PostgresOptions::new().transaction_pooler(true);
    let options = pooled.fixture.named(options);
    let vanishing = PostgresBackend::connect_with(&url, options).await.unwrap();
    // Its connection stays open for longer than this test takes.
    let vanishing = Locks::builder(vanishing)
        .operation_timeout(Duration::from_secs(600))
        .build();
    assert!(!vanishing.is_locked("k").await.unwrap());
    wire.hold_replies_at_statement();
    let attempt = tokio::spawn(
        vanishing
            .try_lock("k")
            .ttl(Duration::from_secs(1))
            .attempt(),
    );
    let open = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction'";
    let started = Instant::now();
    while pooled.fixture.number(open).await == 0 {
        assert!(
            started.elapsed() < Duration::from_secs(20),
            "it never began"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let started = Instant::now();
    let other = pooled.client(true).await;
    loop {
        // As long as the transaction is open, the key is busy.
        let outcome = other.acquire(&key("k"), &id(), ttl(60_000)).await;
        // Free by the TTL of 1 s and 3 s more; 2 s are slack. The server ends the transaction after 2 s.
        let blocked = started.elapsed();
        assert!(blocked < Duration::from_secs(1 + 3 + 2), "{blocked:?}");
        if outcome.is_ok_and(|result| result.granted().is_some()) {
            break;
        }
    }
    assert!(
        !attempt.is_finished(),
        "the first client has not closed its connection"
    );
    attempt.abort();
}
