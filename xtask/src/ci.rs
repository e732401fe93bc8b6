//! `cargo xtask ci`: the part of continuous integration that needs only Rust.

use crate::features::{self, Choices};
use crate::step::{cargo, run as step};
use crate::{Done, test};

pub(crate) fn run() -> Done {
    let mut docs = cargo(["doc", "--workspace", "--no-deps"]);
    docs.env("RUSTDOCFLAGS", "-D warnings");
    let checks = [
        ("formatting", cargo(["fmt", "--all", "--check"])),
        (
            "lints",
            cargo([
                "clippy",
                "--workspace",
                "--all-targets",
                "--",
                "-D",
                "warnings",
            ]),
        ),
        ("documentation", docs),
        // Builds nothing: the release checks that every package is complete. xtask depends on a crate that
        // is not published.
        (
            "packages",
            cargo([
                "package",
                "--workspace",
                "--exclude",
                "xtask",
                "--locked",
                "--no-verify",
                "--allow-dirty",
            ]),
        ),
    ];
    let mut results = Vec::new();
    for (what, mut command) in checks {
        results.push((what, step(what, &mut command)?));
    }
    results.push(("features", features::check(Choices::OfOwnCode)?));
    results.extend(test::all()?);
    Ok(test::summarise(&results))
}
