//! Acquire-and-release pairs per second: compare-and-set beside read-write transactions.
//!
//! ```sh
//! cargo run --release -p syncguard-firestore --example throughput
//! ```
//!
//! The transactions are those of the TypeScript original. Acquire: begin, read the lock and its
//! counter, commit both. Release: begin, query the lock id, commit the deletion.

use std::error::Error;
use std::time::{Duration, Instant};

use syncguard_core::{AcquireResult, LockBackend as _, LockId, LockKey, Ttl};
use syncguard_firestore::gcloud_sdk::google::firestore::v1 as firestore;
use syncguard_firestore::{FirestoreOptions, FirestoreStore};
use syncguard_testkit::shared_firestore_host;
use tonic::Request;
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;

use firestore::firestore_client::FirestoreClient;
use firestore::structured_query::filter::FilterType;
use firestore::structured_query::{
    CollectionSelector, FieldFilter, FieldReference, Filter, field_filter,
};
use firestore::transaction_options::{Mode, ReadWrite};
use firestore::value::ValueType;
use firestore::write::Operation;
use firestore::{
    BatchGetDocumentsRequest, BeginTransactionRequest, CommitRequest, Document, RunQueryRequest,
    StructuredQuery, TransactionOptions, Value, Write, batch_get_documents_request,
    run_query_request,
};

const CLIENTS: usize = 8;
const WARM_UP: Duration = Duration::from_secs(3);
const MEASURED: Duration = Duration::from_secs(10);

const DATABASE: &str = "projects/throughput/databases/(default)";
const ROOT: &str = "projects/throughput/databases/(default)/documents";

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

#[tokio::main]
async fn main() -> Result<()> {
    let host = shared_firestore_host()?;
    for time in [WARM_UP, MEASURED] {
        let transactions = with_transactions(&host, time).await?;
        let one = with_compare_and_set(&host, 1, time).await?;
        let eight = with_compare_and_set(&host, CLIENTS, time).await?;
        if time == MEASURED {
            let report = |who: &str, pairs: f64| {
                println!("{who:32} {pairs:8.1}  x {:.1}", pairs / transactions);
            };
            println!("pairs per second");
            report("transactions, one client", transactions);
            report("compare-and-set, one client", one);
            report("compare-and-set, eight clients", eight);
        }
    }
    Ok(())
}

async fn with_compare_and_set(host: &str, clients: usize, time: Duration) -> Result<f64> {
    let mut stores = Vec::new();
    for _ in 0..clients {
        let options = FirestoreOptions::new();
        stores.push(FirestoreStore::connect_emulator(host, "throughput", options).await?);
    }
    let mut tasks = tokio::task::JoinSet::<Result<u32>>::new();
    let started = Instant::now();
    for (n, store) in stores.into_iter().enumerate() {
        tasks.spawn(async move {
            let key = LockKey::new(&format!("key-{n}"))?;
            let ttl = Ttl::new(Duration::from_secs(30))?;
            let mut pairs = 0_u32;
            while started.elapsed() < time {
                let id = LockId::generate()?;
                let taken = store.acquire(&key, &id, ttl).await?;
                assert!(matches!(taken, AcquireResult::Acquired(_)));
                assert!(store.release(&id).await?.is_released());
                pairs += 1;
            }
            Ok(pairs)
        });
    }
    let mut pairs = 0;
    for done in tasks.join_all().await {
        pairs += done?;
    }
    Ok(f64::from(pairs) / started.elapsed().as_secs_f64())
}

async fn with_transactions(host: &str, time: Duration) -> Result<f64> {
    let client = FirestoreClient::connect(format!("http://{host}")).await?;
    let mut client = Transacting { client };
    let (started, mut pairs) = (Instant::now(), 0_u32);
    while started.elapsed() < time {
        let id = LockId::generate()?;
        client.acquire("key", id.as_str(), pairs).await?;
        client.release(id.as_str()).await?;
        pairs += 1;
    }
    Ok(f64::from(pairs) / started.elapsed().as_secs_f64())
}

