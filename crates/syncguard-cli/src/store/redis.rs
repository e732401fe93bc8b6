//! Redis, also Cluster and Sentinel.

use syncguard_core::{LockError, Locks};
use syncguard_redis::{RedisBackend, RedisOptions};

use super::locks;
use crate::args::StoreArgs;

pub(super) async fn open(url: &str, asked: StoreArgs) -> Result<Locks, LockError> {
    let mut options = RedisOptions::new();
    if asked.store_prefix.is_none() && is_cluster(url) {
        let message = "Redis Cluster needs a prefix with a hash tag, the one that the applications use: \
                       --store-prefix '{syncguard}'";
        return Err(LockError::invalid_argument(message));
    }
    if let Some(prefix) = asked.store_prefix {
        options = options.prefix(prefix);
    }
    Ok(locks(RedisBackend::connect_with(url, options).await?))
}

fn is_cluster(url: &str) -> bool {
    let scheme = url.split_once("://").map(|(scheme, _)| scheme);
    scheme.is_some_and(|scheme| scheme.ends_with("-cluster"))
}
