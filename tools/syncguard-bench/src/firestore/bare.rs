//! The backend's requests without anything around them: the limit.

use std::time::Duration;

use anyhow::{Result, ensure};
use syncguard_core::LockId;
use syncguard_firestore::gcloud_sdk::google::firestore::v1::value::ValueType;
use syncguard_firestore::gcloud_sdk::google::firestore::v1::write::Operation as Change;
use syncguard_firestore::gcloud_sdk::google::firestore::v1::{Document, DocumentMask, Write};

use super::requests::{Requests, names, taking, value, version, write};
use crate::drive::{Sample, Stopwatch, Worker, drive};
use crate::workload::{WANTED, Workload, key_text};

pub(crate) async fn measure(
    host: &str,
    workload: Workload,
    tasks: usize,
    span: Duration,
) -> Result<Sample> {
    let requests = Requests::connect(host).await?;
    let holder = LockId::generate()?;
    if workload == Workload::Refusal {
        acquire(&requests, WANTED, &holder).await?;
    }
    let (mut workers, mut held) = (Vec::new(), Vec::new());
    for task in 0..tasks {
        let id = LockId::generate()?;
        if matches!(workload, Workload::Extend | Workload::Lookup) {
            acquire(&requests, &key_text(task, 0), &id).await?;
            held.push(id);
        }
        let requests = requests.clone();
        workers.push(Task {
            requests,
            workload,
            task,
            id,
            next: 0,
        });
    }
    let sample = drive(workers, span).await;
    if workload == Workload::Refusal {
        held.push(holder);
    }
    for id in held {
        release(&requests, &id).await?;
    }
    sample
}

struct Task {
    requests: Requests,
    workload: Workload,
    task: usize,
    id: LockId,
    next: u64,
}

impl Worker for Task {
    async fn step(&mut self, watch: &mut Stopwatch) -> Result<()> {
        let requests = &self.requests;
        match self.workload {
            Workload::Pair => {
                self.next += 1;
                let (key, id) = (key_text(self.task, self.next), LockId::generate()?);
                watch.time(0, acquire(requests, &key, &id)).await?;
                watch.time(1, release(requests, &id)).await
            }
            Workload::Extend => watch.time(0, extend(requests, &self.id)).await,
            Workload::Lookup => watch.time(0, requests.find(&self.id, None)).await.map(drop),
            Workload::Refusal => {
                let both = requests.get(names(WANTED).into(), None);
                let found = watch.time(0, both).await?;
                ensure!(found.len() == 2, "a held key was free");
                Ok(())
            }
        }
    }
}

async fn acquire(requests: &Requests, key: &str, id: &LockId) -> Result<()> {
    let names = names(key);
    let found = requests.get(names.to_vec(), None).await?;
    let versions = names.map(|name| version(found.iter().find(|document| document.name == name)));
    requests.commit(taking(key, id, versions), Vec::new()).await
}

async fn release(requests: &Requests, id: &LockId) -> Result<()> {
    let lock = requests.find(id, None).await?;
    let version = version(Some(&lock));
    let write = write(Change::Delete(lock.name), version);
    requests.commit(vec![write], Vec::new()).await
}

async fn extend(requests: &Requests, id: &LockId) -> Result<()> {
    let lock = requests.find(id, None).await?;
    let version = version(Some(&lock));
    let expiry = value(ValueType::IntegerValue(1_900_000_000_000));
    let update = Document {
        name: lock.name,
        fields: [("expiresAtMs".to_owned(), expiry)].into(),
        ..Document::default()
    };
    let write = Write {
        update_mask: Some(DocumentMask {
            field_paths: vec!["expiresAtMs".to_owned()],
        }),
        ..write(Change::Update(update), version)
    };
    requests.commit(vec![write], Vec::new()).await
}
