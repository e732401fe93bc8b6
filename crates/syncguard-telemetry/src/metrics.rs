//! [`Metrics`]: operations, leases and waits as OpenTelemetry instruments.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Gauge, Histogram, Meter, UpDownCounter};

use syncguard_core::observe::{
    ClockSkew, Operation, OperationEnd, OperationOutcome, ReclaimEnd, WaitEnd, WaitOutcome,
    WaitStart,
};
use syncguard_core::{ErrorCode, Ttl};

use crate::contained::contained;
use crate::holdings::Holdings;
use crate::{EventReason, EventResult, EventType};

const BACKEND: &str = "syncguard.backend.name";
const OPERATION: &str = "syncguard.operation.name";
const RESULT: &str = "syncguard.operation.result";
const REASON: &str = "syncguard.operation.reason";
const WAKE_REASON: &str = "syncguard.wake.reason";
const RECLAIM_RESULT: &str = "syncguard.reclaim.result";
const ERROR_TYPE: &str = "error.type";

/// The `error.type` of an operation or wait whose future was dropped.
const ABANDONED: &str = "abandoned";

/// Seconds: the boundaries that the semantic conventions advise for database clients.
const OPERATION_BUCKETS: [f64; 9] = [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0];

/// Seconds: from a key that was free to a holder that works for minutes.
const WAIT_BUCKETS: [f64; 12] = [
    0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0,
];

/// Callers: from nobody ahead to what one process can hold.
const LINE_BUCKETS: [f64; 8] = [0.0, 1.0, 3.0, 10.0, 30.0, 100.0, 1_000.0, 10_000.0];

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
    line_length: Histogram<u64>,
    wakes: Counter<u64>,
    reclaims: Counter<u64>,
    clock_skew: Gauge<f64>,
    /// By the backend's name.
    leases: Mutex<BTreeMap<&'static str, Leases>>,
}

/// The leases on one kind of backend.
#[derive(Default)]
struct Leases {
    holdings: Holdings,
    /// These leases' part of the up-down counter's value.
    reported: i64,
}

/// The effect of an operation on a lease.
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
                .with_description("Callers that are waiting for a lock.")
                .build(),
            wait_time: meter
                .f64_histogram("syncguard.lock.wait_time")
                .with_unit("s")
                .with_description(
                    "Time from the first attempt to the grant, or to the end of the wait.",
                )
                .with_boundaries(WAIT_BUCKETS.to_vec())
                .build(),
            line_length: meter
                .u64_histogram("syncguard.lock.line_length")
                .with_unit("{caller}")
                .with_description("Callers of this process ahead of one that begins to wait.")
                .with_boundaries(LINE_BUCKETS.to_vec())
                .build(),
            wakes: meter
                .u64_counter("syncguard.lock.wakes")
                .with_unit("{wake}")
                .with_description("Why waiting callers asked the store again.")
                .build(),
            reclaims: meter
                .u64_counter("syncguard.lock.reclaims")
                .with_unit("{call}")
                .with_description("Results of background releases.")
                .build(),
            clock_skew: meter
                .f64_gauge("syncguard.clock.skew")
                .with_unit("s")
                .with_description("How far the local clock is ahead of the store's.")
                .build(),
            leases: Mutex::default(),
        }
    }

    pub(crate) fn wait_started(&self, wait: &WaitStart<'_>) {
        let backend = [backend_name(wait.backend)];
        self.waiting.add(1, &backend);
        self.line_length
            .record(wait.ahead.try_into().unwrap_or(u64::MAX), &backend);
    }

    pub(crate) fn wait_ended(&self, wait: &WaitEnd<'_>) {
        let backend = backend_name(wait.backend);
        self.waiting.add(-1, std::slice::from_ref(&backend));
        let summary = wait.summary;
        for (reason, times) in [
            ("poll", summary.polls),
            ("wake-up", summary.wake_ups),
            ("hand-over", summary.hand_overs),
        ] {
            if times > 0 {
                let reason = KeyValue::new(WAKE_REASON, reason);
                self.wakes.add(times.into(), &[backend.clone(), reason]);
            }
        }
        let error_type = match wait.outcome {
            WaitOutcome::Granted => None,
            WaitOutcome::Failed(code) => Some(code.as_str()),
            _ => Some(ABANDONED),
        };
        let result = match error_type {
            None => EventResult::Ok,
            Some(_) => EventResult::Fail,
        };
        let mut attributes = vec![backend, KeyValue::new(RESULT, result.as_str())];
        attributes.extend(error_type.map(|error_type| KeyValue::new(ERROR_TYPE, error_type)));
        self.wait_time
            .record(wait.summary.waited.as_secs_f64(), &attributes);
    }

    pub(crate) fn reclaim_ended(&self, reclaim: &ReclaimEnd<'_>) {
        let attributes = [
            backend_name(reclaim.backend),
            KeyValue::new(OPERATION, reclaim.after.as_str()),
            KeyValue::new(RECLAIM_RESULT, reclaim.result.as_str()),
        ];
        self.reclaims.add(1, &attributes);
    }

    pub(crate) fn clock_compared(&self, skew: &ClockSkew) {
        let distance = Duration::from_millis(skew.skew_ms.unsigned_abs()).as_secs_f64();
        let ahead = if skew.skew_ms < 0 {
            -distance
        } else {
            distance
        };
        self.clock_skew.record(ahead, &[backend_name(skew.backend)]);
    }

    pub(crate) fn operation_ended(&self, event_type: EventType, end: &OperationEnd<'_>) {
        let attributes = attributes(event_type, end);
        self.operations.add(1, &attributes);
        self.duration
            .record(end.duration.as_secs_f64(), &attributes);
        self.follow(end, Instant::now());
    }

    /// Updates the instruments of leases.
    fn follow(&self, end: &OperationEnd<'_>, now: Instant) {
        let backend = backend_name(end.backend);
        let (change, held_change) = {
            // Valid even if a holder of the mutex panicked: the counts only miss its operation.
            let mut leases = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
            let leases = leases.entry(end.backend).or_default();
            leases.holdings.sweep(now);
            let change = leases.apply(end, now);
            (change, leases.settle())
        };
        if held_change != 0 {
            self.held.add(held_change, std::slice::from_ref(&backend));
        }
        if let Some(held_for) = change.held_for {
            let result = KeyValue::new(RESULT, EventResult::of(end.outcome).as_str());
            self.hold_time
                .record(held_for.as_secs_f64(), &[backend.clone(), result]);
        }
        if change.lost {
            self.lost.add(1, &[backend]);
        }
    }
}

