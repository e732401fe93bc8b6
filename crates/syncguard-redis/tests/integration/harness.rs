//! Redis for the conformance suite.

use std::collections::BTreeSet;

use syncguard_conformance::{Harness, Stored};
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
    /// Of a user who may read all that is stored.
    reader: String,
}

impl RedisHarness {
    pub(crate) fn new(url: &str) -> Self {
        Self::with_reader(url, url)
    }

    pub(crate) fn with_reader(url: &str, reader: &str) -> Self {
        Self {
            url: url.to_owned(),
            reader: reader.to_owned(),
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
            .map_err(failed("set the fence counter"))?;
        Ok(true)
    }

    async fn stored(&self, beginning: &str) -> Result<Option<Stored>, LockError> {
        let stored = count(&self.reader, beginning).await;
        stored.map(Some).map_err(failed("count what is stored"))
    }

    fn capacity(&self) -> usize {
        5_000
    }
}

fn failed(what: &str) -> impl FnOnce(Error) -> LockError {
    let message = format!("failed to {what}");
    |error| LockError::new(ErrorCode::ServiceUnavailable, message).with_source(error)
}

async fn connect(url: &str) -> Result<Client, Error> {
    let client = Client::new(Config::from_url(url)?, None, None, None);
    client.init().await?;
    Ok(client)
}

fn command(name: &'static str) -> CustomCommand {
    CustomCommand::new_static(name, ClusterHash::FirstKey, false)
}

async fn set(url: &str, name: String, value: String) -> Result<(), Error> {
    let client = connect(url).await?;
    let set = command("SET");
    client.custom::<(), _>(set, vec![name, value]).await?;
    client.quit().await
}

/// Counts by the names, and index entries by the locks that they lead to.
async fn count(url: &str, beginning: &str) -> Result<Stored, Error> {
    let client = connect(url).await?;
    let mut stored = Stored::default();
    let locks = format!("{DEFAULT_PREFIX}:{beginning}");
    let counters = format!("{DEFAULT_PREFIX}:fence:{locks}");
    for name in names(&client, format!("*{beginning}*")).await? {
        match name {
            name if name.starts_with(&locks) => stored.locks += 1,
            name if name.starts_with(&counters) => stored.fence_counters += 1,
            _ => stored.others += 1,
        }
    }
    let entries = names(&client, format!("{DEFAULT_PREFIX}:id:*")).await?;
    for entries in Vec::from_iter(entries).chunks(1_000) {
        let read = command("MGET");
        let read: Vec<Option<String>> = client.custom(read, entries.to_vec()).await?;
        let leading = read.into_iter().flatten();
        stored.index_entries += leading.filter(|lock| lock.starts_with(&locks)).count();
    }
    client.quit().await?;
    Ok(stored)
}

/// The names that match, each once.
async fn names(client: &Client, pattern: String) -> Result<BTreeSet<String>, Error> {
    let (mut names, mut cursor) = (BTreeSet::new(), "0".to_owned());
    loop {
        let scan = ["MATCH", &pattern, "COUNT", "1000"].map(str::to_owned);
        let scan = [vec![cursor], scan.to_vec()].concat();
        let page: Vec<String>;
        (cursor, page) = client.custom(command("SCAN"), scan).await?;
        names.extend(page);
        if cursor == "0" {
            return Ok(names);
        }
    }
}
