//! The lock id is all that another process needs.

use std::process::Command;

use syncguard_core::release;

use crate::fixture::PORT_OF_PARENT;
use crate::steps::{LONG, held, take};
use crate::{Fixture, Target};

/// The lock id, in the other process.
const ID: &str = "SYNCGUARD_FAULTS_ID";

/// A lock is released by its id from a process that shares nothing else with its holder.
pub async fn another_process_releases_by_the_lock_id<T: Target>(fixture: Fixture<T>) {
    let client = fixture.direct().await;
    // This test again, as the other process.
    if let Ok(id) = std::env::var(ID) {
        assert!(
            release(&client, id.as_str())
                .await
                .expect("an answer")
                .is_released()
        );
        return;
    }
    let key = fixture.key("elsewhere");
    let lease = take(&client, &key, LONG).await.detach();
    let (_, test) = fixture.test().split_once("::").expect("a path");
    let mut other = Command::new(std::env::current_exe().expect("a program"));
    other
        .args(["--exact", test])
        .env(PORT_OF_PARENT, fixture.port().to_string())
        .env(ID, lease.lock_id().as_str());
    let output = tokio::task::spawn_blocking(move || other.output());
    let output = output.await.expect("it runs").expect("it starts");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
    assert!(!held(&client, &key).await);
}
