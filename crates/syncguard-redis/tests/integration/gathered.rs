//! Operations that travel together: each gets what it would have got alone.
//!
//! On one thread, futures that are polled together are pending together: the connection is kept busy, so
//! all that follow wait for the same call.

use std::fmt::Debug;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt as _, join_all};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use syncguard_core::backend::{AcquireRequest, AcquireResult, LockBackend as _, ReleaseRequest};
use syncguard_core::{ErrorCode, LockError, LockId, Locks};
use syncguard_redis::fred::types::Value;
use syncguard_redis::{RedisBackend, RedisOptions};
use syncguard_testkit::{FaultProxy, Faults, RedisServer};
use tokio::time::Instant;

use crate::common::{
    BareCalls as _, Raw, connected, eventually, far_away, fresh_backend, key, secs,
};

/// More than may be in flight on a connection.
const BUSY: usize = 8;

/// Runs operations in as few calls as the backend makes of them.
async fn together<T>(backend: &RedisBackend, operations: Vec<BoxFuture<'_, T>>) -> Vec<T> {
    let busy = join_all((0..BUSY).map(|_| backend.is_key_locked("busy")));
    let (_, outcomes) = tokio::join!(busy, join_all(operations));
    outcomes
}

#[derive(Debug, Clone)]
enum Step {
    Acquire { key: usize, id: usize },
    Release { id: usize },
    Extend { id: usize, seconds: u64 },
    IsLocked { key: usize },
    ByKey { key: usize },
    ById { id: usize },
}

/// One of these keys has a foreign value, one a counter that is no number, one a used-up counter, and one a
/// lock that expired and stays.
const KEYS: [&str; 6] = [
    "a",
    "b\"\u{e9}\n",
    "foreign",
    "no number",
    "used up",
    "expired",
];

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (key, id) = (0..KEYS.len(), 0..4_usize);
    let step = prop_oneof![
        4 => (key.clone(), id.clone()).prop_map(|(key, id)| Step::Acquire { key, id }),
        3 => id.clone().prop_map(|id| Step::Release { id }),
        2 => (id.clone(), 100..900_u64).prop_map(|(id, seconds)| Step::Extend { id, seconds }),
        1 => key.clone().prop_map(|key| Step::IsLocked { key }),
        1 => key.prop_map(|key| Step::ByKey { key }),
        1 => id.prop_map(|id| Step::ById { id }),
    ];
    prop::collection::vec(step, 2..80)
}

/// A store with all kinds of values, at a prefix of its own.
struct Store {
    prefix: &'static str,
    backend: RedisBackend,
    raw: Raw,
    ids: Vec<LockId>,
}

impl Store {
    async fn new(server: &RedisServer, prefix: &'static str) -> Self {
        let options = RedisOptions::new().prefix(prefix);
        Self {
            prefix,
            backend: RedisBackend::connect_with(&server.url(), options)
                .await
                .unwrap(),
            raw: Raw::connect(&server.url()).await,
            ids: (0..4)
                .map(|n| LockId::parse(&format!("{n}AAAAAAAAAAAAAAAAAAAAA")).unwrap())
                .collect(),
        }
    }

    async fn reset(&self) {
        for name in self.raw.keys().await {
            if name.starts_with(self.prefix) {
                let () = self.raw.run(&["DEL", &name]).await;
            }
        }
        let set = async |name: String, value: &str| {
            let () = self
                .raw
                .run(&["SET", &format!("{}:{name}", self.prefix), value])
                .await;
        };
        set("foreign".into(), "not a lock").await;
        set(format!("fence:{}:no number", self.prefix), "many").await;
        set(format!("fence:{}:used up", self.prefix), "900000000000000").await;
        let expired = r#"{"lockId":"2AAAAAAAAAAAAAAAAAAAAA","expiresAtMs":1000000000000,"acquiredAtMs":1000000000000,"key":"expired","fence":"000000000000007"}"#;
        set("expired".into(), expired).await;
    }

