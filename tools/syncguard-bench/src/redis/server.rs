//! The cost of locks for the server: its time, its memory, and whether many locks cost more than few.

use anyhow::{Context, Result, bail, ensure};
use redis::aio::MultiplexedConnection;
use redis::{Script, Value, cmd, pipe};
use syncguard_core::Locks;
use syncguard_redis::RedisBackend;
use syncguard_testkit::RedisServer;

use super::scripts::{Flavour, Names, STEPS, Step, script};
use super::{connect, flush};
use crate::comparison::{Comparison, Target};
use crate::drive::median;
use crate::workload::{self, TTL, Workload};
use crate::{Settings, tell};

/// Commands sent at once.
const BATCH: u32 = 100;

/// The server's own count of its time for each script, beside the scripts as specified.
///
/// The server counts by the wall clock, so its count includes the time of other processes. So a run is many
/// small samples in turn, and their median, which disturbed samples do not change.
pub(crate) async fn times(
    connection: &mut MultiplexedConnection,
    settings: &Settings,
) -> Result<Vec<Comparison>> {
    let mut runs = [const { Vec::new() }; STEPS.len()];
    for flavour in [Flavour::Ours, Flavour::Literal] {
        for step in STEPS {
            script(flavour, step).load_async(connection).await?;
        }
    }
    for _ in 0..settings.repetitions {
        let mut samples = [const { (Vec::new(), Vec::new()) }; STEPS.len()];
        for batch in 0..settings.batches {
            flush(connection).await?;
            // In turn the first: the later of two finds more keys, and a table that grows.
            let mut flavours = [Flavour::Ours, Flavour::Literal];
            if batch % 2 == 1 {
                flavours.reverse();
            }
            for (step, (ours, literal)) in STEPS.into_iter().zip(&mut samples) {
                for flavour in flavours {
                    let time = time_of(connection, flavour, step, batch).await?;
                    match flavour {
                        Flavour::Ours => ours.push(time),
                        Flavour::Literal => literal.push(time),
                    }
                }
            }
        }
        for (runs, (ours, literal)) in runs.iter_mut().zip(samples) {
            runs.push((median(ours), median(literal)));
        }
    }
    let compared = STEPS.into_iter().zip(runs).map(|(step, runs)| {
        Comparison::new(
            format!("server time of {}", step.name()),
            "µs",
            "as specified",
            &runs,
            Some(Target::AtMost(0.8)),
        )
    });
    compared.collect()
}

/// Microseconds of one step among some that were sent together.
async fn time_of(
    connection: &mut MultiplexedConnection,
    flavour: Flavour,
    step: Step,
    batch: u32,
) -> Result<f64> {
    let script = script(flavour, step);
    let mut batched = pipe();
    for number in 0..BATCH {
        // Each flavour has locks of its own.
        let first = match flavour {
            Flavour::Ours => 0,
            Flavour::Literal => 500_000_000,
        };
        let mut names = Names::of(&format!("{:012}", first + batch * BATCH + number));
        if step == Step::Refusal {
            names.id = "BBBBBBBBBBBBBBBBBBBBBB".to_owned();
        }
        batched.add_command(names.command(flavour, step, script.get_hash()));
    }
    cmd("CONFIG")
        .arg("RESETSTAT")
        .exec_async(connection)
        .await?;
    let answers: Vec<Value> = batched.query_async(connection).await?;
    let expected = |answer: &Value| match step {
        // As specified, or the time until the key is free.
        Step::Refusal => matches!(answer, Value::Int(0..)),
        Step::Release => *answer == Value::Int(1),
        Step::Acquire => matches!(answer, Value::Array(_) | Value::BulkString(_)),
        Step::Extend => matches!(answer, Value::Array(_) | Value::Int(1..)),
        Step::Lookup => matches!(answer, Value::BulkString(_)),
    };
    ensure!(
        answers.iter().all(expected),
        "{flavour:?} {step:?} answered otherwise"
    );
    evalsha_time(connection).await
}

async fn evalsha_time(connection: &mut MultiplexedConnection) -> Result<f64> {
    let counts = info(connection, "commandstats", "cmdstat_evalsha:").await?;
    counts
        .split(',')
        .find_map(|field| field.strip_prefix("usec_per_call="))
        .and_then(|time| time.parse().ok())
        .context("the server does not tell its time")
}

/// What a section of the server's `INFO` has behind a name.
async fn info(connection: &mut MultiplexedConnection, section: &str, name: &str) -> Result<String> {
    let text: String = cmd("INFO").arg(section).query_async(connection).await?;
    let value = text.lines().find_map(|line| line.strip_prefix(name));
    value
        .map(str::to_owned)
        .with_context(|| format!("no {name} in INFO {section}: {text}"))
}

