//! Workers on a store in this process: the history of a correct store is legal, and that of each broken
//! store is not.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use syncguard_chaos::{
    Broken, Call, History, Invocation, Mutant, Recorder, Response, Work, check, check_ended,
    now_us, read_calls, seen, wall_clock_offset_us, work,
};
use syncguard_core::backend::LockBackend;
use syncguard_core::{Fence, LockKey, Locks};
use syncguard_memory::MemoryBackend;

#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A second's work on one store.
async fn run<B: LockBackend<Fence = Fence> + Clone>(backend: B) -> History {
    let keys: Vec<_> = ["a", "b"].map(|key| LockKey::new(key).unwrap()).into();
    let sink = Sink::default();
    let task = Work {
        worker: 1,
        clients: 6,
        seed: 1,
        keys: keys.clone(),
        until_us: now_us() + 1_000_000,
    };
    let recorder = Recorder::new(sink.clone());
    work(backend.clone(), |locks| locks, task, recorder)
        .await
        .unwrap();
    let locks = Locks::new(backend);
    let recorded = sink.0.lock().unwrap().clone();
    let mut calls = read_calls(recorded.as_slice()).unwrap();
    for key in &keys {
        let invoked_us = now_us();
        let response = seen(locks.get_by_key_raw(key).await.unwrap().as_ref());
        calls.push(Call {
            client: 0,
            invoked_us,
            returned_us: Some(now_us()),
            key: key.as_str().into(),
            invocation: Invocation::LookupByKey,
            response,
        });
    }
    History {
        calls,
        clock_offset_us: wall_clock_offset_us(),
        clock_drift_us: 5_000,
        redelivery: Vec::new(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_correct_store_is_legal_and_left_free() {
    let history = run(MemoryBackend::default()).await;
    let violations = check_ended(&history);
    assert!(violations.is_empty(), "{}", violations[0]);
    // It was worth looking at.
    let count = |is: fn(&Call) -> bool| history.calls.iter().filter(|call| is(call)).count();
    let granted = count(|call| matches!(call.response, Response::Granted { .. }));
    let refused = count(|call| call.response == Response::Locked);
    let not_held = count(|call| call.response == Response::NotHeld);
    let seen = [granted, refused, not_held];
    assert!(seen.iter().all(|count| *count > 10), "{seen:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_mutant_is_found_out() {
    for mutant in Mutant::ALL {
        assert_eq!(mutant.name().parse(), Ok(mutant));
        // What the workers do depends on how they are scheduled: not every second shows every fault.
        let mut violations = Vec::new();
        for _ in 0..10 {
            let backend = Broken::new(MemoryBackend::default(), mutant);
            violations = check(&run(backend).await);
            if !violations.is_empty() {
                break;
            }
        }
        assert!(!violations.is_empty(), "{mutant} was not found out");
        for violation in violations {
            assert!(violation.window.len() <= 8, "{mutant}: {violation}");
        }
    }
}

#[test]
fn a_record_cut_short_leaves_its_last_call_unknown() {
    let sink = Sink::default();
    let recorder = Recorder::new(sink.clone());
    let first = recorder.made(1, "k", Invocation::IsLocked).unwrap();
    recorder.returned(first, Response::Free).unwrap();
    recorder.made(1, "k", Invocation::LookupByKey).unwrap();
    let recorded = sink.0.lock().unwrap().clone();
    let calls = read_calls(recorded.as_slice()).unwrap();
    assert_eq!(calls.len(), 2);
    assert_eq!(calls[0].response, Response::Free);
    assert!(calls[0].returned_us.unwrap() >= calls[0].invoked_us);
    assert_eq!(
        (calls[1].returned_us, &calls[1].response),
        (None, &Response::Unknown)
    );
}
