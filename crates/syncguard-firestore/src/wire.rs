//! [`Wire`]: the requests, each one round trip.

use std::time::Duration;

use gcloud_sdk::RequestTimeouts;
use gcloud_sdk::google::firestore::v1::batch_get_documents_response::Result as Found;
use gcloud_sdk::google::firestore::v1::run_query_request::QueryType;
use gcloud_sdk::google::firestore::v1::structured_query::field_filter::Operator;
use gcloud_sdk::google::firestore::v1::structured_query::filter::FilterType;
use gcloud_sdk::google::firestore::v1::structured_query::{
    CollectionSelector, Direction, FieldFilter, FieldReference, Filter, Order,
};
use gcloud_sdk::google::firestore::v1::value::ValueType;
use gcloud_sdk::google::firestore::v1::{
    BatchGetDocumentsRequest, BatchWriteRequest, CommitRequest, Document, RunQueryRequest,
    StructuredQuery, Value, Write,
};
use gcloud_sdk::prost_types::Timestamp;
use tonic::{Code, Request, Status};

use crate::FirestoreApi;
use crate::document::{EXPIRES_AT_MS, LOCK_ID, millis};
use crate::name::Names;

/// Documents, and the server's time at which they were so.
#[derive(Debug)]
pub(crate) struct Reading {
    pub(crate) documents: Vec<Document>,
    pub(crate) read_time_ms: i64,
}

/// The driver's futures are boxed: they take kilobytes, which every future around them would take, too.
#[derive(Clone)]
pub(crate) struct Wire {
    client: FirestoreApi,
    names: Names,
    timeouts: RequestTimeouts,
}

impl Wire {
    pub(crate) fn new(client: FirestoreApi, names: Names, timeout: Duration) -> Self {
        Self {
            client,
            names,
            timeouts: RequestTimeouts::new().with_total(timeout),
        }
    }

    pub(crate) fn names(&self) -> &Names {
        &self.names
    }

    /// Reads documents by name. Those that do not exist are left out.
    pub(crate) async fn get(&self, documents: Vec<String>) -> Result<Reading, Status> {
        let request = BatchGetDocumentsRequest {
            database: self.names.database.clone(),
            documents,
            ..BatchGetDocumentsRequest::default()
        };
        let mut client = self.client.get();
        let response = Box::pin(client.batch_get_documents(self.request(request))).await?;
        let (mut stream, mut gathered) = (response.into_inner(), Gathered::default());
        while let Some(part) = stream.message().await? {
            let document = match part.result {
                Some(Found::Found(document)) => Some(document),
                Some(Found::Missing(_)) | None => None,
            };
            gathered.add(document, part.read_time);
        }
        gathered.finish()
    }

    /// Reads all locks with this id. Without a limit: there should be one at most, and more must
    /// not go unseen.
    pub(crate) async fn find_by_lock_id(&self, lock_id: &str) -> Result<Reading, Status> {
        let filter = FieldFilter {
            field: field(LOCK_ID),
            op: Operator::Equal.into(),
            value: Some(Value {
                value_type: Some(ValueType::StringValue(lock_id.to_owned())),
            }),
        };
        self.query(StructuredQuery {
            r#where: Some(Filter {
                filter_type: Some(FilterType::FieldFilter(filter)),
            }),
            ..StructuredQuery::default()
        })
        .await
    }

    /// Reads the locks that end, or ended, first.
    pub(crate) async fn find_by_expiry(&self, limit: i32) -> Result<Reading, Status> {
        self.query(StructuredQuery {
            order_by: vec![Order {
                field: field(EXPIRES_AT_MS),
                direction: Direction::Ascending.into(),
            }],
            limit: Some(limit),
            ..StructuredQuery::default()
        })
        .await
    }

    async fn query(&self, mut query: StructuredQuery) -> Result<Reading, Status> {
        query.from = vec![CollectionSelector {
            collection_id: self.names.lock_collection().to_owned(),
            all_descendants: false,
        }];
        let request = RunQueryRequest {
            parent: self.names.root(),
            query_type: Some(QueryType::StructuredQuery(query)),
            ..RunQueryRequest::default()
        };
        let mut client = self.client.get();
        let response = Box::pin(client.run_query(self.request(request))).await?;
        let (mut stream, mut gathered) = (response.into_inner(), Gathered::default());
        while let Some(part) = stream.message().await? {
            gathered.add(part.document, part.read_time);
        }
        gathered.finish()
    }

    /// Applies all writes, or none.
    pub(crate) async fn commit(&self, writes: Vec<Write>) -> Result<(), Status> {
        let request = CommitRequest {
            database: self.names.database.clone(),
            writes,
            ..CommitRequest::default()
        };
        let mut client = self.client.get();
        Box::pin(client.commit(self.request(request))).await?;
        Ok(())
    }

    /// Applies each write on its own; counts those that were.
    pub(crate) async fn write_each(&self, writes: Vec<Write>) -> Result<usize, Status> {
        let request = BatchWriteRequest {
            database: self.names.database.clone(),
            writes,
            ..BatchWriteRequest::default()
        };
        let mut client = self.client.get();
        let response = Box::pin(client.batch_write(self.request(request))).await?;
        let statuses = response.into_inner().status;
        let applied = |code: i32| Code::from_i32(code) == Code::Ok;
        Ok(statuses
            .iter()
            .filter(|status| applied(status.code))
            .count())
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.extensions_mut().insert(self.timeouts);
        request
    }
}

#[derive(Default)]
struct Gathered {
    documents: Vec<Document>,
    read_time: Option<Timestamp>,
}

impl Gathered {
    fn add(&mut self, document: Option<Document>, read_time: Option<Timestamp>) {
        self.documents.extend(document);
        // It only moves forward within an answer: the last one holds for all of it.
        self.read_time = read_time.or(self.read_time);
    }

    fn finish(self) -> Result<Reading, Status> {
        let read_time = self
            .read_time
            .ok_or_else(|| Status::internal("an answer without a read time"))?;
        Ok(Reading {
            documents: self.documents,
            read_time_ms: millis(&read_time),
        })
    }
}

fn field(path: &str) -> Option<FieldReference> {
    Some(FieldReference {
        field_path: path.to_owned(),
    })
}