    async fn run(&self, step: &Step) -> String {
        let backend = &self.backend;
        match *step {
            Step::Acquire { key, id } => said(
                backend
                    .acquire_for(KEYS[key], &self.ids[id], secs(600))
                    .await,
            ),
            Step::Release { id } => said(backend.release_id(&self.ids[id]).await),
            Step::Extend { id, seconds } => {
                said(backend.extend_id(&self.ids[id], secs(seconds)).await)
            }
            Step::IsLocked { key } => said(backend.is_key_locked(KEYS[key]).await),
            Step::ByKey { key } => said(backend.lookup_key(KEYS[key]).await),
            Step::ById { id } => said(backend.lookup_id(&self.ids[id]).await),
        }
    }

    /// Names and values, without the prefix and without times.
    async fn stored(&self) -> Vec<(String, String)> {
        let mut stored = Vec::new();
        for name in self.raw.keys().await {
            if name.starts_with(self.prefix) {
                let value = self.raw.get(&name).await.unwrap();
                let lasts = self.raw.run::<i64>(&["PTTL", &name]).await >= 0;
                let without = |text: &str| timeless(&text.replace(self.prefix, ""));
                stored.push((without(&name), format!("{} {lasts}", without(&value))));
            }
        }
        stored
    }
}

fn said<T: Debug>(outcome: Result<T, LockError>) -> String {
    match outcome {
        Ok(answer) => match timeless(&format!("{answer:?}")) {
            locked if locked.starts_with("Locked { free_in: Some") => "Locked".to_owned(),
            answer => answer,
        },
        Err(error) => format!("{error} {}", error.outcome_unknown()),
    }
}

/// Without times in milliseconds, which have 13 digits.
fn timeless(text: &str) -> String {
    let parts = text.split_inclusive(|c: char| !c.is_ascii_digit());
    let kept = parts.map(|part| {
        let digits = part.trim_end_matches(|c: char| !c.is_ascii_digit());
        match digits.len() {
            13 => &part[13..],
            _ => part,
        }
    });
    kept.collect()
}

#[test]
fn any_sequence_gathered_answers_and_stores_the_same_as_one_by_one() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let server = RedisServer::start().unwrap();
    let (alone, gathered, raw) = runtime.block_on(async {
        let raw = Raw::connect(&server.url()).await;
        (
            Store::new(&server, "alone").await,
            Store::new(&server, "gathered").await,
            raw,
        )
    });
    let mut runner = TestRunner::new(Config {
        failure_persistence: None,
        ..Config::with_cases(200)
    });
    let same = runner.run(&steps(), |steps| {
        runtime.block_on(async {
            alone.reset().await;
            let mut expected = Vec::new();
            for step in &steps {
                expected.push(alone.run(step).await);
            }
            gathered.reset().await;
            let before = raw.commands_run("evalsha").await;
            let operations = steps
                .iter()
                .map(|step| gathered.run(step).boxed())
                .collect();
            let outcomes = together(&gathered.backend, operations).await;
            let calls = raw.commands_run("evalsha").await - before;
            prop_assert!(usize::try_from(calls).unwrap() <= BUSY + 2, "{calls} calls");
            prop_assert_eq!(outcomes, expected);
            prop_assert_eq!(gathered.stored().await, alone.stored().await);
            Ok(())
        })
    });
    same.unwrap();
}

fn ids<const N: usize>() -> [LockId; N] {
    std::array::from_fn(|_| LockId::generate().unwrap())
}

fn acquired(outcome: &Result<AcquireResult, LockError>) -> bool {
    matches!(outcome, Ok(AcquireResult::Acquired(_)))
}

#[tokio::test]
async fn scripts_that_the_server_forgot_are_loaded_again() {
    let (_server, backend, raw) = fresh_backend().await;
    let ids = ids::<3>();
    for round in 0..2 {
        let () = raw.run(&["SCRIPT", "FLUSH"]).await;
        let acquires = ids.iter().zip(["a", "b", "c"]);
        let acquires = acquires.map(|(id, key)| backend.acquire_for(key, id, secs(60)).boxed());
        let outcomes = together(&backend, acquires.collect()).await;
        assert!(outcomes.iter().all(acquired), "{round}: {outcomes:?}");
    }
}

