//! Checks whether a database is configured for locks: permissions, indexes and the clock.

use std::time::Duration;

use syncguard_core::backend::TimeAuthority;
use syncguard_core::{ErrorCode, Fence, Finding, LockError, LockId, LockKey, Severity};
use tokio::time::Instant;
use tonic::{Code, Status};

use crate::error::{self, Denial, state_moved};
use crate::record::{LockDocument, Version, delete, write_counter};
use crate::wire::Reading;
use crate::{DEFAULT_SKEW_WARNING, FirestoreBackend, RECOMMENDED_SKEW_LIMIT};

/// Clock skew that is worth a finding.
const NOTABLE_SKEW: Duration = Duration::from_millis(100);

impl FirestoreBackend {
    /// Sends four reads and one commit, and tries wake-ups. One write of the commit cannot succeed, so
    /// Firestore applies no write; it checks the permissions first.
    pub(crate) async fn inspect(&self, deadline: Instant) -> Result<Vec<Finding>, LockError> {
        let mut inspection = Inspection::new(self, deadline)?;
        let id = inspection.lock.lock_id;
        let names = self.wire.names().of(&inspection.lock.key)?;
        let both = vec![names.lock.clone(), names.fence_counter];
        if let Err(status) = inspection.read(self.wire.get(both, deadline)).await {
            inspection.denied("read documents", &status)?;
        }
        let by_id = self.wire.find_by_lock_id(id.as_str(), deadline);
        let by_id = inspection.read(by_id).await;
        inspection.queried(by_id, || {
            missing_index(
                Severity::Error,
                "firestore-index-missing",
                "lockId",
                "locks can be acquired, but neither extended nor released",
            )
        })?;
        let by_expiry = self.wire.find_by_expiry(1, deadline);
        let by_expiry = inspection.read(by_expiry).await;
        inspection.queried(by_expiry, || {
            missing_index(
                Severity::Warning,
                "firestore-expiry-index-missing",
                "expiresAtMs",
                "`purge_expired` fails, and expired locks of keys that are never used again stay",
            )
        })?;
        let by_key = self.wire.find_by_key(("", None), None, 1, deadline);
        let by_key = inspection.read(by_key).await;
        inspection.queried(by_key, || {
            missing_index(
                Severity::Info,
                "firestore-key-index-missing",
                "key",
                "locks cannot be listed",
            )
        })?;
        inspection.write().await?;
        let mut findings = inspection.findings();
        // If this fails, the error is the reason.
        let is_error = |finding: &Finding| finding.severity() == Severity::Error;
        if !findings.iter().any(is_error) && !self.gives_wake_ups(names.lock, deadline).await {
            findings.push(no_wake_ups());
        }
        Ok(findings)
    }

    async fn gives_wake_ups(&self, document: String, deadline: Instant) -> bool {
        let now = Instant::now();
        // Early enough that the findings are still reported.
        let deadline = now + deadline.saturating_duration_since(now) / 2;
        let watch = self.wake_ups.watch(&self.wire, document, deadline).await;
        matches!(watch, Ok(Some(_)))
    }
}

struct Inspection<'a> {
    backend: &'a FirestoreBackend,
    deadline: Instant,
    /// On a key that nobody uses.
    lock: LockDocument,
    denied: Vec<&'static str>,
    findings: Vec<Finding>,
    skew_ms: i64,
}

impl<'a> Inspection<'a> {
    fn new(backend: &'a FirestoreBackend, deadline: Instant) -> Result<Self, LockError> {
        let lock_id = LockId::generate()?;
        let lock = LockDocument {
            key: LockKey::new(&format!("preflight:{}", lock_id.as_str()))?,
            lock_id,
            expires_at_ms: 0,
            acquired_at_ms: 0,
            fence: Fence::from_counter(1)?,
        };
        Ok(Self {
            backend,
            deadline,
            lock,
            denied: Vec::new(),
            findings: Vec::new(),
            skew_ms: 0,
        })
    }

    async fn read(
        &mut self,
        request: impl Future<Output = Result<Reading, Status>>,
    ) -> Result<(), Status> {
        let clock = &self.backend.clock;
        let sent_ms = clock.wall_ms();
        let reading = request.await?;
        let skew_ms = clock.moment(sent_ms, reading.read_time_ms).skew_ms();
        // Each is the certain part of the skew, so the largest is the closest.
        if skew_ms.unsigned_abs() > self.skew_ms.unsigned_abs() {
            self.skew_ms = skew_ms;
        }
        Ok(())
    }

    /// Notes that a query found no index or lacked permission.
    fn queried(
        &mut self,
        outcome: Result<(), Status>,
        without_index: impl FnOnce() -> Finding,
    ) -> Result<(), LockError> {
        match outcome {
            Ok(()) => Ok(()),
            Err(status) if status.code() == Code::FailedPrecondition => {
                self.findings.push(without_index());
                Ok(())
            }
            Err(status) => self.denied("query locks", &status),
        }
    }

