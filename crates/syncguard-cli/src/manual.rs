//! What help screens and manual pages say beyond the options.

use std::fmt::Write as _;
use std::io;

use clap::{Command, CommandFactory as _};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::args::Cli;

/// A heading, and terms with their explanations.
struct Section {
    heading: &'static str,
    items: Vec<Item>,
}

type Item = (&'static str, &'static str);

const NO_STORE: [Item; 4] = [
    (
        "64",
        "wrong usage: an option, key, lock id or URL; or there is no such store",
    ),
    ("69", "the store cannot be reached, or does not answer"),
    ("70", "internal error"),
    (
        "77",
        "the store refuses the credentials, or a permission is missing",
    ),
];
const BUSY: Item = (
    "75",
    "someone else holds the key (--conflict-exit-code replaces it)",
);
const LOST: Item = ("76", "the lease was lost while the command ran");
const NOT_EXECUTABLE: Item = ("126", "the command cannot be executed");
const NOT_FOUND: Item = ("127", "the command was not found");
const SIGNAL: Item = ("128+N", "signal N ended the command, or the wait");

const STORE: Item = (
    "SYNCGUARD_STORE",
    "the store's URL, unless --store gives it",
);
const DURATION: Item = (
    "DURATION",
    "a number and a unit: ms, s, m, h or d, as in 500ms, 30s, 1h30m, 2d",
);

/// The command line with its help in full.
pub(crate) fn command() -> Command {
    let mut command = Cli::command();
    let names: Vec<_> = command
        .get_subcommands()
        .map(|it| it.get_name().to_owned())
        .collect();
    for name in names {
        let text = text(&sections(&name));
        command = command.mut_subcommand(name, |it| it.after_help(text));
    }
    command.after_long_help(text(&sections("")))
}

/// The manual page of `syncguard`, or of one of its commands.
pub(crate) fn page(of: Option<&str>) -> Option<io::Result<Vec<u8>>> {
    let mut cli = Cli::command();
    // Names the commands in full, and gives them the global options.
    cli.build();
    let command = match of {
        None => &cli,
        Some(name) => cli.find_subcommand(name)?,
    };
    // A page has what the short help leaves out.
    let command = command
        .clone()
        .mut_args(|arg| match (arg.get_long_help(), arg.get_help()) {
            (None, Some(help)) => {
                let help = help.clone();
                arg.long_help(help)
            }
            _ => arg,
        });
    let usage = command.clone().render_usage().to_string();
    let man = Man::new(command).source(concat!("syncguard ", env!("CARGO_PKG_VERSION")));
    let mut page = Vec::new();
    let mut write = || {
        man.render_title(&mut page)?;
        man.render_name_section(&mut page)?;
        let mut synopsis = Roff::default();
        synopsis.control("SH", ["SYNOPSIS"]);
        synopsis.text([roman(usage.trim_start_matches("Usage: "))]);
        synopsis.to_writer(&mut page)?;
        man.render_description_section(&mut page)?;
        man.render_options_section(&mut page)?;
        if of.is_none() {
            man.render_subcommands_section(&mut page)?;
        }
        let mut roff = Roff::default();
        for Section { heading, items } in sections(of.unwrap_or_default()) {
            roff.control("SH", [heading.to_uppercase().as_str()]);
            for (term, text) in items {
                roff.control("TP", []);
                roff.text([bold(term)]);
                roff.text([roman(text)]);
            }
        }
        roff.to_writer(&mut page)
    };
    let written = write();
    Some(written.map(|()| page))
}

/// As a help screen shows them.
fn text(sections: &[Section]) -> String {
    let mut text = String::new();
    for Section { heading, items } in sections {
        let width = items
            .iter()
            .map(|(term, _)| term.len())
            .max()
            .unwrap_or_default();
        let _ = writeln!(text, "{heading}:");
        for (term, explained) in items {
            let line = format!("  {term:width$}  {explained}");
            let _ = writeln!(text, "{}", line.trim_end());
        }
        text.push('\n');
    }
    text.trim_end().to_owned()
}

