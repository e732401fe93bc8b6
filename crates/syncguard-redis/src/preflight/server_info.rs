//! [`ServerInfo`]: what a server reports about its configuration, and the findings.

use std::collections::HashMap;

use syncguard_core::{Finding, Severity};

/// The oldest version that supports the scripts.
const OLDEST: (u32, u32) = (6, 2);

/// The reports of `INFO` and `CONFIG GET`.
#[derive(Debug, Default, Clone)]
pub(crate) struct ServerInfo {
    info: HashMap<String, String>,
    pub(crate) config: HashMap<&'static str, String>,
    /// Whether `CONFIG` was denied.
    pub(crate) config_denied: bool,
    /// Whether the client follows a cluster.
    pub(crate) clustered_client: bool,
    /// Whether the application passed the client in.
    pub(crate) given_client: bool,
    /// Whether the prefix keeps a lock's keys on one node.
    pub(crate) tagged_prefix: bool,
    /// What to put between the braces of a hash tag.
    pub(crate) tagged_example: String,
}

impl ServerInfo {
    pub(crate) fn parse(info: &str) -> Self {
        let info = info
            .lines()
            .filter_map(|line| line.trim().split_once(':'))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        Self {
            info,
            ..Self::default()
        }
    }

    fn info(&self, field: &str) -> Option<&str> {
        self.info.get(field).map(String::as_str)
    }

    fn number(&self, field: &str) -> Option<u64> {
        self.info(field)?.parse().ok()
    }

    fn flag(&self, field: &str) -> Option<bool> {
        Some(self.number(field)? != 0)
    }

    fn config(&self, parameter: &str) -> Option<&str> {
        self.config.get(parameter).map(String::as_str)
    }

