//! Redis, also Cluster and Sentinel.

use syncguard_core::{LockError, Locks};
use syncguard_redis::{RedisBackend, RedisOptions};

use super::locks;
use crate::args::StoreArgs;

pub(super) async fn open(url: &str, asked: StoreArgs) -> Result<Locks, LockError> {
    let mut options = RedisOptions::new();
    if let Some(prefix) = asked.store_prefix {
        options = options.prefix(prefix);
    }
    Ok(locks(RedisBackend::connect_with(url, options).await?))
}
