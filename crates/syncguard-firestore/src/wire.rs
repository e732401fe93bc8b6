//! [`Wire`]: the requests, each one round trip.

mod connection;
mod reread;

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream;
use gcloud_sdk::RequestTimeouts;
use gcloud_sdk::google::firestore::v1::batch_get_documents_response::Result as Found;
use gcloud_sdk::google::firestore::v1::run_query_request::QueryType;
use gcloud_sdk::google::firestore::v1::structured_query::field_filter::Operator;
use gcloud_sdk::google::firestore::v1::structured_query::filter::FilterType;
use gcloud_sdk::google::firestore::v1::structured_query::{
    CollectionSelector, CompositeFilter, Direction, FieldFilter, FieldReference, Filter, Order,
    composite_filter,
};
use gcloud_sdk::google::firestore::v1::value::ValueType;
use gcloud_sdk::google::firestore::v1::{
    BatchGetDocumentsRequest, BatchWriteRequest, CommitRequest, Cursor, Document, ListenRequest,
    ListenResponse, RunQueryRequest, StructuredQuery, Value, Write,
};
use gcloud_sdk::prost_types::Timestamp;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::Instant;
use tonic::{Code, Request, Status, Streaming};

use crate::error;
use crate::names::Names;
use crate::record::{EXPIRES_AT_MS, KEY, LOCK_ID, millis};
use crate::wire::connection::Client;

pub use self::connection::FirestoreApi;
pub(crate) use self::connection::{Connection, Origin};
pub(crate) use self::reread::Rereads;

/// Documents, and the server's time of the read.
#[derive(Debug)]
pub(crate) struct Reading {
    pub(crate) documents: Vec<Document>,
    pub(crate) read_time_ms: i64,
}

/// Sends requests. Each ends at the request timeout or at the deadline of its operation. After the
/// deadline, nothing is sent.
#[derive(Clone)]
pub(crate) struct Wire {
    connection: Connection,
    names: Arc<Names>,
    timeout: Duration,
}

impl Wire {
    pub(crate) fn new(connection: Connection, names: Names, timeout: Duration) -> Self {
        Self {
            connection,
            names: Arc::new(names),
            timeout,
        }
    }

    pub(crate) fn names(&self) -> &Names {
        &self.names
    }

    /// Reads documents by name. Those that do not exist are left out.
    pub(crate) async fn get(
        &self,
        documents: Vec<String>,
        deadline: Instant,
    ) -> Result<Reading, Status> {
        let request = BatchGetDocumentsRequest {
            database: self.names.database.clone(),
            documents,
            ..BatchGetDocumentsRequest::default()
        };
        self.send(request, deadline, |mut client, request| async move {
            let mut stream = client.batch_get_documents(request).await?.into_inner();
            let mut gathered = Gathered::default();
            while let Some(part) = stream.message().await? {
                let document = match part.result {
                    Some(Found::Found(document)) => Some(document),
                    Some(Found::Missing(_)) | None => None,
                };
                gathered.add(document, part.read_time);
            }
            gathered.finish()
        })
        .await
    }

    /// Reads all locks with this id. There should be one at most; without a limit, duplicates are
    /// seen.
    pub(crate) async fn find_by_lock_id(
        &self,
        lock_id: &str,
        deadline: Instant,
    ) -> Result<Reading, Status> {
        let query = StructuredQuery {
            r#where: Some(compares(LOCK_ID, Operator::Equal, lock_id)),
            ..StructuredQuery::default()
        };
        self.query(query, deadline).await
    }

    /// Reads the locks that expire first.
    pub(crate) async fn find_by_expiry(
        &self,
        limit: u32,
        deadline: Instant,
    ) -> Result<Reading, Status> {
        let query = StructuredQuery {
            order_by: vec![Order {
                field: field(EXPIRES_AT_MS),
                direction: Direction::Ascending.into(),
            }],
            limit: Some(i32::try_from(limit).unwrap_or(i32::MAX)),
            ..StructuredQuery::default()
        };
        self.query(query, deadline).await
    }

