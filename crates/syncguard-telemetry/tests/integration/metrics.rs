//! What the OpenTelemetry instruments show, read through the SDK.

mod calls;
mod leases;
mod monitoring;
mod observed;
mod sdk;

const KEY: &str = "stock:42";
