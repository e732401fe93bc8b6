//! The preflight on servers with one misconfiguration each, and on one without any.

use syncguard_core::observe::Operation;
use syncguard_core::{ErrorCode, Finding, Locks, Severity};
use syncguard_redis::fred::clients::Client;
use syncguard_redis::fred::interfaces::ClientLike as _;
use syncguard_redis::fred::types::config::Config;
use syncguard_redis::{RedisBackend, RedisOptions};
use syncguard_testkit::{RedisCluster, RedisServer};

use crate::common::{DOCUMENTED_RIGHTS as DOCUMENTED, Raw, connected, eventually, granted};

const ERROR: Severity = Severity::Error;
const WARNING: Severity = Severity::Warning;
const INFO: Severity = Severity::Info;

const DURABLE: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];
const PASSWORD: &str = "correct-horse";

async fn findings_at(url: &str) -> Vec<Finding> {
    let locks = Locks::new(RedisBackend::connect(url).await.unwrap());
    locks.preflight().await.unwrap()
}

fn seen(findings: &[Finding]) -> Vec<(Severity, &'static str)> {
    findings.iter().map(|f| (f.severity(), f.code())).collect()
}

/// What is found on a server that is in order except for these arguments.
async fn found_with(arguments: &[&str]) -> Vec<(Severity, &'static str)> {
    let server = RedisServer::start_with(&[&DURABLE[..], arguments].concat()).unwrap();
    seen(&findings_at(&server.url()).await)
}

#[tokio::test]
async fn a_server_in_order_has_no_findings_and_is_left_as_it_was() {
    let server = RedisServer::start_durable().unwrap();
    let raw = Raw::connect(&server.url()).await;
    assert_eq!(findings_at(&server.url()).await, []);
    assert_eq!(raw.keys().await, Vec::<String>::new());
    for command in ["set", "incr", "decr", "del", "pexpireat"] {
        let asked = raw.commands_rejected(command).await;
        assert!(asked > 0, "{command} was asked for");
        assert_eq!(raw.commands_run(command).await, 0, "{command} was run");
    }
    let changes = raw.info("persistence", "rdb_changes_since_last_save").await;
    assert_eq!(changes, 0);
}

#[tokio::test]
async fn persistence() {
    let off = ["--appendonly", "no", "--save", ""];
    assert_eq!(found_with(&off).await, [(ERROR, "redis-persistence-off")]);
    let snapshots = ["--appendonly", "no", "--save", "900 1"];
    assert_eq!(
        found_with(&snapshots).await,
        [(WARNING, "redis-append-only-off")]
    );
    for (fsync, severity) in [("everysec", INFO), ("no", WARNING)] {
        let delayed = ["--appendfsync", fsync];
        assert_eq!(
            found_with(&delayed).await,
            [(severity, "redis-fsync-delayed")]
        );
    }
}

#[tokio::test]
async fn persistence_that_fails() {
    // Not even root can create a file there.
    let arguments = ["--dir", "/proc", "--save", "900 1", "--loglevel", "warning"];
    let server = RedisServer::start_with(&arguments).unwrap();
    let raw = Raw::connect(&server.url()).await;
    let locks = Locks::new(connected(&server).await);
    raw.run::<()>(&["BGSAVE"]).await;
    eventually("the snapshot fails", async || {
        let info: String = raw.run(&["INFO", "persistence"]).await;
        info.contains("rdb_last_bgsave_status:err")
    })
    .await;
    assert_eq!(
        seen(&locks.preflight().await.unwrap()),
        [
            (ERROR, "redis-persistence-failing"),
            (WARNING, "redis-append-only-off")
        ]
    );
}

#[tokio::test]
async fn eviction() {
    for (policy, memory, expected) in [
        ("allkeys-lru", "100mb", (ERROR, "redis-evicts-fences")),
        ("allkeys-random", "100mb", (ERROR, "redis-evicts-fences")),
        ("allkeys-lfu", "0", (WARNING, "redis-evicts-fences")),
        ("volatile-lru", "100mb", (ERROR, "redis-evicts-locks")),
        ("volatile-ttl", "0", (INFO, "redis-evicts-locks")),
    ] {
        let arguments = ["--maxmemory-policy", policy, "--maxmemory", memory];
        assert_eq!(found_with(&arguments).await, [expected], "{policy}");
    }
    let limited = ["--maxmemory-policy", "noeviction", "--maxmemory", "100mb"];
    assert_eq!(found_with(&limited).await, []);
}

