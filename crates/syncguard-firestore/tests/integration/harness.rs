//! Connects the suite to a Firestore emulator.

use std::time::Duration;

use syncguard_conformance::{Harness, Stored};
use syncguard_core::backend::{
    AcquireRequest, LockBackend as _, ReleaseRequest, WatchRequest, make_fence_key,
    make_storage_key,
};
use syncguard_core::{ErrorCode, Fence, LockError, LockId, LockKey, Ttl};
use syncguard_firestore::gcloud_sdk::google::firestore::v1::firestore_client::FirestoreClient;
use syncguard_firestore::gcloud_sdk::google::firestore::v1::run_query_request::QueryType;
use syncguard_firestore::gcloud_sdk::google::firestore::v1::structured_query::field_filter::Operator;
use syncguard_firestore::gcloud_sdk::google::firestore::v1::structured_query::filter::FilterType;
use syncguard_firestore::gcloud_sdk::google::firestore::v1::structured_query::{
    CollectionSelector, CompositeFilter, FieldFilter, FieldReference, Filter, composite_filter,
};
use syncguard_firestore::gcloud_sdk::google::firestore::v1::value::ValueType;
use syncguard_firestore::gcloud_sdk::google::firestore::v1::{
    Document, RunQueryRequest, StructuredQuery, UpdateDocumentRequest, Value,
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
        let root = self.root();
        let text = |text: String| Value {
            value_type: Some(ValueType::StringValue(text)),
        };
        let document = Document {
            name: format!("{root}/fence_counters/{id}"),
            fields: [("fence".to_owned(), text(fence.to_string()))].into(),
            ..Document::default()
        };
        let request = as_owner(UpdateDocumentRequest {
            document: Some(document),
            ..UpdateDocumentRequest::default()
        });
        let mut client = FirestoreClient::connect(format!("http://{}", self.host)).await?;
        client.update_document(request).await?;
        Ok(())
    }

    /// Counts the documents of a collection whose ids begin with this text.
    async fn count(&self, collection: &str, beginning: &str) -> Result<usize, Error> {
        let root = self.root();
        let (field, name) = (
            "__name__".to_owned(),
            format!("{root}/{collection}/{beginning}"),
        );
        let bound = |op: Operator, name: String| Filter {
            filter_type: Some(FilterType::FieldFilter(FieldFilter {
                field: Some(FieldReference {
                    field_path: field.clone(),
                }),
                op: op.into(),
                value: Some(Value {
                    value_type: Some(ValueType::ReferenceValue(name)),
                }),
            })),
        };
        // Above all characters that a beginning has.
        let end = format!("{name}~");
        let range = CompositeFilter {
            op: composite_filter::Operator::And.into(),
            filters: vec![
                bound(Operator::GreaterThanOrEqual, name),
                bound(Operator::LessThan, end),
            ],
        };
        let query = StructuredQuery {
            from: vec![CollectionSelector {
                collection_id: collection.to_owned(),
                all_descendants: false,
            }],
            r#where: Some(Filter {
                filter_type: Some(FilterType::CompositeFilter(range)),
            }),
            ..StructuredQuery::default()
        };
        let request = as_owner(RunQueryRequest {
            parent: root,
            query_type: Some(QueryType::StructuredQuery(query)),
            ..RunQueryRequest::default()
        });
        let mut client = FirestoreClient::connect(format!("http://{}", self.host)).await?;
        let mut found = client.run_query(request).await?.into_inner();
        let mut count = 0;
        while let Some(found) = found.message().await? {
            count += usize::from(found.document.is_some());
        }
        Ok(count)
    }

    async fn count_stored(&self, beginning: &str) -> Result<Stored, Error> {
        let mut stored = Stored::default();
        stored.locks = self.count("locks", beginning).await?;
        let counters = format!("fence:{beginning}");
        stored.fence_counters = self.count("fence_counters", &counters).await?;
        Ok(stored)
    }

    fn root(&self) -> String {
        format!("projects/{}/databases/(default)/documents", self.project)
    }
}

/// With the permissions that the emulator grants.
fn as_owner<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    let owner = MetadataValue::from_static("Bearer owner");
    request.metadata_mut().insert("authorization", owner);
    request
}

type Error = Box<dyn std::error::Error + Send + Sync>;

impl Harness for FirestoreHarness {
    type Backend = FirestoreBackend;

    async fn connect(&self) -> Result<FirestoreBackend, LockError> {
        self.backend(self.options.clone()).await
    }

    async fn set_fence_counter(&self, key: &LockKey, counter: u64) -> Result<bool, LockError> {
        let fence = Fence::from_counter(counter)?;
        self.write_counter(key, fence).await.map_err(failed)?;
        Ok(true)
    }

    async fn stored(&self, beginning: &str) -> Result<Option<Stored>, LockError> {
        let stored = self.count_stored(beginning).await;
        stored.map(Some).map_err(failed)
    }

    fn capacity(&self) -> usize {
        500
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn failed(error: Error) -> LockError {
    LockError::new(ErrorCode::Internal, error.to_string())
}
