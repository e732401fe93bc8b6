//! [`hash_key`]: the display hash that logs and events show in place of identifiers.

use std::fmt;

use serde::{Serialize, Serializer};
use unicode_normalization::{UnicodeNormalization as _, is_nfc};

/// Logs, events and `Debug` show this in place of a key or a lock id: 24 lowercase hex digits.
///
/// Not cryptographic: a short or guessable key can be found by trying. The hash only keeps identifiers out
/// of plain sight, and lets you match log lines.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HashId([u32; 3]);

impl fmt::Display for HashId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|lane| write!(f, "{lane:08x}"))
    }
}

impl fmt::Debug for HashId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for HashId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Hashes an identifier for display, equal on every implementation of SyncGuard.
///
/// Three 32-bit polynomial lanes run over the UTF-16 code units of the NFC form.
///
/// ```
/// # use syncguard_core::hash_key;
/// assert_eq!(hash_key("payment:42").to_string(), "602228725e82081670294dde");
/// ```
#[must_use]
pub fn hash_key(identifier: &str) -> HashId {
    if is_nfc(identifier) {
        hash_normalized(identifier)
    } else {
        hash_normalized(&identifier.nfc().collect::<String>())
    }
}

/// Hashes an identifier that is in NFC.
pub(crate) fn hash_normalized(identifier: &str) -> HashId {
    let mut lanes = Lanes::default();
    identifier.encode_utf16().for_each(|unit| lanes.add(unit));
    HashId(lanes.0)
}

#[derive(Default)]
struct Lanes([u32; 3]);

impl Lanes {
    fn add(&mut self, unit: u16) {
        let unit = u32::from(unit);
        for (lane, (factor, weight)) in self.0.iter_mut().zip([(31, 1), (127, 3), (2047, 7)]) {
            *lane = lane.wrapping_mul(factor).wrapping_add(weight * unit);
        }
    }
}

/// Writes `Name(hash)`: the `Debug` of every type that holds one raw identifier.
pub(crate) fn debug_hashed(f: &mut fmt::Formatter<'_>, name: &str, hash: HashId) -> fmt::Result {
    write!(f, "{name}({hash})")
}
