//! Beside clients that lock documents by pessimistic transactions, as SyncGuard for TypeScript does.

use std::pin::pin;
use std::time::Duration;

use futures_util::FutureExt as _;
use syncguard_core::backend::LockBackend as _;
use syncguard_core::{ErrorCode, Locks};
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

use crate::common::requests::acquire;
use crate::common::{Database, id, key, released, take, ttl};

const DEADLINE: Duration = Duration::from_secs(3);

/// A read-write transaction that has read the documents of key `k`, and so locks them.
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
async fn a_transaction_delays_us_no_longer_than_the_deadline() {
    for exists in [false, true] {
        let database = Database::new();
        let locks = Locks::builder(database.backend().await)
            .operation_timeout(DEADLINE)
            .build();
        if exists {
            let earlier = locks.try_lock("k").await.unwrap().unwrap();
            assert!(earlier.release().await.unwrap().is_released());
        }
        let holder = Holder::of(&database).await;
        let attempt = locks.try_lock("k").ttl(Duration::from_secs(60));
        let mut attempt = pin!(attempt.into_future());
        assert!(attempt.as_mut().now_or_never().is_none());
        // If the machine stalls, both timers of this task are late.
        let late = DEADLINE + Duration::from_millis(100);
        let attempt = tokio::time::timeout(late, attempt).await;
        let attempt = attempt.expect("it outlasts its deadline");
        let error = attempt.expect_err("the document is locked");
        assert!(
            matches!(
                error.code(),
                ErrorCode::NetworkTimeout | ErrorCode::ServiceUnavailable
            ),
            "{error:?}"
        );
        assert!(!locks.is_locked("k").await.unwrap(), "reads do not wait");
        holder.roll_back().await;
        locks.drain(Duration::from_secs(60)).await.unwrap();
        assert!(!locks.is_locked("k").await.unwrap(), "released");
        assert!(locks.try_lock("k").await.unwrap().is_some());
    }
}

/// A read sees the live lock, whatever transaction locks its document.
#[tokio::test]
async fn a_live_lock_in_a_transaction_is_locked_at_once() {
    let database = Database::new();
    let backend = database.backend().await;
    let grant = take(&backend, "k").await;
    let holder = Holder::of(&database).await;
    let refused = backend
        .acquire(acquire(&key("k"), &id(), ttl(1_000)))
        .await
        .unwrap();
    assert!(refused.is_locked());
    holder.roll_back().await;
    assert!(released(&backend, &grant.lock_id).await);
}

#[tokio::test]
async fn an_acquire_waits_for_a_short_transaction() {
    let database = Database::new();
    let backend = database.backend().await;
    let holder = Holder::of(&database).await;
    let ending = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(500)).await;
        holder.roll_back().await;
    });
    let grant = take(&backend, "k").await;
    assert_eq!(grant.fence.get(), 1);
    ending.await.unwrap();
}
