//! The suite on Redis.

#[path = "support/redis.rs"]
mod harness;

use harness::RedisHarness;
use syncguard_testkit::shared_redis_url;

syncguard_conformance::suite!(RedisHarness::new(&shared_redis_url().expect("a server")));
