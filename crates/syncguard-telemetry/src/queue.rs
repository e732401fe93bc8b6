//! [`Queue`]: between the operations and the callback.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::thread;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::options::{Callback, IncludeRaw};
use crate::record::Record;

/// How long the consumer sleeps after it has emptied the queue, before it waits to be woken. Waking a
/// thread costs a system call: so at most one operation in this time pays for it.
const REST: Duration = Duration::from_millis(1);

/// How often a flush checks whether a full queue has room for it.
const FLUSH_RETRY: Duration = Duration::from_millis(1);

/// A bounded queue with a thread that feeds a callback. The thread delivers what is queued and
/// ends when the queue is dropped.
pub(crate) struct Queue {
    sender: SyncSender<Message>,
    dropped: AtomicU64,
}

enum Message {
    Ended(Record),
    /// Everything sent before it has been delivered once this is received.
    Flush(oneshot::Sender<()>),
}

impl Queue {
    pub(crate) fn new(capacity: usize, include_raw: IncludeRaw, callback: Callback) -> Self {
        let (sender, receiver) = sync_channel(capacity);
        let consumer = Consumer {
            receiver,
            include_raw,
            callback,
        };
        // Not a task: a callback that blocks would take a worker from the application's runtime.
        // If the system refuses a thread, every event counts as dropped; operations continue.
        drop(
            thread::Builder::new()
                .name("syncguard-events".into())
                .spawn(move || consumer.run()),
        );
        Self {
            sender,
            dropped: AtomicU64::new(0),
        }
    }

    /// Never waits.
    pub(crate) fn push(&self, record: Record) {
        if self.sender.try_send(Message::Ended(record)).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Waits until the callback has handled all earlier events. Returns whether it did within the timeout.
    pub(crate) async fn flush(&self, timeout: Duration) -> bool {
        let flushed = async {
            let (sender, receiver) = oneshot::channel();
            let mut message = Message::Flush(sender);
            while let Err(refused) = self.sender.try_send(message) {
                match refused {
                    TrySendError::Full(back) => message = back,
                    TrySendError::Disconnected(_) => return false,
                }
                tokio::time::sleep(FLUSH_RETRY).await;
            }
            receiver.await.is_ok()
        };
        tokio::time::timeout(timeout, flushed)
            .await
            .unwrap_or(false)
    }
}

struct Consumer {
    receiver: Receiver<Message>,
    include_raw: IncludeRaw,
    callback: Callback,
}

impl Consumer {
    fn run(mut self) {
        let mut rested = false;
        loop {
            let message = match self.receiver.try_recv() {
                Ok(message) => Ok(message),
                Err(TryRecvError::Empty) if rested => self.receiver.recv(),
                Err(TryRecvError::Empty) => {
                    thread::sleep(REST);
                    rested = true;
                    continue;
                }
                Err(TryRecvError::Disconnected) => return,
            };
            rested = false;
            match message {
                Ok(Message::Ended(record)) => self.deliver(record),
                // The flush may have timed out.
                Ok(Message::Flush(done)) => drop(done.send(())),
                Err(_) => return,
            }
        }
    }

    fn deliver(&mut self, record: Record) {
        let event = record.into_event(&self.include_raw);
        // The panic hook has reported it.
        drop(catch_unwind(AssertUnwindSafe(|| (self.callback)(event))));
    }
}
