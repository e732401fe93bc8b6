//! The fault cases on Redis.

use syncguard_core::LockError;
use syncguard_faults::Target;
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

syncguard_faults::suite!(Redis);
