//! Passwords, users and rights; URLs and clients.

use std::future::Future as _;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::common::{DOCUMENTED_RIGHTS, Raw, eventually, key};
use syncguard_core::{ErrorCode, LockBackend, LockError, TimeAuthority, acquire};
use syncguard_redis::fred::clients::Client;
use syncguard_redis::fred::interfaces::ClientLike as _;
use syncguard_redis::fred::types::Builder;
use syncguard_redis::fred::types::config::Config;
use syncguard_redis::{RedisBackend, RedisOptions, RedisStore};
use syncguard_testkit::{RedisServer, texts};
use tokio::runtime::Runtime;

const PASSWORD: &str = "correct-horse";
const WRONG: &str = "battery-staple";

fn assert_auth_failed(error: &LockError) {
    assert_eq!(error.code(), ErrorCode::AuthFailed, "{error:?}");
    assert!(!error.is_retryable());
    let texts = texts(error);
    assert!(
        !texts.contains(PASSWORD) && !texts.contains(WRONG),
        "{texts}"
    );
}

fn with_user(server: &RedisServer, user: &str, password: &str) -> String {
    format!("redis://{user}:{password}@127.0.0.1:{}", server.port())
}

#[tokio::test]
async fn wrong_credentials_are_auth_failed_and_in_no_text() {
    let server = RedisServer::start_with(&["--requirepass", PASSWORD]).unwrap();
    for url in [
        server.url(),
        with_user(&server, "", WRONG),
        with_user(&server, "default", WRONG),
        with_user(&server, "nobody", PASSWORD),
    ] {
        assert_auth_failed(&RedisStore::connect(&url).await.unwrap_err());
    }
    let backend = RedisBackend::new(
        RedisStore::connect(&with_user(&server, "", PASSWORD))
            .await
            .unwrap(),
    );
    let shown = format!("{backend:?} {backend:#?} {:?}", backend.get_ref());
    assert!(!shown.contains(PASSWORD), "{shown}");
    let guard = acquire(&backend, "k", Duration::from_secs(60))
        .await
        .unwrap()
        .unwrap();
    assert!(!format!("{guard:?}").contains(PASSWORD));
    assert!(guard.release().await.unwrap().is_released());
}

#[test]
fn outside_a_runtime_nothing_is_sent_and_the_error_says_so() {
    let runtime = Runtime::new().unwrap();
    let server = RedisServer::start().unwrap();
    let store = runtime
        .block_on(RedisStore::connect(&server.url()))
        .unwrap();
    let key = key("k");
    let reading = pin!(store.is_locked(&key));
    let Poll::Ready(answer) = reading.poll(&mut Context::from_waker(Waker::noop())) else {
        panic!("it waits");
    };
    let error = answer.unwrap_err();
    assert_eq!(error.code(), ErrorCode::Internal, "{error:?}");
    assert!(!error.outcome_unknown());
    runtime.block_on(store.close());
}

#[tokio::test]
async fn no_time_at_all_is_refused() {
    let server = RedisServer::start().unwrap();
    let options = RedisOptions::new().with_timeout(Duration::ZERO);
    let error = RedisStore::connect_with(&server.url(), options).await;
    assert_eq!(error.unwrap_err().code(), ErrorCode::InvalidArgument);
}

#[tokio::test]
async fn a_missing_right_is_auth_failed_and_the_documented_ones_suffice() {
    let server = RedisServer::start_with(&["--requirepass", PASSWORD]).unwrap();
    let admin = Raw::connect(&with_user(&server, "", PASSWORD)).await;
    let secret = format!(">{PASSWORD}");
    for missing in [
        None,
        Some("+evalsha"),
        Some("+get"),
        Some("+set"),
        Some("~syncguard:*"),
    ] {
        let mut user = vec!["ACL", "SETUSER", "locker", "reset", "on", &secret];
        user.extend(
            DOCUMENTED_RIGHTS
                .into_iter()
                .filter(|right| Some(*right) != missing),
        );
        admin.run::<()>(&user).await;
        let url = with_user(&server, "locker", PASSWORD);
        let backend = RedisBackend::new(RedisStore::connect(&url).await.unwrap());
        let outcome = acquire(&backend, "customer:secret", Duration::from_secs(60)).await;
        let Some(missing) = missing else {
            let guard = outcome.unwrap().unwrap();
            let _ = guard.extend(Duration::from_secs(60)).await.unwrap();
            assert!(guard.release().await.unwrap().is_released());
            continue;
        };
        let error = outcome.map(drop).expect_err(missing);
        assert_auth_failed(&error);
        assert!(!texts(&error).contains("customer:secret"));
    }
}

#[tokio::test]
async fn urls_that_cannot_be_used_are_refused_without_being_quoted() {
    for url in [
        "",
        "nonsense",
        "http://user:correct-horse@localhost",
        "redis://:correct-horse@",
        "redis://user:correct-horse@localhost:port",
        "redis://user:correct-horse@localhost:99999",
        "redis://user:correct-horse@localhost/1/2",
        "redis://user:correct-horse@localhost/correct-horse",
    ] {
        let error = RedisStore::connect(url).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument, "{url}: {error:?}");
        assert!(!texts(&error).contains(PASSWORD), "{error:?}");
    }
}

