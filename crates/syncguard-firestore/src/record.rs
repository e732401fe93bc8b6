//! The stored lock and its fence counter: reading and writing the fields of their documents.

use std::collections::HashMap;
use std::time::Duration;

use gcloud_sdk::google::firestore::v1 as firestore;
use gcloud_sdk::google::firestore::v1::precondition::ConditionType;
use gcloud_sdk::google::firestore::v1::value::ValueType;
use gcloud_sdk::google::firestore::v1::write::Operation;
use gcloud_sdk::google::firestore::v1::{Document, DocumentMask, Precondition, Value, Write};
use gcloud_sdk::prost_types::Timestamp;
use syncguard_core::backend::{FENCE_DIGITS, Grant, TIME_TOLERANCE_MS, is_live};
use syncguard_core::{Fence, LockError, LockId, LockInfoDebug, LockKey};

pub(crate) const LOCK_ID: &str = "lockId";
pub(crate) const EXPIRES_AT_MS: &str = "expiresAtMs";
const ACQUIRED_AT_MS: &str = "acquiredAtMs";
pub(crate) const KEY: &str = "key";
const FENCE: &str = "fence";
const KEY_DEBUG: &str = "keyDebug";

/// The state in which a document was read, as a precondition of a write.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Version(ConditionType);

impl Version {
    /// There was no document.
    pub(crate) const ABSENT: Self = Self(ConditionType::Exists(false));
    /// There was one, in any version.
    pub(crate) const PRESENT: Self = Self(ConditionType::Exists(true));

    pub(crate) fn of(document: &Document) -> Result<Self, LockError> {
        let written = document.update_time;
        written
            .map(|time| Self(ConditionType::UpdateTime(time)))
            .ok_or_else(|| malformed("update_time"))
    }

    fn condition(self) -> Option<Precondition> {
        Some(Precondition {
            condition_type: Some(self.0),
        })
    }
}

/// A stored lock.
#[derive(Debug, Clone)]
pub(crate) struct LockDocument {
    pub(crate) key: LockKey,
    pub(crate) lock_id: LockId,
    pub(crate) expires_at_ms: i64,
    pub(crate) acquired_at_ms: i64,
    pub(crate) fence: Fence,
}

impl LockDocument {
    pub(crate) fn parse(document: &Document) -> Result<Self, LockError> {
        Ok(Self {
            key: LockKey::new(text(document, KEY)?).map_err(|_| malformed(KEY))?,
            lock_id: LockId::parse(text(document, LOCK_ID)?).map_err(|_| malformed(LOCK_ID))?,
            expires_at_ms: integer(document, EXPIRES_AT_MS)?,
            acquired_at_ms: integer(document, ACQUIRED_AT_MS)?,
            fence: fence(document)?,
        })
    }

    pub(crate) fn is_live(&self, now_ms: i64) -> bool {
        is_live(self.expires_at_ms, now_ms, TIME_TOLERANCE_MS)
    }

    /// For how long it stays live if nobody extends or releases it. A live lock has at least one
    /// millisecond left.
    pub(crate) fn free_in(&self, now_ms: i64) -> Duration {
        let free_at_ms = self.expires_at_ms.saturating_add(TIME_TOLERANCE_MS);
        Duration::from_millis(free_at_ms.saturating_sub(now_ms).max(1).unsigned_abs())
    }

    /// Whether this is the same grant, possibly extended since.
    pub(crate) fn is_extension_of(&self, before: &Self) -> bool {
        let same_grant = self.lock_id == before.lock_id && self.fence == before.fence;
        same_grant && self.expires_at_ms != before.expires_at_ms
    }

    pub(crate) fn grant(&self) -> Grant {
        Grant::new(self.lock_id, self.expires_at_ms, self.fence)
    }

    pub(crate) fn info(self) -> LockInfoDebug {
        LockInfoDebug::new(
            self.key,
            self.lock_id,
            self.expires_at_ms,
            self.acquired_at_ms,
            self.fence,
        )
    }

