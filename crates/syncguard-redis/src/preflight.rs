//! The preflight: checks whether the server is configured for locks. It writes nothing, not even temporarily.

mod server_info;

use fred::types::Value;
use syncguard_core::{Finding, LockError, LockId, LockKey, Severity};
use tokio::time::Instant;

use crate::error::CommandError;
use crate::names::Names;
use crate::preflight::server_info::{ServerInfo, info_denied};
use crate::wake_ups::WakeUps;
use crate::wire::Clients;
use crate::wire::script::RIGHTS;

const PARAMETERS: [&str; 3] = ["save", "appendfsync", "min-replicas-to-write"];

/// Reads `INFO` and `CONFIG GET`, if the user has permission, and checks the user's permissions by a script
/// that writes nothing. On a cluster, it checks the node that has the locks.
pub(crate) async fn findings(
    clients: &Clients,
    names: &Names,
    wake_ups: &WakeUps,
    deadline: Instant,
) -> Result<Vec<Finding>, LockError> {
    let preflight = Preflight {
        clients,
        names,
        deadline,
    };
    let mut findings = match preflight.permitted("INFO", &[]).await? {
        Some(info) => preflight.server(&info).await?.findings(),
        None => vec![info_denied()],
    };
    let misrouted = |finding: &Finding| {
        let (untagged, unaware) = (
            "redis-cluster-without-hash-tag",
            "redis-cluster-unaware-client",
        );
        [untagged, unaware].contains(&finding.code())
    };
    match preflight.permissions().await? {
        Some(missing) => findings.push(missing),
        // A second check would only report the same again.
        None if findings.iter().any(misrouted) => {}
        None => {
            let name = names.lock(&LockKey::new("preflight")?)?;
            let watch = wake_ups.watch(clients, name, deadline).await;
            findings.extend((!matches!(watch, Ok(Some(_)))).then(no_wake_ups));
            let scanned = preflight.permitted("SCAN", &["0", "COUNT", "1"]).await?;
            findings.extend(scanned.is_none().then(no_listing));
        }
    }
    Ok(findings)
}

struct Preflight<'a> {
    clients: &'a Clients,
    names: &'a Names,
    deadline: Instant,
}

impl Preflight<'_> {
    async fn server(&self, info: &Value) -> Result<ServerInfo, LockError> {
        let mut server = ServerInfo::parse(&info.as_str_lossy().unwrap_or_default());
        server.clustered_client = self.clients.are_clustered();
        server.given_client = self.clients.are_given();
        server.tagged_prefix = self.names.share_one_slot();
        server.tagged_example = match self.names.prefix() {
            "" => crate::DEFAULT_PREFIX.to_owned(),
            prefix => prefix.to_owned(),
        };
        for parameter in PARAMETERS {
            match self.permitted("CONFIG", &["GET", parameter]).await? {
                Some(reply) => {
                    let value = setting(reply, parameter);
                    server.config.extend(value.map(|value| (parameter, value)));
                }
                None => {
                    server.config_denied = true;
                    break;
                }
            }
        }
        Ok(server)
    }

    /// The reply to a command; `None` if the user may not run it.
    async fn permitted(
        &self,
        command: &'static str,
        arguments: &[&'static str],
    ) -> Result<Option<Value>, LockError> {
        let arguments = arguments.iter().copied().map(Value::from).collect();
        match self.clients.ask(command, arguments, self.deadline).await {
            Ok(reply) => Ok(Some(reply)),
            Err(error) if error.is_denied() => Ok(None),
            Err(error) => Err(error.of_read()),
        }
    }

    async fn permissions(&self) -> Result<Option<Finding>, LockError> {
        let mut missing = Vec::new();
        let by_digest = self.run_rights("EVALSHA", RIGHTS.digest.clone().into());
        match by_digest.await? {
            Err(error) if error.is_denied() => missing.push("EVALSHA".to_owned()),
            // EVAL fails with any other error as well.
            Ok(_) | Err(_) => {}
        }
        match self
            .run_rights("EVAL", RIGHTS.source.clone().into())
            .await?
        {
            Ok(denied) => {
                let denied = denied.convert::<Vec<String>>();
                missing.extend(denied.map_err(|error| CommandError::from(error).of_read())?);
            }
            Err(error) if error.is_denied() => missing.push("EVAL".to_owned()),
            Err(error) if error.is_unreadable_script() => return Ok(Some(permissions_unchecked())),
            Err(error) => return Err(error.of_read()),
        }
        missing.dedup();
        Ok((!missing.is_empty()).then(|| self.missing_permissions(&missing)))
    }

    async fn run_rights(
        &self,
        command: &'static str,
        script: Value,
    ) -> Result<Result<Value, CommandError>, LockError> {
        // Any key is fine: permissions cover all names under the prefix.
        let (key, id) = (LockKey::new("preflight")?, LockId::generate()?);
        let lock = self.names.lock(&key)?;
        let (index, fence) = (self.names.index(&id)?, self.names.fence(&lock)?);
        let arguments = vec![script, 0.into(), lock.into(), index.into(), fence.into()];
        Ok(self.clients.ask(command, arguments, self.deadline).await)
    }

    fn missing_permissions(&self, missing: &[String]) -> Finding {
        let pattern = match self.names.prefix() {
            "" => "*".to_owned(),
            prefix => format!("{prefix}:*"),
        };
        Finding::new(
            Severity::Error,
            "redis-missing-permissions",
            format!(
                "the user may not run on `{pattern}`: {}",
                missing.join(", ")
            ),
            format!(
                "ACL SETUSER <user> ~{pattern} +eval +evalsha +get +set +del +incr +decr \
                 +pexpireat +time +client|tracking"
            ),
        )
    }
}

/// The value in the reply of `CONFIG GET`: a map in RESP3, a list in RESP2.
fn setting(reply: Value, parameter: &str) -> Option<String> {
    match reply {
        Value::Map(map) => map.get(&parameter.into())?.as_string(),
        Value::Array(pair) => pair.get(1)?.as_string(),
        _ => None,
    }
}

fn no_wake_ups() -> Finding {
    Finding::new(
        Severity::Info,
        "redis-wake-ups-unavailable",
        "the server or a proxy before it gives no wake-ups: callers that wait poll, once a second at \
         the least",
        "grant `+client|tracking`, and connect to Redis 6 or later itself",
    )
}

fn no_listing() -> Finding {
    Finding::new(
        Severity::Info,
        "redis-scan-denied",
        "the user may not run SCAN: locks cannot be listed",
        "grant `+scan` to list locks; the user can then see the names of all keys of the database",
    )
}

fn permissions_unchecked() -> Finding {
    Finding::new(
        Severity::Info,
        "redis-permissions-unchecked",
        "the server is older than 7.0, where permissions cannot be checked without writing",
        "compare the user's permissions (`ACL LIST`) with those in the crate's documentation",
    )
}
