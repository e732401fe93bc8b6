//! A plain client beside the backend, to see and do what the backend would not, and calls of the bare
//! backend.

use std::time::Duration;

use syncguard_core::backend::{
    AcquireRequest, AcquireResult, ExtendRequest, IsLockedRequest, LockBackend, Lookup,
    LookupRequest, ReleaseRequest,
};
use syncguard_core::{
    ExtendResult, LockError, LockGuard, LockId, LockInfoDebug, LockKey, Locks, ReleaseResult, Ttl,
};
use syncguard_redis::RedisBackend;
use syncguard_redis::fred::clients::Client;
use syncguard_redis::fred::interfaces::ClientLike as _;
use syncguard_redis::fred::types::config::Config;
use syncguard_redis::fred::types::{ClusterHash, CustomCommand, FromValue, Value};
use syncguard_testkit::RedisServer;
use tokio::time::Instant;

/// What the documentation requires, on the default prefix.
pub(crate) const DOCUMENTED_RIGHTS: [&str; 12] = [
    "~syncguard:*",
    "-@all",
    "+eval",
    "+evalsha",
    "+get",
    "+set",
    "+del",
    "+incr",
    "+decr",
    "+pexpireat",
    "+time",
    "+client|tracking",
];

/// `PEXPIRETIME`, on Redis 6.2, too.
const EXPIRES_AT_MS: &str = "
    local at = redis.pcall('PEXPIRETIME', KEYS[1])
    if type(at) == 'number' then
      return at
    end
    local function now()
      local time = redis.call('TIME')
      return time[1] * 1000 + math.floor(time[2] / 1000)
    end
    local before, left
    repeat
      before, left = now(), redis.call('PTTL', KEYS[1])
    until before == now()
    return left < 0 and left or before + left
";

/// A connection that sends any command.
#[derive(Clone)]
pub(crate) struct Raw(Client);

impl Raw {
    pub(crate) async fn connect(url: &str) -> Self {
        let client = Client::new(Config::from_url(url).unwrap(), None, None, None);
        client.init().await.unwrap();
        Self(client)
    }

    pub(crate) async fn run<T: FromValue>(&self, command: &[&str]) -> T {
        self.try_run(command)
            .await
            .unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }

    pub(crate) async fn try_run<T: FromValue>(
        &self,
        command: &[&str],
    ) -> Result<T, syncguard_redis::fred::error::Error> {
        let name = CustomCommand::new(command[0].to_owned(), ClusterHash::FirstKey, false);
        let arguments = command[1..]
            .iter()
            .map(|&text| Value::from(text.to_owned()));
        self.0.custom(name, arguments.collect()).await
    }

    /// When a name expires; -1 if it does not, -2 if it does not exist.
    pub(crate) async fn expires_at_ms(&self, name: &str) -> i64 {
        self.run(&["EVAL", EXPIRES_AT_MS, "1", name]).await
    }

    pub(crate) async fn get(&self, key: &str) -> Option<String> {
        self.run(&["GET", key]).await
    }

    /// All names, in order.
    pub(crate) async fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = self.run(&["KEYS", "*"]).await;
        keys.sort();
        keys
    }

    /// A number from `INFO`.
    pub(crate) async fn info(&self, section: &str, field: &str) -> u64 {
        let text: String = self.run(&["INFO", section]).await;
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("no {field} in {text}"))
            .trim()
            .parse()
            .unwrap()
    }

    /// How often the server ran commands, by `INFO commandstats`: `[("evalsha", 3), ...]`.
    pub(crate) async fn commands_run(&self, command: &str) -> u64 {
        let text: String = self.run(&["INFO", "commandstats"]).await;
        text.lines()
            .find_map(|line| {
                let counts = line.strip_prefix(&format!("cmdstat_{command}:calls="))?;
                counts.split(',').next()?.parse().ok()
            })
            .unwrap_or(0)
    }

    /// How often the server refused to run a command.
    pub(crate) async fn commands_rejected(&self, command: &str) -> u64 {
        let text: String = self.run(&["INFO", "commandstats"]).await;
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:")));
        line.and_then(|line| line.split_once("rejected_calls=")?.1.split(',').next())
            .map_or(0, |count| count.parse().unwrap())
    }
}