    /// Writes the lock over the document of that version.
    pub(crate) fn write(&self, name: String, version: Version) -> Write {
        let fields = [
            (LOCK_ID, string(self.lock_id.as_str())),
            (EXPIRES_AT_MS, ValueType::IntegerValue(self.expires_at_ms)),
            (ACQUIRED_AT_MS, ValueType::IntegerValue(self.acquired_at_ms)),
            (KEY, string(self.key.as_str())),
            (FENCE, string(&self.fence.to_string())),
        ];
        update(name, fields, None, version)
    }
}

/// The number of a fence counter. One beyond the last fence is used up, not malformed.
pub(crate) fn parse_counter(document: &Document) -> Result<u64, LockError> {
    let digits = text(document, FENCE)?;
    if digits.len() != FENCE_DIGITS || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(malformed(FENCE));
    }
    digits.parse().map_err(|_| malformed(FENCE))
}

/// Writes a fence counter.
pub(crate) fn write_counter(name: String, fence: Fence, key: &LockKey, version: Version) -> Write {
    let fields = [
        (FENCE, string(&fence.to_string())),
        (KEY_DEBUG, string(key.as_str())),
    ];
    update(name, fields, None, version)
}

/// Writes a lock's expiry and leaves its other fields.
pub(crate) fn write_expiry(name: String, expires_at_ms: i64, version: Version) -> Write {
    let field = (EXPIRES_AT_MS, ValueType::IntegerValue(expires_at_ms));
    let mask = DocumentMask {
        field_paths: vec![EXPIRES_AT_MS.to_owned()],
    };
    update(name, [field], Some(mask), version)
}

/// Deletes a document.
pub(crate) fn delete(name: String, version: Version) -> Write {
    Write {
        operation: Some(Operation::Delete(name)),
        current_document: version.condition(),
        ..Write::default()
    }
}

/// Milliseconds since the epoch, the fraction dropped.
pub(crate) fn millis(time: &Timestamp) -> i64 {
    let of_seconds = time.seconds.saturating_mul(1_000);
    of_seconds.saturating_add(i64::from(time.nanos / 1_000_000))
}

fn update<const N: usize>(
    name: String,
    fields: [(&str, ValueType); N],
    update_mask: Option<DocumentMask>,
    version: Version,
) -> Write {
    let fields = fields.map(|(field, value)| {
        let value = Value {
            value_type: Some(value),
        };
        (field.to_owned(), value)
    });
    let document = firestore::Document {
        name,
        fields: HashMap::from(fields),
        ..Document::default()
    };
    Write {
        operation: Some(Operation::Update(document)),
        update_mask,
        current_document: version.condition(),
        ..Write::default()
    }
}

fn string(text: &str) -> ValueType {
    ValueType::StringValue(text.to_owned())
}

fn value<'a>(document: &'a Document, field: &str) -> Option<&'a ValueType> {
    document.fields.get(field)?.value_type.as_ref()
}

pub(crate) fn text<'a>(document: &'a Document, field: &'static str) -> Result<&'a str, LockError> {
    match value(document, field) {
        Some(ValueType::StringValue(text)) => Ok(text),
        _ => Err(malformed(field)),
    }
}

fn integer(document: &Document, field: &'static str) -> Result<i64, LockError> {
    match value(document, field) {
        Some(ValueType::IntegerValue(number)) => Ok(*number),
        _ => Err(malformed(field)),
    }
}

fn fence(document: &Document) -> Result<Fence, LockError> {
    text(document, FENCE)?.parse().map_err(|_| malformed(FENCE))
}

/// The error of a document that SyncGuard did not write. It stays as it is.
fn malformed(field: &str) -> LockError {
    LockError::invalid_argument(format!(
        "`{field}` of a document in SyncGuard's collections is missing or malformed; \
         it was left unchanged: repair the document, or delete it if another program wrote it"
    ))
}
