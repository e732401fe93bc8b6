//! `cargo xtask features`: each published crate with no features, with each alone, and with all.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::step::{cargo, run as step};
use crate::tally::Tally;
use crate::{Done, test};

/// Which choices of features to check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Choices {
    /// None, each alone, and all, of every crate.
    All,
    /// Of the crates whose features add code of the workspace. Other features configure drivers: most of their
    /// cost is to compile these again.
    OfOwnCode,
}

pub(crate) fn run() -> Done {
    Ok(test::summarise(&[("features", check(Choices::All)?)]))
}

/// Runs clippy on each published crate, with each choice of features.
pub(crate) fn check(choices: Choices) -> Result<Tally> {
    let mut tally = Tally::default();
    for package in published()? {
        if choices == Choices::OfOwnCode && !package.adds_own_code() {
            continue;
        }
        let mut sets = package.choices();
        if choices == Choices::OfOwnCode {
            // All at once is what the lints of the workspace have.
            sets.pop();
        }
        for features in sets {
            let mut command = cargo(["clippy", "--locked", "--no-default-features"]);
            command.args(["--package", &package.name, "--features", &features]);
            command.args(["--", "-D", "warnings"]);
            let shown = match &*features {
                "" => "no features",
                features => features,
            };
            tally += step(&format!("{} with {shown}", package.name), &mut command)?;
        }
    }
    Ok(tally)
}

fn published() -> Result<Vec<Package>> {
    let output = cargo(["metadata", "--no-deps", "--format-version", "1"]).output()?;
    ensure!(output.status.success(), "cargo metadata failed");
    let metadata: Metadata =
        serde_json::from_slice(&output.stdout).context("cannot read cargo's metadata")?;
    let is_published = |package: &Package| {
        let registries = package.publish.as_ref();
        registries.is_none_or(|registries| !registries.is_empty())
    };
    Ok(metadata.packages.into_iter().filter(is_published).collect())
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    /// Registries. `None`: any; empty: the package is not published.
    publish: Option<Vec<String>>,
    /// Names, and what each enables.
    features: BTreeMap<String, Vec<String>>,
}

impl Package {
    /// Whether a feature enables an optional dependency, and so code that uses it.
    fn adds_own_code(&self) -> bool {
        let mut enabled = self.features.values().flatten();
        enabled.any(|enabled| enabled.starts_with("dep:"))
    }

    /// As `--features` has them: none, each alone, and all.
    fn choices(&self) -> Vec<String> {
        let names = self.features.keys().filter(|name| *name != "default");
        let names: Vec<_> = names.cloned().collect();
        let mut choices = vec![String::new()];
        choices.extend(names.iter().cloned());
        if names.len() > 1 {
            choices.push(names.join(","));
        }
        choices
    }
}
