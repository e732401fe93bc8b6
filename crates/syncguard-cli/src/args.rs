//! The command line.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

use crate::duration;

/// Runs a command under a distributed lock, and looks at, extends and releases locks
///
/// At most one process holds a key at a time, on one machine or on many: all that use the same store.
#[derive(Debug, Parser)]
#[command(name = "syncguard", version, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Which store, and how the applications that share it have configured it.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Store")]
pub(crate) struct StoreArgs {
    /// The store [default: $SYNCGUARD_STORE, else an SQLite file in your state folder]
    ///
    /// One of
    ///   sqlite:PATH
    ///   redis://HOST:PORT, rediss://HOST:PORT with TLS
    ///   redis-cluster://HOST:PORT, redis-sentinel://HOST:PORT
    ///   postgres://USER@HOST/DATABASE
    ///   firestore://PROJECT
    ///
    /// Without --store and SYNCGUARD_STORE, it is an SQLite file in the
    /// user's state folder, on Linux ~/.local/state/syncguard/locks.db. Each
    /// user has a file of their own, root too: to exclude processes of other
    /// users, name a store that they share.
    ///
    /// syncguard never prints a password of the URL. But other users of the
    /// machine can see a process's arguments: put a password into
    /// SYNCGUARD_STORE.
    #[arg(long, global = true, value_name = "URL", verbatim_doc_comment)]
    pub(crate) store: Option<String>,
    /// Redis, PostgreSQL, SQLite: prefix of all names in the store
    #[arg(long, global = true, value_name = "PREFIX", hide_short_help = true)]
    pub(crate) store_prefix: Option<String>,
    /// PostgreSQL, SQLite, Firestore: table or collection of the locks
    #[arg(long, global = true, value_name = "NAME", hide_short_help = true)]
    pub(crate) locks: Option<String>,
    /// PostgreSQL, SQLite, Firestore: table or collection of the fence counters
    #[arg(long, global = true, value_name = "NAME", hide_short_help = true)]
    pub(crate) fence_counters: Option<String>,
    /// PostgreSQL: the connection passes a pooler in transaction mode
    #[arg(long, global = true, hide_short_help = true)]
    pub(crate) transaction_pooler: bool,
    /// Firestore: leases use the server's time, not each client's
    #[arg(long, global = true, hide_short_help = true)]
    pub(crate) server_time: bool,
}

/// What is printed.
#[derive(Debug, Clone, Copy, Default, Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct OutputArgs {
    /// Print JSON, one object a line, also for messages on standard error
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Print keys and lock ids instead of their hashes. With a lock id anyone can release the lock
    #[arg(long, global = true)]
    pub(crate) raw: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    #[command(flatten)]
    OnStore(OnStore),
    /// Print completions for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the manual page, or that of a command
    Man {
        /// The command
        command: Option<String>,
    },
}

/// What is done on a store.
#[derive(Debug, Subcommand)]
pub(crate) enum OnStore {
    /// Wait for a key, run a command while holding it, and release it
    ///
    /// The command inherits standard input, output and error. syncguard renews the lease while the command
    /// runs, and releases the lock when the command has ended, however it ended. It does not wait for
    /// processes that the command left in the background.
    ///
    /// The command's environment has SYNCGUARD_KEY, SYNCGUARD_LOCK_ID and SYNCGUARD_FENCE. The fence is a
    /// number that grows with every grant of the key: send it with every write, and let the receiver refuse
    /// smaller numbers.
    ///
    /// syncguard passes on HUP, INT, QUIT, TERM, USR1 and USR2. If the lease is lost, it sends TERM to the
    /// command, and KILL after the grace period. A lease is lost if the store could not be reached for a
    /// whole TTL, or if someone released the lock by force.
    Run(RunArgs),
    /// Show who holds a key, or what a lock id holds
    Status(StatusArgs),
    /// List the locks that are held
    ///
    /// The command only reads, page by page. It may or may not list a lock that is acquired or released in the
    /// meantime. On Redis it scans all keys of the database, and needs the permission for SCAN.
    List(ListArgs),
    /// Acquire a key for its TTL, and print the lock id
    ///
    /// Nothing renews the lease: `syncguard extend` it, and `syncguard release` it at the end. To hold a key
    /// while a command runs, use `syncguard run`.
    Acquire(AcquireArgs),
    /// Make a lock last for another TTL from now
    Extend(ExtendArgs),
    /// Release a lock by its id, or by force the one on a key
    Release(ReleaseArgs),
    /// Delete locks that have expired
    ///
    /// Expired locks do no harm, but take up space in stores other than Redis, which removes them itself.
    Purge,
    /// Check whether the store is configured for locks, and say what to change
    ///
    /// Nothing is written to the store. Use the application's credentials and options. Codes in brackets are
    /// stable; see <https://github.com/syncguard/syncguard-rs/blob/main/docs/operations.md>.
    Doctor,
}

