//! [`TelemetryOptions`]: who is told, and how much.

use std::fmt;
use std::sync::Arc;

use crate::LockEvent;

/// Events that wait for the callback, when no capacity is given.
pub const DEFAULT_QUEUE_CAPACITY: usize = 4096;

pub(crate) type Callback = Box<dyn FnMut(LockEvent) + Send>;

/// Whether events hold raw identifiers.
#[derive(Clone, Default)]
pub(crate) enum IncludeRaw {
    #[default]
    Never,
    Always,
    If(Arc<dyn Fn(&LockEvent) -> bool + Send + Sync>),
}

/// Who is told of a backend's calls, and how much.
///
/// ```
/// # use syncguard_telemetry::{EventResult, TelemetryOptions};
/// let options = TelemetryOptions::new().with_on_event(|event| {
///     if event.result == EventResult::Fail {
///         eprintln!("{event:?}");
///     }
/// });
/// ```
#[must_use]
pub struct TelemetryOptions {
    pub(crate) on_event: Option<Callback>,
    pub(crate) queue_capacity: usize,
    pub(crate) include_raw: IncludeRaw,
    #[cfg(feature = "tracing")]
    pub(crate) tracing: bool,
    #[cfg(feature = "opentelemetry")]
    pub(crate) metrics: Option<crate::metrics::Metrics>,
}

impl TelemetryOptions {
    /// Nobody is told: the decorated backend does what the bare one does, at its cost.
    pub fn new() -> Self {
        Self {
            on_event: None,
            queue_capacity: DEFAULT_QUEUE_CAPACITY,
            include_raw: IncludeRaw::default(),
            #[cfg(feature = "tracing")]
            tracing: false,
            #[cfg(feature = "opentelemetry")]
            metrics: None,
        }
    }

    /// Hands every event to a callback. Default: none.
    ///
    /// It runs on a thread of its own, behind a bounded queue, a millisecond or so after the call.
    /// It may block and it may panic; operations do not notice. Events that find the queue full
    /// are [counted](crate::Telemetry::dropped_events) instead of delivered.
    pub fn with_on_event(mut self, on_event: impl FnMut(LockEvent) + Send + 'static) -> Self {
        self.on_event = Some(Box::new(on_event));
        self
    }

    /// How many events may wait for the callback. Default: 4096, about half a megabyte. At least 1.
    ///
    /// The memory is taken at once, so that no event allocates.
    pub fn with_queue_capacity(mut self, events: usize) -> Self {
        self.queue_capacity = events.max(1);
        self
    }

    /// Puts raw keys and lock ids into all events. Default: off, hashes only.
    ///
    /// Both are sensitive, and whoever reads a lock id can release the lock. It concerns the
    /// callback and `tracing`; metrics never hold identifiers, hashed or raw.
    ///
    /// It replaces the predicate of [`with_include_raw_if`](Self::with_include_raw_if).
    pub fn with_include_raw(mut self, include_raw: bool) -> Self {
        self.include_raw = if include_raw {
            IncludeRaw::Always
        } else {
            IncludeRaw::Never
        };
        self
    }

    /// Puts raw identifiers into the events that a predicate picks by their hashed form. Default:
    /// none.
    ///
    /// Keep it pure and quick: it is asked once by each of the callback and `tracing`. One that
    /// panics has permitted nothing.
    ///
    /// ```
    /// # use syncguard_core::hash_key;
    /// # use syncguard_telemetry::TelemetryOptions;
    /// let suspect = hash_key("report:daily");
    /// let options = TelemetryOptions::new()
    ///     .with_include_raw_if(move |event| event.key_hash == Some(suspect));
    /// ```
    pub fn with_include_raw_if(
        mut self,
        predicate: impl Fn(&LockEvent) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.include_raw = IncludeRaw::If(Arc::new(predicate));
        self
    }

