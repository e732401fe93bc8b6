//! `cargo xtask doctor`: the preflight of a store that runs somewhere, in a terminal.

use std::env;
use std::error::Error;
use std::iter;

use anyhow::{Context, Result, ensure};
use syncguard_core::{Finding, LockError, Severity};

use crate::backends::firestore::{EMULATOR_HOST, at_emulator, emulator};
use crate::backends::{BACKENDS, Backend, Deployment, sqlite};
use crate::{Done, Verdict};

#[derive(clap::Args)]
pub(crate) struct Options {
    /// redis://..., postgres://..., sqlite:///PATH, or firestore://HOST:PORT/PROJECT for an emulator
    /// and firestore://PROJECT for that of FIRESTORE_EMULATOR_HOST or, where this is not set, Google's
    /// [default: those of SYNCGUARD_REDIS_URL, SYNCGUARD_POSTGRES_URL, SYNCGUARD_SQLITE_PATH and
    /// FIRESTORE_EMULATOR_HOST that are set]
    ///
    /// A password in it is printed nowhere; but other users of the machine can see the arguments of
    /// a process, and not its variables.
    #[arg(long, value_name = "URL")]
    url: Vec<String>,
    #[command(flatten)]
    store: StoreOptions,
}

/// How the application has configured its backend. One that the backend does not have is refused.
#[derive(clap::Args, Debug, Clone)]
pub(crate) struct StoreOptions {
    /// The prefix of all names
    #[arg(long)]
    pub(crate) prefix: Option<String>,
    /// The table or collection of the locks
    #[arg(long, value_name = "NAME")]
    pub(crate) locks: Option<String>,
    /// The table or collection of the fence counters
    #[arg(long, value_name = "NAME")]
    pub(crate) fence_counters: Option<String>,
    /// PostgreSQL: the store is set up for a pooler in transaction mode
    #[arg(long)]
    pub(crate) transaction_pooler: bool,
    /// Firestore: leases are counted by the server's time
    #[arg(long)]
    pub(crate) server_time: bool,
}

impl StoreOptions {
    /// Those that were given, as they are called on the command line.
    fn given(&self) -> Vec<&'static str> {
        let Self {
            prefix,
            locks,
            fence_counters,
            transaction_pooler,
            server_time,
        } = self;
        let all = [
            (prefix.is_some(), "--prefix"),
            (locks.is_some(), "--locks"),
            (fence_counters.is_some(), "--fence-counters"),
            (*transaction_pooler, "--transaction-pooler"),
            (*server_time, "--server-time"),
        ];
        let given = all.into_iter().filter(|(given, _)| *given);
        given.map(|(_, name)| name).collect()
    }
}

pub(crate) fn run(options: &Options) -> Done {
    let deployments = match &options.url[..] {
        [] => from_environment(&options.store),
        urls => urls
            .iter()
            .map(|url| named(url, &options.store))
            .collect::<Result<_>>()?,
    };
    ensure!(
        !deployments.is_empty(),
        "which store? Give its --url, or set one of the variables (--help lists them)"
    );
    for (backend, deployment) in &deployments {
        // Ignored, one would have another store judged than the application uses.
        for option in deployment.options.given() {
            ensure!(
                backend.options.contains(&option),
                "{} has no {option}; its options are: {}",
                backend.name,
                backend.options.join(", ")
            );
        }
    }
    let runtime = tokio::runtime::Runtime::new()?;
    let mut verdict = Verdict::Passed;
    for (backend, deployment) in deployments {
        let kind = match emulator(&deployment.url) {
            Some(_) => ", an emulator",
            None => "",
        };
        println!("{} at {}{kind}", backend.name, shown(&deployment.url));
        match runtime.block_on((backend.preflight)(deployment)) {
            Ok(findings) => {
                print!("{}", report(&findings));
                if findings.iter().any(|f| f.severity() >= Severity::Error) {
                    verdict = Verdict::Failed;
                }
            }
            Err(error) => {
                println!("  the store cannot be asked: {}", chain(&error));
                verdict = Verdict::Failed;
            }
        }
    }
    Ok(verdict)
}

