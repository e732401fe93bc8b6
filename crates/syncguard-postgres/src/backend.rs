//! The contract, one statement for each call.

use std::time::Instant;

use syncguard_core::{
    AcquireResult, Capabilities, ExtendResult, FailureReason, Fence, LockBackend, LockError,
    LockId, LockInfoDebug, LockKey, Lookup, ReleaseResult, TimeAuthority, Ttl,
};

use crate::PostgresStore;
use crate::query::{Value, parse_grant, parse_info, parse_ms, unreadable};

/// How often an operation asks that the server sent away undecided.
const ATTEMPTS: u32 = 3;

impl LockBackend for PostgresStore {
    type Fence = Fence;

    fn capabilities(&self) -> Capabilities {
        Capabilities::new::<Fence>("postgres", TimeAuthority::Server)
    }

    async fn acquire(
        &self,
        key: &LockKey,
        id: &LockId,
        ttl: Ttl,
    ) -> Result<AcquireResult, LockError> {
        let storage_key = self.settings().storage_key(key)?;
        let fence_key = self.settings().fence_key(&storage_key)?;
        let values = [
            Value::Text(&storage_key),
            Value::Text(&fence_key),
            Value::Number(ttl.as_millis()),
            Value::Text(key.as_str()),
        ];
        let started = Instant::now();
        for _ in 0..ATTEMPTS {
            let verdict = self
                .ask(&self.statements().acquire, id.as_str(), &values)
                .await?;
            match verdict.parts() {
                ("granted", grant) => return parse_grant(grant, id).map(AcquireResult::Acquired),
                ("locked", _) => return Ok(AcquireResult::Locked),
                ("exhausted", _) => return Err(Fence::exhausted()),
                // It stood in line too long. As long as the lease would have been: that is
                // contention, whoever caused it.
                ("waited", _) if started.elapsed() >= ttl.as_duration() => break,
                ("waited" | "again", _) => {}
                _ => return Err(unreadable()),
            }
        }
        Ok(AcquireResult::Locked)
    }

    async fn release(&self, id: &LockId) -> Result<ReleaseResult, LockError> {
        let verdict = self
            .ask(&self.statements().release, id.as_str(), &[])
            .await?;
        match verdict.parts().0 {
            "released" => Ok(ReleaseResult::Released),
            word => reason(word).map(|reason| ReleaseResult::NotHeld { reason }),
        }
    }

    async fn extend(&self, id: &LockId, ttl: Ttl) -> Result<ExtendResult, LockError> {
        let values = [Value::Number(ttl.as_millis())];
        // The second look finds the lease overdue, and waits for its turn.
        for _ in 0..ATTEMPTS {
            let verdict = self
                .ask(&self.statements().extend, id.as_str(), &values)
                .await?;
            match verdict.parts() {
                ("extended", expires_at_ms) => {
                    return parse_ms(expires_at_ms)
                        .map(|expires_at_ms| ExtendResult::Extended { expires_at_ms });
                }
                ("again", _) => {}
                (word, _) => return reason(word).map(|reason| ExtendResult::NotHeld { reason }),
            }
        }
        Ok(ExtendResult::NotHeld { reason: None })
    }

    async fn is_locked(&self, key: &LockKey) -> Result<bool, LockError> {
        let storage_key = self.settings().storage_key(key)?;
        let verdict = self
            .ask(&self.statements().is_locked, &storage_key, &[])
            .await?;
        match verdict.parts().0 {
            "held" => Ok(true),
            "free" => Ok(false),
            "stale" => {
                if self.settings().cleanup_in_is_locked {
                    self.clean_later(storage_key);
                }
                Ok(false)
            }
            _ => Err(unreadable()),
        }
    }

    async fn lookup_raw(&self, by: Lookup<'_>) -> Result<Option<LockInfoDebug>, LockError> {
        let verdict = match by {
            Lookup::Key(key) => {
                let storage_key = self.settings().storage_key(key)?;
                let statement = &self.statements().lookup_by_key;
                self.ask(statement, &storage_key, &[]).await?
            }
            Lookup::Id(id) => {
                let statement = &self.statements().lookup_by_lock_id;
                self.ask(statement, id.as_str(), &[]).await?
            }
        };
        match verdict.parts() {
            ("live", info) => parse_info(info).map(Some),
            ("absent", _) => Ok(None),
            _ => Err(unreadable()),
        }
    }
}

/// Why a release or an extend found nothing.
fn reason(word: &str) -> Result<Option<FailureReason>, LockError> {
    match word {
        "expired" => Ok(Some(FailureReason::Expired)),
        "absent" => Ok(Some(FailureReason::NotFound)),
        _ => Err(unreadable()),
    }
}
