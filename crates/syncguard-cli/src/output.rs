//! What is printed: a table for people, JSON for programs.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde_json::{Map, Value, json};
use syncguard_core::{LockInfoDebug, LockKey};

use crate::args::OutputArgs;
use crate::duration;
use crate::exit::{self, Failure};

/// How long a message may take to be written.
const PATIENCE: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    json: bool,
    raw: bool,
}

impl Output {
    pub(crate) fn new(args: OutputArgs) -> Self {
        Self {
            json: args.json,
            raw: args.raw,
        }
    }

    /// For messages alone.
    pub(crate) fn of_messages(json: bool) -> Self {
        Self { json, raw: false }
    }

    pub(crate) fn is_json(self) -> bool {
        self.json
    }

    /// Prints the result of a command: a text for people, or a value for programs.
    pub(crate) fn result(self, text: &str, value: &impl Serialize) -> Result<(), Failure> {
        written(self.write(text, value))
    }

    /// The same, but a closed pipe is an error.
    pub(crate) fn result_that_is_needed(
        self,
        text: &str,
        value: &impl Serialize,
    ) -> Result<(), Failure> {
        self.write(text, value).map_err(|error| not_written(&error))
    }

    fn write(self, text: &str, value: &impl Serialize) -> io::Result<()> {
        let line = match self.json {
            true => serde_json::to_string(value)?,
            false => text.to_owned(),
        };
        writeln!(io::stdout(), "{line}")
    }

    /// Prints a message on standard error. If nobody reads it, the work continues.
    pub(crate) async fn note(self, event: &str, text: &str, more: Value) {
        let line = self.message(event, text, more);
        let written = tokio::task::spawn_blocking(move || writeln!(io::stderr(), "{line}"));
        let _ = tokio::time::timeout(PATIENCE, written).await;
    }

    /// Prints an event for programs only.
    pub(crate) fn event(self, event: &str, more: Value) {
        if self.json {
            // The exit code says the same.
            let _ = writeln!(io::stderr(), "{}", self.message(event, "", more));
        }
    }

    fn message(self, event: &str, text: &str, more: Value) -> String {
        if self.json {
            let mut fields = Map::from_iter([("event".to_owned(), event.into())]);
            if !text.is_empty() {
                fields.insert("message".to_owned(), text.into());
            }
            if let Value::Object(more) = more {
                fields.extend(more);
            }
            Value::Object(fields).to_string()
        } else {
            format!("syncguard: {text}")
        }
    }

    /// Prints the failure that ends the process.
    pub(crate) fn failure(self, failure: &Failure) {
        let mut text = failure.message.clone();
        let mut more = json!({ "exitCode": failure.code, "message": text });
        if let Some(error) = &failure.error {
            more["error"] = serde_json::to_value(error).unwrap_or_default();
        }
        if let Some(store) = &failure.store {
            text += &format!(" (the store is {store}; `syncguard doctor` checks it)");
            more["store"] = store.as_str().into();
        }
        // The exit code says the same.
        let _ = writeln!(io::stderr(), "{}", self.message("error", &text, more));
    }

    /// A key as it is printed: its hash, or with `--raw` the key.
    pub(crate) fn key(self, key: &LockKey) -> String {
        match self.raw {
            true => printable(key.as_str()),
            false => key.hash_id().to_string(),
        }
    }

    /// A lock for programs.
    pub(crate) fn lock_value(self, lock: &LockInfoDebug) -> Value {
        let value = match self.raw {
            true => serde_json::to_value(lock),
            false => serde_json::to_value(lock.sanitized()),
        };
        value.unwrap_or_default()
    }

    /// A lock for people, under a header.
    pub(crate) fn table(self, lock: &LockInfoDebug) -> String {
        format!("{}\n{}", self.header(), self.row(lock))
    }

    pub(crate) fn header(self) -> String {
        self.columns("FENCE", "AGE", "ENDS IN", "LOCK ID", "KEY")
    }

    /// A lock for people.
    pub(crate) fn row(self, lock: &LockInfoDebug) -> String {
        self.columns(
            &lock.fence.to_string(),
            &duration::show_age(age(lock)),
            &duration::show(left(lock)),
            lock.lock_id.as_str(),
            &self.key(&lock.key),
        )
    }

    /// Only the last column may have any width, because the lines of a long list are printed one by one.
    fn columns(self, fence: &str, age: &str, left: &str, id: &str, key: &str) -> String {
        let id = match self.raw {
            true => format!("{id:22}  "),
            false => String::new(),
        };
        format!("{fence:15}  {age:>8}  {left:>8}  {id}{key}")
    }
}

/// Prints one more line on standard error.
pub(crate) fn hint(text: &str) -> io::Result<()> {
    writeln!(io::stderr(), "\nsyncguard: {text}")
}

/// Prints bytes as they are.
pub(crate) fn print(bytes: &[u8]) -> Result<(), Failure> {
    written(io::stdout().write_all(bytes))
}

fn written(result: io::Result<()>) -> Result<(), Failure> {
    match result {
        // The reader has closed the pipe, as `head` does.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(not_written(&error)),
        _ => Ok(()),
    }
}

fn not_written(error: &io::Error) -> Failure {
    let message = format!("cannot write to standard output: {error}");
    Failure::new(exit::INTERNAL, message)
}

/// How long a lock has been held, if this machine's clock agrees with the store's.
pub(crate) fn age(lock: &LockInfoDebug) -> Duration {
    now().saturating_sub(since_epoch(lock.acquired_at_ms))
}

/// How long until its lease ends, unless it is renewed.
pub(crate) fn left(lock: &LockInfoDebug) -> Duration {
    since_epoch(lock.expires_at_ms).saturating_sub(now())
}

fn now() -> Duration {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default()
}

fn since_epoch(ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or_default())
}

/// A text whose control characters are escaped, so that it cannot move a terminal's cursor or colour its text.
fn printable(text: &str) -> String {
    let show = |c: char| match c.is_control() {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    };
    text.chars().map(show).collect()
}

/// Colours a word if the output is a terminal.
pub(crate) fn coloured(word: &str, code: u8) -> String {
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    match io::stdout().is_terminal() && !plain {
        true => format!("\x1b[{code}m{word}\x1b[0m"),
        false => word.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_raw_key_cannot_move_the_cursor() {
        assert_eq!(printable("a\x1b[2Jb\n"), "a\\u{1b}[2Jb\\n");
    }
}
