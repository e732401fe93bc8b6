//! The results of operations that did not fail.

use std::fmt;

use serde::Serialize;
use serde::ser::{SerializeStruct as _, Serializer};

use crate::fence::FenceToken;
use crate::{Fence, HashId, LockId, LockKey};

/// Why a release or extend found no lock, if the store knew that at no cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailureReason {
    /// The lease had expired.
    Expired,
    /// There is no such lock, or it no longer exists.
    NotFound,
}

impl FailureReason {
    /// The reason as telemetry spells it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::NotFound => "not-found",
        }
    }
}

/// The result of a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum ReleaseResult {
    /// This call freed the key.
    Released,
    /// The id holds no lock: it was released, has expired, or was never granted.
    #[non_exhaustive]
    NotHeld {
        /// For telemetry: do not branch on it.
        reason: Option<FailureReason>,
    },
}

impl ReleaseResult {
    /// The id holds no lock, for this reason if it is known.
    pub const fn not_held(reason: Option<FailureReason>) -> Self {
        Self::NotHeld { reason }
    }

    /// Whether this call freed the key.
    #[must_use]
    pub fn is_released(&self) -> bool {
        matches!(self, Self::Released)
    }
}

/// As in the specification: `{"ok": true}` or `{"ok": false}`.
impl Serialize for ReleaseResult {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut out = serializer.serialize_struct("ReleaseResult", 1)?;
        out.serialize_field("ok", &self.is_released())?;
        out.end()
    }
}

/// The result of an extend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum ExtendResult {
    /// The lease now ends at this time, by the store's clock.
    #[non_exhaustive]
    Extended {
        /// Unix milliseconds.
        expires_at_ms: i64,
    },
    /// The id holds no lock. An extend does not bring back an expired lease.
    #[non_exhaustive]
    NotHeld {
        /// For telemetry: do not branch on it.
        reason: Option<FailureReason>,
    },
}

impl ExtendResult {
    /// The lease now ends at this time: Unix milliseconds by the store's clock.
    pub const fn extended(expires_at_ms: i64) -> Self {
        Self::Extended { expires_at_ms }
    }

    /// The id holds no lock, for this reason if it is known.
    pub const fn not_held(reason: Option<FailureReason>) -> Self {
        Self::NotHeld { reason }
    }

    /// Whether the lease was extended.
    #[must_use]
    pub fn is_extended(&self) -> bool {
        matches!(self, Self::Extended { .. })
    }

    /// The new expiry, if the lease was extended.
    #[must_use]
    pub fn expires_at_ms(&self) -> Option<i64> {
        match self {
            Self::Extended { expires_at_ms } => Some(*expires_at_ms),
            Self::NotHeld { .. } => None,
        }
    }
}

/// As in the specification: `{"ok": true, "expiresAtMs"}` or `{"ok": false}`.
impl Serialize for ExtendResult {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let expires_at_ms = self.expires_at_ms();
        let fields = if expires_at_ms.is_some() { 2 } else { 1 };
        let mut out = serializer.serialize_struct("ExtendResult", fields)?;
        out.serialize_field("ok", &self.is_extended())?;
        if let Some(expires_at_ms) = expires_at_ms {
            out.serialize_field("expiresAtMs", &expires_at_ms)?;
        }
        out.end()
    }
}

/// A live lock, with hashes in place of its identifiers: for logs and dashboards.
///
/// It serializes as in the specification, in camelCase, without `fence` if the backend has none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct LockInfo<F: FenceToken = Fence> {
    /// Display hash of the key.
    pub key_hash: HashId,
    /// Display hash of the lock id.
    pub lock_id_hash: HashId,
    /// When the lease ends: Unix milliseconds by the store's clock.
    pub expires_at_ms: i64,
    /// When the lock was granted: Unix milliseconds by the store's clock.
    pub acquired_at_ms: i64,
    /// The fencing token.
    #[serde(skip_serializing_if = "has_no_fence")]
    pub fence: F,
}

