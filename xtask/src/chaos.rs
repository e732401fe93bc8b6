//! `cargo xtask chaos`: locks under faults, and the check of their history.

use std::hash::{BuildHasher, RandomState};
use std::thread::{self, ScopedJoinHandle};

use clap::builder::PossibleValuesParser;
use syncguard_chaos::Mutant;

use crate::tally::Tally;
use crate::{Conclusion, Done};

mod abandonment;
mod death;
mod faults;
mod fencing;
mod processes;
mod report;
mod run;
mod store;
mod worker;

pub(crate) use death::{Holding, hold};
pub(crate) use worker::{Assignment, work};

use store::{Store, chosen, names};

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Stores to run on, separated by commas [default: all but memory]
    #[arg(long, value_delimiter = ',', value_parser = PossibleValuesParser::new(names()))]
    backend: Vec<String>,
    /// How long faults are injected, on each store
    #[arg(long, value_name = "N", default_value_t = 30)]
    seconds: u64,
    /// Seed of the faults and of the workers' choices [default: a new one for each run]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// How many processes use the locks
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=90))]
    workers: u32,
    /// Run another experiment instead of faults
    #[arg(long, value_enum)]
    experiment: Option<Experiment>,
    /// Break the store, to check that the checker detects it
    #[arg(long, hide = true)]
    mutant: Option<Mutant>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Experiment {
    /// Holders are paused past their TTL, and then write: to a resource that checks fences, and to
    /// one that does not
    Fencing,
    /// Ten thousand acquires are each abandoned after a random time
    Abandonment,
    /// Holders get SIGTERM, and SIGKILL
    Death,
}

/// The settings of one run.
#[derive(Debug, Clone, Copy)]
struct Settings {
    seconds: u64,
    seed: u64,
    workers: u32,
    mutant: Option<Mutant>,
}

pub(crate) fn run(options: &Options) -> Done {
    let settings = Settings {
        seconds: options.seconds,
        seed: options.seed.unwrap_or_else(any_seed),
        workers: options.workers,
        mutant: options.mutant,
    };
    let stores = chosen(&options.backend);
    let tally = match options.experiment {
        None => on_each(&stores, |store| run::run(store, settings)),
        Some(Experiment::Fencing) => on_each(&stores, |store| fencing::run(store, settings)),
        Some(Experiment::Abandonment) => {
            on_each(&stores, |store| abandonment::run(store, settings))
        }
        Some(Experiment::Death) => on_each(&stores, death::run),
    };
    Ok(tally.conclusion())
}

/// A run and the death of holders on each store, as part of the tests: on all stores at once, since much of it is
/// waiting.
pub(crate) fn run_all(seconds: u64) -> Tally {
    let settings = Settings {
        seconds,
        seed: any_seed(),
        workers: 4,
        mutant: None,
    };
    let mut tally = on_all(&chosen(&[]), |store| run::run(store, settings));
    tally += on_all(&chosen(&[]), death::run);
    tally
}

/// On all stores at once.
fn on_all(stores: &[&Store], run: impl Fn(&Store) -> Done + Sync) -> Tally {
    thread::scope(|scope| {
        let run = &run;
        let start = |store| scope.spawn(move || on(store, run));
        let running: Vec<_> = stores.iter().copied().map(start).collect();
        let joined = running.into_iter().map(ScopedJoinHandle::join);
        joined
            .map(|tally| tally.unwrap_or_else(|_| Tally::of(false)))
            .sum()
    })
}

/// On one store after the other.
fn on_each(stores: &[&Store], run: impl Fn(&Store) -> Done) -> Tally {
    stores.iter().map(|store| on(store, &run)).sum()
}

/// A run that could not be made counts as failed; the others still run.
fn on(store: &Store, run: impl Fn(&Store) -> Done) -> Tally {
    Tally::of(match run(store) {
        Ok(conclusion) => conclusion == Conclusion::Passed,
        Err(error) => {
            println!("{}: could not be run to its end: {error:#}", store.name);
            false
        }
    })
}

/// Short enough to be typed.
fn any_seed() -> u64 {
    RandomState::new().hash_one(()) % 1_000_000
}
