//! The suite on Redis.

#[path = "support/redis.rs"]
mod harness;

use harness::RedisHarness;
use syncguard_testkit::{Observed, shared_redis_url};

fn harness() -> RedisHarness {
    RedisHarness::new(&shared_redis_url().expect("a server"))
}

syncguard_conformance::suite!(harness());

mod through_telemetry {
    use super::*;
    syncguard_conformance::suite!(Observed(harness()));
}
