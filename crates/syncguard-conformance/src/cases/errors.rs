//! What is shown, and what is not: no raw key, no raw lock id, in any text.
//!
//! Every key of a case contains the case's random namespace; a text that shows a key shows that.

use std::error::Error;
use std::fmt::Debug;
use std::time::Duration;

use syncguard_core::backend::{
    AcquireRequest, ExtendRequest, FENCE_MAX, IsLockedRequest, ListRequest, LockBackend as _,
    Lookup, LookupRequest, MAX_KEY_LENGTH_BYTES, ReleaseRequest, WatchRequest,
};
use syncguard_core::list::KeyPrefix;
use syncguard_core::observe::Operation;
use syncguard_core::{CancellationToken, ErrorCode, Lease, LockError, LockId, LockOptions};
use tokio::time::Instant;
use tracing::instrument::WithSubscriber as _;

use crate::capture::Capture;
use crate::clock::dead_at;
use crate::outcome::{require, same};
use crate::steps::{DRAIN, LONG, SOON, acquire, fails_with, ms, release, renew, ttl};
use crate::{Bench, CaseResult, Client, Failure, Harness, Outcome};

/// `Debug` of guards, leases, grants, answers, infos and clients shows no identifier.
///
/// Proves O2.
pub async fn debug_of_values_shows_no_identifier<H: Harness>(bench: Bench<H>) -> CaseResult {
    let client = bench.client().await?;
    let key = bench.key("secret")?;
    let guard = client.locks().try_lock(&key).ttl(LONG).await?;
    let guard = guard.ok_or_else(|| Failure::new("a free key: expected a guard"))?;
    let id = *guard.lock_id();
    let hidden = Hidden {
        namespace: bench.namespace(),
        id,
    };
    hidden.in_debug("the guard", &guard)?;
    hidden.in_debug("the lease", &guard.lease())?;
    hidden.in_debug("the key", &key)?;
    hidden.in_debug("the id", &id)?;
    hidden.in_debug("the client while it holds", &client)?;
    hidden.in_debug("the locks", client.locks())?;
    hidden.in_debug("the capabilities", &client.capabilities())?;
    hidden.in_debug(
        "a replayed grant",
        &client.acquire(&key, &id, ttl(LONG)?).await?,
    )?;
    let other = LockId::generate()?;
    hidden.in_debug(
        "a refusal",
        &client.acquire(&key, &other, ttl(LONG)?).await?,
    )?;
    hidden.in_debug("an extend", &guard.extend(LONG).await?)?;
    for by in [Lookup::Key(&key), Lookup::Id(&id)] {
        hidden.in_debug("a lookup's question", &by)?;
        hidden.in_debug("a raw lookup", &client.lookup_raw(by).await?)?;
    }
    hidden.in_debug("a lookup", &client.locks().get_by_id(id).await?)?;
    hidden.in_debug("a release", &guard.release().await?)?;
    let receipt = client
        .locks()
        .lock(&key)
        .run(async |lease| format!("{lease:?}"))
        .await?;
    hidden.in_debug("a receipt and its lease", &receipt)?;
    Ok(Outcome::Passed)
}

/// No error shows a key or an id: neither itself nor its sources.
///
/// Proves O2, K5, I1. Errors of bad arguments, cancelled calls, waits that timed out, exhausted fences, ids on a
/// second key, calls after their deadline, and closed clients.
pub async fn errors_show_no_identifier<H: Harness>(bench: Bench<H>) -> CaseResult {
    let client = bench.client().await?;
    let (key, space) = (bench.key("secret")?, bench.namespace());
    let grant = acquire(&client, &key, LONG).await?;
    let id = grant.lock_id;
    let hidden = Hidden {
        namespace: space,
        id,
    };
    let refused = ErrorCode::InvalidArgument;
    let long = format!("{space}{}", "x".repeat(MAX_KEY_LENGTH_BYTES));
    for bad in [format!("{space}\0"), long] {
        hidden.in_error(
            &fails_with("acquire", refused, client.locks().try_lock(&bad).ttl(LONG)).await?,
        )?;
        hidden
            .in_error(&fails_with("is_locked", refused, client.locks().is_locked(&bad)).await?)?;
        hidden.in_error(&fails_with("lookup", refused, client.locks().get_by_key(&bad)).await?)?;
    }
    let bad = format!("{}=", id.as_str());
    hidden.in_error(&fails_with("release", refused, client.locks().release(&bad)).await?)?;
    hidden.in_error(&fails_with("extend", refused, client.locks().extend(&bad, LONG)).await?)?;
    hidden.in_error(&fails_with("lookup", refused, client.locks().get_by_id(&bad)).await?)?;
    let too_long = LONG * 10_000_000;
    hidden.in_error(
        &fails_with(
            "acquire",
            refused,
            client.locks().try_lock(&key).ttl(too_long),
        )
        .await?,
    )?;
    hidden.in_error(&fails_with("extend", refused, client.locks().extend(id, too_long)).await?)?;

    let token = CancellationToken::new();
    token.cancel();
    let aborted = client.locks().release(id).cancel_on(&token);
    hidden.in_error(&fails_with("release", ErrorCode::Aborted, aborted).await?)?;
    let options = LockOptions::new().timeout(ms(150)).retry_delay(ms(20));
    let waiting = client
        .locks()
        .lock(&key)
        .options(&options)
        .run(async |_| ());
    hidden.in_error(&fails_with("lock", ErrorCode::AcquisitionTimeout, waiting).await?)?;
    release(&client, &id).await?;

    if bench.has_fences() && bench.harness().set_fence_counter(&key, FENCE_MAX).await? {
        let attempt = client.locks().try_lock(&key).attempt();
        hidden.in_error(&fails_with("acquire", ErrorCode::Internal, attempt).await?)?;
    }

    let (id, errors) = bare_calls(&bench, &client).await?;
    for error in &errors {
        Hidden { id, ..hidden }.in_error(error)?;
    }
    Ok(Outcome::Passed)
}

