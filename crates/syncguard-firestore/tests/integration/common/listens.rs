//! [`Listens`]: the `Listen` streams of a client, and their targets.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard};

use http_body_util::BodyExt as _;
use syncguard_firestore::gcloud_sdk::google::firestore::v1::ListenRequest;
use syncguard_firestore::gcloud_sdk::google::firestore::v1::listen_request::TargetChange;
use syncguard_firestore::gcloud_sdk::prost::Message as _;
use tonic::body::Body;

/// Before each message of gRPC: a flag and the length.
const PREFIX: usize = 5;

/// The targets of each stream; `None` once the client has ended it.
#[derive(Clone, Default)]
pub struct Listens(Arc<Mutex<Vec<Option<HashSet<i32>>>>>);

impl Listens {
    /// How many streams were opened so far.
    pub fn opened(&self) -> usize {
        self.streams().len()
    }

    /// How many streams are open.
    pub fn open(&self) -> usize {
        self.streams().iter().flatten().count()
    }

    /// How many targets the open streams have.
    pub fn targets(&self) -> usize {
        self.streams().iter().flatten().map(HashSet::len).sum()
    }

    /// The requests of a stream, followed.
    pub fn follow(&self, requests: Body) -> Body {
        let mut streams = self.streams();
        let mut stream = Followed {
            number: streams.len(),
            listens: self.clone(),
            bytes: Vec::new(),
        };
        streams.push(Some(HashSet::new()));
        Body::new(requests.map_frame(move |frame| {
            if let Some(data) = frame.data_ref() {
                stream.read(data);
            }
            frame
        }))
    }

    fn streams(&self) -> MutexGuard<'_, Vec<Option<HashSet<i32>>>> {
        self.0.lock().unwrap()
    }
}

struct Followed {
    number: usize,
    listens: Listens,
    bytes: Vec<u8>,
}

impl Followed {
    fn read(&mut self, data: &[u8]) {
        self.bytes.extend_from_slice(data);
        while let Some(prefix) = self.bytes.first_chunk::<PREFIX>() {
            let [_, length @ ..] = *prefix;
            let end = PREFIX + usize::try_from(u32::from_be_bytes(length)).unwrap();
            if self.bytes.len() < end {
                break;
            }
            let request = ListenRequest::decode(&self.bytes[PREFIX..end]).unwrap();
            self.bytes.drain(..end);
            let mut streams = self.listens.streams();
            let targets = streams[self.number].as_mut().unwrap();
            match request.target_change.unwrap() {
                TargetChange::AddTarget(target) => assert!(targets.insert(target.target_id)),
                TargetChange::RemoveTarget(target) => assert!(targets.remove(&target)),
            }
        }
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        self.listens.streams()[self.number] = None;
    }
}
