//! The recipes of `docs/command.md`, as they stand there.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::common::Stage;

const PAGE: &str = include_str!("../../../../docs/command.md");

/// The listings of a language.
fn listings(language: &str) -> Vec<&'static str> {
    let fence = format!("```{language}\n");
    let rest = PAGE.split(fence.as_str()).skip(1);
    rest.map(|rest| rest.split("```").next().unwrap()).collect()
}

/// A folder of programs: `syncguard`, and those that a recipe runs.
fn programs(stage: &Stage, names: &[&str]) -> String {
    let folder = stage.path("bin");
    fs::create_dir_all(&folder).unwrap();
    symlink(env!("CARGO_BIN_EXE_syncguard"), folder.join("syncguard")).unwrap();
    for name in names {
        program(&folder.join(name));
    }
    folder.display().to_string()
}

/// A program that logs its name and its arguments.
fn program(path: &Path) {
    fs::write(
        path,
        "#!/bin/sh\necho \"$(basename \"$0\") $*\" >> \"$HOME/log\"\n",
    )
    .unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Runs a line as cron does: little environment, no terminal.
fn by_a_shell(stage: &Stage, path: &str, line: &str) -> Output {
    Command::new("setsid")
        .args(["sh", "-c", line])
        .env_clear()
        .env("HOME", stage.folder.path())
        .env("PATH", format!("{path}:/usr/bin:/bin"))
        .env("SYNCGUARD_STORE", &stage.store)
        .current_dir(stage.folder.path())
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

#[test]
fn the_line_of_the_crontab_runs_once_and_is_skipped_silently() {
    let [crontab] = listings("crontab")[..] else {
        panic!("one crontab");
    };
    let line = crontab.lines().last().unwrap();
    let schedule: Vec<_> = line.splitn(6, ' ').collect();
    let line = schedule[5];
    assert!(line.starts_with("syncguard run nightly-report"), "{line}");
    assert!(!line.contains('%'), "cron would make it a new line");
    for stage in Stage::each() {
        let path = programs(&stage, &["nightly-report"]);
        let output = by_a_shell(&stage, &path, line);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(stage.lines("log"), ["nightly-report --all"]);

        assert_eq!(
            stage
                .outcome(&["acquire", "nightly-report", "--ttl", "10m"])
                .0,
            0
        );
        let output = by_a_shell(&stage, &path, line);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(stage.lines("log").len(), 1);
    }
}

#[test]
fn the_other_recipes_run() {
    let stage = Stage::sqlite();
    let path = programs(&stage, &[]);
    for name in ["deploy.sh", "migrate", "server"] {
        program(&stage.path(name));
    }
    let mut ran = 0;
    for listing in listings("sh") {
        for line in listing.lines().filter(|line| line.contains("-- ./")) {
            let output = by_a_shell(&stage, &path, line);
            assert!(output.status.success(), "{line}: {output:?}");
            ran += 1;
        }
    }
    assert_eq!(ran, 2);
    assert_eq!(stage.lines("log"), ["deploy.sh ", "migrate up", "server "]);
}

#[test]
fn the_commands_of_systemd_and_kubernetes_run() {
    let [unit, manifest] = [listings("ini")[0], listings("yaml")[0]];
    let line = |listing: &'static str, start: &str| -> &'static str {
        let found = listing
            .lines()
            .find_map(|line| line.trim().strip_prefix(start));
        found.unwrap()
    };
    let exec = line(unit, "ExecStart=").replace("/usr/local/bin/", "");
    let array = line(manifest, "command: [").strip_suffix(']').unwrap();
    for command in [exec, array.replace(", ", " ")] {
        let stage = Stage::sqlite();
        let path = programs(&stage, &["nightly-report"]);
        let output = by_a_shell(&stage, &path, &command);
        assert!(output.status.success(), "{command}: {output:?}");
        assert_eq!(stage.lines("log"), ["nightly-report "]);
    }
}

#[test]
fn the_commands_of_the_page_are_the_programs_own() {
    let stage = Stage::sqlite();
    let path = programs(&stage, &[]);
    let [script] = listings("sh")
        .into_iter()
        .filter(|listing| listing.contains("syncguard extend"))
        .collect::<Vec<_>>()[..]
    else {
        panic!("one listing");
    };
    let (code, text) = stage.outcome(&["run", "another", "--", "true"]);
    assert_eq!(code, 0, "{text}");
    // Free at first; held, extended and released by its id; then there is nothing to force.
    let output = by_a_shell(&stage, &path, script);
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    let text = String::from_utf8(text).unwrap();
    let said: Vec<_> = text.lines().collect();
    assert_eq!(said[0], "free", "{text}");
    assert!(said[1].starts_with("FENCE"), "{text}");
    assert_eq!(said[2], "extended: the lease ends in 2h", "{text}");
    assert_eq!(said[3], "released", "{text}");
    assert_eq!(said[4], "free: nothing to release", "{text}");
    assert_eq!(said[5], "expired locks that were deleted: 0", "{text}");
    assert!(output.status.success(), "{text}");
}

#[test]
fn the_page_has_every_exit_code_of_the_help() {
    let stage = Stage::sqlite();
    let (_, help) = stage.outcome(&["--help"]);
    let (_, codes) = help.split_once("Exit codes:").unwrap();
    let mut found = 0;
    for line in codes.lines() {
        let Some(code) = line.split_whitespace().next() else {
            continue;
        };
        if code.parse::<u8>().is_ok() {
            assert!(PAGE.contains(&format!("\n| {code} | ")), "{line}");
            found += 1;
        }
    }
    assert_eq!(found, 10);
}
