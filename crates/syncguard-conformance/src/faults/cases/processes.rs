//! Another process needs only the lock id.

use std::process::Command;

use crate::faults::fixture::PORT_OF_PARENT;
use crate::faults::steps::{LONG, acquire, is_held};
use crate::faults::{Fixture, Target};

/// The variable with the lock id, in the other process.
const ID: &str = "SYNCGUARD_FAULTS_ID";

/// A process that shares nothing else with the holder releases the lock by its id.
pub async fn another_process_releases_by_the_lock_id<T: Target>(fixture: Fixture<T>) {
    let client = fixture.direct().await;
    // This same test, run as the other process.
    if let Ok(id) = std::env::var(ID) {
        let released = client.locks.release(id.as_str()).await;
        assert!(released.expect("release failed").is_released());
        return;
    }
    let key = fixture.key("elsewhere");
    let lease = acquire(&client.locks, &key, LONG).await.detach();
    let (_, test) = fixture.test().split_once("::").expect("a path of modules");
    let mut other = Command::new(std::env::current_exe().expect("no path of this program"));
    other
        .args(["--exact", test])
        .env(PORT_OF_PARENT, fixture.port().to_string())
        .env(ID, lease.lock_id().as_str());
    let output = tokio::task::spawn_blocking(move || other.output());
    let output = output.await.expect("the blocking task panicked");
    let output = output.expect("the other process does not start");
    assert!(
        output.status.success(),
        "the other process failed: {}",
        String::from_utf8_lossy(&output.stdout)
    );
    assert!(!is_held(&client.locks, &key).await);
}
