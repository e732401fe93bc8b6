//! What the examples share, and the code of the README and the guides, compiled and run with the
//! documentation tests.
//!
//! The examples stand beside this crate's manifest: `cargo run --example quickstart`. Each ends by
//! itself, prints what it shows, and has a test.

mod connect;

pub use crate::connect::connect;

#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

macro_rules! guides {
    ($($name:ident: $page:literal),+ $(,)?) => {
        $(#[cfg(doctest)] #[doc = include_str!($page)] struct $name;)+
    };
}

guides! {
    Concepts: "../../docs/concepts.md",
    Errors: "../../docs/errors.md",
    Fencing: "../../docs/fencing.md",
    GettingStarted: "../../docs/getting-started.md",
    ImplementingABackend: "../../docs/implementing-a-backend.md",
    MigratingFromTypeScript: "../../docs/migrating-from-typescript.md",
    Operations: "../../docs/operations.md",
    Waiting: "../../docs/waiting.md",
    Telemetry: "../../docs/telemetry.md",
    Testing: "../../docs/testing.md",
    Ttl: "../../docs/ttl-and-auto-extension.md",
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
    }

    /// The README and all guides.
    fn pages() -> Vec<String> {
        let guides = fs::read_dir(root().join("docs")).unwrap();
        guides
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|kind| kind == "md"))
            .chain([root().join("README.md")])
            .map(|path| fs::read_to_string(path).unwrap())
            .collect()
    }

    /// The features in a crate's manifest.
    fn features(name: &str) -> Vec<String> {
        let manifest = root().join("crates").join(name).join("Cargo.toml");
        let manifest = fs::read_to_string(manifest).unwrap();
        let section = manifest.split("[features]").nth(1).unwrap_or_default();
        let section = section.split("\n[").next().unwrap_or_default();
        section
            .lines()
            .filter_map(|line| line.split_once(" = "))
            .map(|(feature, _)| feature.to_owned())
            .collect()
    }

    #[test]
    fn commands_that_add_a_crate_name_features_that_it_has() {
        let mut named = 0;
        for page in pages() {
            for line in page.lines().filter(|line| line.starts_with("cargo add ")) {
                let words: Vec<_> = line.split_whitespace().collect();
                let Some(at) = words.iter().position(|word| *word == "--features") else {
                    continue;
                };
                if !words[2].starts_with("syncguard-") {
                    continue;
                }
                let known = features(words[2]);
                for feature in words[at + 1].split(',') {
                    assert!(known.iter().any(|it| it == feature), "{line}");
                    named += 1;
                }
            }
        }
        assert!(named > 0, "there are such commands");
    }

    #[test]
    fn every_guide_that_has_code_is_compiled() {
        let source = include_str!("lib.rs");
        for entry in fs::read_dir(root().join("docs")).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|kind| kind != "md") {
                continue;
            }
            let page = path.file_name().unwrap().to_str().unwrap();
            if fs::read_to_string(&path).unwrap().contains("```rust") {
                assert!(source.contains(&format!("docs/{page}\"")), "{page}");
            }
        }
    }
}
