//! What the OpenTelemetry instruments show, read through the SDK.

#[path = "../common/mod.rs"]
mod common;

mod calls;
mod leases;
mod monitoring;
mod observed;
mod sdk;

const KEY: &str = "stock:42";