/// How a key is acquired.
#[derive(Debug, Args)]
pub(crate) struct HoldArgs {
    /// What to lock: any text of at most 512 bytes
    #[arg(value_name = "KEY")]
    pub(crate) key: String,
    /// How long the lease lasts unless it is renewed, and so how long a dead holder blocks the key: 30s,
    /// 5m, 1h30m
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration::parse)]
    pub(crate) ttl: Duration,
    /// How long to wait for the key, and for a store that cannot be reached: a duration, or `forever`
    /// [default: 10s for the key, no wait for the store]
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = duration::parse_wait,
        conflicts_with = "no_wait"
    )]
    pub(crate) wait: Option<Duration>,
    /// Fail at once if someone else holds the key
    #[arg(long)]
    pub(crate) no_wait: bool,
    /// Exit code if someone else holds the key; 0 for a job that may be skipped
    #[arg(long, value_name = "CODE", default_value_t = crate::exit::BUSY)]
    pub(crate) conflict_exit_code: u8,
    /// Do not print whose lock delays this command
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) hold: HoldArgs,
    /// How long the command may take to end once the lease is lost
    ///
    /// If `syncguard` itself is killed, the command has at most half of the TTL: when the TTL has passed,
    /// the key is free.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration::parse)]
    pub(crate) grace: Duration,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct AcquireArgs {
    #[command(flatten)]
    pub(crate) hold: HoldArgs,
}

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// The key
    #[arg(required_unless_present = "id")]
    pub(crate) key: Option<String>,
    /// A lock id, in place of the key
    #[arg(
        long,
        value_name = "LOCK_ID",
        conflicts_with = "key",
        allow_hyphen_values = true
    )]
    pub(crate) id: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Only keys that begin with this text
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    pub(crate) prefix: String,
}

#[derive(Debug, Args)]
pub(crate) struct ExtendArgs {
    /// The lock id that `acquire` printed
    #[arg(value_name = "LOCK_ID", allow_hyphen_values = true)]
    pub(crate) id: String,
    /// How long the lease lasts from now; it may be shorter than what is left
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration::parse)]
    pub(crate) ttl: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct ReleaseArgs {
    /// The lock id that `acquire` printed
    #[arg(
        value_name = "LOCK_ID",
        required_unless_present = "force",
        allow_hyphen_values = true
    )]
    pub(crate) id: Option<String>,
    /// Release the lock that is on this key now, whichever process holds it. The holder is not notified
    ///
    /// The command shows the lock and asks for confirmation. It releases exactly that lock: if the key has
    /// a new lock in the meantime, the new lock stays.
    #[arg(long, value_name = "KEY", conflicts_with = "id")]
    pub(crate) force: Option<String>,
    /// Do not ask for confirmation
    #[arg(long, short, requires = "force")]
    pub(crate) yes: bool,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_lock_id_may_begin_with_a_hyphen() {
        for start in ["-A", "-h", "-y", "-V", "--", "-0", "-_"] {
            let id = format!("{start}AAAAAAAAAAAAAAAAAAAA");
            for command in [&["release"][..], &["extend"], &["status", "--id"]] {
                let call = [&["syncguard"], command, &[id.as_str()]].concat();
                assert!(Cli::try_parse_from(&call).is_ok(), "{call:?}");
                let call = [&["syncguard"], command, &[id.as_str(), "--json"]].concat();
                assert!(
                    Cli::try_parse_from(&call).is_ok_and(|cli| cli.output.json),
                    "{call:?}"
                );
            }
        }
    }
}
