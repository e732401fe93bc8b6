//! The suite on Redis.

use syncguard_testkit::shared_redis_url;

use crate::harness::RedisHarness;

fn harness() -> RedisHarness {
    RedisHarness::new(&shared_redis_url().expect("a server"))
}

syncguard_conformance::suite!(harness());