/// Those of a command, or of `syncguard` itself.
fn sections(command: &str) -> Vec<Section> {
    let section = |heading, items: &[Item]| Section {
        heading,
        items: items.to_vec(),
    };
    let exit = |items: &[Item]| section("Exit codes", &with_failures(items));
    let variables = section("Environment variables", &[STORE]);
    let units = section("Units", &[DURATION]);
    match command {
        "" => vec![
            exit(&[
                ("0", "done; for `run`, the command ended with 0"),
                (
                    "1",
                    "no: the key is free, the id holds no lock, the doctor found errors",
                ),
                BUSY,
                LOST,
                NOT_EXECUTABLE,
                NOT_FOUND,
                SIGNAL,
                ("other", "`run` ends with the command's own code"),
            ]),
            section(
                "Environment variables",
                &[
                    STORE,
                    (
                        "XDG_STATE_HOME",
                        "folder of the default store (~/.local/state)",
                    ),
                    (
                        "FIRESTORE_EMULATOR_HOST",
                        "the emulator in place of Firestore",
                    ),
                    (
                        "GOOGLE_APPLICATION_CREDENTIALS",
                        "Firestore: the file of a service account",
                    ),
                    ("SSL_CERT_FILE", "the authorities that TLS trusts"),
                    ("NO_COLOR", "no colours"),
                ],
            ),
            units,
            section(
                "Examples",
                &[
                    ("syncguard run backup -- /usr/local/bin/backup --all", ""),
                    (
                        "syncguard run report --no-wait --conflict-exit-code 0 -- report",
                        "",
                    ),
                    ("syncguard status backup", ""),
                ],
            ),
        ],
        "run" => vec![
            exit(&[
                ("0-255", "the command's own code"),
                BUSY,
                LOST,
                NOT_EXECUTABLE,
                NOT_FOUND,
                SIGNAL,
            ]),
            section(
                "Environment variables",
                &[
                    STORE,
                    ("SYNCGUARD_KEY", "for the command: the key"),
                    ("SYNCGUARD_LOCK_ID", "for the command: the id of its lock"),
                    ("SYNCGUARD_FENCE", "for the command: the fence of its lock"),
                ],
            ),
            units,
            section(
                "Examples",
                &[
                    ("syncguard run backup -- /usr/local/bin/backup --all", ""),
                    (
                        "syncguard run deploy --wait 30m --ttl 1m -- ./deploy.sh",
                        "",
                    ),
                    (
                        "syncguard run report --no-wait --conflict-exit-code 0 -- report",
                        "",
                    ),
                    ("syncguard run k -- sh -c 'echo $SYNCGUARD_FENCE'", ""),
                ],
            ),
        ],
        "status" => vec![
            exit(&[
                ("0", "held"),
                ("1", "the key is free, or the id holds no lock"),
            ]),
            variables,
        ],
        "list" => vec![exit(&[("0", "done, even if there are none")]), variables],
        "acquire" => vec![
            exit(&[
                ("0", "acquired: standard output has the lock id"),
                BUSY,
                ("128+N", "signal N ended the wait"),
            ]),
            variables,
            units,
            section(
                "Examples",
                &[("id=$(syncguard acquire deploy --ttl 10m) || exit", "")],
            ),
        ],
        "extend" => vec![
            exit(&[
                ("0", "extended"),
                ("1", "the id holds no lock: it was released, or has expired"),
            ]),
            variables,
            units,
        ],
        "release" => vec![
            exit(&[
                ("0", "released"),
                ("1", "there is no such lock, or you answered no"),
            ]),
            variables,
        ],
        "purge" => vec![exit(&[("0", "done, even if there were none")]), variables],
        "doctor" => vec![
            exit(&[
                ("0", "no errors; there may be warnings"),
                ("1", "errors were found"),
            ]),
            variables,
        ],
        "completions" => vec![section(
            "Examples",
            &[(
                "syncguard completions bash > /etc/bash_completion.d/syncguard",
                "",
            )],
        )],
        "man" => vec![section(
            "Examples",
            &[(
                "syncguard man run > /usr/local/share/man/man1/syncguard-run.1",
                "",
            )],
        )],
        _ => Vec::new(),
    }
}

/// In order, with those that every command on a store can end with.
fn with_failures(own: &[Item]) -> Vec<Item> {
    let mut items = [own, &NO_STORE].concat();
    let number = |item: &Item| {
        item.0
            .split(['-', '+'])
            .next()
            .and_then(|code| code.parse().ok())
    };
    items.sort_by_key(|item| number(item).unwrap_or(u8::MAX));
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_says_how_it_ends() {
        for command in Cli::command().get_subcommands() {
            let sections = sections(command.get_name());
            assert!(!sections.is_empty(), "{}", command.get_name());
        }
    }

    #[test]
    fn exit_codes_are_in_order() {
        let all = &sections("run")[0].items;
        let codes: Vec<_> = all.iter().map(|(code, _)| *code).collect();
        let expected = [
            "0-255", "64", "69", "70", "75", "76", "77", "126", "127", "128+N",
        ];
        assert_eq!(codes, expected);
    }
}
