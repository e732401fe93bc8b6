//! Beside clients that hold documents in pessimistic transactions, as the TypeScript original does.

mod common;

use std::time::{Duration, Instant};

use common::{Database, id, key, take, ttl};
use syncguard_core::{ErrorCode, LockBackend as _, Managed, ManagedBackend as _, Policy};
use syncguard_firestore::gcloud_sdk::google::firestore::v1::batch_get_documents_request::ConsistencySelector;
use syncguard_firestore::gcloud_sdk::google::firestore::v1::firestore_client::FirestoreClient;
use syncguard_firestore::gcloud_sdk::google::firestore::v1::transaction_options::{
    Mode, ReadWrite,
};
use syncguard_firestore::gcloud_sdk::google::firestore::v1::{
    BatchGetDocumentsRequest, BeginTransactionRequest, RollbackRequest, TransactionOptions,
};
use tonic::Request;
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;

const DEADLINE: Duration = Duration::from_secs(3);
const SLACK: Duration = Duration::from_secs(3);

/// A read-write transaction that has read the documents of key `k`, and so holds them.
struct Holder {
    client: FirestoreClient<Channel>,
    database: String,
    transaction: Vec<u8>,
}

fn owner<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    let owner = MetadataValue::from_static("Bearer owner");
    request.metadata_mut().insert("authorization", owner);
    request
}

impl Holder {
    async fn of(on: &Database) -> Self {
        let endpoint = format!("http://{}", on.host);
        let mut client = FirestoreClient::connect(endpoint).await.unwrap();
        let database = format!("projects/{}/databases/(default)", on.project);
        let read_write = TransactionOptions {
            mode: Some(Mode::ReadWrite(ReadWrite::default())),
        };
        let begin = BeginTransactionRequest {
            database: database.clone(),
            options: Some(read_write),
            ..BeginTransactionRequest::default()
        };
        let begun = client.begin_transaction(owner(begin)).await.unwrap();
        let transaction = begun.into_inner().transaction;
        let root = on.root();
        let read = BatchGetDocumentsRequest {
            database: database.clone(),
            documents: vec![
                format!("{root}/locks/k"),
                format!("{root}/fence_counters/fence:k"),
            ],
            consistency_selector: Some(ConsistencySelector::Transaction(transaction.clone())),
            ..BatchGetDocumentsRequest::default()
        };
        let mut answer = client
            .batch_get_documents(owner(read))
            .await
            .unwrap()
            .into_inner();
        while answer.message().await.unwrap().is_some() {}
        Self {
            client,
            database,
            transaction,
        }
    }

    async fn roll_back(mut self) {
        let request = RollbackRequest {
            database: self.database,
            transaction: self.transaction,
            ..RollbackRequest::default()
        };
        self.client.rollback(owner(request)).await.unwrap();
    }
}

#[tokio::test]
async fn a_held_document_delays_us_no_longer_than_the_deadline() {
    for exists in [false, true] {
        let database = Database::new();
        let store = database.store().await;
        let policy = Policy::new().with_operation_timeout(DEADLINE);
        let backend = Managed::with_policy(store, policy);
        if exists {
            let earlier = take(&backend, "k").await;
            assert!(
                backend
                    .release(&earlier.lock_id)
                    .await
                    .unwrap()
                    .is_released()
            );
        }
        let holder = Holder::of(&database).await;
        let started = Instant::now();
        let answer = backend.acquire(&key("k"), &id(), ttl(60_000)).await;
        assert!(
            started.elapsed() < DEADLINE + SLACK,
            "{:?}",
            started.elapsed()
        );
        let error = answer.expect_err("the document is held");
        assert!(
            matches!(
                error.code(),
                ErrorCode::NetworkTimeout | ErrorCode::ServiceUnavailable
            ),
            "{error:?}"
        );
        assert!(
            !backend.is_locked(&key("k")).await.unwrap(),
            "reads do not wait"
        );
        holder.roll_back().await;
        backend.drain(Duration::from_secs(60)).await.unwrap();
        assert!(!backend.is_locked(&key("k")).await.unwrap(), "given back");
        let _ = take(&backend, "k").await;
    }
}

/// The lock is there to be seen: no transaction of others keeps us from saying so.
#[tokio::test]
async fn a_held_live_lock_is_locked_at_once() {
    let database = Database::new();
    let store = database.store().await;
    let grant = take(&store, "k").await;
    let holder = Holder::of(&database).await;
    let refused = store.acquire(&key("k"), &id(), ttl(1_000)).await.unwrap();
    assert!(refused.is_locked());
    holder.roll_back().await;
    assert!(store.release(&grant.lock_id).await.unwrap().is_released());
}

/// A transaction that ends soon is waited for.
#[tokio::test]
async fn a_short_transaction_is_outlasted() {
    let database = Database::new();
    let store = database.store().await;
    let holder = Holder::of(&database).await;
    let ending = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(500)).await;
        holder.roll_back().await;
    });
    let grant = take(&store, "k").await;
    assert_eq!(grant.fence.get(), 1);
    ending.await.unwrap();
}
