//! [`Metrics`]: calls and leases as OpenTelemetry instruments.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Gauge, Histogram, Meter, UpDownCounter};

use syncguard_core::{Operation, ReclaimResult, Ttl, WaitEnd, WaitSummary};

use crate::call::{Call, Outcome};
use crate::holdings::Holdings;
use crate::hub::contained;
use crate::{EventResult, EventType};

const BACKEND: &str = "syncguard.backend.name";
const OPERATION: &str = "syncguard.operation.name";
const RESULT: &str = "syncguard.operation.result";
const REASON: &str = "syncguard.operation.reason";
const RECLAIM_RESULT: &str = "syncguard.reclaim.result";
const ERROR_TYPE: &str = "error.type";

/// The `error.type` of a call whose future was dropped.
const ABANDONED: &str = "abandoned";

/// Seconds: what the semantic conventions advise for the operations of database clients.
const OPERATION_BUCKETS: [f64; 9] = [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0];

/// Seconds: from a key that was free to a holder that works for minutes.
const WAIT_BUCKETS: [f64; 12] = [
    0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0,
];

/// Seconds: from a short critical section to a nightly job.
const HOLD_BUCKETS: [f64; 12] = [
    0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0,
];

pub(crate) struct Metrics {
    operations: Counter<u64>,
    duration: Histogram<f64>,
    held: UpDownCounter<i64>,
    hold_time: Histogram<f64>,
    lost: Counter<u64>,
    waiting: UpDownCounter<i64>,
    wait_time: Histogram<f64>,
    reclaims: Counter<u64>,
    clock_skew: Gauge<f64>,
    leases: Mutex<Leases>,
}

#[derive(Default)]
struct Leases {
    holdings: Holdings,
    /// What the up-down counter stands at, as far as these leases go.
    reported: i64,
    backend: &'static str,
}

/// What a call has done to a lease.
#[derive(Default)]
struct Change {
    held_for: Option<Duration>,
    lost: bool,
}

impl Metrics {
    pub(crate) fn new(meter: &Meter) -> Self {
        Self {
            operations: meter
                .u64_counter("syncguard.operations")
                .with_unit("{operation}")
                .with_description("Lock operations that ended, by result.")
                .build(),
            duration: meter
                .f64_histogram("syncguard.operation.duration")
                .with_unit("s")
                .with_description("Duration of lock operations.")
                .with_boundaries(OPERATION_BUCKETS.to_vec())
                .build(),
            held: meter
                .i64_up_down_counter("syncguard.lock.held")
                .with_unit("{lock}")
                .with_description("Locks that this process holds.")
                .build(),
            hold_time: meter
                .f64_histogram("syncguard.lock.hold_time")
                .with_unit("s")
                .with_description("Time from the grant of a lock to its release.")
                .with_boundaries(HOLD_BUCKETS.to_vec())
                .build(),
            lost: meter
                .u64_counter("syncguard.lock.lost")
                .with_unit("{lock}")
                .with_description("Locks that were gone when their holder extended or released.")
                .build(),
            waiting: meter
                .i64_up_down_counter("syncguard.lock.waiting")
                .with_unit("{caller}")
                .with_description("Callers that wait for a lock.")
                .build(),
            wait_time: meter
                .f64_histogram("syncguard.lock.wait_time")
                .with_unit("s")
                .with_description("Time from the first attempt to the grant, or to giving up.")
                .with_boundaries(WAIT_BUCKETS.to_vec())
                .build(),
            reclaims: meter
                .u64_counter("syncguard.lock.reclaims")
                .with_unit("{call}")
                .with_description("Abandoned calls settled in the background, by what was found.")
                .build(),
            clock_skew: meter
                .f64_gauge("syncguard.clock.skew")
                .with_unit("s")
                .with_description("How far the local clock is ahead of the store's.")
                .build(),
            leases: Mutex::default(),
        }
    }

    pub(crate) fn wait_began(&self, backend: &'static str) {
        self.waiting.add(1, &[KeyValue::new(BACKEND, backend)]);
    }

    pub(crate) fn wait_ended(&self, backend: &'static str, wait: WaitSummary, end: WaitEnd) {
        let backend_name = KeyValue::new(BACKEND, backend);
        self.waiting.add(-1, std::slice::from_ref(&backend_name));
        let error_type = match end {
            WaitEnd::Granted => None,
            WaitEnd::Failed(code) => Some(code.as_str()),
            _ => Some(ABANDONED),
        };
        let result = match error_type {
            None => EventResult::Ok,
            Some(_) => EventResult::Fail,
        };
        let mut attributes = vec![backend_name, KeyValue::new(RESULT, result.as_str())];
        attributes.extend(error_type.map(|error_type| KeyValue::new(ERROR_TYPE, error_type)));
        self.wait_time
            .record(wait.waited.as_secs_f64(), &attributes);
    }