#[tokio::test]
async fn replicas_and_primaries() {
    let at_once = ["--repl-diskless-sync-delay", "0"];
    let primary = RedisServer::start_with(&[&DURABLE[..], &at_once].concat()).unwrap();
    let port = primary.port().to_string();
    let replica =
        RedisServer::start_with(&[&DURABLE[..], &["--replicaof", "127.0.0.1", &port]].concat())
            .unwrap();
    let raw = Raw::connect(&primary.url()).await;
    eventually("the replica follows", async || {
        raw.info("replication", "connected_slaves").await == 1
    })
    .await;
    assert_eq!(
        seen(&findings_at(&replica.url()).await),
        [(ERROR, "redis-replica")]
    );
    const CODE: &str = "redis-asynchronous-replication";
    assert_eq!(seen(&findings_at(&primary.url()).await), [(WARNING, CODE)]);

    raw.run::<()>(&["CONFIG", "SET", "min-replicas-to-write", "1"])
        .await;
    eventually("the replica is counted", async || {
        raw.info("replication", "min_slaves_good_slaves").await == 1
    })
    .await;
    assert_eq!(seen(&findings_at(&primary.url()).await), [(INFO, CODE)]);

    raw.run::<()>(&["CONFIG", "SET", "min-replicas-to-write", "2"])
        .await;
    assert_eq!(
        seen(&findings_at(&primary.url()).await),
        [(ERROR, "redis-too-few-replicas"), (INFO, CODE)]
    );
}

#[tokio::test]
async fn a_client_that_is_not_clustered_on_a_cluster() {
    let cluster = RedisCluster::start().unwrap();
    let node = cluster.nodes()[0].url();
    let codes = async |url: &str, prefix: &str| {
        let options = RedisOptions::new().prefix(prefix);
        let backend = RedisBackend::connect_with(url, options).await.unwrap();
        let findings = Locks::new(backend).preflight().await.unwrap();
        let fixes = findings.iter().map(|finding| finding.fix().to_owned());
        (seen(&findings), fixes.collect::<String>())
    };
    // The nodes have no persistence either, which is another finding.
    let off = (ERROR, "redis-persistence-off");
    let (untagged, fix) = codes(&node, "jobs").await;
    assert_eq!(untagged, [(ERROR, "redis-cluster-without-hash-tag"), off]);
    assert!(fix.contains("`{jobs}`"), "{fix}");
    let (unaware, _) = codes(&node, "{jobs}").await;
    assert_eq!(unaware, [(ERROR, "redis-cluster-unaware-client"), off]);
    let (aware, _) = codes(&cluster.url(), "{jobs}").await;
    assert_eq!(aware, [off]);
}

#[tokio::test]
async fn a_clustered_client_that_the_application_passed_in() {
    let cluster = RedisCluster::start().unwrap();
    let config = Config::from_url_clustered(&cluster.url()).unwrap();
    let client = Client::new(config, None, None, None);
    client.init().await.unwrap();
    let backend = RedisBackend::with_client(client, RedisOptions::new().prefix("{jobs}")).unwrap();
    assert_eq!(
        seen(&Locks::new(backend).preflight().await.unwrap()),
        [
            (ERROR, "redis-persistence-off"),
            (INFO, "redis-cluster-given-client")
        ]
    );
}