    /// Emits every event through `tracing`, with target `syncguard`, inside the caller's span.
    /// Default: off.
    ///
    /// Calls that end in an error are `WARN`, all others `DEBUG`. Where no subscriber wants the
    /// level, nothing is hashed. Subscribers run inside the operation, as `tracing` has it.
    ///
    /// ```
    /// # use syncguard_memory::MemoryBackend;
    /// # use syncguard_telemetry::{TelemetryOptions, with_telemetry};
    /// let backend = with_telemetry(
    ///     MemoryBackend::default(),
    ///     TelemetryOptions::new().with_tracing(true),
    /// );
    /// ```
    #[cfg(feature = "tracing")]
    pub fn with_tracing(mut self, tracing: bool) -> Self {
        self.tracing = tracing;
        self
    }

    /// Records metrics on a meter of the application's OpenTelemetry SDK. Default: none.
    ///
    /// Attributes follow the semantic conventions: a failure has `error.type`, durations are in
    /// seconds, and no attribute is made of a key or an id.
    ///
    /// | instrument | kind, unit | attributes beside `syncguard.backend.name` |
    /// |---|---|---|
    /// | `syncguard.operations` | counter, `{operation}` | `syncguard.operation.name`, `syncguard.operation.result`, `syncguard.operation.reason`, `error.type` |
    /// | `syncguard.operation.duration` | histogram, `s` | the same |
    /// | `syncguard.lock.held` | up-down counter, `{lock}` | |
    /// | `syncguard.lock.hold_time` | histogram, `s` | `syncguard.operation.result` of the release |
    /// | `syncguard.lock.lost` | counter, `{lock}` | |
    /// | `syncguard.lock.waiting` | up-down counter, `{caller}` | |
    /// | `syncguard.lock.wait_time` | histogram, `s` | `syncguard.operation.result`, `error.type` |
    /// | `syncguard.lock.reclaims` | counter, `{call}` | `syncguard.operation.name`, `syncguard.reclaim.result` |
    /// | `syncguard.clock.skew` | gauge, `s` | |
    ///
    /// `error.type` is the [`ErrorCode`](syncguard_core::ErrorCode), or `abandoned` for a call
    /// whose future was dropped.
    ///
    /// Leases are those that this decorator (or a clone of it) saw taken. One counts as held until
    /// it is released, found gone, or past its TTL, the last noticed at the next call; as lost when
    /// a release or an extend of it finds nothing. Up to 65,536 leases are followed at a time, and
    /// beside these as many that ran out without a release; others are left out.
    ///
    /// Waits are those of [`lock()`](syncguard_core::lock()), from its first attempt. Reclaims are
    /// what the background found after acquires that were dropped or of unknown outcome, and after
    /// releases that were dropped or failed, which it repeats for up to an hour: `released` is a lock
    /// that was still there, `not-held` a false alarm, `given-up` one that only its TTL ends. Skew is how far the local clock is ahead of the store's, for backends
    /// that compare the two.
    ///
    /// ```
    /// # use syncguard_memory::MemoryBackend;
    /// # use syncguard_telemetry::{TelemetryOptions, with_telemetry};
    /// use opentelemetry::metrics::MeterProvider as _;
    /// use opentelemetry_sdk::metrics::SdkMeterProvider;
    ///
    /// // With the readers and exporters of the application.
    /// let provider = SdkMeterProvider::builder().build();
    /// let backend = with_telemetry(
    ///     MemoryBackend::default(),
    ///     TelemetryOptions::new().with_metrics(&provider.meter("syncguard")),
    /// );
    /// ```
    #[cfg(feature = "opentelemetry")]
    pub fn with_metrics(mut self, meter: &opentelemetry::metrics::Meter) -> Self {
        self.metrics = Some(crate::metrics::Metrics::new(meter));
        self
    }
}

impl Default for TelemetryOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for TelemetryOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("TelemetryOptions");
        out.field("on_event", &self.on_event.is_some())
            .field("queue_capacity", &self.queue_capacity)
            .field("include_raw", &self.include_raw);
        #[cfg(feature = "tracing")]
        out.field("tracing", &self.tracing);
        #[cfg(feature = "opentelemetry")]
        out.field("metrics", &self.metrics.is_some());
        out.finish()
    }
}

impl fmt::Debug for IncludeRaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Never => "Never",
            Self::Always => "Always",
            Self::If(_) => "If(..)",
        })
    }
}