    pub(crate) fn reclaimed(&self, backend: &'static str, after: Operation, result: ReclaimResult) {
        let attributes = [
            KeyValue::new(BACKEND, backend),
            KeyValue::new(OPERATION, after.as_str()),
            KeyValue::new(RECLAIM_RESULT, result.as_str()),
        ];
        self.reclaims.add(1, &attributes);
    }

    pub(crate) fn clock_skew(&self, backend: &'static str, skew_ms: i64) {
        let distance = Duration::from_millis(skew_ms.unsigned_abs()).as_secs_f64();
        let skew = if skew_ms < 0 { -distance } else { distance };
        self.clock_skew
            .record(skew, &[KeyValue::new(BACKEND, backend)]);
    }

    pub(crate) fn record(
        &self,
        backend: &'static str,
        call: Call<'_>,
        outcome: Outcome,
        ended: Instant,
        duration: Duration,
    ) {
        let attributes = attributes(backend, call, outcome);
        self.operations.add(1, &attributes);
        self.duration.record(duration.as_secs_f64(), &attributes);
        self.follow(backend, call, outcome, ended);
    }

    /// Brings the instruments of leases up to date.
    fn follow(&self, backend: &'static str, call: Call<'_>, outcome: Outcome, now: Instant) {
        let backend_name = KeyValue::new(BACKEND, backend);
        let (change, held_change) = {
            // Whole even if a holder of the mutex panicked: the counts are only off by its call.
            let mut leases = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
            leases.backend = backend;
            leases.holdings.sweep(now);
            let change = leases.apply(call, outcome, now);
            (change, leases.settle())
        };
        if held_change != 0 {
            self.held
                .add(held_change, std::slice::from_ref(&backend_name));
        }
        if let Some(held_for) = change.held_for {
            let result = KeyValue::new(RESULT, outcome.result().as_str());
            self.hold_time
                .record(held_for.as_secs_f64(), &[backend_name.clone(), result]);
        }
        if change.lost {
            self.lost.add(1, &[backend_name]);
        }
    }
}

impl Drop for Metrics {
    /// The meter outlives the decorator; what it held is no longer seen by anyone.
    fn drop(&mut self) {
        let leases = self
            .leases
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        if leases.reported != 0 {
            let backend_name = KeyValue::new(BACKEND, leases.backend);
            contained(|| self.held.add(-leases.reported, &[backend_name]));
        }
    }
}

impl Leases {
    fn apply(&mut self, call: Call<'_>, outcome: Outcome, now: Instant) -> Change {
        let Some(id) = call.id else {
            return Change::default();
        };
        let ttl = call.ttl.map_or(Duration::ZERO, Ttl::as_duration);
        let not_held = matches!(outcome, Outcome::NotHeld(_));
        match (call.event_type, outcome) {
            (EventType::Acquire, Outcome::Ok) => {
                self.holdings.acquired(id, ttl, now);
                Change::default()
            }
            (EventType::Extend, Outcome::Ok) => {
                self.holdings.extended(id, ttl, now);
                Change::default()
            }
            (EventType::Extend, Outcome::NotHeld(_)) => Change {
                held_for: None,
                lost: self.holdings.ended(id).is_some(),
            },
            // One that failed or was abandoned goes on in the background: the holder is done.
            (EventType::Release, _) => {
                let since = self.holdings.ended(id);
                Change {
                    held_for: since.map(|since| now.saturating_duration_since(since)),
                    lost: not_held && since.is_some(),
                }
            }
            _ => Change::default(),
        }
    }

    /// By how much the up-down counter is to change.
    fn settle(&mut self) -> i64 {
        let held = i64::try_from(self.holdings.held()).unwrap_or(i64::MAX);
        let change = held - self.reported;
        self.reported = held;
        change
    }
}

fn attributes(backend: &'static str, call: Call<'_>, outcome: Outcome) -> Vec<KeyValue> {
    let mut attributes = Vec::with_capacity(5);
    attributes.push(KeyValue::new(BACKEND, backend));
    attributes.push(KeyValue::new(OPERATION, call.event_type.as_str()));
    attributes.push(KeyValue::new(RESULT, outcome.result().as_str()));
    if let Some(reason) = outcome.reason() {
        attributes.push(KeyValue::new(REASON, reason.as_str()));
    }
    let error_type = match outcome {
        Outcome::Failed { code, .. } => Some(code.as_str()),
        Outcome::Abandoned { .. } => Some(ABANDONED),
        _ => None,
    };
    if let Some(error_type) = error_type {
        attributes.push(KeyValue::new(ERROR_TYPE, error_type));
    }
    attributes
}
