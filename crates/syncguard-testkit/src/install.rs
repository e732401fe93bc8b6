//! Finding the servers' programs, and installing them where that is possible.

use std::path::PathBuf;

use anyhow::{Context, Result};

/// A program that tests need, and the package that brings it.
#[derive(Debug, Clone, Copy)]
pub struct Tool {
    program: &'static str,
    debian_package: &'static str,
}

/// `redis-server`.
pub const REDIS: Tool = Tool {
    program: "redis-server",
    debian_package: "redis-server",
};

impl Tool {
    /// Where the program is.
    ///
    /// # Errors
    /// If it is not installed; the text says what to install.
    pub fn find(&self) -> Result<PathBuf> {
        find(self.program).with_context(|| {
            format!(
                "install the package {} (as root on Debian or Ubuntu, `cargo xtask test` does)",
                self.debian_package
            )
        })
    }
}

/// A program on the search path, or where system programs are.
pub(crate) fn find(program: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
        .with_context(|| format!("{program} is not installed"))
}
