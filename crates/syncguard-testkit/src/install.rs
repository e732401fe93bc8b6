//! Finding the servers' programs, and installing them where that is possible.

use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

/// A program that tests need, and the package that brings it.
#[derive(Debug, Clone, Copy)]
pub struct Tool {
    program: &'static str,
    debian_package: &'static str,
    find: fn() -> Option<PathBuf>,
}

/// `redis-server`.
pub const REDIS: Tool = Tool {
    program: "redis-server",
    debian_package: "redis-server",
    find: || on_path("redis-server"),
};

/// The PostgreSQL server, `initdb` and `pg_isready`.
pub const POSTGRES: Tool = Tool {
    program: "the PostgreSQL server",
    debian_package: "postgresql",
    find: crate::postgres::find_server,
};

/// `pgbouncer`.
pub const PGBOUNCER: Tool = Tool {
    program: "pgbouncer",
    debian_package: "pgbouncer",
    find: || on_path("pgbouncer"),
};

/// The Firestore emulator of the Google Cloud CLI, and Java.
pub const FIRESTORE: Tool = Tool {
    program: "the Firestore emulator",
    debian_package: "google-cloud-cli-firestore-emulator",
    find: crate::firestore::find_emulator,
};

/// `redis-benchmark`, which measures a Redis from outside.
pub const REDIS_BENCHMARK: Tool = Tool {
    program: "redis-benchmark",
    debian_package: "redis-tools",
    find: || on_path("redis-benchmark"),
};

/// `pgbench`, which measures a PostgreSQL from outside.
pub const PGBENCH: Tool = Tool {
    program: "pgbench",
    debian_package: "postgresql",
    find: || crate::postgres::find_beside_server("pgbench"),
};

/// All that the workspace's tests need.
pub const ALL: &[Tool] = &[
    REDIS,
    REDIS_BENCHMARK,
    POSTGRES,
    PGBENCH,
    PGBOUNCER,
    FIRESTORE,
];

impl Tool {
    /// Where the program is.
    ///
    /// # Errors
    /// If it is not installed; the text says what to install.
    pub fn find(&self) -> Result<PathBuf> {
        (self.find)().with_context(|| format!("{} is not installed. {}", self.program, self.how()))
    }

    fn how(&self) -> String {
        let package = self.debian_package;
        if package == FIRESTORE.debian_package {
            format!(
                "Install the package {package} from Google's repository \
                 (https://cloud.google.com/sdk/docs/install#deb) and a Java runtime, or run \
                 `gcloud components install cloud-firestore-emulator`, or set \
                 FIRESTORE_EMULATOR_HOST to one that runs"
            )
        } else {
            format!(
                "Install the package {package}; as root on Debian or Ubuntu, `cargo xtask test` \
                 does it"
            )
        }
    }
}

/// Those of the tools that are not installed, by the names of their packages.
#[must_use]
pub fn missing(tools: &[Tool]) -> Vec<&'static str> {
    tools
        .iter()
        .filter(|tool| (tool.find)().is_none())
        .map(|tool| tool.debian_package)
        .collect()
}

/// Installs those of the tools that are missing: by `apt-get`, as root on Debian or Ubuntu.
///
/// No service is started by it, and none that runs is touched.
///
/// # Errors
/// If one is missing and cannot be installed; the text says what to install.
pub fn install(tools: &[Tool]) -> Result<()> {
    if missing(tools).is_empty() {
        return Ok(());
    }
    let by_hand = || {
        let absent = tools.iter().filter(|tool| (tool.find)().is_none());
        let lines = absent.map(|tool| format!("{} is missing. {}", tool.program, tool.how()));
        lines.collect::<Vec<_>>().join("\n")
    };
    let (true, Some(apt)) = (is_root(), on_path("apt-get")) else {
        bail!(by_hand());
    };
    // One installer at a time, the others then find its work done.
    let lock = File::create(std::env::temp_dir().join("syncguard-testkit-install.lock"))?;
    lock.lock()?;
    let packages = missing(tools);
    if packages.is_empty() {
        return Ok(());
    }
    let _no_services = PolicyRc::forbid_starts()?;
    // An unreachable repository need not be the one that has the packages.
    let updated = apt_get(&apt, &["update"]);
    let mut arguments = vec!["install", "-y", "--no-install-recommends"];
    arguments.extend(&packages);
    if let Err(error) = apt_get(&apt, &arguments) {
        return Err(updated.err().unwrap_or(error)).with_context(by_hand);
    }
    ensure!(missing(tools).is_empty(), by_hand());
    Ok(())
}

fn apt_get(apt: &Path, arguments: &[&str]) -> Result<()> {
    let output = Command::new(apt)
        .args(["-q", "-o", "DPkg::Lock::Timeout=120"])
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .output()?;
    ensure!(
        output.status.success(),
        "apt-get {} failed:\n{}",
        arguments.join(" "),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

/// The file by which Debian's packages ask whether they may start their service, while it says no.
struct PolicyRc(Option<PathBuf>);

impl PolicyRc {
    fn forbid_starts() -> Result<Self> {
        let path = Path::new("/usr/sbin/policy-rc.d");
        if path.exists() {
            // The machine has a policy of its own.
            return Ok(Self(None));
        }
        let mut file = File::options()
            .write(true)
            .create_new(true)
            .mode(0o755)
            .open(path)?;
        std::io::Write::write_all(&mut file, b"#!/bin/sh\nexit 101\n")?;
        Ok(Self(Some(path.to_path_buf())))
    }
}

impl Drop for PolicyRc {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _ = fs::remove_file(path);
        }
    }
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A program on the search path, or where system programs are.
pub(crate) fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
}
