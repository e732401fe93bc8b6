//! `cargo xtask bench`: runs `syncguard-bench` in a release build.

use std::ffi::{OsStr, OsString};

use crate::Done;
use crate::Verdict;
use crate::step::{announced, cargo};

#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Options {
    /// See `cargo xtask bench --help`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

pub(crate) fn run(options: &Options) -> Done {
    let mut selection = vec!["--quiet", "--package", "syncguard-bench"];
    // Figures of a debug build mean nothing. With these options nothing is measured, or the figures do not
    // count.
    let plain = ["--quick", "--from", "--help", "-h"];
    let is_plain = |argument: &OsString| plain.iter().any(|it| argument == it);
    if !options.arguments.iter().any(is_plain) {
        selection.push("--release");
    }
    announced("build the bench", || {
        let status = cargo([OsStr::new("build")]).args(&selection).status()?;
        anyhow::ensure!(status.success(), "the bench does not build");
        Ok(())
    })?;
    let mut command = cargo([OsStr::new("run")]);
    command
        .args(&selection)
        .arg("--")
        .args(&options.arguments)
        // Files are named relative to where this was called.
        .current_dir(std::env::current_dir()?);
    let passed = command.status()?.success();
    Ok(if passed {
        Verdict::Passed
    } else {
        Verdict::Failed
    })
}
