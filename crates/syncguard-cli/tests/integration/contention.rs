//! Fifty processes that want one key.

use std::time::{Duration, Instant};

use crate::common::{Stage, Started, eventually};

const PROCESSES: usize = 50;

#[test]
fn without_waiting_exactly_one_runs() {
    for stage in Stage::each() {
        let script = "echo $SYNCGUARD_FENCE >> log; until [ -e stop ]; do sleep 0.05; done";
        let arguments = ["run", "k", "--no-wait", "--", "sh", "-c", script];
        let mut processes: Vec<Started> = (0..PROCESSES).map(|_| stage.start(&arguments)).collect();
        let mut refused = 0;
        eventually("the end of all but one", || {
            processes.retain_mut(|process| match process.0.try_wait().unwrap() {
                None => true,
                Some(status) => {
                    assert_eq!(status.code(), Some(75), "{}", stage.store);
                    refused += 1;
                    false
                }
            });
            refused == PROCESSES - 1
        });
        stage.touch("stop");
        assert_eq!(processes[0].code(), 0);
        assert_eq!(stage.lines("log").len(), 1);
    }
}

#[test]
fn with_waiting_all_run_one_at_a_time_on_sqlite() {
    all_run_one_at_a_time(&Stage::sqlite());
}

#[test]
fn with_waiting_all_run_one_at_a_time_on_redis() {
    all_run_one_at_a_time(&Stage::redis());
}

/// And the pauses between them take less time than their work.
fn all_run_one_at_a_time(stage: &Stage) {
    let script = "echo $SYNCGUARD_FENCE begin $(date +%s%N) >> log; sleep 0.4; \
                  echo $SYNCGUARD_FENCE end $(date +%s%N) >> log";
    let arguments = ["run", "k", "--wait", "10m", "--", "sh", "-c", script];
    let started = Instant::now();
    let mut processes: Vec<Started> = (0..PROCESSES).map(|_| stage.start(&arguments)).collect();
    for process in &mut processes {
        assert_eq!(process.code(), 0, "{}", stage.store);
    }
    let total = started.elapsed();

    let lines = stage.lines("log");
    assert_eq!(lines.len(), 2 * PROCESSES);
    let (mut last, mut sum) = (String::new(), Duration::ZERO);
    for pair in lines.chunks(2) {
        let begin: Vec<_> = pair[0].split(' ').collect();
        let end: Vec<_> = pair[1].split(' ').collect();
        assert_eq!((begin[1], end[1]), ("begin", "end"), "{pair:?}");
        assert_eq!(begin[0], end[0], "one at a time");
        assert!(*begin[0] > *last, "{pair:?} after {last}");
        begin[0].clone_into(&mut last);
        let at = |line: &[&str]| line[2].parse().map(Duration::from_nanos).unwrap();
        sum += at(&end).saturating_sub(at(&begin));
    }
    eprintln!("{}: {total:?} for {sum:?} of work", stage.store);
    assert!(total < 2 * sum, "{}: {total:?}, {sum:?}", stage.store);
}
