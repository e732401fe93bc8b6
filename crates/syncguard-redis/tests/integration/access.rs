//! Passwords, users and permissions; URLs and clients.

use std::future::Future as _;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use syncguard_core::backend::{
    CloseRequest, IsLockedRequest, LockBackend, PreflightRequest, TimeAuthority,
};
use syncguard_core::{ErrorCode, LockError, LockId, Locks};
use syncguard_redis::fred::clients::Client;
use syncguard_redis::fred::error::Error;
use syncguard_redis::fred::interfaces::ClientLike as _;
use syncguard_redis::fred::types::config::{Config, CredentialProvider, ReconnectPolicy, Server};
use syncguard_redis::fred::types::{Builder, Value};
use syncguard_redis::{RedisBackend, RedisOptions};
use syncguard_testkit::{FaultProxy, RedisServer, texts};
use tokio::runtime::Runtime;

use crate::common::{
    BareCalls as _, DOCUMENTED_RIGHTS, Raw, connected, eventually, far_away, granted, key, secs,
};

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
        assert_auth_failed(&RedisBackend::connect(&url).await.unwrap_err());
    }
    let url = with_user(&server, "", PASSWORD);
    let backend = RedisBackend::connect(&url).await.unwrap();
    let locks = Locks::new(backend.clone());
    let shown = format!("{backend:?} {backend:#?} {locks:?}");
    assert!(!shown.contains(PASSWORD), "{shown}");
    let guard = granted(&locks, "k").await;
    assert!(!format!("{guard:?}").contains(PASSWORD));
    assert!(guard.release().await.unwrap().is_released());
}

#[test]
fn outside_a_runtime_nothing_is_sent_and_the_error_says_so() {
    let runtime = Runtime::new().unwrap();
    let server = RedisServer::start().unwrap();
    let backend = runtime.block_on(connected(&server));
    let key = key("k");
    let reading = pin!(backend.is_locked(IsLockedRequest::new(&key, far_away())));
    let Poll::Ready(answer) = reading.poll(&mut Context::from_waker(Waker::noop())) else {
        panic!("it is pending");
    };
    let error = answer.unwrap_err();
    assert_eq!(error.code(), ErrorCode::Internal, "{error:?}");
    assert!(!error.outcome_unknown());
    let closed = runtime.block_on(backend.close(CloseRequest::new(far_away())));
    closed.unwrap();
}

#[tokio::test]
async fn a_timeout_of_zero_is_refused() {
    let server = RedisServer::start().unwrap();
    let options = RedisOptions::new().timeout(Duration::ZERO);
    let error = RedisBackend::connect_with(&server.url(), options).await;
    assert_eq!(error.unwrap_err().code(), ErrorCode::InvalidArgument);
}

#[tokio::test]
async fn a_missing_permission_is_auth_failed_and_the_documented_ones_suffice() {
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
        let locks = Locks::new(RedisBackend::connect(&url).await.unwrap());
        let outcome = locks.try_lock("customer:secret").await;
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
async fn the_first_database_needs_no_permission_to_select_it_and_an_unknown_one_is_refused() {
    let server = RedisServer::start().unwrap();
    let admin = Raw::connect(&server.url()).await;
    let secret = format!(">{PASSWORD}");
    let mut user = vec!["ACL", "SETUSER", "locker", "on", &secret];
    user.extend(DOCUMENTED_RIGHTS);
    admin.run::<()>(&user).await;
    let url = with_user(&server, "locker", PASSWORD) + "/0";
    let locks = Locks::new(RedisBackend::connect(&url).await.unwrap());
    let guard = granted(&locks, "k").await;
    assert!(guard.release().await.unwrap().is_released());

    for database in ["16", "255", "256", "-1"] {
        let url = format!("{}/{database}", server.url());
        let error = RedisBackend::connect(&url).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument, "{error:?}");
    }
}

/// With `ACL SETUSER` the new password counts at once, for new connections alone.
#[tokio::test]
async fn a_release_outlives_a_moment_of_refused_credentials() {
    let server = RedisServer::start().unwrap();
    let proxy = FaultProxy::start(server.port()).unwrap();
    let admin = Raw::connect(&server.url()).await;
    let password = async |password: &str| {
        let secret = format!(">{password}");
        let mut user = vec!["ACL", "SETUSER", "locker", "on", "resetpass", &secret];
        user.extend(DOCUMENTED_RIGHTS);
        admin.run::<()>(&user).await;
    };
    password(PASSWORD).await;
    let url = format!("redis://locker:{PASSWORD}@{}", proxy.address());
    let locks = Locks::new(RedisBackend::connect(&url).await.unwrap());
    let guard = granted(&locks, "k").await;

    password(WRONG).await;
    proxy.reset_all();
    eventually("new connections are refused", async || {
        let log: Value = admin.run(&["ACL", "LOG"]).await;
        format!("{log:?}").contains("auth")
    })
    .await;
    drop(guard);
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(admin.get("syncguard:k").await.is_some(), "it is held");
    password(PASSWORD).await;
    eventually("the key is free", async || {
        admin.get("syncguard:k").await.is_none()
    })
    .await;
}