/// A live lock with its raw identifiers. Its `Debug` shows only hashes.
///
/// It serializes as [`LockInfo`] does, with the raw `key` and `lockId` in addition.
#[derive(Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct LockInfoDebug<F: FenceToken = Fence> {
    /// The key. Sensitive.
    #[serde(serialize_with = "raw_key")]
    pub key: LockKey,
    /// The lock id. Sensitive: a process that knows it can release the lock.
    #[serde(serialize_with = "raw_lock_id")]
    pub lock_id: LockId,
    /// Display hash of the key.
    pub key_hash: HashId,
    /// Display hash of the lock id.
    pub lock_id_hash: HashId,
    /// When the lease ends: Unix milliseconds by the store's clock.
    pub expires_at_ms: i64,
    /// When the lock was granted: Unix milliseconds by the store's clock.
    pub acquired_at_ms: i64,
    /// The fencing token.
    #[serde(skip_serializing_if = "has_no_fence")]
    pub fence: F,
}

impl<F: FenceToken> LockInfoDebug<F> {
    /// What a store found.
    #[must_use]
    pub fn new(
        key: LockKey,
        lock_id: LockId,
        expires_at_ms: i64,
        acquired_at_ms: i64,
        fence: F,
    ) -> Self {
        Self {
            key_hash: key.hash_id(),
            lock_id_hash: lock_id.hash_id(),
            key,
            lock_id,
            expires_at_ms,
            acquired_at_ms,
            fence,
        }
    }

    /// The same without the raw identifiers.
    #[must_use]
    pub fn sanitized(&self) -> LockInfo<F> {
        LockInfo {
            key_hash: self.key_hash,
            lock_id_hash: self.lock_id_hash,
            expires_at_ms: self.expires_at_ms,
            acquired_at_ms: self.acquired_at_ms,
            fence: self.fence,
        }
    }
}

impl<F: FenceToken> fmt::Debug for LockInfoDebug<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockInfoDebug")
            .field("key", &self.key)
            .field("lock_id", &self.lock_id)
            .field("expires_at_ms", &self.expires_at_ms)
            .field("acquired_at_ms", &self.acquired_at_ms)
            .field("fence", &self.fence)
            .finish()
    }
}

fn has_no_fence<F: FenceToken>(_: &F) -> bool {
    !F::SUPPORTED
}

fn raw_key<S: Serializer>(key: &LockKey, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(key.as_str())
}

fn raw_lock_id<S: Serializer>(id: &LockId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(id.as_str())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json, to_value};

    use super::*;
    use crate::backend::NoFence;

    fn info<F: FenceToken>(fence: F) -> LockInfoDebug<F> {
        let id = LockId::parse("AAAAAAAAAAAAAAAAAAAAAA").unwrap();
        LockInfoDebug::new(LockKey::new("k").unwrap(), id, 2_000, 1_000, fence)
    }

    fn without(mut json: Value, field: &str) -> Value {
        json.as_object_mut().unwrap().remove(field).unwrap();
        json
    }

    #[test]
    fn locks_serialize_as_the_specification_has_them() {
        let info = info(Fence::from_counter(7).unwrap());
        let raw = json!({
            "key": "k",
            "lockId": "AAAAAAAAAAAAAAAAAAAAAA",
            "keyHash": info.key_hash.to_string(),
            "lockIdHash": info.lock_id_hash.to_string(),
            "expiresAtMs": 2_000,
            "acquiredAtMs": 1_000,
            "fence": "000000000000007",
        });
        assert_eq!(to_value(&info).unwrap(), raw);
        let sanitized = without(without(raw, "key"), "lockId");
        assert_eq!(to_value(info.sanitized()).unwrap(), sanitized);
    }

    #[test]
    fn without_fences_there_is_no_field() {
        let fenced = info(Fence::from_counter(7).unwrap());
        let unfenced = info(NoFence);
        let [raw, sanitized] = [to_value(&fenced), to_value(fenced.sanitized())];
        assert_eq!(to_value(&unfenced).unwrap(), without(raw.unwrap(), "fence"));
        assert_eq!(
            to_value(unfenced.sanitized()).unwrap(),
            without(sanitized.unwrap(), "fence")
        );
    }
}
