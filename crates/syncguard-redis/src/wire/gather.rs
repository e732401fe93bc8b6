//! [`Gate`]: operations that are pending at the same time on one connection share a call.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fred::bytes_utils::Str;
use fred::error::{Error, ErrorKind};
use fred::types::Value;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep_until};

use crate::error::CommandError;
use crate::lua::ERROR_MARK;
use crate::wire::script::{GATHERED, Part, Script};

/// How many calls may be in flight on a connection before operations wait and share a call. With fewer,
/// each call would carry more operations, but over a network an operation would wait for a reply before it
/// is sent.
pub(crate) const CALLS_IN_FLIGHT: usize = 8;
/// The most operations in a call. They occupy the server for less than half a millisecond.
const OPERATIONS: usize = 64;
/// The most bytes of keys and arguments in a call, unless its first operation alone has more.
const BYTES: usize = 32 * 1024;

pub(crate) type Reply = Result<Value, CommandError>;

/// One run of a script.
#[derive(Debug)]
pub(crate) struct ScriptCall {
    pub(crate) script: &'static Script,
    /// As `EVALSHA` takes them: the digest, the number of keys, the keys, the arguments.
    pub(crate) values: Vec<Value>,
    pub(crate) deadline: Instant,
}

impl ScriptCall {
    pub(crate) fn new(
        script: &'static Script,
        keys: impl IntoIterator<Item = String, IntoIter: ExactSizeIterator>,
        arguments: impl IntoIterator<Item = Value>,
        deadline: Instant,
    ) -> Self {
        let keys = keys.into_iter();
        let mut values = Vec::with_capacity(keys.len() + 3);
        values.push(script.digest.clone().into());
        values.push(Value::from(keys.len().to_string()));
        values.extend(keys.map(Value::from));
        values.extend(arguments);
        Self {
            script,
            values,
            deadline,
        }
    }

    /// What `EVALSHA` takes by the digest of the script, `EVAL` by its source.
    pub(crate) fn values_by(&self, script: impl Fn(&Script) -> Str) -> Vec<Value> {
        let mut values = self.values.clone();
        if let Some(first) = values.first_mut() {
            *first = script(self.script).into();
        }
        values
    }

    fn bytes(&self) -> usize {
        let lengths = self
            .values
            .iter()
            .map(|value| value.as_bytes().map_or(0, <[u8]>::len));
        lengths.sum()
    }
}

/// The calls in flight on a connection, and the operations that wait for it.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: Mutex<State>,
    arrival: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// Calls in flight that their callers sent themselves.
    direct: usize,
    waiting: VecDeque<Waiting>,
    last_ticket: u64,
    /// Whether there is a [`Sender`].
    has_sender: bool,
}

#[derive(Debug)]
struct Waiting {
    ticket: u64,
    call: ScriptCall,
    reply: oneshot::Sender<Reply>,
}

/// How a call is sent.
pub(crate) enum Admission<'a> {
    /// By its caller: the connection is free.
    Direct(ScriptCall, Direct<'a>),
    /// With others, by the sender. The caller spawns a task for the sender that it gets.
    Gathered {
        pending: Pending<'a>,
        sender: Option<Sender>,
    },
}

/// Counts a call that its caller sends.
pub(crate) struct Direct<'a>(&'a Gate);

impl Drop for Direct<'_> {
    fn drop(&mut self) {
        self.0.lock().direct -= 1;
    }
}

impl Gate {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits a call, in order of arrival.
    pub(crate) fn admit(self: &Arc<Self>, call: ScriptCall) -> Admission<'_> {
        let mut state = self.lock();
        // The sender does not wait for these: a caller need not poll its call.
        if !state.has_sender && state.direct < CALLS_IN_FLIGHT {
            state.direct += 1;
            return Admission::Direct(call, Direct(self));
        }
        state.last_ticket += 1;
        let (reply, receiver) = oneshot::channel();
        let pending = Pending {
            gate: self,
            ticket: state.last_ticket,
            deadline: call.deadline,
            receiver,
        };
        state.waiting.push_back(Waiting {
            ticket: pending.ticket,
            call,
            reply,
        });
        let sender = (!state.has_sender).then(|| Sender {
            gate: Arc::clone(self),
            is_done: false,
        });
        state.has_sender = true;
        drop(state);
        self.arrival.notify_one();
        Admission::Gathered { pending, sender }
    }

    /// Removes an operation that still waits.
    fn withdraw(&self, ticket: u64) -> bool {
        let mut state = self.lock();
        let place = state
            .waiting
            .binary_search_by_key(&ticket, |each| each.ticket);
        place.is_ok_and(|place| state.waiting.remove(place).is_some())
    }
}

/// An operation that a sender sends.
pub(crate) struct Pending<'a> {
    gate: &'a Gate,
    ticket: u64,
    deadline: Instant,
    receiver: oneshot::Receiver<Reply>,
}

impl Pending<'_> {
    /// Its reply. If this is dropped before the sender sends the operation, the sender never does.
    pub(crate) async fn reply(self) -> Reply {
        tokio::select! {
            biased;
            reply = self.receiver => reply.unwrap_or_else(|_| Err(no_reply(ErrorKind::IO))),
            () = sleep_until(self.deadline) => match self.gate.withdraw(self.ticket) {
                true => Err(CommandError::PAST_DEADLINE),
                false => Err(no_reply(ErrorKind::Timeout)),
            },
        }
    }
}

fn no_reply(kind: ErrorKind) -> CommandError {
    Error::new(kind, "no reply to a call of several operations").into()
}

