//! [`Sdk`]: what an application's SDK would export.

use std::collections::{BTreeMap, BTreeSet};

use opentelemetry::KeyValue;
use opentelemetry::metrics::MeterProvider as _;
use opentelemetry_sdk::metrics::data::{
    AggregatedMetrics, Metric, MetricData, ResourceMetrics, ScopeMetrics,
};
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, PeriodicReader, SdkMeterProvider};
use syncguard_core::Locks;
use syncguard_memory::MemoryBackend;
use syncguard_telemetry::{TelemetryOptions, with_telemetry};

/// An application's SDK, and what it would export.
pub(crate) struct Sdk {
    provider: SdkMeterProvider,
    exporter: InMemoryMetricExporter,
}

/// An instrument that was used.
pub(crate) struct Instrument {
    pub(crate) name: String,
    pub(crate) unit: String,
    /// As Prometheus calls it.
    pub(crate) kind: &'static str,
    /// The values of each attribute.
    pub(crate) values: BTreeMap<String, BTreeSet<String>>,
}

/// The values of an instrument by its attributes, both as text.
pub(crate) type Points = BTreeMap<String, f64>;

impl Sdk {
    pub(crate) fn new() -> Self {
        let exporter = InMemoryMetricExporter::default();
        let reader = PeriodicReader::builder(exporter.clone()).build();
        Self {
            provider: SdkMeterProvider::builder().with_reader(reader).build(),
            exporter,
        }
    }

    /// Telemetry that records metrics.
    pub(crate) fn options(&self) -> TelemetryOptions {
        TelemetryOptions::new().metrics(&self.provider.meter("syncguard"))
    }

    pub(crate) fn observe(&self, locks: Locks) -> Locks {
        with_telemetry(locks, self.options())
    }

    pub(crate) fn observed_memory(&self) -> Locks {
        self.observe(Locks::new(MemoryBackend::default()))
    }

    /// All instruments that were used.
    pub(crate) fn instruments(&self) -> Vec<Instrument> {
        self.exporter.reset();
        self.provider.force_flush().unwrap();
        let exported = self.exporter.get_finished_metrics().unwrap();
        let metrics = exported
            .iter()
            .flat_map(ResourceMetrics::scope_metrics)
            .flat_map(ScopeMetrics::metrics);
        metrics.map(Instrument::of).collect()
    }

    pub(crate) fn read<T>(&self, name: &str, read: impl FnOnce(&Metric) -> T) -> Option<T> {
        self.exporter.reset();
        self.provider.force_flush().unwrap();
        let exported = self.exporter.get_finished_metrics().unwrap();
        let mut metrics = exported
            .iter()
            .flat_map(ResourceMetrics::scope_metrics)
            .flat_map(ScopeMetrics::metrics);
        metrics.find(|metric| metric.name() == name).map(read)
    }

    /// Sums as they stand, histograms by their number of measurements.
    pub(crate) fn points(&self, name: &str) -> Points {
        self.read(name, |metric| match metric.data() {
            AggregatedMetrics::U64(MetricData::Sum(sum)) => {
                assert!(sum.is_monotonic());
                let points = sum.data_points();
                points
                    .map(|point| (text(point.attributes()), number(point.value())))
                    .collect()
            }
            AggregatedMetrics::I64(MetricData::Sum(sum)) => {
                assert!(!sum.is_monotonic());
                let points = sum.data_points();
                points
                    .map(|point| {
                        let value = i32::try_from(point.value()).unwrap();
                        (text(point.attributes()), f64::from(value))
                    })
                    .collect()
            }
            AggregatedMetrics::F64(MetricData::Histogram(histogram)) => {
                let points = histogram.data_points();
                points
                    .map(|point| (text(point.attributes()), number(point.count())))
                    .collect()
            }
            AggregatedMetrics::F64(MetricData::Gauge(gauge)) => {
                let points = gauge.data_points();
                points
                    .map(|point| (text(point.attributes()), point.value()))
                    .collect()
            }
            other => panic!("{name} is something else: {other:?}"),
        })
        .unwrap_or_default()
    }

    pub(crate) fn held(&self) -> f64 {
        self.points("syncguard.lock.held").values().sum()
    }

    pub(crate) fn lost(&self) -> f64 {
        self.points("syncguard.lock.lost").values().sum()
    }

    pub(crate) fn waiting(&self) -> f64 {
        self.points("syncguard.lock.waiting").values().sum()
    }

    pub(crate) fn hold_times(&self) -> Points {
        self.points("syncguard.lock.hold_time")
    }
}

impl Instrument {
    fn of(metric: &Metric) -> Self {
        let mut values = BTreeMap::<_, BTreeSet<_>>::new();
        let mut add = |pair: &KeyValue| {
            let of_key = values.entry(pair.key.to_string()).or_default();
            of_key.insert(pair.value.to_string());
        };
        let kind = match metric.data() {
            AggregatedMetrics::U64(MetricData::Sum(sum)) => {
                sum.data_points()
                    .for_each(|point| point.attributes().for_each(&mut add));
                "counter"
            }
            AggregatedMetrics::I64(MetricData::Sum(sum)) => {
                sum.data_points()
                    .for_each(|point| point.attributes().for_each(&mut add));
                "gauge"
            }
            AggregatedMetrics::U64(MetricData::Histogram(histogram)) => {
                let points = histogram.data_points();
                points.for_each(|point| point.attributes().for_each(&mut add));
                "histogram"
            }
            AggregatedMetrics::F64(MetricData::Histogram(histogram)) => {
                let points = histogram.data_points();
                points.for_each(|point| point.attributes().for_each(&mut add));
                "histogram"
            }
            AggregatedMetrics::F64(MetricData::Gauge(gauge)) => {
                let points = gauge.data_points();
                points.for_each(|point| point.attributes().for_each(&mut add));
                "gauge"
            }
            other => panic!("{} is something else: {other:?}", metric.name()),
        };
        Self {
            name: metric.name().to_owned(),
            unit: metric.unit().to_owned(),
            kind,
            values,
        }
    }
}

fn number(value: u64) -> f64 {
    f64::from(u32::try_from(value).unwrap())
}

/// Attributes without what most have in common, sorted.
fn text<'a>(attributes: impl Iterator<Item = &'a KeyValue>) -> String {
    let mut parts: Vec<_> = attributes
        .map(|pair| format!("{}={}", pair.key.as_str(), pair.value.as_str()))
        .collect();
    parts.sort();
    let parts: Vec<_> = parts
        .iter()
        .map(|part| part.trim_start_matches("syncguard."))
        .filter(|part| *part != "backend.name=memory")
        .collect();
    parts.join(" ")
}
