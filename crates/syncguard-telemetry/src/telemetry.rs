//! [`Hub`]: hands each call to the sinks that are on.

use std::fmt;
use std::time::Instant;

#[cfg(feature = "opentelemetry")]
use syncguard_core::{Observer, Operation, ReclaimResult, WaitEnd, WaitSummary};

use crate::TelemetryOptions;
use crate::call::{Call, Outcome, Record};
use crate::queue::Queue;

/// The sinks of one decorated backend. There is none where no sink is on.
pub(crate) struct Hub {
    backend: &'static str,
    queue: Option<Queue>,
    #[cfg(feature = "tracing")]
    tracing: Option<crate::options::IncludeRaw>,
    #[cfg(feature = "opentelemetry")]
    metrics: Option<crate::metrics::Metrics>,
}

impl Hub {
    pub(crate) fn new(options: TelemetryOptions, backend: &'static str) -> Option<Self> {
        #[cfg(feature = "tracing")]
        let tracing = options.tracing.then(|| options.include_raw.clone());
        let hub = Self {
            backend,
            queue: options
                .on_event
                .map(|callback| Queue::new(options.queue_capacity, options.include_raw, callback)),
            #[cfg(feature = "tracing")]
            tracing,
            #[cfg(feature = "opentelemetry")]
            metrics: options.metrics,
        };
        hub.has_sinks().then_some(hub)
    }

    fn has_sinks(&self) -> bool {
        let has_sinks = self.queue.is_some();
        #[cfg(feature = "tracing")]
        let has_sinks = has_sinks || self.tracing.is_some();
        #[cfg(feature = "opentelemetry")]
        let has_sinks = has_sinks || self.metrics.is_some();
        has_sinks
    }

    pub(crate) fn queue(&self) -> Option<&Queue> {
        self.queue.as_ref()
    }

    /// Begins to watch a call. The result must be [ended](Pending::end); dropped, it reports that
    /// the call was abandoned.
    pub(crate) fn begin<'a>(&'a self, call: Call<'a>) -> Pending<'a> {
        Pending {
            hub: self,
            call,
            started: Instant::now(),
            open: true,
        }
    }

    #[cfg(feature = "opentelemetry")]
    pub(crate) fn has_metrics(&self) -> bool {
        self.metrics.is_some()
    }

    /// Asks for the skew only where there is something to show it.
    #[cfg(feature = "opentelemetry")]
    pub(crate) fn note_clock_skew(&self, skew_ms: impl FnOnce() -> Option<i64>) {
        if let Some(metrics) = &self.metrics
            && let Some(skew_ms) = skew_ms()
        {
            contained(|| metrics.clock_skew(self.backend, skew_ms));
        }
    }

    fn report(&self, call: Call<'_>, outcome: Outcome, started: Instant) {
        let ended = Instant::now();
        let duration = ended.saturating_duration_since(started);
        if let Some(queue) = &self.queue {
            queue.push(Record::new(self.backend, call, outcome, duration));
        }
        // Subscribers and meters are the application's; their panics are not the operation's.
        #[cfg(feature = "tracing")]
        if let Some(include_raw) = &self.tracing {
            contained(|| {
                if crate::trace::is_enabled(outcome) {
                    let record = Record::new(self.backend, call, outcome, duration);
                    crate::trace::emit(&record.into_event(include_raw));
                }
            });
        }
        #[cfg(feature = "opentelemetry")]
        if let Some(metrics) = &self.metrics {
            contained(|| metrics.record(self.backend, call, outcome, ended, duration));
        }
    }
}

#[cfg(feature = "opentelemetry")]
impl Observer for Hub {
    fn wait_began(&self) {
        if let Some(metrics) = &self.metrics {
            metrics.wait_began(self.backend);
        }
    }

    fn wait_ended(&self, wait: WaitSummary, end: WaitEnd) {
        if let Some(metrics) = &self.metrics {
            metrics.wait_ended(self.backend, wait, end);
        }
    }

    fn reclaimed(&self, after: Operation, result: ReclaimResult) {
        if let Some(metrics) = &self.metrics {
            metrics.reclaimed(self.backend, after, result);
        }
    }
}

#[cfg(any(feature = "tracing", feature = "opentelemetry"))]
pub(crate) fn contained(work: impl FnOnce()) {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    drop(catch_unwind(AssertUnwindSafe(work)));
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Hub");
        out.field("backend", &self.backend)
            .field("on_event", &self.queue.is_some());
        #[cfg(feature = "tracing")]
        out.field("tracing", &self.tracing.is_some());
        #[cfg(feature = "opentelemetry")]
        out.field("metrics", &self.metrics.is_some());
        out.finish()
    }
}

/// A call under way.
pub(crate) struct Pending<'a> {
    hub: &'a Hub,
    call: Call<'a>,
    started: Instant,
    open: bool,
}

impl Pending<'_> {
    pub(crate) fn end(mut self, outcome: Outcome) {
        self.open = false;
        self.hub.report(self.call, outcome, self.started);
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if self.open {
            let outcome_unknown = self.call.event_type.mutates();
            let outcome = Outcome::Abandoned { outcome_unknown };
            self.hub.report(self.call, outcome, self.started);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_sink_there_is_nothing_to_report_to() {
        assert!(Hub::new(TelemetryOptions::new(), "memory").is_none());
        let raw = TelemetryOptions::new().with_include_raw(true);
        assert!(Hub::new(raw, "memory").is_none());
        let callback = TelemetryOptions::new().with_on_event(drop);
        assert!(Hub::new(callback, "memory").is_some());
    }
}
