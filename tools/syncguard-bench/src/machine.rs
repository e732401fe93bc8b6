//! The machine of the measurements.

use std::fs;
use std::process::Command;

use serde::{Deserialize, Serialize};

/// The machine, and its load by other programs.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) cores: usize,
    pub(crate) processor: Option<String>,
    pub(crate) memory_mib: Option<u64>,
    pub(crate) kernel: Option<String>,
    /// The load average of the minute before the run.
    pub(crate) load_before: Option<f64>,
}

impl Machine {
    pub(crate) fn this() -> Self {
        Self {
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            processor: field("/proc/cpuinfo", "model name"),
            memory_mib: field("/proc/meminfo", "MemTotal")
                .and_then(|text| text.trim_end_matches(" kB").parse::<u64>().ok())
                .map(|kib| kib / 1024),
            kernel: read("/proc/sys/kernel/osrelease"),
            load_before: read("/proc/loadavg")
                .and_then(|text| text.split(' ').next()?.parse().ok()),
        }
    }
}

/// The version that a program prints.
pub(crate) fn version_of(command: &mut Command) -> String {
    let text = command.output().map(|output| output.stdout);
    let text = text.unwrap_or_default();
    String::from_utf8_lossy(&text)
        .split_whitespace()
        .map(|word| word.trim_start_matches("v="))
        .find(|word| word.starts_with(|first: char| first.is_ascii_digit()))
        .unwrap_or("unknown")
        .to_owned()
}

/// The version of a package in the workspace's lock file.
pub(crate) fn locked_version(package: &str) -> String {
    let lock = read(concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.lock"));
    let entry = format!("name = \"{package}\"\nversion = \"");
    lock.as_deref()
        .and_then(|lock| lock.split_once(&entry)?.1.split_once('"'))
        .map_or_else(|| "unknown".to_owned(), |(version, _)| version.to_owned())
}

fn field(path: &str, name: &str) -> Option<String> {
    let text = read(path)?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path)
        .ok()
        .map(|text| text.trim().to_owned())
}
