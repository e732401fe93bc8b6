//! [`Telemetry`]: the observer, and the sinks behind it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use syncguard_core::Locks;
use syncguard_core::backend::FenceToken;
#[cfg(feature = "opentelemetry")]
use syncguard_core::observe::{ClockSkew, ReclaimEnd, WaitEnd, WaitStart};
use syncguard_core::observe::{Observer, OperationEnd};

#[cfg(any(feature = "tracing", feature = "opentelemetry"))]
use crate::contained::contained;
use crate::queue::Queue;
use crate::record::Record;
use crate::{EventType, TelemetryOptions};

/// A handle on the same store as `locks`, whose operations are reported to the sinks of `options`.
///
/// Without a sink it returns `locks` unchanged. Operations through other handles of the same store are not
/// reported. Make a [`Telemetry`] instead to flush or count events, or to observe several `Locks` by one.
///
/// ```
/// # use syncguard_core::Locks;
/// # use syncguard_memory::MemoryBackend;
/// use syncguard_telemetry::{TelemetryOptions, with_telemetry};
///
/// let options = TelemetryOptions::new().on_event(|event| println!("{event:?}"));
/// let locks = with_telemetry(Locks::new(MemoryBackend::default()), options);
/// ```
#[must_use]
pub fn with_telemetry<F: FenceToken>(locks: Locks<F>, options: TelemetryOptions) -> Locks<F> {
    if options.has_sink() {
        locks.observed_by(Arc::new(Telemetry::new(options)))
    } else {
        locks
    }
}

/// An [`Observer`] that reports every operation to the sinks of its [`TelemetryOptions`].
///
/// Register a clone by [`LocksBuilder::observe`](syncguard_core::LocksBuilder::observe) or
/// [`Locks::observed_by`](syncguard_core::Locks::observed_by), of one `Locks` or of several. Clones
/// share the sinks.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// use syncguard_core::Locks;
/// use syncguard_memory::MemoryBackend;
/// use syncguard_telemetry::{Telemetry, TelemetryOptions};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), syncguard_core::LockError> {
/// let telemetry = Telemetry::new(TelemetryOptions::new().on_event(|event| println!("{event:?}")));
/// let locks = Locks::builder(MemoryBackend::default())
///     .observe(Arc::new(telemetry.clone()))
///     .build();
/// locks.lock("report:daily").await?.release().await?;
///
/// assert!(telemetry.flush(Duration::from_secs(5)).await);
/// assert_eq!(telemetry.dropped_events(), 0);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Telemetry(Arc<Sinks>);

struct Sinks {
    queue: Option<Queue>,
    #[cfg(feature = "tracing")]
    tracing: Option<crate::options::IncludeRaw>,
    #[cfg(feature = "opentelemetry")]
    metrics: Option<crate::metrics::Metrics>,
}

impl Telemetry {
    /// Starts the sinks.
    #[must_use]
    pub fn new(options: TelemetryOptions) -> Self {
        #[cfg(feature = "tracing")]
        let tracing = options.tracing.then(|| options.include_raw.clone());
        Self(Arc::new(Sinks {
            queue: options
                .on_event
                .map(|callback| Queue::new(options.queue_capacity, options.include_raw, callback)),
            #[cfg(feature = "tracing")]
            tracing,
            #[cfg(feature = "opentelemetry")]
            metrics: options.metrics,
        }))
    }

    /// How many events were dropped because the callback was too slow.
    #[must_use]
    pub fn dropped_events(&self) -> u64 {
        self.0.queue.as_ref().map_or(0, Queue::dropped)
    }

    /// Waits until the callback has handled every event so far. Returns whether it did within `timeout`;
    /// `true` without a callback.
    ///
    /// Call it last before the process ends, after [`drain`](syncguard_core::Locks::drain): queued events
    /// are lost with the process.
    ///
    /// # Cancel safety
    /// Safe: dropping the future stops the wait, not the delivery.
    pub async fn flush(&self, timeout: Duration) -> bool {
        match &self.0.queue {
            Some(queue) => queue.flush(timeout).await,
            None => true,
        }
    }
}

impl Observer for Telemetry {
    fn operation_ended(&self, end: &OperationEnd<'_>) {
        let Some(event_type) = EventType::of(end.operation) else {
            return;
        };
        if let Some(queue) = &self.0.queue {
            queue.push(Record::new(event_type, end));
        }
        // Subscribers and meters are the application's. A panic in one keeps the event from no other
        // sink.
        #[cfg(feature = "tracing")]
        if let Some(include_raw) = &self.0.tracing {
            contained(|| {
                if crate::trace::is_enabled(end.outcome) {
                    let record = Record::new(event_type, end);
                    crate::trace::emit(&record.into_event(include_raw));
                }
            });
        }
        #[cfg(feature = "opentelemetry")]
        if let Some(metrics) = &self.0.metrics {
            contained(|| metrics.operation_ended(event_type, end));
        }
    }

    #[cfg(feature = "opentelemetry")]
    fn wait_started(&self, wait: &WaitStart<'_>) {
        if let Some(metrics) = &self.0.metrics {
            metrics.wait_started(wait);
        }
    }

    #[cfg(feature = "opentelemetry")]
    fn wait_ended(&self, wait: &WaitEnd<'_>) {
        if let Some(metrics) = &self.0.metrics {
            metrics.wait_ended(wait);
        }
    }

    #[cfg(feature = "opentelemetry")]
    fn reclaim_ended(&self, reclaim: &ReclaimEnd<'_>) {
        if let Some(metrics) = &self.0.metrics {
            metrics.reclaim_ended(reclaim);
        }
    }

    #[cfg(feature = "opentelemetry")]
    fn clock_compared(&self, skew: &ClockSkew) {
        if let Some(metrics) = &self.0.metrics {
            metrics.clock_compared(skew);
        }
    }
}

impl fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Telemetry");
        out.field("on_event", &self.0.queue.is_some());
        #[cfg(feature = "tracing")]
        out.field("tracing", &self.0.tracing.is_some());
        #[cfg(feature = "opentelemetry")]
        out.field("metrics", &self.0.metrics.is_some());
        out.finish()
    }
}