type Asked = (&'static Backend, Deployment);

fn named(url: &str, options: &StoreOptions) -> Result<Asked> {
    let (scheme, _) = url
        .split_once("://")
        .context("a URL has a `://`, as in redis://localhost:6379 or memory://")?;
    let base = scheme.split(['-', '+']).next().unwrap_or(scheme);
    let backend = BACKENDS
        .iter()
        .find(|backend| backend.schemes.contains(&base))
        .with_context(|| {
            let schemes: Vec<_> = BACKENDS
                .iter()
                .flat_map(|backend| backend.schemes.iter().copied())
                .collect();
            format!("a store's URL begins with one of {}", schemes.join(", "))
        })?;
    let url = match env::var(EMULATOR_HOST) {
        Ok(host) if base == "firestore" => at_emulator(url, &host),
        _ => url.to_owned(),
    };
    let options = options.clone();
    Ok((backend, Deployment { url, options }))
}

fn from_environment(options: &StoreOptions) -> Vec<Asked> {
    let set = BACKENDS.iter().filter_map(|backend| {
        let address = env::var(backend.service.as_ref()?.variable).ok()?;
        let url = match backend.schemes {
            // The variable has the emulator's host alone; any project will do.
            ["firestore"] => at_emulator("firestore://doctor", &address),
            ["sqlite"] => sqlite::url(&address),
            _ => address,
        };
        let options = options.clone();
        Some((backend, Deployment { url, options }))
    });
    set.filter(|(_, deployment)| !deployment.url.is_empty())
        .collect()
}

/// Of a URL what cannot be a password, or part of one: the host and the port.
fn shown(url: &str) -> String {
    if let Some(path) = url.strip_prefix(sqlite::SCHEME) {
        return path.to_owned();
    }
    let hidden = || "the given URL".to_owned();
    let Some((_, rest)) = url.split_once("://") else {
        return hidden();
    };
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    // Further on, an `@` may end a password that should have been percent-encoded, or be in one.
    if path.contains('@') {
        return hidden();
    }
    let place = authority.rsplit('@').next().unwrap_or_default();
    let (host, port) = place.rsplit_once(':').unwrap_or((place, "0"));
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.[]:".contains(c);
    if host.is_empty() || !host.chars().all(plain) || port.parse::<u16>().is_err() {
        return hidden();
    }
    place.to_owned()
}

fn report(findings: &[Finding]) -> String {
    let mut text = String::new();
    for finding in findings {
        text += &format!(
            "  {} [{}]\n    {}\n    fix: {}\n",
            finding.severity(),
            finding.code(),
            finding.found(),
            finding.fix()
        );
    }
    let count = |severity| findings.iter().filter(|f| f.severity() == severity).count();
    let (errors, warnings) = (count(Severity::Error), count(Severity::Warning));
    text += &match (errors, warnings) {
        (0, 0) => "  in order\n".to_owned(),
        _ => format!("  errors: {errors}, warnings: {warnings}\n"),
    };
    text
}

/// An error and its causes, in a line.
fn chain(error: &LockError) -> String {
    let causes = iter::successors(error.source(), |cause| (*cause).source());
    let texts = iter::once(error.to_string()).chain(causes.map(ToString::to_string));
    texts.collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_shown_without_what_could_be_a_password() {
        for (url, expected) in [
            ("redis://127.0.0.1:6379", "127.0.0.1:6379"),
            ("redis://user:secret@host:1/3", "host:1"),
            ("redis://:se%40cret@host", "host"),
            ("redis://:se@cret@host", "host"),
            ("redis://:se@cr/et@host:1", "the given URL"),
            ("redis://user:secret", "the given URL"),
            ("postgres://[::1]:5432/x?password=secret", "[::1]:5432"),
            ("postgres://host/x?password=sec@ret", "the given URL"),
            ("postgres://?host=h&password=secret", "the given URL"),
            ("firestore://127.0.0.1:8080/p", "127.0.0.1:8080"),
            ("secret", "the given URL"),
        ] {
            assert_eq!(shown(url), expected, "{url}");
        }
    }
}
