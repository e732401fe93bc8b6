//! [`Recorder`]: writes each call when it is made, so that a crash loses none.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, BufRead, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use crate::clock::now_us;
use crate::history::{Call, Invocation, Response};

/// Writes calls as lines of JSON, one when a call is made and one when it has returned.
pub struct Recorder {
    sink: Mutex<Sink>,
}

struct Sink {
    to: Box<dyn Write + Send>,
    lines: u64,
    calls: u64,
}

#[derive(Serialize, Deserialize)]
enum Line {
    Made {
        number: u64,
        call: Call,
    },
    Returned {
        number: u64,
        at_us: i64,
        response: Response,
    },
}

impl Recorder {
    /// Records to this writer, which should not block for long.
    pub fn new(to: impl Write + Send + 'static) -> Self {
        let to = Box::new(to);
        Self {
            sink: Mutex::new(Sink {
                to,
                lines: 0,
                calls: 0,
            }),
        }
    }

    /// Records the start of a call. Returns its number, for its end.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn made(&self, client: u32, key: &str, invocation: Invocation) -> io::Result<u64> {
        let call = Call {
            client,
            invoked_us: now_us(),
            returned_us: None,
            key: key.to_owned(),
            invocation,
            response: Response::Unknown,
        };
        self.write(|number| Line::Made { number, call }, 1)
    }

    /// How many calls have been made.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.sink().calls
    }

    /// Records the end of a call.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn returned(&self, number: u64, response: Response) -> io::Result<()> {
        let at_us = now_us();
        let returned = |_| Line::Returned {
            number,
            at_us,
            response,
        };
        self.write(returned, 0)?;
        Ok(())
    }

    fn write(&self, line: impl FnOnce(u64) -> Line, calls: u64) -> io::Result<u64> {
        let mut sink = self.sink();
        let number = sink.lines;
        sink.lines += 1;
        sink.calls += calls;
        let mut text = serde_json::to_string(&line(number))?;
        text.push('\n');
        sink.to.write_all(text.as_bytes())?;
        sink.to.flush()?;
        Ok(number)
    }

    fn sink(&self) -> MutexGuard<'_, Sink> {
        self.sink.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").finish_non_exhaustive()
    }
}

/// Reads what one recorder has written. A call without a return is of unknown outcome.
///
/// # Errors
/// If it cannot be read, or is not a record.
pub fn read_calls(from: impl BufRead) -> io::Result<Vec<Call>> {
    let mut calls = BTreeMap::new();
    for line in from.lines() {
        match serde_json::from_str(&line?)? {
            Line::Made { number, call } => {
                calls.insert(number, call);
            }
            Line::Returned {
                number,
                at_us,
                response,
            } => {
                let made = calls.get_mut(&number);
                let call = made.ok_or_else(|| io::Error::other("a return without its call"))?;
                call.returned_us = Some(at_us);
                call.response = response;
            }
        }
    }
    Ok(calls.into_values().collect())
}
