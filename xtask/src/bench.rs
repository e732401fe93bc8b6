//! `cargo xtask bench`: runs `syncguard-bench` in a release build.

use std::env;
use std::ffi::OsStr;

use crate::Conclusion;
use crate::Done;
use crate::step::{announced, cargo};

#[path = "../../tools/syncguard-bench/src/options.rs"]
mod options;

pub(crate) use options::Options;

pub(crate) fn run(options: &Options) -> Done {
    let mut selection = vec!["--quiet", "--package", "syncguard-bench"];
    // Figures of a debug build mean nothing. With these options nothing is measured, or the figures do not
    // count.
    if !options.quick && options.from.is_none() {
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
        // Those after `bench`.
        .args(env::args_os().skip(2))
        // Files are named relative to where this was called.
        .current_dir(env::current_dir()?);
    let passed = command.status()?.success();
    Ok(if passed {
        Conclusion::Passed
    } else {
        Conclusion::Failed
    })
}
