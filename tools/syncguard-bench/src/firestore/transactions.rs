//! A client that works as the TypeScript original does, in read-write transactions. Acquire: begin,
//! read the lock and its counter, commit both. Release: begin, query the lock id, commit the
//! deletion.

use std::time::Duration;

use anyhow::Result;
use syncguard_core::LockId;
use syncguard_firestore::gcloud_sdk::google::firestore::v1::transaction_options::{
    Mode, ReadWrite,
};
use syncguard_firestore::gcloud_sdk::google::firestore::v1::write::Operation as Change;
use syncguard_firestore::gcloud_sdk::google::firestore::v1::{
    BeginTransactionRequest, TransactionOptions, batch_get_documents_request, run_query_request,
};

use super::requests::{DATABASE, Requests, names, taking, write};
use crate::drive::{Sample, Stopwatch, Worker, drive};
use crate::workload::key_text;

pub(crate) async fn measure(host: &str, span: Duration) -> Result<Sample> {
    let requests = Requests::connect(host).await?;
    drive(vec![Transacting { requests, next: 0 }], span).await
}

struct Transacting {
    requests: Requests,
    next: u64,
}

impl Worker for Transacting {
    async fn step(&mut self, watch: &mut Stopwatch) -> Result<()> {
        self.next += 1;
        let (key, id) = (key_text(0, self.next), LockId::generate()?);
        watch.time(0, self.acquire(&key, &id)).await?;
        watch.time(1, self.release(&id)).await
    }
}

impl Transacting {
    async fn acquire(&self, key: &str, id: &LockId) -> Result<()> {
        let transaction = self.begin().await?;
        for name in names(key) {
            let within =
                batch_get_documents_request::ConsistencySelector::Transaction(transaction.clone());
            self.requests.get(vec![name], Some(within)).await?;
        }
        let writes = taking(key, id, [None, None]);
        self.requests.commit(writes, transaction).await
    }

    async fn release(&self, id: &LockId) -> Result<()> {
        let transaction = self.begin().await?;
        let within = run_query_request::ConsistencySelector::Transaction(transaction.clone());
        let lock = self.requests.find(id, Some(within)).await?;
        let deletion = write(Change::Delete(lock.name), None);
        self.requests.commit(vec![deletion], transaction).await
    }

    async fn begin(&self) -> Result<Vec<u8>> {
        let read_write = TransactionOptions {
            mode: Some(Mode::ReadWrite(ReadWrite::default())),
        };
        let begin = BeginTransactionRequest {
            database: DATABASE.to_owned(),
            options: Some(read_write),
            ..BeginTransactionRequest::default()
        };
        let begun = self.requests.0.get().begin_transaction(begin).await?;
        Ok(begun.into_inner().transaction)
    }
}