    /// Reads documents in the order of their keys: those with a key of at least `from` and less than `before`. Begins
    /// after the document with the key and the name in `behind`.
    pub(crate) async fn find_by_key(
        &self,
        (from, before): (&str, Option<&str>),
        behind: Option<(&str, &str)>,
        limit: u32,
        deadline: Instant,
    ) -> Result<Reading, Status> {
        let mut filters = vec![compares(KEY, Operator::GreaterThanOrEqual, from)];
        filters.extend(before.map(|before| compares(KEY, Operator::LessThan, before)));
        let filter = CompositeFilter {
            op: composite_filter::Operator::And.into(),
            filters,
        };
        let ascending = |path| Order {
            field: field(path),
            direction: Direction::Ascending.into(),
        };
        let query = StructuredQuery {
            r#where: Some(Filter {
                filter_type: Some(FilterType::CompositeFilter(filter)),
            }),
            order_by: vec![ascending(KEY), ascending("__name__")],
            start_at: behind.map(|(key, name)| Cursor {
                values: vec![
                    value(ValueType::StringValue(key.to_owned())),
                    value(ValueType::ReferenceValue(name.to_owned())),
                ],
                before: false,
            }),
            limit: Some(i32::try_from(limit).unwrap_or(i32::MAX)),
            ..StructuredQuery::default()
        };
        self.query(query, deadline).await
    }

    async fn query(
        &self,
        mut query: StructuredQuery,
        deadline: Instant,
    ) -> Result<Reading, Status> {
        query.from = vec![CollectionSelector {
            collection_id: self.names.lock_collection().to_owned(),
            all_descendants: false,
        }];
        let request = RunQueryRequest {
            parent: self.names.root(),
            query_type: Some(QueryType::StructuredQuery(query)),
            ..RunQueryRequest::default()
        };
        self.send(request, deadline, |mut client, request| async move {
            let mut stream = client.run_query(request).await?.into_inner();
            let mut gathered = Gathered::default();
            while let Some(part) = stream.message().await? {
                gathered.add(part.document, part.read_time);
            }
            gathered.finish()
        })
        .await
    }

    /// Applies all writes, or none.
    pub(crate) async fn commit(&self, writes: Vec<Write>, deadline: Instant) -> Result<(), Status> {
        let request = CommitRequest {
            database: self.names.database.clone(),
            writes,
            ..CommitRequest::default()
        };
        self.send(request, deadline, |mut client, request| async move {
            client.commit(request).await?;
            Ok(())
        })
        .await
    }

    /// Applies each write by itself, and returns how many were applied.
    pub(crate) async fn write_each(
        &self,
        writes: Vec<Write>,
        deadline: Instant,
    ) -> Result<u32, Status> {
        let request = BatchWriteRequest {
            database: self.names.database.clone(),
            writes,
            ..BatchWriteRequest::default()
        };
        let statuses = self
            .send(request, deadline, |mut client, request| async move {
                Ok(client.batch_write(request).await?.into_inner().status)
            })
            .await?;
        let applied = statuses
            .iter()
            .filter(|status| Code::from_i32(status.code) == Code::Ok)
            .count();
        Ok(u32::try_from(applied).unwrap_or(u32::MAX))
    }

    /// Opens a stream of changes, which ends once `requests` does. Returns it and the number of its
    /// channel.
    pub(crate) async fn listen(
        &self,
        mut requests: UnboundedReceiver<ListenRequest>,
    ) -> Result<(Streaming<ListenResponse>, u64), Status> {
        let requests = stream::poll_fn(move |cx| requests.poll_recv(cx));
        let mut request = Request::new(requests);
        // An application's limits are for calls.
        request.extensions_mut().insert(RequestTimeouts::new());
        let (mut client, channel) = self.connection.client().await?;
        let responses = client.listen(request).await?;
        Ok((responses.into_inner(), channel))
    }

    /// Whether requests are sent on the channel of this number.
    pub(crate) fn is_current(&self, channel: u64) -> bool {
        self.connection.number() == channel
    }

    async fn send<M, T, F>(
        &self,
        message: M,
        deadline: Instant,
        call: impl FnOnce(Client, Request<M>) -> F + Send + 'static,
    ) -> Result<T, Status>
    where
        M: Send + 'static,
        T: Send + 'static,
        F: Future<Output = Result<T, Status>> + Send + 'static,
    {
        let now = Instant::now();
        let left = deadline.saturating_duration_since(now).min(self.timeout);
        if left.is_zero() {
            return Err(error::past_deadline());
        }
        let mut request = Request::new(message);
        // The server gets the deadline.
        let timeouts = RequestTimeouts::new().with_total(left);
        request.extensions_mut().insert(timeouts);
        let call = |client| call(client, request);
        self.connection.send(now + left, call).await
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
        // Within a response the time only increases, so the last one counts for all documents.
        self.read_time = read_time.or(self.read_time);
    }

    fn finish(self) -> Result<Reading, Status> {
        let read_time = self
            .read_time
            .ok_or_else(|| Status::internal("response without a read time"))?;
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

fn value(of: ValueType) -> Value {
    Value {
        value_type: Some(of),
    }
}

/// A filter on a field with texts.
fn compares(path: &str, op: Operator, text: &str) -> Filter {
    let filter = FieldFilter {
        field: field(path),
        op: op.into(),
        value: Some(value(ValueType::StringValue(text.to_owned()))),
    };
    Filter {
        filter_type: Some(FilterType::FieldFilter(filter)),
    }
}
