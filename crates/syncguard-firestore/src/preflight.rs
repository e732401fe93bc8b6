//! Asking a database whether it is set up for locks. What is written is refused as a whole.

use std::time::Duration;

use syncguard_core::{
    ErrorCode, Fence, Finding, LockError, LockId, LockKey, Preflight, Severity, TimeAuthority,
};
use tonic::{Code, Status};

use crate::document::{LockDocument, Version, delete, write_counter};
use crate::error::{self, state_moved};
use crate::wire::Reading;
use crate::{DEFAULT_SKEW_WARNING, FirestoreStore, RECOMMENDED_SKEW_LIMIT};

/// Difference of the clocks that is worth a word.
const NOTABLE_SKEW: Duration = Duration::from_millis(100);

/// Three reads and one write. The write is one of several in a commit of which one cannot succeed,
/// so none of them does; whether the right is there is decided before.
impl Preflight for FirestoreStore {
    async fn preflight(&self) -> Result<Vec<Finding>, LockError> {
        let mut inquiry = Inquiry::new(self)?;
        let id = inquiry.lock.lock_id;
        let names = self.wire.names().of(&inquiry.lock.key)?;
        let both = vec![names.lock, names.fence_counter];
        if let Err(status) = inquiry.read(self.wire.get(both)).await {
            inquiry.denied("read documents", &status)?;
        }
        let by_id = inquiry.read(self.wire.find_by_lock_id(id.as_str())).await;
        inquiry.queried(by_id, || {
            missing_index(
                Severity::Error,
                "firestore-index-missing",
                "lockId",
                "locks can be taken, and neither extended nor released",
            )
        })?;
        let by_expiry = inquiry.read(self.wire.find_by_expiry(1)).await;
        inquiry.queried(by_expiry, || {
            missing_index(
                Severity::Warning,
                "firestore-expiry-index-missing",
                "expiresAtMs",
                "`purge_expired` fails, and locks of keys that are never used again stay",
            )
        })?;
        inquiry.write().await?;
        Ok(inquiry.findings())
    }
}

struct Inquiry<'a> {
    store: &'a FirestoreStore,
    /// On a key that nobody has.
    lock: LockDocument,
    denied: Vec<&'static str>,
    findings: Vec<Finding>,
    skew_ms: i64,
}

impl<'a> Inquiry<'a> {
    fn new(store: &'a FirestoreStore) -> Result<Self, LockError> {
        let lock_id = LockId::generate()?;
        let lock = LockDocument {
            key: LockKey::new(&format!("preflight:{}", lock_id.as_str()))?,
            lock_id,
            expires_at_ms: 0,
            acquired_at_ms: 0,
            fence: Fence::from_counter(1)?,
        };
        Ok(Self {
            store,
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
        let clock = &self.store.clock;
        let sent_ms = clock.wall_ms();
        let reading = request.await?;
        let skew_ms = clock.moment(sent_ms, reading.read_time_ms).skew_ms();
        // Each is as much as is certain, so the largest is the nearest.
        if skew_ms.unsigned_abs() > self.skew_ms.unsigned_abs() {
            self.skew_ms = skew_ms;
        }
        Ok(())
    }

    /// Notes that a query found no index, or no right.
    fn queried(
        &mut self,
        answer: Result<(), Status>,
        without_index: impl FnOnce() -> Finding,
    ) -> Result<(), LockError> {
        match answer {
            Ok(()) => Ok(()),
            Err(status) if status.code() == Code::FailedPrecondition => {
                self.findings.push(without_index());
                Ok(())
            }
            Err(status) => self.denied("query locks", &status),
        }
    }

    /// Notes a right that is missing; anything else is a failure.
    fn denied(&mut self, what: &'static str, status: &Status) -> Result<(), LockError> {
        if status.code() != Code::PermissionDenied {
            return Err(error::of_read(status));
        }
        if !self.denied.contains(&what) {
            self.denied.push(what);
        }
        Ok(())
    }

    async fn write(&mut self) -> Result<(), LockError> {
        let wire = &self.store.wire;
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
        match wire.commit(writes).await {
            Err(status) if state_moved(&status) => Ok(()),
            Err(status) => self.denied("write documents", &status),
            Ok(()) => Err(LockError::new(
                ErrorCode::Internal,
                "a commit was accepted whose precondition does not hold",
            )),
        }
    }

    fn findings(mut self) -> Vec<Finding> {
        if !self.denied.is_empty() {
            self.findings.push(Finding::new(
                Severity::Error,
                "firestore-missing-rights",
                format!("these credentials may not {}", self.denied.join(", ")),
                "grant the service account the role `roles/datastore.user` on the project",
            ));
        }
        if self.store.clock.authority() == TimeAuthority::Client {
            self.findings.extend(skewed(self.skew_ms));
        }
        self.findings
    }
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
            "remove the exemption of `{field}` from the single-field indexes, and wait until the \
             index is built"
        ),
    )
}

fn skewed(skew_ms: i64) -> Option<Finding> {
    let (severity, consequence) = match Duration::from_millis(skew_ms.unsigned_abs()) {
        skew if skew > RECOMMENDED_SKEW_LIMIT => (
            Severity::Error,
            "beside a machine that is off by as much the other way, a lease can have ended for \
             one and not for the other",
        ),
        skew if skew > DEFAULT_SKEW_WARNING => (
            Severity::Warning,
            "it uses up the tolerance that leases are counted with",
        ),
        skew if skew > NOTABLE_SKEW => (Severity::Info, "synchronised clocks are closer"),
        _ => return None,
    };
    Some(Finding::new(
        severity,
        "firestore-clock-skew",
        format!(
            "this machine's clock is {} ms {} Firestore's: {consequence}",
            skew_ms.unsigned_abs(),
            if skew_ms > 0 { "ahead of" } else { "behind" },
        ),
        "have the clock synchronised by NTP, or set `FirestoreOptions::with_server_time(true)` in \
         all clients",
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
