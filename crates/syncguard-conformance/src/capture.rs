//! All that code emits through `tracing`, as text.

use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// A subscriber that writes the names and fields of all events and spans into one text.
#[derive(Debug, Clone, Default)]
pub(crate) struct Capture(Arc<Mutex<String>>);

impl Capture {
    pub(crate) fn text(&self) -> String {
        let text = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        text.clone()
    }

    fn write(&self, record: impl FnOnce(&mut dyn Visit)) {
        let mut text = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        record(&mut Fields(&mut text));
        text.push('\n');
    }
}

struct Fields<'a>(&'a mut String);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a String does not fail; a Debug that fails leaves its part out.
        let _ = write!(self.0, "{}={value:?} ", field.name());
    }
}

impl Subscriber for Capture {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        self.write(|visitor| attributes.record(visitor));
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, values: &Record<'_>) {
        self.write(|visitor| values.record(visitor));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        self.write(|visitor| event.record(visitor));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