#[tokio::test]
async fn an_absent_or_silent_server_is_an_error_in_time() {
    let mut server = RedisServer::start().unwrap();
    server.pause().unwrap();
    let options = RedisOptions::new().with_timeout(Duration::from_millis(400));
    let begun = Instant::now();
    let error = RedisStore::connect_with(&server.url(), options.clone())
        .await
        .unwrap_err();
    assert_eq!(error.code(), ErrorCode::NetworkTimeout);
    assert!(begun.elapsed() < Duration::from_secs(2));
    server.resume().unwrap();

    server.kill();
    let begun = Instant::now();
    let error = RedisStore::connect_with(&server.url(), options)
        .await
        .unwrap_err();
    assert_eq!(error.code(), ErrorCode::ServiceUnavailable);
    assert!(begun.elapsed() < Duration::from_secs(2));
}

#[tokio::test]
async fn an_untagged_prefix_on_a_clustered_client_is_refused_with_the_fix() {
    let config = || Config::from_url_clustered("redis-cluster://127.0.0.1:1").unwrap();
    let client = || Client::new(config(), None, None, None);
    let refused = [
        RedisStore::with_client(client(), RedisOptions::new()).unwrap_err(),
        RedisStore::with_client(client(), RedisOptions::new().with_prefix("{}syncguard"))
            .unwrap_err(),
        RedisStore::connect("redis-cluster://127.0.0.1:1")
            .await
            .unwrap_err(),
    ];
    for error in &refused {
        assert_eq!(error.code(), ErrorCode::InvalidArgument);
    }
    assert!(
        refused[0].message().contains("`{syncguard}`"),
        "{}",
        refused[0]
    );
    assert!(
        refused[2].message().contains("`{syncguard}`"),
        "{}",
        refused[2]
    );
    RedisStore::with_client(client(), RedisOptions::new().with_prefix("{syncguard}")).unwrap();
}

#[tokio::test]
async fn a_client_or_a_pool_of_ones_own_works_and_stays_open() {
    let server = RedisServer::start().unwrap();
    let config = Config::from_url(&server.url()).unwrap();
    let client = Client::new(config.clone(), None, None, None);
    client.init().await.unwrap();
    let pool = Builder::from_config(config).build_pool(3).unwrap();
    pool.init().await.unwrap();
    for store in [
        RedisStore::with_client(client.clone(), RedisOptions::new()).unwrap(),
        RedisStore::with_pool(&pool, RedisOptions::new()).unwrap(),
    ] {
        assert_eq!(store.capabilities().backend, "redis");
        assert_eq!(store.capabilities().time_authority, TimeAuthority::Server);
        assert!(store.capabilities().supports_fencing);
        let backend = RedisBackend::new(store.clone());
        for round in 0..20 {
            let text = format!("k{round}");
            let guard = acquire(&backend, &text, Duration::from_secs(60))
                .await
                .unwrap()
                .unwrap();
            assert!(
                acquire(&backend, &text, Duration::from_secs(60))
                    .await
                    .unwrap()
                    .is_none()
            );
            let _ = guard.extend(Duration::from_secs(60)).await.unwrap();
            assert!(guard.release().await.unwrap().is_released());
        }
        store.close().await;
    }
    client.ping::<()>(None).await.unwrap();
    pool.ping::<()>(None).await.unwrap();
}

#[tokio::test]
async fn a_store_that_is_closed_or_dropped_leaves_no_connection_and_no_task() {
    let server = RedisServer::start().unwrap();
    let raw = Raw::connect(&server.url()).await;
    let clients = async || raw.info("clients", "connected_clients").await;
    let tasks = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    let (connections_before, tasks_before) = (clients().await, tasks());

    let store = RedisStore::connect(&server.url()).await.unwrap();
    assert_eq!(clients().await, connections_before + 1);
    let twin = store.clone();
    drop(store);
    let backend = RedisBackend::new(twin);
    let guard = acquire(&backend, "k", Duration::from_secs(60))
        .await
        .unwrap()
        .unwrap();
    assert!(guard.release().await.unwrap().is_released());
    drop(backend);
    eventually("the dropped store's connection ends", async || {
        clients().await == connections_before && tasks() == tasks_before
    })
    .await;

    let store = RedisStore::connect(&server.url()).await.unwrap();
    store.close().await;
    eventually("the closed store's connection ends", async || {
        clients().await == connections_before && tasks() == tasks_before
    })
    .await;
    let error = acquire(&RedisBackend::new(store), "k", Duration::from_secs(60))
        .await
        .unwrap_err();
    assert_eq!(error.code(), ErrorCode::ServiceUnavailable);
    assert!(!error.outcome_unknown());

    // A call that is dropped while it connects.
    server.pause().unwrap();
    let url = server.url();
    let connecting = RedisStore::connect(&url);
    assert!(
        tokio::time::timeout(Duration::from_millis(100), connecting)
            .await
            .is_err()
    );
    server.resume().unwrap();
    eventually("the abandoned connection ends", async || {
        clients().await == connections_before && tasks() == tasks_before
    })
    .await;
}