/// How long calls of many tasks, which are gathered, hold the server: the 99.9th percentile by its own count.
/// `None` of a server before version 7, which does not count it.
pub(crate) async fn held(
    locks: &Locks,
    connection: &mut MultiplexedConnection,
    settings: &Settings,
) -> Result<Option<Comparison>> {
    const TASKS: usize = 64;
    /// So that a run has some thousand calls.
    const SPANS: u32 = 4;
    let counting = cmd("CONFIG")
        .arg(&["SET", "latency-tracking-info-percentiles", "99.9"])
        .exec_async(connection)
        .await;
    if counting.is_err() {
        tell("the server does not count how long calls hold it");
        return Ok(None);
    }
    let mut runs = Vec::new();
    for _ in 0..settings.repetitions {
        flush(connection).await?;
        cmd("CONFIG")
            .arg("RESETSTAT")
            .exec_async(connection)
            .await?;
        workload::measure(locks, Workload::Pair, TASKS, settings.span * SPANS).await?;
        runs.push((evalsha_p999(connection).await?, 500.0));
    }
    let what = format!("a call in the server, {TASKS} tasks, p99.9");
    Comparison::new(what, "µs", "0.5 ms", &runs, Some(Target::AtMost(1.0))).map(Some)
}

async fn evalsha_p999(connection: &mut MultiplexedConnection) -> Result<f64> {
    let name = "latency_percentiles_usec_evalsha:p99.9=";
    let time = info(connection, "latencystats", name).await?;
    time.parse().context("the server tells no percentile")
}

/// Memory of one lock, as the server tells it.
pub(crate) async fn bytes(
    locks: &Locks,
    connection: &mut MultiplexedConnection,
) -> Result<Vec<Comparison>> {
    let key = "customer:4711:invoices";
    let guard = locks.try_lock(key).ttl(TTL).await?;
    let lease = guard.context("the key is not free")?.detach();
    let lock = format!("syncguard:{key}");
    let names = [
        format!("syncguard:id:{}", lease.lock_id().as_str()),
        format!("syncguard:fence:{lock}"),
        lock,
    ];
    let mut sizes = Vec::new();
    for name in names {
        let size: u32 = cmd("MEMORY")
            .arg(&["USAGE", &name])
            .query_async(connection)
            .await?;
        sizes.push(f64::from(size));
    }
    let bound = Some(Target::AtMost(1.0));
    let of = |what: &str, bytes: f64, target| {
        Comparison::new(what, "bytes", "1 KiB", &[(bytes, 1024.0)], target)
    };
    Ok(vec![
        of(
            "memory of lock, index and fence counter",
            sizes.iter().sum(),
            bound,
        )?,
        of("memory of the fence counter, which stays", sizes[1], None)?,
    ])
}

/// Pairs per second where many locks are held, beside few.
pub(crate) async fn scale(server: &RedisServer, settings: &Settings) -> Result<Vec<Comparison>> {
    const FEW: u32 = 100;
    let many = settings.many_locks;
    let mut sides = Vec::new();
    let mut bytes_each = 0.0;
    for (database, count) in [(0, FEW), (1, many)] {
        let url = format!("{}/{database}", server.url());
        let mut connection = connect(&url).await?;
        let before = used_memory(&mut connection).await?;
        // Beyond the keys that the workload uses.
        fill(&mut connection, 500_000_000_000, count, "each", true).await?;
        bytes_each = (used_memory(&mut connection).await? - before) / f64::from(count);
        let locks = Locks::new(RedisBackend::connect(&url).await?);
        let id = Names::of("500000000001").id;
        let found = locks.get_by_id(&id).await?;
        ensure!(found.is_some(), "what was filled in are no locks");
        sides.push(locks);
    }
    tell(&format!("  {many} locks are in"));
    let [few, many_held] = &sides[..] else {
        bail!("there are two sides")
    };
    let pairs = workload::pairs_side_by_side([many_held, few], 16, settings).await?;
    for locks in &sides {
        locks.close().await?;
    }
    Ok(vec![
        Comparison::new(
            format!("acquire and release beside {many} locks"),
            "pairs/s",
            "beside 100",
            &pairs,
            Some(Target::AtLeast(1.0 / 1.3)),
        )?,
        Comparison::new(
            format!("memory of each of {many} locks, all told"),
            "bytes",
            "1 KiB",
            &[(bytes_each, 1024.0)],
            Some(Target::AtMost(1.0)),
        )?,
    ])
}

async fn used_memory(connection: &mut MultiplexedConnection) -> Result<f64> {
    let text: String = cmd("INFO").arg("memory").query_async(connection).await?;
    text.lines()
        .find_map(|line| line.strip_prefix("used_memory:"))
        .and_then(|bytes| bytes.trim().parse().ok())
        .context("the server does not tell its memory")
}

/// Writes locks as acquire does.
pub(crate) async fn fill(
    connection: &mut MultiplexedConnection,
    first: u64,
    count: u32,
    id: &str,
    counters: bool,
) -> Result<()> {
    const AT_ONCE: u32 = 20_000;
    let script = Script::new(include_str!("fill.lua"));
    let mut done = 0;
    while done < count {
        let now = AT_ONCE.min(count - done);
        let mut call = script.prepare_invoke();
        call.arg(first + u64::from(done)).arg(now);
        call.arg(TTL.as_millis().to_string()).arg(id);
        call.arg(u8::from(counters));
        let _: i64 = call.invoke_async(connection).await?;
        done += now;
    }
    Ok(())
}
