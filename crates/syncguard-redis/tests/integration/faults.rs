//! The fault cases on Redis.

use syncguard_conformance::faults::Target;
use syncguard_core::LockError;
use syncguard_redis::RedisBackend;
use syncguard_testkit::{RedisServer, shared_redis_url};

struct Redis;

impl Target for Redis {
    type Backend = RedisBackend;
    type Server = RedisServer;

    fn start() -> anyhow::Result<RedisServer> {
        RedisServer::start()
    }

    fn shared_port() -> anyhow::Result<Option<u16>> {
        let url = shared_redis_url()?;
        let port = url.strip_prefix("redis://127.0.0.1:");
        Ok(port.and_then(|port| port.parse().ok()))
    }

    async fn connect(port: u16) -> Result<RedisBackend, LockError> {
        RedisBackend::connect(&format!("redis://127.0.0.1:{port}")).await
    }
}

syncguard_conformance::fault_suite!(Redis);

/// The same cases while other tasks use the same connection, so that calls are gathered.
mod beside_others {
    use std::time::Duration;

    use syncguard_core::Locks;

    use super::*;

    struct Crowd;

    impl Target for Crowd {
        type Backend = RedisBackend;
        type Server = RedisServer;

        fn start() -> anyhow::Result<RedisServer> {
            Redis::start()
        }

        fn shared_port() -> anyhow::Result<Option<u16>> {
            Redis::shared_port()
        }

        async fn connect(port: u16) -> Result<RedisBackend, LockError> {
            let backend = Redis::connect(port).await?;
            let locks = Locks::new(backend.clone());
            for task in 0..64 {
                let locks = locks.clone();
                // Until the case's runtime ends.
                drop(tokio::spawn(async move {
                    loop {
                        if let Ok(Some(guard)) =
                            locks.try_lock(format!("beside:{port}:{task}")).await
                        {
                            let _ = guard.release().await;
                        }
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                }));
            }
            Ok(backend)
        }
    }

    syncguard_conformance::fault_suite!(Crowd);
}
