//! The suite's way into a Firestore emulator.

use std::time::Duration;

use syncguard_conformance::Harness;
use syncguard_core::{
    AcquireResult, ErrorCode, Fence, LockBackend as _, LockError, LockId, LockKey, Ttl,
    make_fence_key, make_storage_key,
};
use syncguard_firestore::gcloud_sdk::google::firestore::v1::firestore_client::FirestoreClient;
use syncguard_firestore::gcloud_sdk::google::firestore::v1::value::ValueType;
use syncguard_firestore::gcloud_sdk::google::firestore::v1::{
    Document, UpdateDocumentRequest, Value,
};
use syncguard_firestore::gcloud_sdk::tonic::{Request, metadata::MetadataValue};
use syncguard_firestore::{FirestoreBackend, FirestoreOptions, FirestoreStore};

/// How long the emulator may take for its first requests: on a busy machine, many seconds.
const PATIENCE: Duration = Duration::from_secs(60);

/// Connects to one emulator, in a database of its own.
pub(crate) struct FirestoreHarness {
    host: String,
    project: String,
    options: FirestoreOptions,
}

impl FirestoreHarness {
    /// Has the emulator warm up.
    pub(crate) async fn new(host: &str, options: FirestoreOptions) -> Result<Self, LockError> {
        let unique = LockId::generate()?.as_str().replace(['-', '_'], "0");
        let harness = Self {
            host: host.to_owned(),
            project: format!("suite-{}", unique.to_lowercase()),
            options,
        };
        let patient = harness.options.clone().with_request_timeout(PATIENCE);
        let store = harness.store(patient).await?;
        let (key, id) = (LockKey::new("warm")?, LockId::generate()?);
        let taken = store.acquire(&key, &id, Ttl::new(PATIENCE)?).await?;
        debug_assert!(matches!(taken, AcquireResult::Acquired(_)));
        let _ = store.release(&id).await?;
        Ok(harness)
    }

    async fn store(&self, options: FirestoreOptions) -> Result<FirestoreStore, LockError> {
        FirestoreStore::connect_emulator(&self.host, &self.project, options).await
    }

    /// The counter of a key that may be a document's id as it is.
    async fn write_counter(&self, key: &LockKey, fence: Fence) -> Result<(), Error> {
        let id = make_fence_key("", &make_storage_key("", key.as_str(), 1_500, 0)?, 1_500, 0)?;
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
        let store = self.store(self.options.clone()).await?;
        Ok(FirestoreBackend::new(store))
    }

    async fn set_fence_counter(&self, key: &LockKey, counter: u64) -> Result<bool, LockError> {
        let fence = Fence::from_counter(counter)?;
        match self.write_counter(key, fence).await {
            Ok(()) => Ok(true),
            Err(error) => Err(LockError::new(ErrorCode::Internal, error.to_string())),
        }
    }
}
