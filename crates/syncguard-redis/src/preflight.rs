//! Asking a server whether it is set up for locks. Nothing is written, not even to be undone.

use fred::error::Error;
use fred::types::Value;
use syncguard_core::{Finding, LockError, LockId, LockKey, Preflight, Severity};

use crate::RedisStore;
use crate::error::{connect_error, is_unreadable_script, is_withheld};
use crate::script::RIGHTS;
use crate::server::{Server, info_withheld};

const PARAMETERS: [&str; 3] = ["save", "appendfsync", "min-replicas-to-write"];

/// Asks by `INFO` and `CONFIG GET`, where the user may, and by a script that writes nothing which
/// rights are missing. Of a cluster it asks the node that has the locks.
impl Preflight for RedisStore {
    async fn preflight(&self) -> Result<Vec<Finding>, LockError> {
        let mut findings = match self.permitted("INFO", &[]).await? {
            Some(info) => self.server(&info).await?.findings(),
            None => vec![info_withheld()],
        };
        findings.extend(self.rights().await?);
        Ok(findings)
    }
}

impl RedisStore {
    async fn server(&self, info: &Value) -> Result<Server, LockError> {
        let names = self.names();
        let mut server = Server::parse(&info.as_str_lossy().unwrap_or_default());
        server.clustered_client = self.clients().are_clustered();
        server.tagged_prefix = names.share_one_slot();
        server.tagged_example = match names.prefix() {
            "" => crate::DEFAULT_PREFIX.to_owned(),
            prefix => prefix.to_owned(),
        };
        for parameter in PARAMETERS {
            match self.permitted("CONFIG", &["GET", parameter]).await? {
                Some(answer) => {
                    let value = setting(answer, parameter);
                    server.config.extend(value.map(|value| (parameter, value)));
                }
                None => {
                    server.config_withheld = true;
                    break;
                }
            }
        }
        Ok(server)
    }

    /// The answer to a command; `None` if the user may not ask that.
    async fn permitted(
        &self,
        command: &'static str,
        arguments: &[&'static str],
    ) -> Result<Option<Value>, LockError> {
        let arguments = arguments.iter().copied().map(Value::from).collect();
        match self.clients().ask(command, arguments).await {
            Ok(answer) => Ok(Some(answer)),
            Err(error) if is_withheld(&error) => Ok(None),
            Err(error) => Err(connect_error(&error)),
        }
    }

    async fn rights(&self) -> Result<Option<Finding>, LockError> {
        let mut missing = Vec::new();
        let by_digest = self.ask_rights("EVALSHA", RIGHTS.digest.clone().into());
        match by_digest.await? {
            Err(error) if is_withheld(&error) => missing.push("EVALSHA".to_owned()),
            // What else is wrong with it, EVAL says as well.
            Ok(_) | Err(_) => {}
        }
        match self
            .ask_rights("EVAL", RIGHTS.source.clone().into())
            .await?
        {
            Ok(denied) => {
                let denied = denied.convert::<Vec<String>>();
                missing.extend(denied.map_err(|error| connect_error(&error))?);
            }
            Err(error) if is_withheld(&error) => missing.push("EVAL".to_owned()),
            Err(error) if is_unreadable_script(&error) => return Ok(Some(rights_unchecked())),
            Err(error) => return Err(connect_error(&error)),
        }
        missing.dedup();
        Ok((!missing.is_empty()).then(|| self.missing_rights(&missing)))
    }

    async fn ask_rights(
        &self,
        command: &'static str,
        script: Value,
    ) -> Result<Result<Value, Error>, LockError> {
        // Any key will do: the rights are those on all names under the prefix.
        let (key, id) = (LockKey::new("preflight")?, LockId::generate()?);
        let names = self.names();
        let lock = names.lock(&key)?;
        let (index, fence) = (names.index(&id)?, names.fence(&lock)?);
        let arguments = vec![script, 0.into(), lock.into(), index.into(), fence.into()];
        Ok(self.clients().ask(command, arguments).await)
    }

    fn missing_rights(&self, missing: &[String]) -> Finding {
        let pattern = match self.names().prefix() {
            "" => "*".to_owned(),
            prefix => format!("{prefix}:*"),
        };
        Finding::new(
            Severity::Error,
            "redis-missing-rights",
            format!(
                "the user may not run on `{pattern}`: {}",
                missing.join(", ")
            ),
            format!(
                "ACL SETUSER <user> ~{pattern} +eval +evalsha +get +set +del +incr +decr \
                 +pexpireat +time"
            ),
        )
    }
}

/// The value in the answer of `CONFIG GET`: a map in one protocol, a list in the other.
fn setting(answer: Value, parameter: &str) -> Option<String> {
    match answer {
        Value::Map(map) => map.get(&parameter.into())?.as_string(),
        Value::Array(pair) => pair.get(1)?.as_string(),
        _ => None,
    }
}

fn rights_unchecked() -> Finding {
    Finding::new(
        Severity::Info,
        "redis-rights-unchecked",
        "the server is older than 7.0: it cannot be asked for rights without writing",
        "compare the user's rights, by `ACL LIST`, with those in the crate's documentation",
    )
}
