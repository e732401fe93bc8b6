//! The emulator as tests see it: through the store, and raw over its REST interface.

#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "each test takes what it needs of it"
)]

pub mod proxy;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use syncguard_conformance::Harness;
use syncguard_core::{
    AcquireResult, Grant, LockBackend, LockError, LockId, LockKey, Ttl, make_fence_key,
    make_hashed_storage_key,
};
use syncguard_firestore::{FirestoreBackend, FirestoreOptions, FirestoreStore};
use syncguard_testkit::shared_firestore_host;

/// A database that no other test uses.
#[derive(Debug, Clone)]
pub struct Database {
    pub host: String,
    pub project: String,
}

impl Database {
    /// One on the emulator that all tests share.
    pub fn new() -> Self {
        Self::on(shared_firestore_host().unwrap())
    }

    pub fn on(host: String) -> Self {
        let unique = LockId::generate().unwrap();
        let letters = unique.as_str().replace(['-', '_'], "0").to_lowercase();
        let project = format!("test-{letters}");
        Self { host, project }
    }

    pub async fn store(&self) -> FirestoreStore {
        self.store_with(FirestoreOptions::new()).await
    }

    pub async fn store_with(&self, options: FirestoreOptions) -> FirestoreStore {
        FirestoreStore::connect_emulator(&self.host, &self.project, options)
            .await
            .unwrap()
    }

    pub async fn backend(&self) -> FirestoreBackend {
        FirestoreBackend::new(self.store().await)
    }

    pub fn root(&self) -> String {
        format!("projects/{}/databases/(default)/documents", self.project)
    }

    /// All documents of a collection.
    pub async fn list(&self, collection: &str) -> Vec<Value> {
        let url = format!(
            "http://{}/v1/{}/{collection}?pageSize=300",
            self.host,
            self.root()
        );
        let client = reqwest::Client::new().get(url).bearer_auth("owner");
        let answer: Value = client.send().await.unwrap().json().await.unwrap();
        answer["documents"].as_array().cloned().unwrap_or_default()
    }

    /// The fields of the only document of a collection.
    pub async fn only(&self, collection: &str) -> Value {
        let documents = self.list(collection).await;
        assert_eq!(documents.len(), 1, "{documents:?}");
        documents[0]["fields"].clone()
    }

    /// Writes a document as it is given.
    pub async fn put(&self, collection: &str, id: &str, fields: Value) {
        let name = format!("{}/{collection}/{id}", self.root());
        self.commit(json!([{ "update": { "name": name, "fields": fields } }]))
            .await;
    }

    pub async fn delete(&self, collection: &str, id: &str) {
        let name = format!("{}/{collection}/{id}", self.root());
        self.commit(json!([{ "delete": name }])).await;
    }

    async fn commit(&self, writes: Value) {
        let url = format!("http://{}/v1/{}:commit", self.host, self.root());
        let client = reqwest::Client::new().post(url).bearer_auth("owner");
        let answer = client
            .json(&json!({ "writes": writes }))
            .send()
            .await
            .unwrap();
        assert!(
            answer.status().is_success(),
            "{}",
            answer.text().await.unwrap()
        );
    }

    pub async fn set_fence_counter(&self, key: &LockKey, counter: u64) {
        let fields = json!({
            "fence": { "stringValue": format!("{counter:015}") },
            "keyDebug": { "stringValue": key.as_str() },
        });
        let id = make_fence_key("", &document_id(key.as_str()), 1_500, 0).unwrap();
        self.put("fence_counters", &id, fields).await;
    }
}

/// The fields of a lock.
pub fn lock_fields(key: &str, id: &LockId, expires_at_ms: i64, fence: u64) -> Value {
    json!({
        "lockId": { "stringValue": id.as_str() },
        "expiresAtMs": { "integerValue": expires_at_ms.to_string() },
        "acquiredAtMs": { "integerValue": (expires_at_ms - 30_000).to_string() },
        "key": { "stringValue": key },
        "fence": { "stringValue": format!("{fence:015}") },
    })
}

pub fn document_id(key: &str) -> String {
    let reserved = key.len() >= 4 && key.starts_with("__") && key.ends_with("__");
    if reserved || key.contains('/') || key == "." || key == ".." {
        make_hashed_storage_key("", key)
    } else {
        key.to_owned()
    }
}

pub fn now_ms() -> i64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(since_epoch.as_millis()).unwrap()
}

pub fn key(text: &str) -> LockKey {
    LockKey::new(text).unwrap()
}

pub fn id() -> LockId {
    LockId::generate().unwrap()
}

pub fn ttl(millis: u64) -> Ttl {
    Ttl::new(Duration::from_millis(millis)).unwrap()
}

/// Takes a free key.
pub async fn take(backend: &impl LockBackend<Fence = syncguard_core::Fence>, text: &str) -> Grant {
    match backend
        .acquire(&key(text), &id(), ttl(30_000))
        .await
        .unwrap()
    {
        AcquireResult::Acquired(grant) => grant,
        AcquireResult::Locked => panic!("{text:?} is held"),
    }
}

/// For the suite: every connection is a client of its own, on one database.
pub struct EmulatorHarness {
    database: Database,
    options: FirestoreOptions,
}

impl EmulatorHarness {
    pub fn new(options: FirestoreOptions) -> Self {
        Self {
            database: Database::new(),
            options,
        }
    }
}

impl Harness for EmulatorHarness {
    type Backend = FirestoreBackend;

    async fn connect(&self) -> Result<FirestoreBackend, LockError> {
        let Database { host, project } = &self.database;
        let store = FirestoreStore::connect_emulator(host, project, self.options.clone()).await?;
        Ok(FirestoreBackend::new(store))
    }

    async fn set_fence_counter(&self, key: &LockKey, counter: u64) -> Result<bool, LockError> {
        self.database.set_fence_counter(key, counter).await;
        Ok(true)
    }
}