    pub(crate) fn findings(&self) -> Vec<Finding> {
        [
            self.version(),
            self.role(),
            self.cluster(),
            self.persistence(),
            self.failing_persistence(),
            self.eviction(),
            self.replication(),
            self.missing_replicas(),
            self.unreported(),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    fn version(&self) -> Option<Finding> {
        let mut parts = self.info("redis_version")?.split('.');
        let mut next = || parts.next()?.parse::<u32>().ok();
        let version = (next()?, next()?);
        (version < OLDEST).then(|| {
            Finding::new(
                Severity::Error,
                "redis-too-old",
                format!(
                    "the server is version {}.{}; it lacks options that the scripts use",
                    version.0, version.1
                ),
                "upgrade to Redis 6.2 or later, or to Valkey",
            )
        })
    }

    fn is_replica(&self) -> bool {
        self.info("role") == Some("slave")
    }

    fn role(&self) -> Option<Finding> {
        self.is_replica().then(|| {
            Finding::new(
                Severity::Error,
                "redis-replica",
                "the server is a replica: it refuses writes, or loses them at its next \
                 synchronization with its primary",
                "connect to the primary; where the primary changes, by Sentinel or Cluster",
            )
        })
    }

    fn cluster(&self) -> Option<Finding> {
        if self.clustered_client {
            return self.given_client.then(given_to_cluster);
        }
        if !self.flag("cluster_enabled")? {
            return None;
        }
        let example = &self.tagged_example;
        Some(if self.tagged_prefix {
            Finding::new(
                Severity::Error,
                "redis-cluster-unaware-client",
                "the server is a cluster node and the client is not clustered: operations fail \
                 whenever another node has, or gets, the prefix's slot",
                "connect with a `redis-cluster://` URL, or pass a clustered client",
            )
        } else {
            Finding::new(
                Severity::Error,
                "redis-cluster-without-hash-tag",
                "the server is a cluster node, and the prefix spreads the keys of a lock over \
                 several nodes: operations fail with CROSSSLOT or MOVED",
                format!(
                    "give the prefix a hash tag, as in `{{{example}}}`, and connect with a \
                     `redis-cluster://` URL"
                ),
            )
        })
    }

    fn persistence(&self) -> Option<Finding> {
        const CODE: &str = "redis-append-only-off";
        const FIX: &str = "set `appendonly yes`, with `appendfsync always` if fences must survive \
                           a crash of the machine";
        if self.flag("aof_enabled")? {
            return self.delayed_fsync();
        }
        Some(match self.config("save") {
            Some("") => Finding::new(
                Severity::Error,
                "redis-persistence-off",
                "persistence is off: a restart frees all locks and restarts every key's fences \
                 at 1",
                FIX,
            ),
            Some(_) => Finding::new(
                Severity::Warning,
                CODE,
                "persistence is by snapshots alone: a crash loses the locks and fences that were \
                 granted since the last snapshot",
                FIX,
            ),
            None => Finding::new(
                Severity::Warning,
                CODE,
                "there is no append-only file, and the server does not report whether it takes \
                 snapshots: a crash loses at least the newest locks and fences",
                FIX,
            ),
        })
    }

    fn delayed_fsync(&self) -> Option<Finding> {
        const CODE: &str = "redis-fsync-delayed";
        const FIX: &str = "set `appendfsync always` if fences must survive a crash of the machine";
        match self.config("appendfsync")? {
            "everysec" => Some(Finding::new(
                Severity::Info,
                CODE,
                "the append-only file is synced once a second: a crash of the machine (not of \
                 Redis alone) loses up to about a second of locks and fences",
                FIX,
            )),
            "no" => Some(Finding::new(
                Severity::Warning,
                CODE,
                "the operating system decides when to sync the append-only file: a crash of the \
                 machine loses up to half a minute of locks and fences",
                FIX,
            )),
            _ => None,
        }
    }

    fn failing_persistence(&self) -> Option<Finding> {
        let failed = |field| self.info(field) == Some("err");
        // Without save points, the snapshot that failed was a manual one, and Redis still accepts writes.
        let of_a_snapshot = match self.config("save") {
            Some("") => None,
            Some(_) => Some(Severity::Error),
            None => Some(Severity::Warning),
        };
        let severity = if failed("aof_last_write_status") {
            Some(Severity::Error)
        } else {
            of_a_snapshot.filter(|_| failed("rdb_last_bgsave_status"))
        };
        severity.map(|severity| {
            Finding::new(
                severity,
                "redis-persistence-failing",
                "the server cannot write its data to disk; by default it then refuses writes \
                 with MISCONF",
                "check the server's log, and the free space and permissions of its data folder",
            )
        })
    }

    fn eviction(&self) -> Option<Finding> {
        const FIX: &str =
            "set `maxmemory-policy noeviction`, on a server that is not used as a cache";
        let policy = self.info("maxmemory_policy")?;
        let limited = self.number("maxmemory")? > 0;
        if policy.starts_with("allkeys-") {
            let (severity, when) = if limited {
                (Severity::Error, "when memory is full")
            } else {
                (Severity::Warning, "once `maxmemory` is set")
            };
            return Some(Finding::new(
                severity,
                "redis-evicts-fences",
                format!(
                    "`maxmemory-policy {policy}`: {when}, the server evicts live locks and fence \
                     counters, so that fences restart at 1"
                ),
                FIX,
            ));
        }
        policy.starts_with("volatile-").then(|| {
            let (severity, when) = if limited {
                (Severity::Error, "when memory is full")
            } else {
                (Severity::Info, "once `maxmemory` is set")
            };
            Finding::new(
                severity,
                "redis-evicts-locks",
                format!(
                    "`maxmemory-policy {policy}`: {when}, the server evicts live locks, so that a \
                     key has two holders; fence counters have no TTL and stay"
                ),
                FIX,
            )
        })
    }

    fn replication(&self) -> Option<Finding> {
        const CODE: &str = "redis-asynchronous-replication";
        if self.is_replica() || self.number("connected_slaves")? == 0 {
            return None;
        }
        Some(if self.info("min_slaves_good_slaves").is_some() {
            Finding::new(
                Severity::Info,
                CODE,
                "replication is asynchronous: a failover loses the locks and fences that no \
                 replica had yet; `min-replicas-to-write` bounds the loss to \
                 `min-replicas-max-lag`",
                "fail over by hand where two holders are worse than none",
            )
        } else {
            Finding::new(
                Severity::Warning,
                CODE,
                "replication is asynchronous and nothing bounds its lag: a primary that is cut \
                 off continues to grant locks while a replica takes over",
                "set `min-replicas-to-write 1` and `min-replicas-max-lag 10`; fail over by hand \
                 where two holders are worse than none",
            )
        })
    }

    fn missing_replicas(&self) -> Option<Finding> {
        let wanted: u64 = self.config("min-replicas-to-write")?.parse().ok()?;
        let good = self.number("min_slaves_good_slaves")?;
        (good < wanted && !self.is_replica()).then(|| {
            Finding::new(
                Severity::Error,
                "redis-too-few-replicas",
                format!(
                    "{good} replicas keep up, and `min-replicas-to-write` requires {wanted}: the \
                     server refuses writes with NOREPLICAS"
                ),
                "restore the replicas",
            )
        })
    }

    /// Settings that the server did not report and that were not checked.
    fn unreported(&self) -> Option<Finding> {
        let fields = [
            ("role", "its role"),
            ("aof_enabled", "persistence"),
            ("maxmemory_policy", "eviction"),
        ];
        let missing_info = fields
            .iter()
            .filter(|(field, _)| self.info(field).is_none())
            .map(|(_, what)| *what);
        let settings = ["how often it syncs", "its save points"];
        let missing_settings = settings.into_iter().filter(|_| self.config_denied);
        let unreported: Vec<_> = missing_info.chain(missing_settings).collect();
        (!unreported.is_empty()).then(|| {
            Finding::new(
                Severity::Info,
                "redis-not-all-checked",
                format!("the server does not report: {}", unreported.join(", ")),
                "check these settings in the service's own console, or grant the user \
                 `+config|get`",
            )
        })
    }
}

fn given_to_cluster() -> Finding {
    Finding::new(
        Severity::Info,
        "redis-cluster-given-client",
        "the application passed a clustered client: fred connects to all masters or to none, so \
         operations can fail while a master is down that has no locks",
        "connect with a `redis-cluster://` URL: that backend continues without masters that it does \
         not need",
    )
}

/// The finding if the user may not even run `INFO`.
pub(crate) fn info_denied() -> Finding {
    Finding::new(
        Severity::Warning,
        "redis-info-denied",
        "the user may not run INFO: persistence, eviction, role and replication were not checked",
        "grant `+info`, or run the check once as a user that has it",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn codes(server: &ServerInfo) -> Vec<(Severity, &'static str)> {
        let findings = server.findings();
        findings
            .iter()
            .map(|finding| (finding.severity(), finding.code()))
            .collect()
    }

    const HEALTHY: &str = "# Server\r\nredis_version:7.0.15\r\nrole:master\r\nconnected_slaves:0\r\n\
        aof_enabled:1\r\naof_last_write_status:ok\r\nrdb_last_bgsave_status:ok\r\nmaxmemory:0\r\n\
        maxmemory_policy:noeviction\r\ncluster_enabled:0\r\n";

    #[test]
    fn a_healthy_server_has_no_findings() {
        assert_eq!(codes(&ServerInfo::parse(HEALTHY)), []);
    }

    #[test]
    fn a_server_that_is_too_old_is_found() {
        for (version, old) in [
            ("6.0.16", true),
            ("5.0", true),
            ("6.2.0", false),
            ("10.0.1", false),
        ] {
            let server = ServerInfo::parse(&HEALTHY.replace("7.0.15", version));
            let expected = vec![(Severity::Error, "redis-too-old")];
            assert_eq!(
                codes(&server),
                if old { expected } else { vec![] },
                "{version}"
            );
        }
    }

    #[test]
    fn a_failed_snapshot_is_no_error_unless_writes_are_known_to_depend_on_it() {
        let text = HEALTHY.replace("bgsave_status:ok", "bgsave_status:err");
        for (save, expected) in [
            (Some("900 1"), Some(Severity::Error)),
            (Some(""), None),
            (None, Some(Severity::Warning)),
        ] {
            let mut server = ServerInfo::parse(&text);
            server
                .config
                .extend(save.map(|save| ("save", save.to_owned())));
            let expected = expected.map(|severity| (severity, "redis-persistence-failing"));
            assert_eq!(codes(&server), Vec::from_iter(expected), "{save:?}");
        }
    }

    #[test]
    fn what_a_server_does_not_report_is_named() {
        let server = ServerInfo::parse("redis_version:7.4.0\r\n");
        assert_eq!(codes(&server), [(Severity::Info, "redis-not-all-checked")]);
        let found = server.findings()[0].found().to_owned();
        for what in ["role", "persistence", "eviction"] {
            assert!(found.contains(what), "{found}");
        }
    }
}
