//! Contenders that are processes: this program, once more for each.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use syncguard_core::Locks;

use super::{Contended, PROCESSES, TASKS, contend};

/// Main function of one of the processes: connects, reports that, starts on a signal, and prints its
/// measurements.
pub(crate) async fn contend_as_told(locks: Locks, span: Duration) -> Result<()> {
    println!("ready");
    std::io::stdin().read_line(&mut String::new())?;
    let contended = contend(&locks, usize::from(TASKS / PROCESSES), span).await?;
    println!("{}", serde_json::to_string(&contended)?);
    Ok(())
}

/// Starts them, and lets them begin together.
pub(super) fn in_processes(store: &str, address: &str, span: Duration) -> Result<Vec<Contended>> {
    let mut processes = Vec::new();
    for _ in 0..PROCESSES {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["--contend", store, "--address", address])
            .args(["--span-ms", &span.as_millis().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = child.stdout.take().context("its output is piped")?;
        processes.push((child, BufReader::new(output)));
    }
    let ended: Result<Vec<_>> = all_contend(&mut processes);
    for (child, _) in &mut processes {
        if ended.is_err() {
            let _ = child.kill();
        }
        child.wait()?;
    }
    ended
}

fn all_contend(processes: &mut [(Child, BufReader<ChildStdout>)]) -> Result<Vec<Contended>> {
    for (_, output) in &mut *processes {
        let mut line = String::new();
        output.read_line(&mut line)?;
        ensure!(line == "ready\n", "a contending process did not connect");
    }
    for (child, _) in &mut *processes {
        let mut input = child.stdin.take().context("its input is piped")?;
        input.write_all(b"\n")?;
    }
    let outputs = processes.iter_mut().map(|(_, output)| {
        let mut json = String::new();
        output.read_to_string(&mut json)?;
        serde_json::from_str(&json).context("a contending process failed")
    });
    outputs.collect()
}