/// Sends the operations that wait at a gate, while there are any. A gate has at most one sender.
pub(crate) struct Sender {
    gate: Arc<Gate>,
    is_done: bool,
}

impl Sender {
    /// The operations of the next call. If there are none and no call is in flight, the sender is done.
    pub(crate) fn next(&mut self, in_flight: usize) -> Option<Batch> {
        let mut state = self.gate.lock();
        let (mut batch, mut bytes) = (Batch::default(), 0);
        while let Some(next) = state.waiting.pop_front() {
            // If its caller has left, it need not be sent.
            if next.reply.is_closed() {
                continue;
            }
            bytes += next.call.bytes();
            if batch.0.len() == OPERATIONS || (bytes > BYTES && !batch.0.is_empty()) {
                state.waiting.push_front(next);
                break;
            }
            batch.0.push(next);
        }
        if !batch.0.is_empty() {
            return Some(batch);
        }
        if in_flight == 0 {
            state.has_sender = false;
            self.is_done = true;
        }
        None
    }

    pub(crate) fn is_done(&self) -> bool {
        self.is_done
    }

    /// Resolves when an operation arrives, or has arrived since the last time.
    pub(crate) async fn arrival(&self) {
        self.gate.arrival.notified().await;
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        // The sender's runtime has ended, maybe before its task started.
        if !self.is_done {
            let mut state = self.gate.lock();
            state.has_sender = false;
            for each in state.waiting.drain(..) {
                let _ = each.reply.send(Err(CommandError::RUNTIME_ENDED));
            }
        }
    }
}

/// Operations that share a call.
#[derive(Debug, Default)]
pub(crate) struct Batch(Vec<Waiting>);

impl Batch {
    /// The last deadline: each caller watches its own.
    pub(crate) fn last_deadline(&self) -> Option<Instant> {
        self.0.iter().map(|each| each.call.deadline).max()
    }

    pub(crate) fn first_deadline(&self) -> Option<Instant> {
        self.0.iter().map(|each| each.call.deadline).min()
    }

    /// The arguments of `EVALSHA` or `EVAL` for all of them. A single operation is a call of its own script.
    pub(crate) fn values(&self, script: impl Fn(&Script) -> Str) -> Vec<Value> {
        if let [alone] = &self.0[..] {
            return alone.call.values_by(script);
        }
        let mut letters = String::with_capacity(self.0.len());
        let (mut keys, mut arguments) = (Vec::new(), Vec::new());
        for Waiting { call, .. } in &self.0 {
            let Some(Part {
                letter,
                keys: count,
                ..
            }) = call.script.part
            else {
                continue;
            };
            letters.push(letter);
            let mut values = call.values.iter().skip(2).cloned();
            keys.extend(values.by_ref().take(count));
            arguments.extend(values);
        }
        let mut values = Vec::with_capacity(3 + keys.len() + arguments.len());
        values.push(script(&GATHERED).into());
        values.push(Value::from(keys.len().to_string()));
        values.append(&mut keys);
        values.push(letters.into());
        values.append(&mut arguments);
        values
    }

    /// Keeps the operations whose callers wait and whose deadline has not passed. Call it only if no
    /// operation was run.
    pub(crate) fn keep_awaited(&mut self) {
        let now = Instant::now();
        for each in std::mem::take(&mut self.0) {
            if each.call.deadline <= now {
                let _ = each.reply.send(Err(CommandError::PAST_DEADLINE));
            } else if !each.reply.is_closed() {
                self.0.push(each);
            }
        }
    }

    /// The reply to each operation.
    pub(crate) fn split(&self, reply: Reply) -> Vec<Reply> {
        let count = self.0.len();
        match reply {
            reply if count == 1 => vec![reply],
            Ok(Value::Array(replies)) if replies.len() == count => {
                replies.into_iter().map(own_reply).collect()
            }
            Ok(_) => (0..count).map(|_| Ok(Value::Array(Vec::new()))).collect(),
            Err(error) => (0..count).map(|_| Err(error.clone())).collect(),
        }
    }

    /// Passes the replies on to the callers.
    pub(crate) fn answer(self, replies: Vec<Reply>) {
        for (each, reply) in self.0.into_iter().zip(replies) {
            let _ = each.reply.send(reply);
        }
    }
}

/// `gathered.lua` replies with a text for an error.
fn own_reply(reply: Value) -> Reply {
    let error = match &reply {
        Value::String(text) => text.strip_prefix(ERROR_MARK).map(str::to_owned),
        _ => None,
    };
    error.map_or(Ok(reply), |error| {
        Err(Error::new(ErrorKind::Unknown, error).into())
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::wire::script::READ_KEY;

    const FAR: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn a_sender_that_never_ran_leaves_nothing_behind() {
        let gate = Arc::new(Gate::default());
        let call = || ScriptCall::new(&READ_KEY, ["k".to_owned()], [], Instant::now() + FAR);
        let mut direct = Vec::new();
        let (pending, sender) = loop {
            match gate.admit(call()) {
                Admission::Direct(_, one) => direct.push(one),
                Admission::Gathered { pending, sender } => break (pending, sender),
            }
        };
        // As a runtime does with a task when it shuts down.
        drop(sender.unwrap());
        let error = pending.reply().await.unwrap_err();
        assert!(error.was_not_sent());
        // The next operation gets a sender.
        let next = gate.admit(call());
        assert!(matches!(
            next,
            Admission::Gathered {
                sender: Some(_),
                ..
            }
        ));
    }
}
