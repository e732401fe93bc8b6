//! The signals that `syncguard` gets, and where they come from.

use tokio::sync::mpsc;

use crate::exit::{self, Failure};

/// A signal to this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) number: i32,
    /// The terminal sent it to the whole foreground group, a command in that group included.
    pub(crate) from_terminal: bool,
}

/// The signals, in order of arrival. While this value exists, none of them ends the process.
#[derive(Debug)]
pub(crate) struct Signals(mpsc::UnboundedReceiver<Received>);

impl Signals {
    pub(crate) fn listen() -> Result<Self, Failure> {
        let (sender, receiver) = mpsc::unbounded_channel();
        platform::listen(sender).map_err(|error| {
            Failure::new(exit::INTERNAL, format!("cannot handle signals: {error}"))
        })?;
        Ok(Self(receiver))
    }

    /// The next signal.
    pub(crate) async fn next(&mut self) -> Received {
        match self.0.recv().await {
            Some(received) => received,
            None => std::future::pending().await,
        }
    }

    /// A signal that has arrived already.
    pub(crate) fn arrived(&mut self) -> Option<Received> {
        self.0.try_recv().ok()
    }

    /// The second of two signals that ask this process to end. The first may be that of the command, which a
    /// terminal sends to both.
    pub(crate) async fn ending_twice(&mut self) {
        self.ending().await;
        self.ending().await;
    }

    /// The next signal that ends processes.
    pub(crate) async fn ending(&mut self) -> i32 {
        loop {
            let received = self.next().await;
            if ends(received.number) {
                return received.number;
            }
        }
    }
}

pub(crate) use platform::ends;

#[cfg(unix)]
mod platform {
    use std::{fs, io, thread};

    use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
    use signal_hook::iterator::SignalsInfo;
    use signal_hook::iterator::exfiltrator::WithOrigin;
    use signal_hook::low_level::siginfo::{Cause, Origin};
    use tokio::sync::mpsc::UnboundedSender;

    use super::Received;

    const PASSED_ON: [i32; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];

    /// Whether a signal normally ends a process.
    pub(crate) fn ends(number: i32) -> bool {
        matches!(number, SIGHUP | SIGINT | SIGQUIT | SIGTERM)
    }

    pub(super) fn listen(sender: UnboundedSender<Received>) -> io::Result<()> {
        let ignored = ignored();
        let wanted = PASSED_ON
            .into_iter()
            .filter(|number| !is_in(ignored, *number));
        // If this process ignored SIGCHLD, the statuses of its children would be lost.
        let mut origins = SignalsInfo::<WithOrigin>::new(wanted.chain([SIGCHLD]))?;
        thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || {
                for origin in &mut origins {
                    let received = Received {
                        number: origin.signal,
                        from_terminal: is_from_terminal(&origin),
                    };
                    if origin.signal != SIGCHLD && sender.send(received).is_err() {
                        return;
                    }
                }
            })?;
        Ok(())
    }

    /// Only the kernel sends a signal without a sender, and it sends these signals for a terminal.
    fn is_from_terminal(origin: &Origin) -> bool {
        match origin.cause {
            Cause::Kernel => true,
            Cause::Unknown => origin.process.is_none(),
            _ => false,
        }
    }

    /// The signals that were ignored before the start, as by `nohup` and a shell's `&`: a bit for each. The
    /// command inherits that; a handler would undo it. Only Linux reports these signals.
    fn ignored() -> u64 {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
            .unwrap_or(0)
    }

    fn is_in(mask: u64, number: i32) -> bool {
        mask >> (number - 1) & 1 == 1
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn signals_are_counted_from_one() {
            assert!(is_in(0b1, SIGHUP) && !is_in(0b1, SIGINT) && is_in(0b10, SIGINT));
        }
    }
}

#[cfg(not(unix))]
mod platform {
    use std::io;

    use tokio::sync::mpsc::UnboundedSender;

    use super::Received;

    /// Ctrl-C, with its number on Unix.
    const INTERRUPT: i32 = 2;

    pub(crate) fn ends(_number: i32) -> bool {
        true
    }

    /// The console also sends Ctrl-C to the command.
    pub(super) fn listen(sender: UnboundedSender<Received>) -> io::Result<()> {
        tokio::spawn(async move {
            let received = Received {
                number: INTERRUPT,
                from_terminal: true,
            };
            while tokio::signal::ctrl_c().await.is_ok() && sender.send(received).is_ok() {}
        });
        Ok(())
    }
}
