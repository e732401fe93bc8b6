//! Redis for the conformance suite.

use syncguard_conformance::Harness;
use syncguard_core::backend::{make_fence_key, make_storage_key};
use syncguard_core::{ErrorCode, LockError, LockKey};
use syncguard_redis::fred::clients::Client;
use syncguard_redis::fred::error::Error;
use syncguard_redis::fred::interfaces::ClientLike as _;
use syncguard_redis::fred::types::config::Config;
use syncguard_redis::fred::types::{ClusterHash, CustomCommand};
use syncguard_redis::{DEFAULT_PREFIX, RedisBackend, STORAGE_KEY_LIMIT, STORAGE_KEY_RESERVE};

pub(crate) struct RedisHarness {
    url: String,
}

impl RedisHarness {
    pub(crate) fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
        }
    }
}

impl Harness for RedisHarness {
    type Backend = RedisBackend;

    async fn connect(&self) -> Result<RedisBackend, LockError> {
        RedisBackend::connect(&self.url).await
    }

    async fn set_fence_counter(&self, key: &LockKey, counter: u64) -> Result<bool, LockError> {
        let (limit, reserve) = (STORAGE_KEY_LIMIT, STORAGE_KEY_RESERVE);
        let lock = make_storage_key(DEFAULT_PREFIX, key.as_str(), limit, reserve)?;
        let fence = make_fence_key(DEFAULT_PREFIX, &lock, limit, reserve)?;
        set(&self.url, fence, counter.to_string())
            .await
            .map_err(|error| {
                LockError::new(
                    ErrorCode::ServiceUnavailable,
                    "failed to set the fence counter",
                )
                .with_source(error)
            })?;
        Ok(true)
    }
}

async fn set(url: &str, name: String, value: String) -> Result<(), Error> {
    let client = Client::new(Config::from_url(url)?, None, None, None);
    client.init().await?;
    let command = CustomCommand::new_static("SET", ClusterHash::FirstKey, false);
    client.custom::<(), _>(command, vec![name, value]).await?;
    client.quit().await
}