/// The credentials of an application, which change while it runs.
#[derive(Debug, Default)]
struct Rotating(Mutex<String>);

#[async_trait]
impl CredentialProvider for Rotating {
    async fn fetch(
        &self,
        _server: Option<&Server>,
    ) -> Result<(Option<String>, Option<String>), Error> {
        let password = self.0.lock().unwrap().clone();
        Ok((Some("locker".into()), Some(password)))
    }
}

#[tokio::test]
async fn a_client_with_a_credential_provider_follows_a_changed_password() {
    let server = RedisServer::start().unwrap();
    let proxy = FaultProxy::start(server.port()).unwrap();
    let admin = Raw::connect(&server.url()).await;
    let credentials = Arc::new(Rotating::default());
    let rotate = async |password: &str| {
        let secret = format!(">{password}");
        let mut user = vec!["ACL", "SETUSER", "locker", "on", "resetpass", &secret];
        user.extend(DOCUMENTED_RIGHTS);
        admin.run::<()>(&user).await;
        *credentials.0.lock().unwrap() = password.to_owned();
    };
    rotate(PASSWORD).await;
    let client = Builder::from_config(Config {
        credential_provider: Some(credentials.clone()),
        ..Config::from_url(&format!("redis://{}", proxy.address())).unwrap()
    })
    .set_policy(ReconnectPolicy::new_constant(0, 100))
    .build()
    .unwrap();
    client.init().await.unwrap();
    let locks = Locks::new(RedisBackend::with_client(client, RedisOptions::new()).unwrap());
    let before = granted(&locks, "before").await;
    for password in ["second", "third"] {
        rotate(password).await;
        let reset = proxy.struck().reset;
        proxy.reset_all();
        // Calls fail until the client has another connection.
        eventually("a call over a new connection", async || {
            proxy.struck().reset > reset && locks.is_locked("before").await.is_ok()
        })
        .await;
        let guard = granted(&locks, password).await;
        assert!(guard.release().await.unwrap().is_released());
    }
    assert!(before.release().await.unwrap().is_released());
}

#[tokio::test]
async fn closing_needs_no_server() {
    let mut server = RedisServer::start().unwrap();
    let locks = Locks::new(connected(&server).await);
    server.kill();
    eventually("the client notices", async || {
        locks.is_locked("k").await.is_err()
    })
    .await;
    let begun = Instant::now();
    locks.close().await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(2));

    server.restart().unwrap();
    let locks = Locks::new(connected(&server).await);
    server.pause().unwrap();
    let begun = Instant::now();
    let _ = locks.close().await;
    assert!(begun.elapsed() < Duration::from_secs(7));
    let error = locks.is_locked("k").await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::ServiceUnavailable, "{error:?}");
}

#[tokio::test]
async fn closing_lets_what_is_in_flight_end() {
    let server = RedisServer::start().unwrap();
    // The first read loads its script, which takes a second round trip.
    for loaded in [false, true] {
        let locks = Locks::new(connected(&server).await);
        server.pause().unwrap();
        let in_flight = tokio::spawn(locks.get_by_key("k"));
        tokio::time::sleep(Duration::from_millis(100)).await;
        let closing = tokio::spawn(locks.close());
        tokio::time::sleep(Duration::from_millis(100)).await;
        let error = locks.get_by_key("k").await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::ServiceUnavailable, "{error:?}");
        assert!(error.message().contains("closed"), "{error:?}");
        server.resume().unwrap();
        closing.await.unwrap().unwrap();
        assert_eq!(in_flight.await.unwrap().unwrap(), None, "{loaded}");
    }
}

