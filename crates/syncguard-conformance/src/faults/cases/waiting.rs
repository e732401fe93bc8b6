//! `lock` against a server that has stopped answering.

use std::time::{Duration, Instant};

use syncguard_core::ErrorCode;
use syncguard_testkit::Server as _;

use crate::faults::steps::{BEFORE_LONG, LONG, by, free_within};
use crate::faults::{Fixture, Target};

/// The timeout of a wait also ends an attempt in flight. If that attempt acquires the lock later, SyncGuard
/// releases it once the server replies again.
pub async fn the_timeout_of_a_wait_holds_against_a_stopped_server<T: Target>(fixture: Fixture<T>) {
    let (timeout, grace) = (Duration::from_millis(500), Duration::from_secs(2));
    let direct = fixture.direct().await;
    let key = fixture.key("stopped");
    let _ = free_within(&direct.locks, &key, BEFORE_LONG).await;
    let paused = fixture.server().pause();
    paused.expect("the server cannot be paused");
    for _ in 0..3 {
        let request = direct.locks.lock(&key).timeout(timeout).ttl(LONG);
        let pending = direct.locks.pending();
        let started = Instant::now();
        let error = by(request.run(async |_| ()), started + timeout + grace)
            .await
            .expect("the wait outlasts its timeout")
            .expect_err("the server is stopped");
        let waited = started.elapsed();
        assert!(waited >= timeout, "{waited:?}");
        assert_eq!(error.code(), ErrorCode::AcquisitionTimeout, "{error:?}");
        // Nothing is released while the server is stopped. Some stores know that nothing was sent.
        let reclaimed = direct.locks.pending() > pending;
        assert_eq!(error.outcome_unknown(), reclaimed, "{error:?}");
    }
    let resumed = fixture.server().resume();
    resumed.expect("the server cannot be resumed");
    let drained = direct.locks.drain(BEFORE_LONG).await;
    drained.expect("background releases are still pending");
    let _ = free_within(&direct.locks, &key, BEFORE_LONG).await;
}
