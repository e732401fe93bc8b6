//! `lock()` against a server that has stopped answering.

use std::time::{Duration, Instant};

use syncguard_core::{ErrorCode, LockOptions, ManagedBackend as _, lock};
use syncguard_testkit::Server as _;

use crate::steps::{BEFORE_LONG, LONG, by, soon_taken};
use crate::{Fixture, Target};

/// The timeout of a wait bounds the attempt in flight, and what that attempt may take all the same
/// is given back once the server answers.
pub async fn the_timeout_of_a_wait_holds_against_a_stopped_server<T: Target>(fixture: Fixture<T>) {
    let (timeout, grace) = (Duration::from_millis(500), Duration::from_millis(100));
    let direct = fixture.direct().await;
    let key = fixture.key("stopped");
    let _ = soon_taken(&direct, &key, BEFORE_LONG).await;
    fixture.server().pause().expect("it runs");
    for _ in 0..3 {
        let options = LockOptions::new().with_timeout(timeout).with_ttl(LONG);
        let started = Instant::now();
        let wait = lock(&direct, &key, options, async |_| ());
        let error = by(wait, started + timeout + grace)
            .await
            .expect("an answer in time")
            .expect_err("the server is stopped");
        let waited = started.elapsed();
        assert!(waited >= timeout, "{waited:?}");
        assert_eq!(error.code(), ErrorCode::AcquisitionTimeout, "{error:?}");
        assert!(error.outcome_unknown(), "{error:?}");
    }
    fixture.server().resume().expect("it is there");
    direct.drain(BEFORE_LONG).await.expect("nothing is left");
    let _ = soon_taken(&direct, &key, BEFORE_LONG).await;
}