/// A server of the test's own, locks on it, and a plain client.
pub(crate) async fn fresh() -> (RedisServer, Locks, Raw) {
    let (server, backend, raw) = fresh_backend().await;
    (server, Locks::new(backend), raw)
}

/// A server of the test's own, a bare backend on it, and a plain client.
pub(crate) async fn fresh_backend() -> (RedisServer, RedisBackend, Raw) {
    let server = RedisServer::start().unwrap();
    let backend = connected(&server).await;
    let raw = Raw::connect(&server.url()).await;
    (server, backend, raw)
}

pub(crate) async fn connected(server: &RedisServer) -> RedisBackend {
    RedisBackend::connect(&server.url()).await.unwrap()
}

/// Locks with this operation timeout.
pub(crate) fn impatient(backend: RedisBackend, timeout: Duration) -> Locks {
    Locks::builder(backend).operation_timeout(timeout).build()
}

/// Acquires a free key for a minute, in one attempt.
pub(crate) async fn granted(locks: &Locks, key: &str) -> LockGuard {
    let attempt = locks.try_lock(key).ttl(Duration::from_secs(60));
    attempt.await.unwrap().expect("the key is free")
}

/// Calls of the bare backend, for tests that choose the lock id, with a deadline that is far away.
pub(crate) trait BareCalls {
    async fn acquire_for(
        &self,
        key: &str,
        id: &LockId,
        ttl: Ttl,
    ) -> Result<AcquireResult, LockError>;
    async fn release_id(&self, id: &LockId) -> Result<ReleaseResult, LockError>;
    async fn extend_id(&self, id: &LockId, ttl: Ttl) -> Result<ExtendResult, LockError>;
    async fn is_key_locked(&self, key: &str) -> Result<bool, LockError>;
    async fn lookup_key(&self, key: &str) -> Result<Option<LockInfoDebug>, LockError>;
    async fn lookup_id(&self, id: &LockId) -> Result<Option<LockInfoDebug>, LockError>;
}

impl BareCalls for RedisBackend {
    async fn acquire_for(
        &self,
        key: &str,
        id: &LockId,
        ttl: Ttl,
    ) -> Result<AcquireResult, LockError> {
        let key = self::key(key);
        self.acquire(AcquireRequest::new(&key, id, ttl, far_away()))
            .await
    }

    async fn release_id(&self, id: &LockId) -> Result<ReleaseResult, LockError> {
        self.release(ReleaseRequest::new(id, far_away())).await
    }

    async fn extend_id(&self, id: &LockId, ttl: Ttl) -> Result<ExtendResult, LockError> {
        self.extend(ExtendRequest::new(id, ttl, far_away())).await
    }

    async fn is_key_locked(&self, key: &str) -> Result<bool, LockError> {
        let key = self::key(key);
        self.is_locked(IsLockedRequest::new(&key, far_away())).await
    }

    async fn lookup_key(&self, key: &str) -> Result<Option<LockInfoDebug>, LockError> {
        let by = &self::key(key);
        self.lookup_raw(LookupRequest::new(Lookup::Key(by), far_away()))
            .await
    }

    async fn lookup_id(&self, id: &LockId) -> Result<Option<LockInfoDebug>, LockError> {
        self.lookup_raw(LookupRequest::new(Lookup::Id(id), far_away()))
            .await
    }
}

/// Later than the timeout of the backend's own commands.
pub(crate) fn far_away() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

pub(crate) fn key(text: &str) -> LockKey {
    LockKey::new(text).unwrap()
}

pub(crate) fn secs(seconds: u64) -> Ttl {
    Ttl::new(Duration::from_secs(seconds)).unwrap()
}

pub(crate) fn millis(millis: u64) -> Ttl {
    Ttl::new(Duration::from_millis(millis)).unwrap()
}

/// Waits until a condition holds, for as long as a busy machine may take.
pub(crate) async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    while !holds().await {
        assert!(tokio::time::Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
