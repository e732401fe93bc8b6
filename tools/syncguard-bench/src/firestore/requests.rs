//! The requests, as the backend makes them, with or without a transaction around them.

use anyhow::{Result, ensure};
use syncguard_core::LockId;
use syncguard_firestore::FirestoreApi;
use syncguard_firestore::gcloud_sdk::google::firestore::v1 as firestore;
use syncguard_firestore::gcloud_sdk::google_cloud_auth::credentials::anonymous;
use syncguard_firestore::gcloud_sdk::{HeaderMap, RequestTimeouts};
use tonic::Request;
use tonic::codegen::http::HeaderValue;
use tonic::codegen::http::header::AUTHORIZATION;

use firestore::batch_get_documents_response::Result as Found;
use firestore::firestore_client::FirestoreClient;
use firestore::precondition::ConditionType;
use firestore::structured_query::filter::FilterType;
use firestore::structured_query::{
    CollectionSelector, FieldFilter, FieldReference, Filter, field_filter,
};
use firestore::value::ValueType;
use firestore::write::Operation;
use firestore::{
    BatchGetDocumentsRequest, CommitRequest, Document, Precondition, RunQueryRequest,
    StructuredQuery, Value, Write, batch_get_documents_request, run_query_request,
};

use crate::workload::TTL;

pub(crate) const PROJECT: &str = "bench";
pub(crate) const DATABASE: &str = "projects/bench/databases/(default)";
const ROOT: &str = "projects/bench/databases/(default)/documents";

/// A client as the backend has it, and the requests that it sends.
#[derive(Clone)]
pub(crate) struct Requests(pub(crate) FirestoreApi);

impl Requests {
    pub(crate) async fn connect(host: &str) -> Result<Self> {
        let owner =
            HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_static("Bearer owner"))]);
        let client = FirestoreApi::from_function_with_credentials_and_headers(
            FirestoreClient::new,
            format!("http://{host}"),
            Some(DATABASE.to_owned()),
            anonymous::Builder::new().build(),
            owner,
        );
        Ok(Self(client.await?))
    }

    /// Those of the documents that exist.
    pub(crate) async fn get(
        &self,
        documents: Vec<String>,
        within: Option<batch_get_documents_request::ConsistencySelector>,
    ) -> Result<Vec<Document>> {
        let read = BatchGetDocumentsRequest {
            database: DATABASE.to_owned(),
            documents,
            consistency_selector: within,
            ..BatchGetDocumentsRequest::default()
        };
        let mut client = self.0.get();
        let mut answer = client
            .batch_get_documents(request(read))
            .await?
            .into_inner();
        let mut documents = Vec::new();
        while let Some(part) = answer.message().await? {
            if let Some(Found::Found(document)) = part.result {
                documents.push(document);
            }
        }
        Ok(documents)
    }

    /// The one lock with this id.
    pub(crate) async fn find(
        &self,
        id: &LockId,
        within: Option<run_query_request::ConsistencySelector>,
    ) -> Result<Document> {
        let filter = FieldFilter {
            field: Some(FieldReference {
                field_path: "lockId".to_owned(),
            }),
            op: field_filter::Operator::Equal.into(),
            value: Some(value(text(id.as_str()))),
        };
        let query = StructuredQuery {
            from: vec![CollectionSelector {
                collection_id: "locks".to_owned(),
                all_descendants: false,
            }],
            r#where: Some(Filter {
                filter_type: Some(FilterType::FieldFilter(filter)),
            }),
            ..StructuredQuery::default()
        };
        let query = RunQueryRequest {
            parent: ROOT.to_owned(),
            query_type: Some(run_query_request::QueryType::StructuredQuery(query)),
            consistency_selector: within,
            ..RunQueryRequest::default()
        };
        let mut answer = self.0.get().run_query(request(query)).await?.into_inner();
        let mut documents = Vec::new();
        while let Some(part) = answer.message().await? {
            documents.extend(part.document);
        }
        ensure!(documents.len() == 1, "the lock is not there");
        Ok(documents.swap_remove(0))
    }

    pub(crate) async fn commit(&self, writes: Vec<Write>, transaction: Vec<u8>) -> Result<()> {
        let commit = CommitRequest {
            database: DATABASE.to_owned(),
            writes,
            transaction,
            ..CommitRequest::default()
        };
        self.0.get().commit(request(commit)).await?;
        Ok(())
    }
}

/// The names of a key's lock and of its fence counter.
pub(crate) fn names(key: &str) -> [String; 2] {
    [
        format!("{ROOT}/locks/{key}"),
        format!("{ROOT}/fence_counters/fence:{key}"),
    ]
}

/// What acquire writes. With versions, it depends on them.
pub(crate) fn taking(key: &str, id: &LockId, versions: [Option<ConditionType>; 2]) -> Vec<Write> {
    let (fence, now) = ("000000000000001", 1_800_000_000_000);
    let ttl = i64::try_from(TTL.as_millis()).unwrap_or_default();
    let lock = vec![
        ("lockId", text(id.as_str())),
        ("expiresAtMs", ValueType::IntegerValue(now + ttl)),
        ("acquiredAtMs", ValueType::IntegerValue(now)),
        ("key", text(key)),
        ("fence", text(fence)),
    ];
    let counter = vec![("fence", text(fence)), ("keyDebug", text(key))];
    let written = names(key).into_iter().zip([lock, counter]).zip(versions);
    written
        .map(|((name, fields), version)| {
            let fields = fields.into_iter();
            let document = Document {
                name,
                fields: fields
                    .map(|(field, of)| (field.to_owned(), value(of)))
                    .collect(),
                ..Document::default()
            };
            write(Operation::Update(document), version)
        })
        .collect()
}

pub(crate) fn write(operation: Operation, version: Option<ConditionType>) -> Write {
    Write {
        operation: Some(operation),
        current_document: version.map(|condition| Precondition {
            condition_type: Some(condition),
        }),
        ..Write::default()
    }
}

/// What a document was, as a condition on changing it.
pub(crate) fn version(document: Option<&Document>) -> Option<ConditionType> {
    let Some(document) = document else {
        return Some(ConditionType::Exists(false));
    };
    document.update_time.map(ConditionType::UpdateTime)
}

pub(crate) fn value(of: ValueType) -> Value {
    Value {
        value_type: Some(of),
    }
}

fn text(text: &str) -> ValueType {
    ValueType::StringValue(text.to_owned())
}

fn request<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    // A deadline, as the backend sets one.
    let timeouts = RequestTimeouts::new().with_total(super::PATIENCE);
    request.extensions_mut().insert(timeouts);
    request
}