/// The error of a wait that timed out says how many attempts it made, on which key, and how long it took.
///
/// Proves O2, A2. Only its accessor returns the key.
pub async fn a_wait_that_ran_out_says_how_it_went<H: Harness>(bench: Bench<H>) -> CaseResult {
    let (client, other) = (bench.client().await?, bench.client().await?);
    let key = bench.key("secret")?;
    let grant = acquire(&client, &key, LONG).await?;
    let options = LockOptions::new()
        .timeout(SOON)
        .max_retries(3)
        .retry_delay(ms(5));
    let section = other.locks().lock(&key).options(&options).run(async |_| ());
    let error = fails_with("lock", ErrorCode::AcquisitionTimeout, section).await?;
    let wait = error.wait();
    same("attempts", wait.map(|wait| wait.attempts), Some(4))?;
    same("the operation", error.operation(), Some(Operation::Lock))?;
    same("the key", error.key(), Some(&key))?;
    same("is_retryable", error.is_retryable(), true)?;
    Hidden {
        namespace: bench.namespace(),
        id: grant.lock_id,
    }
    .in_error(&error)?;
    release(&client, &grant.lock_id).await?;
    Ok(Outcome::Passed)
}

/// No event or span shows a key or an id, at any level.
///
/// Proves O2. All operations, under a subscriber of the case. It does not see what a driver does on the driver's own
/// tasks.
pub async fn events_show_no_identifier<H: Harness>(bench: Bench<H>) -> CaseResult {
    let capture = Capture::default();
    let watched = async {
        tracing::trace!("watching");
        let client = bench.client().await?;
        let locks = client.locks();
        let key = bench.key("secret")?;
        let guard = locks.try_lock(&key).ttl(LONG).await?;
        let guard = guard.ok_or_else(|| Failure::new("a free key: expected a guard"))?;
        let id = *guard.lock_id();
        let contended = locks.try_lock(&key).await?;
        same("a contended attempt", contended.is_none(), true)?;
        locks.is_locked(&key).await?;
        locks.get_by_key(&key).await?;
        locks.get_by_id(id).await?;
        let _ = guard.extend(LONG).await?;
        let _ = guard.release().await?;
        let _ = locks.release(id).await?;
        let section = async |lease: Lease<_>| {
            let id = *lease.lock_id();
            (locks.release(id).await, id)
        };
        let overran = locks.lock(&key).run(section).await?;
        same("overran", overran.overran(), true)?;
        if bench.has_fences()
            && bench
                .harness()
                .set_fence_counter(&key, FENCE_MAX - 1)
                .await?
        {
            // The first warns, the second fails.
            let last = client.locks().try_lock(&key).attempt().await?.acquired();
            drop(last);
            client.locks().drain(DRAIN).await?;
            let attempt = client.locks().try_lock(&key).attempt();
            fails_with("acquire", ErrorCode::Internal, attempt).await?;
        }
        let (bare, _) = bare_calls(&bench, &client).await?;
        Ok::<_, Failure>([id, overran.value().1, bare])
    };
    let ids = watched.with_subscriber(capture.clone()).await?;
    let text = capture.text();
    require(
        text.contains("watching"),
        "the subscriber: expected events, saw none",
    )?;
    for id in ids {
        let namespace = bench.namespace();
        Hidden { namespace, id }.in_text("an event", &text)?;
    }
    Ok(Outcome::Passed)
}

