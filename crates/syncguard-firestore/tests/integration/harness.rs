//! Connects the suite to a Firestore emulator.

use std::time::Duration;

use syncguard_conformance::Harness;
use syncguard_core::backend::{
    AcquireRequest, LockBackend as _, ReleaseRequest, WatchRequest, make_fence_key,
    make_storage_key,
};
use syncguard_core::{ErrorCode, Fence, LockError, LockId, LockKey, Ttl};
use syncguard_firestore::gcloud_sdk::google::firestore::v1::firestore_client::FirestoreClient;
use syncguard_firestore::gcloud_sdk::google::firestore::v1::value::ValueType;
use syncguard_firestore::gcloud_sdk::google::firestore::v1::{
    Document, UpdateDocumentRequest, Value,
};
use syncguard_firestore::gcloud_sdk::tonic::{Request, metadata::MetadataValue};
use syncguard_firestore::{
    FirestoreBackend, FirestoreOptions, STORAGE_KEY_LIMIT, STORAGE_KEY_RESERVE,
};
use tokio::time::Instant;

/// How long the emulator may take for its first requests: on a busy machine, many seconds.
const PATIENCE: Duration = Duration::from_secs(60);

/// Connects to one emulator, in a database of its own.
pub(crate) struct FirestoreHarness {
    host: String,
    project: String,
    options: FirestoreOptions,
}

impl FirestoreHarness {
    /// Warms the emulator up.
    pub(crate) async fn new(host: &str, options: FirestoreOptions) -> Result<Self, LockError> {
        let unique = LockId::generate()?.as_str().replace(['-', '_'], "0");
        let harness = Self {
            host: host.to_owned(),
            project: format!("suite-{}", unique.to_lowercase()),
            options,
        };
        let patient = harness.options.clone().request_timeout(PATIENCE);
        let backend = harness.backend(patient).await?;
        let (key, id) = (LockKey::new("warm")?, LockId::generate()?);
        let deadline = Instant::now() + PATIENCE;
        let acquire = AcquireRequest::new(&key, &id, Ttl::new(PATIENCE)?, deadline);
        let acquired = backend.acquire(acquire).await?;
        debug_assert!(!acquired.is_locked());
        // The first one may take too long.
        drop(backend.watch(WatchRequest::new(&key, deadline)).await);
        let _ = backend.release(ReleaseRequest::new(&id, deadline)).await?;
        Ok(harness)
    }

    async fn backend(&self, options: FirestoreOptions) -> Result<FirestoreBackend, LockError> {
        FirestoreBackend::connect_emulator(&self.host, &self.project, options).await
    }

    /// Writes the fence counter of a key that Firestore accepts as a document id.
    async fn write_counter(&self, key: &LockKey, fence: Fence) -> Result<(), Error> {
        let (limit, reserve) = (STORAGE_KEY_LIMIT, STORAGE_KEY_RESERVE);
        let lock = make_storage_key("", key.as_str(), limit, reserve)?;
        let id = make_fence_key("", &lock, limit, reserve)?;
        let root = format!("projects/{}/databases/(default)/documents", self.project);
        let text = |text: String| Value {
            value_type: Some(ValueType::StringValue(text)),
        };
        let document = Document {
            name: format!("{root}/fence_counters/{id}"),
            fields: [("fence".to_owned(), text(fence.to_string()))].into(),
            ..Document::default()
        };
        let mut request = Request::new(UpdateDocumentRequest {
            document: Some(document),
            ..UpdateDocumentRequest::default()
        });
        let owner = MetadataValue::from_static("Bearer owner");
        request.metadata_mut().insert("authorization", owner);
        let mut client = FirestoreClient::connect(format!("http://{}", self.host)).await?;
        client.update_document(request).await?;
        Ok(())
    }
}

type Error = Box<dyn std::error::Error + Send + Sync>;

impl Harness for FirestoreHarness {
    type Backend = FirestoreBackend;

    async fn connect(&self) -> Result<FirestoreBackend, LockError> {
        self.backend(self.options.clone()).await
    }

    async fn set_fence_counter(&self, key: &LockKey, counter: u64) -> Result<bool, LockError> {
        let fence = Fence::from_counter(counter)?;
        match self.write_counter(key, fence).await {
            Ok(()) => Ok(true),
            Err(error) => Err(LockError::new(ErrorCode::Internal, error.to_string())),
        }
    }
}