/// The release of a caller that is gone may be ahead by then.
#[tokio::test]
async fn a_forgotten_script_is_not_sent_again_for_callers_that_are_gone() {
    let server = RedisServer::start().unwrap();
    let proxy = FaultProxy::start(server.port()).unwrap();
    let backend = RedisBackend::connect(&format!("redis://{}", proxy.address()))
        .await
        .unwrap();
    let raw = Raw::connect(&server.url()).await;
    let [gone, kept] = ids();
    proxy.set(Faults::HOLD_REPLIES);
    let busy = join_all((0..BUSY).map(|_| backend.is_key_locked("busy")));
    let abandoned = async {
        let acquire = backend.acquire_for("gone", &gone, secs(600));
        let outcome = tokio::time::timeout(Duration::from_millis(300), acquire).await;
        assert!(outcome.is_err(), "its reply is held");
        proxy.set(Faults::NONE);
    };
    let (_, (), kept) = tokio::join!(
        busy,
        abandoned,
        backend.acquire_for("kept", &kept, secs(600))
    );
    assert!(acquired(&kept), "{kept:?}");
    assert!(raw.get("syncguard:gone").await.is_none());
}

/// Redis refuses an acquire while its memory is full. Behind a write of another operation it does not.
#[tokio::test]
async fn full_memory_refuses_an_acquire_or_grants_all_of_it() {
    let (_server, backend, raw) = fresh_backend().await;
    let [held, first, second] = ids();
    assert!(acquired(
        &backend.acquire_for("held", &held, secs(60)).await
    ));
    let () = raw.run(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let outcomes = together(
        &backend,
        vec![
            backend
                .acquire_for("first", &first, secs(60))
                .map(|outcome| outcome.map(|_| ()))
                .boxed(),
            backend
                .extend_id(&held, secs(600))
                .map(|outcome| outcome.map(|_| ()))
                .boxed(),
            backend
                .acquire_for("second", &second, secs(60))
                .map(|outcome| outcome.map(|_| ()))
                .boxed(),
            backend
                .release_id(&held)
                .map(|outcome| outcome.map(|_| ()))
                .boxed(),
        ],
    )
    .await;
    let error = outcomes[0].as_ref().unwrap_err();
    assert!(
        error.code() == ErrorCode::RateLimited && !error.outcome_unknown(),
        "{error:?}"
    );
    assert!(outcomes[1].is_ok() && outcomes[3].is_ok(), "{outcomes:?}");
    assert!(raw.get("syncguard:first").await.is_none());
    assert!(raw.get("syncguard:fence:syncguard:first").await.is_none());
    let whole = raw.get("syncguard:second").await.is_some();
    assert_eq!(outcomes[2].is_ok(), whole, "{outcomes:?}");
    assert_eq!(
        raw.get(&format!("syncguard:id:{}", second.as_str()))
            .await
            .is_some(),
        whole
    );
}

#[tokio::test]
async fn a_lost_reply_leaves_each_operation_unknown_and_the_locks_are_released() {
    let server = RedisServer::start().unwrap();
    let proxy = FaultProxy::start(server.port()).unwrap();
    let backend = RedisBackend::connect(&format!("redis://{}", proxy.address()))
        .await
        .unwrap();
    let locks = Locks::new(backend.clone());
    let raw = Raw::connect(&server.url()).await;
    // So that the server knows the script.
    let reads = (0..2).map(|_| backend.is_key_locked("a").boxed());
    together(&backend, reads.collect()).await;
    proxy.set(Faults::HOLD_REPLIES);
    let attempts = ["a", "b", "c"].map(|key| {
        let attempt = locks.try_lock(key).ttl(Duration::from_secs(600));
        attempt
            .into_future()
            .map(|outcome| outcome.map(|_| ()))
            .boxed()
    });
    let cut = async {
        eventually("the acquires arrive", async || {
            raw.get("syncguard:c").await.is_some()
        })
        .await;
        proxy.reset_all();
        eventually("the connection is reset", async || proxy.struck().reset > 0).await;
        proxy.set(Faults::NONE);
    };
    let (outcomes, ()) = tokio::join!(together(&backend, attempts.into()), cut);
    for outcome in outcomes {
        let error = outcome.unwrap_err();
        assert!(error.outcome_unknown(), "{error:?}");
    }
    locks.drain(Duration::from_secs(60)).await.unwrap();
    for key in ["a", "b", "c"] {
        assert!(
            raw.get(&format!("syncguard:{key}")).await.is_none(),
            "{key}"
        );
    }
}

#[tokio::test]
async fn what_is_dropped_or_past_its_deadline_before_it_is_sent_never_is() {
    let server = RedisServer::start().unwrap();
    let options = RedisOptions::new().timeout(Duration::from_secs(60));
    let backend = RedisBackend::connect_with(&server.url(), options)
        .await
        .unwrap();
    let raw = Raw::connect(&server.url()).await;
    let [kept, dropped, late] = ids();
    server.pause().unwrap();
    // Calls of their callers, then of the driver: nothing is left to send by.
    let mut busy = Vec::new();
    for _ in 0..2 * BUSY {
        let backend = backend.clone();
        busy.push(tokio::spawn(
            async move { backend.is_key_locked("busy").await },
        ));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let keys = ["kept", "dropped", "late"].map(key);
    let acquire = |index: usize, id, deadline| {
        backend.acquire(AcquireRequest::new(&keys[index], id, secs(600), deadline))
    };
    let soon = Instant::now() + Duration::from_millis(300);
    let kept = acquire(0, &kept, far_away());
    {
        let dropped = acquire(1, &dropped, far_away());
        assert!(
            tokio::time::timeout(Duration::from_millis(50), dropped)
                .await
                .is_err()
        );
    }
    let late = async {
        let error = acquire(2, &late, soon).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::NetworkTimeout);
        assert!(!error.outcome_unknown(), "{error:?}");
        server.resume().unwrap();
    };
    let (kept, ()) = tokio::join!(kept, late);
    assert!(acquired(&kept), "{kept:?}");
    for each in busy {
        assert!(!each.await.unwrap().unwrap());
    }
    assert!(raw.get("syncguard:kept").await.is_some());
    for name in [
        "syncguard:dropped",
        "syncguard:late",
        "syncguard:fence:syncguard:late",
    ] {
        assert!(raw.get(name).await.is_none(), "{name}");
    }
}

/// A caller that does not poll its call keeps nobody else waiting.
#[tokio::test]
async fn calls_that_nobody_polls_do_not_stop_others() {
    let (_server, backend, _raw) = fresh_backend().await;
    let mut left = Vec::new();
    for _ in 0..4 * BUSY {
        let mut call = Box::pin(backend.is_key_locked("left"));
        assert!(futures_util::poll!(call.as_mut()).is_pending());
        left.push(call);
    }
    for _ in 0..3 {
        assert!(!backend.is_key_locked("k").await.unwrap());
    }
    for call in left {
        assert!(!call.await.unwrap());
    }
}

/// Nobody polls a runtime of one thread between its calls.
#[test]
fn a_runtime_that_stands_still_stops_no_others() {
    let home = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let still = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let server = RedisServer::start().unwrap();
    let backend = home.block_on(connected(&server));
    server.pause().unwrap();
    let spawn = |count: usize| {
        let calls = (0..count).map(|_| {
            let backend = backend.clone();
            home.spawn(async move { backend.is_key_locked("k").await })
        });
        calls.collect::<Vec<_>>()
    };
    let direct = spawn(BUSY);
    std::thread::sleep(Duration::from_millis(100));
    still.block_on(async {
        let call = tokio::time::timeout(Duration::from_millis(100), backend.is_key_locked("k"));
        assert!(call.await.is_err());
    });
    let waiting = spawn(3);
    server.resume().unwrap();
    home.block_on(async {
        for call in direct.into_iter().chain(waiting) {
            assert!(!call.await.unwrap().unwrap());
        }
    });
}

#[tokio::test]
async fn a_release_stays_behind_the_acquire_of_its_id() {
    let (_server, backend, raw) = fresh_backend().await;
    for _ in 0..50 {
        let [id] = ids();
        let wanted = key("k");
        let operations = vec![
            async {
                acquired(
                    &backend
                        .acquire(AcquireRequest::new(&wanted, &id, secs(60), far_away()))
                        .await,
                )
            }
            .boxed(),
            async {
                backend
                    .release(ReleaseRequest::new(&id, far_away()))
                    .await
                    .unwrap()
                    .is_released()
            }
            .boxed(),
        ];
        assert_eq!(together(&backend, operations).await, [true, true]);
        assert_eq!(raw.run::<Value>(&["GET", "syncguard:k"]).await, Value::Null);
    }
}