impl Drop for Metrics {
    /// The meter outlives the telemetry, which no longer observes these leases.
    fn drop(&mut self) {
        let leases = self
            .leases
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        for (backend, leases) in leases {
            if leases.reported != 0 {
                contained(|| self.held.add(-leases.reported, &[backend_name(backend)]));
            }
        }
    }
}

impl Leases {
    fn apply(&mut self, end: &OperationEnd<'_>, now: Instant) -> Change {
        let Some(id) = end.lock_id else {
            return Change::default();
        };
        let ttl = end.ttl.map_or(Duration::ZERO, Ttl::as_duration);
        match (end.operation, end.outcome) {
            (Operation::Acquire, OperationOutcome::Ok) => {
                self.holdings.acquired(id, ttl, now);
                Change::default()
            }
            (Operation::Extend, OperationOutcome::Ok) => {
                self.holdings.extended(id, ttl, now);
                Change::default()
            }
            (Operation::Extend, OperationOutcome::NotHeld(_)) => Change {
                held_for: None,
                lost: self.holdings.ended(id).is_some(),
            },
            // Its token was cancelled before anything was sent: the lease is still held.
            (
                Operation::Release,
                OperationOutcome::Failed {
                    code: ErrorCode::Aborted,
                    outcome_unknown: false,
                },
            ) => Change::default(),
            // The background retries a release that failed or was abandoned: the holder no longer uses the
            // lock.
            (Operation::Release, outcome) => {
                let since = self.holdings.ended(id);
                let not_held = matches!(outcome, OperationOutcome::NotHeld(_));
                Change {
                    held_for: since.map(|since| now.saturating_duration_since(since)),
                    lost: not_held && since.is_some(),
                }
            }
            _ => Change::default(),
        }
    }

    /// The change of the up-down counter.
    fn settle(&mut self) -> i64 {
        let held = i64::try_from(self.holdings.held()).unwrap_or(i64::MAX);
        let change = held - self.reported;
        self.reported = held;
        change
    }
}

fn backend_name(backend: &'static str) -> KeyValue {
    KeyValue::new(BACKEND, backend)
}

fn attributes(event_type: EventType, end: &OperationEnd<'_>) -> Vec<KeyValue> {
    let mut attributes = Vec::with_capacity(5);
    attributes.push(backend_name(end.backend));
    attributes.push(KeyValue::new(OPERATION, event_type.as_str()));
    attributes.push(KeyValue::new(RESULT, EventResult::of(end.outcome).as_str()));
    if let Some(reason) = EventReason::of(end.outcome) {
        attributes.push(KeyValue::new(REASON, reason.as_str()));
    }
    let error_type = match end.outcome {
        OperationOutcome::Failed { code, .. } => Some(code.as_str()),
        OperationOutcome::Abandoned { .. } => Some(ABANDONED),
        _ => None,
    };
    if let Some(error_type) = error_type {
        attributes.push(KeyValue::new(ERROR_TYPE, error_type));
    }
    attributes
}
