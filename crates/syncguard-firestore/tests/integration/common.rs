//! The emulator as tests see it: through the backend, and raw over its REST interface.

#![allow(unreachable_pub, missing_docs, reason = "one program uses it")]

pub mod listens;
pub mod proxy;
pub mod relay;
pub mod requests;
pub mod warnings;

use std::sync::Once;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use syncguard_core::backend::{
    AcquireResult, Grant, LockBackend, make_fence_key, make_hashed_storage_key,
};
use syncguard_core::{Fence, LockId, LockKey, Locks, Ttl};
use syncguard_firestore::{
    FirestoreBackend, FirestoreOptions, STORAGE_KEY_LIMIT, STORAGE_KEY_RESERVE,
};
use syncguard_testkit::shared_firestore_host;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

/// A database that no other test uses.
#[derive(Debug, Clone)]
pub struct Database {
    pub host: String,
    pub project: String,
}

impl Database {
    /// One on the emulator that all tests share.
    pub fn new() -> Self {
        let host = shared_firestore_host().unwrap();
        WARM.call_once(|| warm_up(&host));
        Self::on(host)
    }

    pub fn on(host: String) -> Self {
        let unique = LockId::generate().unwrap();
        let letters = unique.as_str().replace(['-', '_'], "0").to_lowercase();
        let project = format!("test-{letters}");
        Self { host, project }
    }

    pub async fn backend(&self) -> FirestoreBackend {
        self.backend_with(FirestoreOptions::new()).await
    }

    pub async fn backend_with(&self, options: FirestoreOptions) -> FirestoreBackend {
        FirestoreBackend::connect_emulator(&self.host, &self.project, options)
            .await
            .unwrap()
    }

    pub async fn locks(&self) -> Locks {
        Locks::new(self.backend().await)
    }

    pub fn root(&self) -> String {
        format!("projects/{}/databases/(default)/documents", self.project)
    }

    /// All documents of a collection.
    pub async fn list(&self, collection: &str) -> Vec<Value> {
        let answer = self
            .rest("GET", &format!("/{collection}?pageSize=300"), "")
            .await;
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
        self.put_all(collection, [(id, fields)]).await;
    }

    /// Writes up to 500 documents.
    pub async fn put_all<'a>(
        &self,
        collection: &str,
        documents: impl IntoIterator<Item = (&'a str, Value)>,
    ) {
        let writes = documents.into_iter().map(|(id, fields)| {
            let name = format!("{}/{collection}/{id}", self.root());
            json!({ "update": { "name": name, "fields": fields } })
        });
        self.commit(writes.collect()).await;
    }

    pub async fn delete(&self, collection: &str, id: &str) {
        let name = format!("{}/{collection}/{id}", self.root());
        self.commit(json!([{ "delete": name }])).await;
    }

    async fn commit(&self, writes: Value) {
        let body = json!({ "writes": writes }).to_string();
        let answer = self.rest("POST", ":commit", &body).await;
        assert!(answer["commitTime"].is_string(), "{answer}");
    }

    /// A request to the REST interface, at a path below the root of all documents.
    async fn rest(&self, method: &str, path: &str, body: &str) -> Value {
        let mut stream = TcpStream::connect(&self.host).await.unwrap();
        let (root, length) = (self.root(), body.len());
        let request = format!(
            "{method} /v1/{root}{path} HTTP/1.0\r\nAuthorization: Bearer owner\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        // It keeps connections open, whatever it is asked.
        let mut answer = BufReader::new(stream);
        let mut length = 0;
        loop {
            let mut line = String::new();
            answer.read_line(&mut line).await.unwrap();
            let header = line.trim_end().to_ascii_lowercase();
            if header.is_empty() {
                break;
            }
            if let Some(value) = header.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        answer.read_exact(&mut body).await.unwrap();
        serde_json::from_slice(&body).unwrap()
    }

    pub async fn set_fence_counter(&self, key: &LockKey, counter: u64) {
        let fields = json!({
            "fence": { "stringValue": format!("{counter:015}") },
            "keyDebug": { "stringValue": key.as_str() },
        });
        let id = make_fence_key(
            "",
            &document_id(key.as_str()),
            STORAGE_KEY_LIMIT,
            STORAGE_KEY_RESERVE,
        )
        .unwrap();
        self.put("fence_counters", &id, fields).await;
    }
}

/// The emulator takes seconds for the first request of each kind, and longer on a busy machine.
static WARM: Once = Once::new();

pub fn warm_up(host: &str) {
    let database = Database::on(host.to_owned());
    let patient = FirestoreOptions::new().request_timeout(Duration::from_secs(60));
    let work = async move {
        let backend = database.backend_with(patient).await;
        let grant = take(&backend, "warm").await;
        // The first one may take too long.
        drop(backend.watch(requests::watch(&key("warm"))).await);
        assert!(released(&backend, &grant.lock_id).await);
    };
    // Tests have a runtime of their own each, in which nothing may block.
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let warming = std::thread::spawn(move || runtime.block_on(work));
    warming.join().unwrap();
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

/// Acquires a free key.
pub async fn take(backend: &impl LockBackend<Fence = Fence>, text: &str) -> Grant {
    let (key, id) = (key(text), id());
    match backend
        .acquire(requests::acquire(&key, &id, ttl(30_000)))
        .await
    {
        Ok(AcquireResult::Acquired(grant)) => grant,
        other => panic!("{text:?} is not free: {other:?}"),
    }
}

/// Releases a lock, and returns whether it was held.
pub async fn released(backend: &impl LockBackend<Fence = Fence>, id: &LockId) -> bool {
    let answer = backend.release(requests::release(id)).await;
    answer.unwrap().is_released()
}
