//! The suite in deployments: as a user with the documented permissions and no others, and in another
//! database.

use std::sync::Arc;

use syncguard_conformance::{Harness as _, Report, RunOptions, run};
use syncguard_testkit::{RedisCluster, RedisServer};

use crate::cluster::ClusterHarness;
use crate::common::{DOCUMENTED_RIGHTS, Raw};
use crate::harness::RedisHarness;

const PASSWORD: &str = "correct-horse";

/// A user with the documented permissions on a prefix.
async fn create_user(admin: &Raw, pattern: &str, further: &[&str]) {
    let password = format!(">{PASSWORD}");
    let mut user = vec!["ACL", "SETUSER", "locker", "on", &password, pattern];
    user.extend(
        DOCUMENTED_RIGHTS
            .into_iter()
            .filter(|right| !right.starts_with('~')),
    );
    // Listing needs it, and nothing else does.
    user.push("+scan");
    user.extend(further);
    admin.run::<()>(&user).await;
}

#[test]
fn the_documented_permissions_are_those_that_are_tested() {
    let rights = format!(" {}\n", DOCUMENTED_RIGHTS.join(" "));
    let operations = include_str!("../../../../docs/operations.md");
    assert!(operations.contains(&rights), "{rights}");
}

async fn suite(url: &str, reader: &str) -> Report {
    let harness = RedisHarness::with_reader(url, reader);
    let _ = harness.connect().await.unwrap();
    run(Arc::new(harness), RunOptions::new()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_suite_passes_with_the_documented_permissions_alone() {
    let server = RedisServer::start().unwrap();
    let admin = Raw::connect(&server.url()).await;
    create_user(&admin, "~syncguard:*", &[]).await;
    // No other user can connect without a password.
    admin
        .run::<()>(&["ACL", "SETUSER", "default", "resetpass", ">only-for-admins"])
        .await;
    let url = format!("redis://locker:{PASSWORD}@127.0.0.1:{}", server.port());
    let reader = format!("redis://:only-for-admins@127.0.0.1:{}", server.port());
    let report = suite(&url, &reader).await;
    assert!(report.is_success(), "{report:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_suite_passes_in_another_database_and_stays_there() {
    let server = RedisServer::start().unwrap();
    let admin = Raw::connect(&server.url()).await;
    create_user(&admin, "~syncguard:*", &["+select"]).await;
    let url = format!("redis://locker:{PASSWORD}@127.0.0.1:{}/3", server.port());
    let reader = format!("{}/3", server.url());
    let report = suite(&url, &reader).await;
    assert!(report.is_success(), "{report:#?}");
    assert_eq!(admin.keys().await, Vec::<String>::new());
    admin.run::<()>(&["SELECT", "3"]).await;
    assert!(!admin.keys().await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_suite_passes_on_a_cluster_with_the_documented_permissions_alone() {
    let cluster = RedisCluster::start().unwrap();
    for node in cluster.nodes() {
        let admin = Raw::connect(&node.url()).await;
        create_user(
            &admin,
            "~{syncguard}:*",
            &["+cluster|slots", "+cluster|info"],
        )
        .await;
    }
    let user = format!("://locker:{PASSWORD}@");
    let harness = ClusterHarness::new(cluster, |url| url.replacen("://", &user, 1));
    let report = run(Arc::new(harness), RunOptions::new()).await;
    assert!(report.is_success(), "{report:#?}");
}
