use syncguard_conformance::Harness as _;
use syncguard_testkit::{RedisServer, install};

use super::{Backend, Running, Service, observed};

#[path = "harness/redis.rs"]
mod harness;

pub(super) const BACKEND: Backend = Backend {
    name: "redis",
    service: Some(Service {
        variable: "SYNCGUARD_REDIS_URL",
        tools: &[install::REDIS],
        start: || {
            let server = RedisServer::start()?;
            Ok(Running::new(server.url(), server))
        },
    }),
    conformance: |url, options| {
        Box::pin(async move {
            let harness = harness::RedisHarness::new(&url);
            // A server that cannot be reached is one failure, not a failure of every case.
            let _ = harness.connect().await?;
            Ok(observed::run(harness, options).await)
        })
    },
};