/// No event or span shows a key or an id when a lease has expired and the key gets a new holder.
///
/// Proves O2. The former holder's calls find no lock, and another client acquires the key.
pub async fn events_of_expired_locks_show_no_identifier<H: Harness>(bench: Bench<H>) -> CaseResult {
    let capture = Capture::default();
    let watched = async {
        tracing::trace!("watching");
        let client = bench.client().await?;
        let locks = client.locks();
        let mut ids = Vec::new();
        // Each operation is the first one on an expired lock of its own.
        let keys = bench.keys("secret", 5)?;
        for key in &keys {
            let id = acquire(&client, key, LONG).await?.lock_id;
            renew(&client, &id, ms(50)).await?;
            ids.push(id);
        }
        let all_dead_at = dead_at(ms(50));
        // In the tolerance a store counts them as live, or as dead.
        tokio::time::sleep(ms(60)).await;
        for overdue in bench.keys("overdue", 3)? {
            let id = acquire(&client, &overdue, LONG).await?.lock_id;
            renew(&client, &id, ms(1)).await?;
            tokio::time::sleep(ms(10)).await;
            locks.is_locked(&overdue).await?;
            locks.get_by_id(id).await?;
            drop(locks.try_lock(&overdue).ttl(LONG).await?);
            let _ = locks.extend(id, LONG).await?;
            let _ = locks.release(id).await?;
            ids.push(id);
        }
        tokio::time::sleep_until(all_dead_at.into()).await;
        locks.is_locked(&keys[0]).await?;
        locks.get_by_id(ids[1]).await?;
        let _ = locks.extend(ids[2], LONG).await?;
        let _ = locks.release(ids[3]).await?;
        for key in &keys {
            let guard = locks.try_lock(key).ttl(LONG).await?;
            let guard = guard.ok_or_else(|| Failure::new("a free key: expected a guard"))?;
            ids.push(*guard.lock_id());
            let _ = guard.release().await?;
        }
        let _turn = bench.purging().await;
        client.purge_expired(10).await?;
        Ok::<_, Failure>(ids)
    };
    let ids = watched.with_subscriber(capture.clone()).await?;
    let text = capture.text();
    require(
        text.contains("watching"),
        "the subscriber: expected events, saw none",
    )?;
    for id in ids {
        let namespace = bench.namespace();
        Hidden { namespace, id }.in_text("an event", &text)?;
    }
    Ok(Outcome::Passed)
}

/// Calls the bare backend, and closes the client. Returns the id of all the calls, and the errors.
///
/// Calls in time, calls after their deadline, and calls of the closed client. Among them are a replay and an acquire
/// of a second key.
async fn bare_calls<H: Harness>(
    bench: &Bench<H>,
    client: &Client<H::Backend>,
) -> Result<(LockId, Vec<LockError>), Failure> {
    let (first, second) = (bench.key("first")?, bench.key("second")?);
    let (id, lasting, prefix) = (
        LockId::generate()?,
        ttl(LONG)?,
        KeyPrefix::new(first.as_str())?,
    );
    let (backend, mut errors) = (client.backend(), Vec::new());
    // `Locks` attaches the key and the id, too: the core then redacts them in a driver's error.
    let attach = |error: LockError, key| error.with_key(key).with_lock_id(&id);
    for (timeout, is_closed) in [(SOON, false), (Duration::ZERO, false), (SOON, true)] {
        if is_closed {
            client.close().await?;
        }
        let deadline = Instant::now() + timeout;
        for key in [&first, &first, &second] {
            let request = AcquireRequest::new(key, &id, lasting, deadline);
            let failed = backend.acquire(request).await.err();
            errors.extend(failed.map(|error| attach(error, key)));
        }
        let extend = ExtendRequest::new(&id, lasting, deadline);
        let is_locked = IsLockedRequest::new(&first, deadline);
        let by_key = LookupRequest::new(Lookup::Key(&first), deadline);
        let by_id = LookupRequest::new(Lookup::Id(&id), deadline);
        let watch = WatchRequest::new(&first, deadline);
        let list = ListRequest::new(&prefix, None, 10, deadline);
        let release = ReleaseRequest::new(&id, deadline);
        let failed = [
            backend.extend(extend).await.err(),
            backend.is_locked(is_locked).await.err(),
            backend.lookup_raw(by_key).await.err(),
            backend.lookup_raw(by_id).await.err(),
            backend.watch(watch).await.err(),
            backend.list(list).await.err(),
            backend.release(release).await.err(),
        ];
        let failed = failed.into_iter().flatten();
        errors.extend(failed.map(|error| attach(error, &first)));
    }
    Ok((id, errors))
}

/// The texts that must not appear.
struct Hidden<'a> {
    namespace: &'a str,
    id: LockId,
}

impl Hidden<'_> {
    #[track_caller]
    fn in_debug(&self, what: &str, value: &impl Debug) -> Result<(), Failure> {
        self.in_text(what, &format!("{value:?} {value:#?}"))
    }

    #[track_caller]
    fn in_error(&self, error: &LockError) -> Result<(), Failure> {
        let what = format!("an error with the code {}", error.code());
        self.in_text(&what, error.message())?;
        let mut link: Option<&(dyn Error + 'static)> = Some(error);
        while let Some(error) = link {
            self.in_text(&what, &format!("{error} {error:?} {error:#?}"))?;
            link = error.source();
        }
        // The id that an attempt made.
        match error.lock_id() {
            Some(id) if *id != self.id => Hidden { id: *id, ..*self }.in_error(error),
            _ => Ok(()),
        }
    }

    #[track_caller]
    fn in_text(&self, what: &str, text: &str) -> Result<(), Failure> {
        require(
            !text.contains(self.namespace),
            format_args!("{what}: expected hashes alone, saw the key"),
        )?;
        require(
            !text.contains(self.id.as_str()),
            format_args!("{what}: expected hashes alone, saw the lock id"),
        )
    }
}
