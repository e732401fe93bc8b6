//! Finds the servers' programs, and installs them if possible.

use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

const JAR: &str = "platform/cloud-firestore-emulator/cloud-firestore-emulator.jar";

/// A program that tests need, and the package that contains it.
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
    find: find_server,
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
    find: find_emulator,
};

/// `redis-benchmark`, the benchmark of Redis.
pub const REDIS_BENCHMARK: Tool = Tool {
    program: "redis-benchmark",
    debian_package: "redis-tools",
    find: || on_path("redis-benchmark"),
};

/// `pgbench`, the benchmark of PostgreSQL.
pub const PGBENCH: Tool = Tool {
    program: "pgbench",
    debian_package: "postgresql",
    find: || find_beside_server("pgbench"),
};

/// Everything that the workspace's tests need.
pub const ALL: &[Tool] = &[
    REDIS,
    REDIS_BENCHMARK,
    POSTGRES,
    PGBENCH,
    PGBOUNCER,
    FIRESTORE,
];

impl Tool {
    /// The path of the program.
    ///
    /// # Errors
    /// If it is not installed. The text says what to install.
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
                 FIRESTORE_EMULATOR_HOST to a running one"
            )
        } else {
            format!(
                "Install the package {package}; as root on Debian or Ubuntu, `cargo xtask test` \
                 installs it"
            )
        }
    }
}

/// The packages of the tools that are not installed.
#[must_use]
pub fn missing(tools: &[Tool]) -> Vec<&'static str> {
    tools
        .iter()
        .filter(|tool| (tool.find)().is_none())
        .map(|tool| tool.debian_package)
        .collect()
}

/// Installs missing tools with `apt-get`, as root on Debian or Ubuntu.
///
/// It starts no service and leaves running services alone.
///
/// # Errors
/// If a tool is missing and cannot be installed. The text says what to install.
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
    // One installer at a time; the others then find everything installed.
    let lock = File::create(std::env::temp_dir().join("syncguard-testkit-install.lock"))?;
    lock.lock()?;
    let packages = missing(tools);
    if packages.is_empty() {
        return Ok(());
    }
    let _no_services = PolicyRc::forbid_starts()?;
    // The repository that could not be updated may not be the one with the packages.
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

/// Debian's packages run this file to ask whether they may start their service. While this value exists,
/// the answer is no.
struct PolicyRc(Option<PathBuf>);

impl PolicyRc {
    fn forbid_starts() -> Result<Self> {
        let path = Path::new("/usr/sbin/policy-rc.d");
        if path.exists() {
            // The machine has its own policy.
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

/// A program on the search path, or in the folders of system programs.
pub(crate) fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
}

/// The `postgres` program. Debian keeps it off the search path.
fn find_server() -> Option<PathBuf> {
    let configured = on_path("pg_config")
        .and_then(|pg_config| Command::new(pg_config).arg("--bindir").output().ok())
        .map(|output| PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()));
    let mut packaged: Vec<_> = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let version: u32 = entry.file_name().to_str()?.parse().ok()?;
            Some((version, entry.path().join("bin")))
        })
        .collect();
    packaged.sort();
    configured
        .into_iter()
        .chain(packaged.into_iter().rev().map(|(_, folder)| folder))
        .map(|folder| folder.join("postgres"))
        .find(|server| server.is_file())
        .or_else(|| on_path("postgres"))
}

/// A program that comes with the PostgreSQL server.
pub(crate) fn find_beside_server(program: &str) -> Option<PathBuf> {
    let beside = find_server()?.with_file_name(program);
    beside
        .is_file()
        .then_some(beside)
        .or_else(|| on_path(program))
}

/// The emulator's JAR file, in the Google Cloud CLI, wherever that is installed.
fn find_emulator() -> Option<PathBuf> {
    on_path("java")?;
    let beside_gcloud = on_path("gcloud")
        .and_then(|gcloud| fs::canonicalize(gcloud).ok())
        .and_then(|gcloud| Some(gcloud.parent()?.parent()?.to_path_buf()));
    let home = std::env::home_dir().map(|home| home.join("google-cloud-sdk"));
    let packaged = ["/usr/lib/google-cloud-sdk", "/usr/share/google-cloud-sdk"];
    beside_gcloud
        .into_iter()
        .chain(home)
        .chain(packaged.map(PathBuf::from))
        .map(|folder| folder.join(JAR))
        .find(|jar| jar.is_file())
}