/// A client that works as the original does.
struct Transacting {
    client: FirestoreClient<Channel>,
}

impl Transacting {
    async fn acquire(&mut self, key: &str, id: &str, fence: u32) -> Result<()> {
        let transaction = self.begin().await?;
        let lock = format!("{ROOT}/locks/{key}");
        let counter = format!("{ROOT}/fence_counters/fence:{key}");
        for name in [&lock, &counter] {
            let within =
                batch_get_documents_request::ConsistencySelector::Transaction(transaction.clone());
            let read = BatchGetDocumentsRequest {
                database: DATABASE.to_owned(),
                documents: vec![name.clone()],
                consistency_selector: Some(within),
                ..BatchGetDocumentsRequest::default()
            };
            let answer = self.client.batch_get_documents(owner(read)).await?;
            let mut answer = answer.into_inner();
            while answer.message().await?.is_some() {}
        }
        let (fence, now) = (format!("{fence:015}"), 1_800_000_000_000);
        let lock_fields = vec![
            ("lockId", text(id)),
            ("expiresAtMs", ValueType::IntegerValue(now + 30_000)),
            ("acquiredAtMs", ValueType::IntegerValue(now)),
            ("key", text(key)),
            ("fence", text(&fence)),
        ];
        let counter_fields = vec![("fence", text(&fence)), ("keyDebug", text(key))];
        let writes = vec![set(lock, lock_fields), set(counter, counter_fields)];
        self.commit(transaction, writes).await
    }

    async fn release(&mut self, id: &str) -> Result<()> {
        let transaction = self.begin().await?;
        let filter = FieldFilter {
            field: Some(FieldReference {
                field_path: "lockId".to_owned(),
            }),
            op: field_filter::Operator::Equal.into(),
            value: Some(value(text(id))),
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
        let within = run_query_request::ConsistencySelector::Transaction(transaction.clone());
        let request = RunQueryRequest {
            parent: ROOT.to_owned(),
            query_type: Some(run_query_request::QueryType::StructuredQuery(query)),
            consistency_selector: Some(within),
            ..RunQueryRequest::default()
        };
        let mut answer = self.client.run_query(owner(request)).await?.into_inner();
        let mut deletions = Vec::new();
        while let Some(part) = answer.message().await? {
            let name = part.document.map(|document| document.name);
            deletions.extend(name.map(Operation::Delete));
        }
        assert_eq!(deletions.len(), 1, "the lock is there");
        self.commit(transaction, deletions).await
    }

    async fn begin(&mut self) -> Result<Vec<u8>> {
        let read_write = TransactionOptions {
            mode: Some(Mode::ReadWrite(ReadWrite::default())),
        };
        let request = BeginTransactionRequest {
            database: DATABASE.to_owned(),
            options: Some(read_write),
            ..BeginTransactionRequest::default()
        };
        let begun = self.client.begin_transaction(owner(request)).await?;
        Ok(begun.into_inner().transaction)
    }

    async fn commit(&mut self, transaction: Vec<u8>, operations: Vec<Operation>) -> Result<()> {
        let write = |operation| Write {
            operation: Some(operation),
            ..Write::default()
        };
        let request = CommitRequest {
            database: DATABASE.to_owned(),
            writes: operations.into_iter().map(write).collect(),
            transaction,
            ..CommitRequest::default()
        };
        self.client.commit(owner(request)).await?;
        Ok(())
    }
}

fn set(name: String, fields: Vec<(&str, ValueType)>) -> Operation {
    let fields = fields.into_iter();
    Operation::Update(Document {
        name,
        fields: fields
            .map(|(field, of)| (field.to_owned(), value(of)))
            .collect(),
        ..Document::default()
    })
}

fn text(text: &str) -> ValueType {
    ValueType::StringValue(text.to_owned())
}

fn value(of: ValueType) -> Value {
    Value {
        value_type: Some(of),
    }
}

fn owner<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    let owner = MetadataValue::from_static("Bearer owner");
    request.metadata_mut().insert("authorization", owner);
    request
}
