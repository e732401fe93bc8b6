//! Callers that ask again at once while connections break.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use syncguard_core::ErrorCode;
use syncguard_core::backend::{CloseRequest, LockBackend as _};
use syncguard_redis::RedisBackend;
use syncguard_testkit::{FaultProxy, RedisServer};

use crate::common::{BareCalls as _, connected, eventually, far_away, impatient};

const TASKS: usize = 64;
const TIMEOUT: Duration = Duration::from_secs(5);
/// What a busy machine may add to a deadline: less than the fault that these tests are about, which took 2.5
/// times the deadline.
const SLACK: Duration = Duration::from_secs(3);

/// The longest call of all, while all connections are killed every 50 ms.
async fn longest_call() -> Duration {
    let server = RedisServer::start().unwrap();
    let proxy = FaultProxy::start(server.port()).unwrap();
    let url = format!("redis://{}", proxy.address());
    let locks = impatient(RedisBackend::connect(&url).await.unwrap(), TIMEOUT);
    let until = Instant::now() + 3 * TIMEOUT;
    let killer = std::thread::spawn(move || {
        while Instant::now() < until {
            std::thread::sleep(Duration::from_millis(50));
            proxy.reset_all();
        }
        proxy
    });
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..TASKS {
        let locks = locks.clone();
        tasks.spawn(async move {
            let (key, mut longest) = (format!("k{task}"), Duration::ZERO);
            while Instant::now() < until {
                let begun = Instant::now();
                let attempt = locks.try_lock(&key).await;
                longest = longest.max(begun.elapsed());
                if let Ok(Some(guard)) = attempt {
                    let begun = Instant::now();
                    let _ = guard.release().await;
                    longest = longest.max(begun.elapsed());
                }
            }
            longest
        });
    }
    let longest = tasks.join_all().await.into_iter().max().unwrap();
    let _proxy = killer.join().unwrap();
    locks.drain(Duration::from_secs(30)).await.unwrap();
    longest
}

#[tokio::test]
async fn no_call_outlasts_its_deadline_on_one_thread() {
    let longest = longest_call().await;
    assert!(longest < TIMEOUT + SLACK, "{longest:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_call_outlasts_its_deadline_on_two_threads() {
    let longest = longest_call().await;
    assert!(longest < TIMEOUT + SLACK, "{longest:?}");
}

/// A loop over calls that fail at once must not keep the thread: the driver needs it to reconnect.
#[tokio::test]
async fn a_call_that_fails_at_once_lets_other_tasks_run() {
    let mut server = RedisServer::start().unwrap();
    let backend = connected(&server).await;
    let closed = connected(&server).await;
    closed.close(CloseRequest::new(far_away())).await.unwrap();
    server.kill();
    eventually("the client notices", async || {
        let read = backend.is_key_locked("k").await;
        read.is_err_and(|error| error.message().contains("no connection"))
    })
    .await;

    let turns = Arc::new(AtomicU64::new(0));
    let other = tokio::spawn({
        let turns = Arc::clone(&turns);
        async move {
            loop {
                turns.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
        }
    });
    for backend in [backend, closed] {
        let before = turns.load(Ordering::Relaxed);
        for _ in 0..1_000 {
            let error = backend.is_key_locked("k").await.unwrap_err();
            assert_eq!(error.code(), ErrorCode::ServiceUnavailable, "{error:?}");
        }
        let turns = turns.load(Ordering::Relaxed) - before;
        assert!(turns >= 1_000, "{turns} in 1000 calls");
    }
    other.abort();
}