    /// Notes a missing permission; any other status is a failure.
    fn denied(&mut self, what: &'static str, status: &Status) -> Result<(), LockError> {
        if status.code() != Code::PermissionDenied {
            return Err(error::of_read(status));
        }
        if let Some(denial) = Denial::of(status) {
            self.findings.push(not_permitted(denial));
        } else if !self.denied.contains(&what) {
            self.denied.push(what);
        }
        Ok(())
    }

    async fn write(&mut self) -> Result<(), LockError> {
        let wire = &self.backend.wire;
        let names = wire.names().of(&self.lock.key)?;
        let other = LockKey::new(&format!("{}:other", self.lock.key.as_str()))?;
        let absent = wire.names().of(&other)?.lock;
        let writes = vec![
            self.lock.write(names.lock, Version::ABSENT),
            write_counter(
                names.fence_counter,
                self.lock.fence,
                &self.lock.key,
                Version::ABSENT,
            ),
            delete(absent, Version::PRESENT),
        ];
        match wire.commit(writes, self.deadline).await {
            Err(status) if state_moved(&status) => Ok(()),
            Err(status) => self.denied("write documents", &status),
            Ok(()) => Err(LockError::new(
                ErrorCode::Internal,
                "Firestore accepted a commit whose precondition does not hold",
            )),
        }
    }

    fn findings(mut self) -> Vec<Finding> {
        // One denial fails every request.
        self.findings.dedup();
        if !self.denied.is_empty() {
            self.findings.push(Finding::new(
                Severity::Error,
                "firestore-missing-permissions",
                format!("no permission to {}", self.denied.join(", ")),
                "grant the service account the role `roles/datastore.user` on the project",
            ));
        }
        if self.backend.clock.authority() == TimeAuthority::Client {
            self.findings.extend(skewed(self.skew_ms));
        }
        self.findings
    }
}

fn not_permitted(denial: Denial) -> Finding {
    let code = match denial {
        Denial::ApiDisabled => "firestore-api-disabled",
        Denial::BillingDisabled => "firestore-billing-disabled",
        Denial::QuotaProject => "firestore-quota-project-denied",
        Denial::ScopeInsufficient => "firestore-scope-insufficient",
    };
    Finding::new(Severity::Error, code, denial.found(), denial.fix())
}

fn no_wake_ups() -> Finding {
    Finding::new(
        Severity::Info,
        "firestore-wake-ups-unavailable",
        "Firestore, or a proxy before it, gives no wake-ups: callers that wait poll, once a second at \
         the least",
        "let the streaming method `google.firestore.v1.Firestore/Listen` through, and \
         connect without a proxy that buffers streams",
    )
}

fn missing_index(
    severity: Severity,
    code: &'static str,
    field: &str,
    consequence: &str,
) -> Finding {
    Finding::new(
        severity,
        code,
        format!(
            "Firestore has no index on `{field}` of the locks, or is still building it: \
             {consequence}"
        ),
        format!(
            "remove the exemption of `{field}` from the single-field indexes, and wait until \
             Firestore has built the index"
        ),
    )
}

fn skewed(skew_ms: i64) -> Option<Finding> {
    let (severity, consequence) = match Duration::from_millis(skew_ms.unsigned_abs()) {
        skew if skew > RECOMMENDED_SKEW_LIMIT => (
            Severity::Error,
            "if another machine's clock is off by as much in the other direction, one machine counts \
             a lease as expired and the other as live",
        ),
        skew if skew > DEFAULT_SKEW_WARNING => (
            Severity::Warning,
            "the skew uses up part of the tolerance of leases",
        ),
        skew if skew > NOTABLE_SKEW => (Severity::Info, "a synchronized clock is more accurate"),
        _ => return None,
    };
    Some(Finding::new(
        severity,
        "firestore-clock-skew",
        format!(
            "the local clock is {} ms {} Firestore's: {consequence}",
            skew_ms.unsigned_abs(),
            if skew_ms > 0 { "ahead of" } else { "behind" },
        ),
        "synchronize the clock by NTP, or set `FirestoreOptions::server_time(true)` in all clients",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ladder_of_clock_skew() {
        let severity = |skew_ms| skewed(skew_ms).map(|finding| finding.severity());
        for (skew_ms, expected) in [
            (0, None),
            (100, None),
            (101, Some(Severity::Info)),
            (200, Some(Severity::Info)),
            (201, Some(Severity::Warning)),
            (500, Some(Severity::Warning)),
            (501, Some(Severity::Error)),
            (i64::MAX, Some(Severity::Error)),
        ] {
            assert_eq!(severity(skew_ms), expected, "{skew_ms}");
            assert_eq!(severity(-skew_ms), expected, "-{skew_ms}");
        }
        assert!(skewed(-300).unwrap().found().contains("300 ms behind"));
        assert!(skewed(300).unwrap().found().contains("300 ms ahead of"));
    }
}
