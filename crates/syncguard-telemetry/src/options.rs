//! [`TelemetryOptions`]: the sinks, and the content of events.

use std::fmt;
use std::sync::Arc;

use crate::LockEvent;

/// Default of how many events may wait for the callback.
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

/// Where events go, and what they contain.
///
/// ```
/// # use syncguard_telemetry::TelemetryOptions;
/// let options = TelemetryOptions::new().on_event(|event| {
///     // Contention has a reason and no error code.
///     if event.error_code.is_some() {
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
    /// No sink.
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

    /// Passes every event to a callback. Default: none.
    ///
    /// The callback runs on its own thread, behind a bounded queue, about a millisecond after the
    /// operation. It may block or panic without any effect on operations. If the queue is full, events are
    /// dropped and [counted](crate::Telemetry::dropped_events).
    pub fn on_event(mut self, on_event: impl FnMut(LockEvent) + Send + 'static) -> Self {
        self.on_event = Some(Box::new(on_event));
        self
    }

    /// How many events may wait for the callback. Default: 4096, about half a megabyte. At least 1.
    ///
    /// The queue allocates all its memory when it is made, and an event allocates nothing.
    pub fn queue_capacity(mut self, events: usize) -> Self {
        self.queue_capacity = events.max(1);
        self
    }

    /// Puts raw keys and lock ids into all events. Default: off, hashes only.
    ///
    /// Both are sensitive: a reader of a lock id can release the lock. The setting covers the callback
    /// and `tracing`; metrics never contain identifiers, hashed or raw.
    ///
    /// It replaces the predicate of [`include_raw_if`](Self::include_raw_if).
    pub fn include_raw(mut self, include_raw: bool) -> Self {
        self.include_raw = if include_raw {
            IncludeRaw::Always
        } else {
            IncludeRaw::Never
        };
        self
    }

    /// Puts raw identifiers into the events that a predicate selects by their hashed form. Default:
    /// none.
    ///
    /// Keep the predicate pure and quick: the callback's thread and `tracing` each call it once for an
    /// event. If it panics, the event gets hashes. It replaces [`include_raw`](Self::include_raw).
    ///
    /// ```
    /// # use syncguard_core::hash_key;
    /// # use syncguard_telemetry::TelemetryOptions;
    /// let suspect = hash_key("report:daily");
    /// let options = TelemetryOptions::new()
    ///     .include_raw_if(move |event| event.key_hash == Some(suspect));
    /// ```
    pub fn include_raw_if(
        mut self,
        predicate: impl Fn(&LockEvent) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.include_raw = IncludeRaw::If(Arc::new(predicate));
        self
    }

    /// Emits every event through `tracing`, with target `syncguard`, inside the caller's span.
    /// Default: off.
    ///
    /// An operation that ends in an error is `WARN`. All others are `DEBUG`, those that the caller's
    /// token cancelled (`Aborted`) included. If no subscriber wants the level, nothing is hashed.
    /// Subscribers run inside the operation, on its thread.
    ///
    /// ```
    /// # use syncguard_core::Locks;
    /// # use syncguard_memory::MemoryBackend;
    /// # use syncguard_telemetry::{TelemetryOptions, with_telemetry};
    /// let locks = with_telemetry(
    ///     Locks::new(MemoryBackend::default()),
    ///     TelemetryOptions::new().tracing(true),
    /// );
    /// ```
    #[cfg(feature = "tracing")]
    pub fn tracing(mut self, tracing: bool) -> Self {
        self.tracing = tracing;
        self
    }

    /// Records metrics on a meter of the application's OpenTelemetry SDK. Default: none.
    ///
    /// Attributes follow the semantic conventions: a failure has `error.type`, durations are in
    /// seconds. No attribute contains a key or an id.
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
    /// | `syncguard.lock.line_length` | histogram, `{caller}`: how many callers of this process are ahead of one that begins to wait | |
    /// | `syncguard.lock.wakes` | counter, `{wake}`: why waiting callers asked the store again | `syncguard.wake.reason`: `poll`, `wake-up` or `hand-over` |
    /// | `syncguard.lock.reclaims` | counter, `{call}` | `syncguard.operation.name`, `syncguard.reclaim.result` |
    /// | `syncguard.clock.skew` | gauge, `s` | |
    ///
    /// `error.type` is the [`ErrorCode`](syncguard_core::ErrorCode), or `abandoned` for an operation
    /// or a wait whose future was dropped.
    ///
    /// **Leases** are those whose acquire this [`Telemetry`](crate::Telemetry) observed. A lease counts as
    /// held until it is released, is found gone, or expires; an expiry is noticed at the next operation on
    /// that backend. A lease counts as lost when its release or extend finds no lock. Metrics follow up to
    /// 65,536 leases of a backend at a time, and as many that expired without a release; they ignore
    /// others.
    ///
    /// **Waits** are those of [`lock`](syncguard_core::Locks::lock), from the first attempt.
    ///
    /// **Reclaims** are the results of background releases. SyncGuard releases in the background after an
    /// acquire that was dropped or whose outcome is unknown. It retries a release that was dropped or
    /// failed, for up to an hour. `released`: the lock existed. `not-held`: there was no lock. `given-up`:
    /// SyncGuard stopped retrying, and the lock, if it exists, expires with its TTL.
    ///
    /// **Skew** is how far the local clock is ahead of the store's, for backends that compare the two.
    ///
    /// ```
    /// # use syncguard_core::Locks;
    /// # use syncguard_memory::MemoryBackend;
    /// # use syncguard_telemetry::{TelemetryOptions, with_telemetry};
    /// use opentelemetry::metrics::MeterProvider as _;
    /// use opentelemetry_sdk::metrics::SdkMeterProvider;
    ///
    /// // With the readers and exporters of the application.
    /// let provider = SdkMeterProvider::builder().build();
    /// let locks = with_telemetry(
    ///     Locks::new(MemoryBackend::default()),
    ///     TelemetryOptions::new().metrics(&provider.meter("syncguard")),
    /// );
    /// ```
    #[cfg(feature = "opentelemetry")]
    pub fn metrics(mut self, meter: &opentelemetry::metrics::Meter) -> Self {
        self.metrics = Some(crate::metrics::Metrics::new(meter));
        self
    }

    pub(crate) fn has_sink(&self) -> bool {
        let has_sink = self.on_event.is_some();
        #[cfg(feature = "tracing")]
        let has_sink = has_sink || self.tracing;
        #[cfg(feature = "opentelemetry")]
        let has_sink = has_sink || self.metrics.is_some();
        has_sink
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