#[tokio::test]
async fn each_missing_permission() {
    let server = RedisServer::start_durable().unwrap();
    let admin = Raw::connect(&server.url()).await;
    let secret = format!(">{PASSWORD}");
    let url = format!("redis://locker:{PASSWORD}@127.0.0.1:{}", server.port());
    let rights = || {
        let rights = DOCUMENTED.into_iter().chain(["+scan"]);
        rights.filter(|right| *right != "-@all")
    };
    for missing in rights() {
        let mut user = vec!["ACL", "SETUSER", "locker", "reset", "on", &secret];
        user.push("+info");
        user.push("+config|get");
        // `-@all` comes first: it revokes what was granted before it.
        user.insert(6, "-@all");
        user.extend(rights().filter(|right| *right != missing));
        admin.run::<()>(&user).await;
        let findings = findings_at(&url).await;
        let code_of_optional = match missing {
            "+client|tracking" => Some("redis-wake-ups-unavailable"),
            "+scan" => Some("redis-scan-denied"),
            _ => None,
        };
        if let Some(code) = code_of_optional {
            assert_eq!(seen(&findings), [(INFO, code)]);
            continue;
        }
        assert_eq!(
            seen(&findings),
            [(ERROR, "redis-missing-permissions")],
            "without {missing}: {findings:?}"
        );
        let named = match missing.strip_prefix('+') {
            Some(command) => command.to_uppercase(),
            // Without access to the keys, no command on them is permitted.
            None => "GET, SET, DEL, INCR, DECR, PEXPIREAT".to_owned(),
        };
        let found = findings[0].found().to_owned();
        assert!(found.ends_with(&named), "without {missing}: {found}");
        assert!(findings[0].fix().contains("~syncguard:* +eval"));
        assert!(!format!("{findings:?}").contains(PASSWORD));
    }
}

#[tokio::test]
async fn a_missing_permission_is_found_in_the_words_of_each_version() {
    let server = RedisServer::start_durable().unwrap();
    let raw = Raw::connect(&server.url()).await;
    let script = include_str!("../../src/lua/rights.lua");
    let (first, rest) = script.split_once('\n').unwrap();
    for (reason, denied) in [
        (
            "ERR The user executing the script can't run this command",
            9,
        ),
        (
            "ERR ACL failure in script: User x has no permissions to run the 'set' command",
            9,
        ),
        (
            "ERR ACL failure in script: No permissions to access a key",
            9,
        ),
        ("NOPERM No permissions to access a key", 9),
        (
            "ERR Write commands are not allowed from read-only scripts.",
            0,
        ),
    ] {
        let refuse =
            format!("local redis = {{pcall = function() return {{err = [[{reason}]]}} end}}");
        let script = format!("{first}\n{refuse}\n{rest}");
        let names: Vec<String> = raw.run(&["EVAL", &script, "0", "l", "i", "f"]).await;
        assert_eq!(names.len(), denied, "{reason}: {names:?}");
    }
}

#[tokio::test]
async fn what_a_user_may_not_read_is_a_finding_that_says_so() {
    let server = RedisServer::start_durable().unwrap();
    let admin = Raw::connect(&server.url()).await;
    let secret = format!(">{PASSWORD}");
    let url = format!("redis://locker:{PASSWORD}@127.0.0.1:{}", server.port());
    let mut user = vec!["ACL", "SETUSER", "locker", "reset", "on", &secret];
    user.extend(DOCUMENTED);
    user.push("+scan");
    admin.run::<()>(&user).await;
    assert_eq!(
        seen(&findings_at(&url).await),
        [(WARNING, "redis-info-denied")]
    );
    user.push("+info");
    admin.run::<()>(&user).await;
    assert_eq!(
        seen(&findings_at(&url).await),
        [(INFO, "redis-not-all-checked")]
    );
    // As on managed services: INFO reports everything except the save points.
    admin
        .run::<()>(&["CONFIG", "SET", "appendonly", "no"])
        .await;
    assert_eq!(
        seen(&findings_at(&url).await),
        [
            (WARNING, "redis-append-only-off"),
            (INFO, "redis-not-all-checked")
        ]
    );
    let hidden = RedisServer::start_with(
        &[&DURABLE[..], &["--rename-command", "CONFIG", "hidden"]].concat(),
    )
    .unwrap();
    assert_eq!(
        seen(&findings_at(&hidden.url()).await),
        [(INFO, "redis-not-all-checked")]
    );
}

#[tokio::test]
async fn a_server_that_cannot_be_reached_is_an_error() {
    let mut server = RedisServer::start_durable().unwrap();
    let locks = Locks::new(connected(&server).await);
    let raw = Raw::connect(&server.url()).await;
    let _held = granted(&locks, "k").await;
    let before = raw.keys().await;
    assert_eq!(locks.preflight().await.unwrap(), []);
    assert_eq!(raw.keys().await, before);
    server.kill();
    let error = locks.preflight().await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::ServiceUnavailable, "{error:?}");
    assert_eq!(error.operation(), Some(Operation::Preflight));
    assert!(!error.outcome_unknown());
}