#[tokio::test]
async fn closing_ends_by_its_deadline() {
    let server = RedisServer::start().unwrap();
    let backend = connected(&server).await;
    server.pause().unwrap();
    let id = LockId::generate().unwrap();
    let in_flight = tokio::spawn({
        let backend = backend.clone();
        async move { backend.acquire_for("k", &id, secs(60)).await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let (begun, deadline) = (
        Instant::now(),
        tokio::time::Instant::now() + Duration::from_millis(300),
    );
    let error = backend
        .close(CloseRequest::new(deadline))
        .await
        .unwrap_err();
    assert_eq!(error.code(), ErrorCode::NetworkTimeout, "{error:?}");
    assert!(begun.elapsed() < Duration::from_secs(3));
    let error = in_flight.await.unwrap().unwrap_err();
    assert!(error.outcome_unknown(), "it was sent: {error:?}");
}

#[tokio::test]
async fn invalid_urls_are_refused_without_being_quoted() {
    for url in [
        "",
        "nonsense",
        "http://user:correct-horse@localhost",
        "redis://:correct-horse@",
        "redis://user:correct-horse@localhost:port",
        "redis://user:correct-horse@localhost:99999",
        "redis://user:correct-horse@localhost/1/2",
        "redis://user:correct-horse@localhost/correct-horse",
        "redis-clutser://user:correct-horse@localhost",
        "redis-sentinel://user:correct-horse@localhost",
    ] {
        let error = RedisBackend::connect(url).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidArgument, "{url}: {error:?}");
        assert!(!texts(&error).contains(PASSWORD), "{error:?}");
    }
    let error = RedisBackend::connect("http://localhost").await.unwrap_err();
    for scheme in [
        "redis://",
        "rediss://",
        "redis-cluster://",
        "redis-sentinel://",
    ] {
        assert!(error.message().contains(scheme), "{error}");
    }
}

#[tokio::test]
async fn an_absent_or_silent_server_is_an_error_in_time() {
    let mut server = RedisServer::start().unwrap();
    server.pause().unwrap();
    let options = RedisOptions::new().timeout(Duration::from_millis(400));
    let begun = Instant::now();
    let error = RedisBackend::connect_with(&server.url(), options.clone())
        .await
        .unwrap_err();
    assert_eq!(error.code(), ErrorCode::NetworkTimeout);
    assert!(begun.elapsed() < Duration::from_secs(2));
    server.resume().unwrap();

    server.kill();
    let begun = Instant::now();
    let error = RedisBackend::connect_with(&server.url(), options)
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
        RedisBackend::with_client(client(), RedisOptions::new()).unwrap_err(),
        RedisBackend::with_client(client(), RedisOptions::new().prefix("{}syncguard")).unwrap_err(),
        RedisBackend::connect("redis-cluster://127.0.0.1:1")
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
    RedisBackend::with_client(client(), RedisOptions::new().prefix("{syncguard}")).unwrap();
}

#[tokio::test]
async fn a_given_client_or_pool_works_and_stays_open() {
    let server = RedisServer::start().unwrap();
    let config = Config::from_url(&server.url()).unwrap();
    let client = Client::new(config.clone(), None, None, None);
    client.init().await.unwrap();
    let pool = Builder::from_config(config).build_pool(3).unwrap();
    pool.init().await.unwrap();
    for backend in [
        RedisBackend::with_client(client.clone(), RedisOptions::new()).unwrap(),
        RedisBackend::with_pool(&pool, RedisOptions::new()).unwrap(),
    ] {
        assert_eq!(backend.capabilities().backend, "redis");
        assert_eq!(backend.capabilities().time_authority, TimeAuthority::Server);
        let locks = Locks::new(backend);
        assert!(locks.supports_fencing());
        for round in 0..20 {
            let text = format!("k{round}");
            let guard = granted(&locks, &text).await;
            assert!(locks.try_lock(&text).await.unwrap().is_none());
            let _ = guard.extend(Duration::from_secs(60)).await.unwrap();
            assert!(guard.release().await.unwrap().is_released());
        }
        locks.close().await.unwrap();
        let error = locks.try_lock("k").await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::ServiceUnavailable, "{error:?}");
        assert!(!error.outcome_unknown());
    }
    client.ping::<()>(None).await.unwrap();
    pool.ping::<()>(None).await.unwrap();
}

#[tokio::test]
async fn a_backend_that_is_closed_or_dropped_leaves_no_connection_and_no_task() {
    let server = RedisServer::start().unwrap();
    let raw = Raw::connect(&server.url()).await;
    let clients = async || raw.info("clients", "connected_clients").await;
    let tasks = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    let (connections_before, tasks_before) = (clients().await, tasks());

    let backend = connected(&server).await;
    assert_eq!(clients().await, connections_before + 1);
    let twin = backend.clone();
    drop(backend);
    let locks = Locks::new(twin);
    let guard = granted(&locks, "k").await;
    assert!(guard.release().await.unwrap().is_released());
    drop(locks);
    eventually("the dropped backend's connection ends", async || {
        clients().await == connections_before && tasks() == tasks_before
    })
    .await;

    let backend = connected(&server).await;
    let locks = Locks::new(backend.clone());
    locks.close().await.unwrap();
    eventually("the closed backend's connection ends", async || {
        clients().await == connections_before && tasks() == tasks_before
    })
    .await;
    let preflight = backend.preflight(PreflightRequest::new(far_away())).await;
    for error in [
        locks.try_lock("k").await.map(drop).unwrap_err(),
        locks.is_locked("k").await.unwrap_err(),
        preflight.unwrap_err(),
    ] {
        assert_eq!(error.code(), ErrorCode::ServiceUnavailable, "{error:?}");
        assert!(!error.outcome_unknown());
    }
    locks.close().await.expect("closing again does nothing");

    // A call that is dropped while it connects.
    server.pause().unwrap();
    let url = server.url();
    let connecting = RedisBackend::connect(&url);
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
