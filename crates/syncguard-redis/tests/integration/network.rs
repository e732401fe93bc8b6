//! Connections that die in silence, and an address that leads elsewhere.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use syncguard_core::backend::DEFAULT_OPERATION_TIMEOUT;
use syncguard_core::{ErrorCode, Locks};
use syncguard_redis::{RedisBackend, RedisOptions};
use syncguard_testkit::{RedisServer, in_time};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::common::{Raw, connected, eventually, granted};

/// An address whose connections can be made to lead to another server, or to go silent. Those that
/// exist stay where they are.
struct Address {
    port: u16,
    leads_to: Arc<AtomicU16>,
    accepted: Arc<AtomicUsize>,
    /// Connections up to this one pass nothing any more, and stay open.
    silent: watch::Sender<usize>,
}

impl Address {
    async fn of(server: &RedisServer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (silent, silenced) = watch::channel(0);
        let address = Self {
            port: listener.local_addr().unwrap().port(),
            leads_to: Arc::new(AtomicU16::new(server.port())),
            accepted: Arc::default(),
            silent,
        };
        let (leads_to, accepted) = (address.leads_to.clone(), address.accepted.clone());
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let number = accepted.fetch_add(1, Ordering::SeqCst) + 1;
                let port = leads_to.load(Ordering::SeqCst);
                let mut silenced = silenced.clone();
                tokio::spawn(async move {
                    let mut server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                    let forgotten = tokio::select! {
                        _ = copy_bidirectional(&mut client, &mut server) => false,
                        _ = silenced.wait_for(|last| *last >= number) => true,
                    };
                    if forgotten {
                        // Open, and deaf, for as long as the test runs.
                        std::future::pending::<()>().await;
                    }
                });
            }
        });
        address
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }

    /// What a NAT does that forgot its connections.
    fn forget_connections(&self) {
        self.silent.send_replace(self.accepted());
    }
}

#[tokio::test]
async fn an_idle_connection_that_was_dropped_in_silence_is_replaced_before_it_is_needed() {
    let server = RedisServer::start().unwrap();
    let address = Address::of(&server).await;
    let locks = Locks::new(RedisBackend::connect(&address.url()).await.unwrap());
    let guard = granted(&locks, "k").await;
    assert_eq!(address.accepted(), 1);

    address.forget_connections();
    replaced(&address).await;
    let locked = locks.is_locked("k").await;
    assert!(locked.expect("the first call works"));
    assert!(guard.release().await.unwrap().is_released());
}

/// A call just after the loss cannot know of it: it fails by its deadline. It is settled, and later calls work.
#[tokio::test]
async fn a_call_on_a_connection_that_was_just_dropped_in_silence_ends_by_its_deadline() {
    let server = RedisServer::start().unwrap();
    let address = Address::of(&server).await;
    let locks = Locks::new(RedisBackend::connect(&address.url()).await.unwrap());
    let guard = granted(&locks, "k").await;
    address.forget_connections();
    let attempt = locks.try_lock("lost").into_future();
    let ended = in_time(DEFAULT_OPERATION_TIMEOUT, attempt).await.unwrap();
    let error = ended.map(drop).unwrap_err();
    // The driver gives the connection up at about the same time.
    let (timeout, broken) = (ErrorCode::NetworkTimeout, ErrorCode::ServiceUnavailable);
    assert!([timeout, broken].contains(&error.code()), "{error:?}");
    assert!(error.outcome_unknown());

    replaced(&address).await;
    assert!(locks.is_locked("k").await.expect("the next call works"));
    assert!(guard.release().await.unwrap().is_released());
    locks.drain(Duration::from_secs(30)).await.unwrap();
    assert!(!locks.is_locked("lost").await.unwrap());
}

/// Waits for the second connection. With the default timeout, the backend checks an idle connection after at most
/// 5 s, and replaces it 5 s later.
async fn replaced(address: &Address) {
    let begun = Instant::now();
    eventually("another connection", async || address.accepted() > 1).await;
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(10 + 10), "{took:?}");
    // For its handshake.
    tokio::time::sleep(Duration::from_secs(3)).await;
}

#[tokio::test]
async fn a_busy_connection_that_was_dropped_in_silence_is_replaced() {
    let server = RedisServer::start().unwrap();
    let address = Address::of(&server).await;
    let options = RedisOptions::new().timeout(Duration::from_secs(1));
    let backend = RedisBackend::connect_with(&address.url(), options).await;
    let locks = Locks::new(backend.unwrap());
    address.forget_connections();
    // Something is written far more often than the driver's own check would need.
    let mut calls = tokio::task::JoinSet::new();
    eventually("calls work again", async || {
        calls.spawn(locks.is_locked("k").into_future());
        tokio::time::sleep(Duration::from_millis(50)).await;
        matches!(calls.try_join_next(), Some(Ok(Ok(_))))
    })
    .await;
    assert!(address.accepted() > 1);
}

#[tokio::test]
async fn an_address_that_leads_to_the_new_primary_is_followed_though_the_old_one_lives_on() {
    let old = RedisServer::start().unwrap();
    let new = RedisServer::start().unwrap();
    let address = Address::of(&old).await;
    let locks = Locks::new(RedisBackend::connect(&address.url()).await.unwrap());
    let guard = granted(&locks, "before").await;
    assert!(guard.release().await.unwrap().is_released());

    let raw = Raw::connect(&old.url()).await;
    let port = new.port().to_string();
    raw.run::<()>(&["REPLICAOF", "127.0.0.1", &port]).await;
    address.leads_to.store(new.port(), Ordering::SeqCst);
    let mut failed = 0;
    let guard = loop {
        match locks.try_lock("k").await {
            Ok(guard) => break guard.expect("the key is free"),
            Err(error) => {
                assert_eq!(error.code(), ErrorCode::ServiceUnavailable, "{error:?}");
                failed += 1;
                assert!(failed < 3, "the third operation works: {error:?}");
            }
        }
    };
    let other = Locks::new(connected(&new).await);
    assert!(other.is_locked("k").await.unwrap());
    assert!(guard.release().await.unwrap().is_released());
}
