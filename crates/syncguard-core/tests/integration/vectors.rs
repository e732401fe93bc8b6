//! Golden values of the TypeScript original: what it stores and shows, byte for byte.

use serde_json::Value;
use syncguard_core::backend::{format_fence, is_live, make_fence_key, make_storage_key};
use syncguard_core::{ErrorCode, LockError, LockId, LockKey, hash_key};

/// Checks every entry of a section; `check` gets the entry and asserts on it.
fn each(section: &str, at_least: usize, check: impl Fn(&Value)) {
    let vectors: Value =
        serde_json::from_str(include_str!("../data/syncguard-vectors.json")).unwrap();
    let entries = vectors[section].as_array().unwrap();
    assert!(
        entries.len() >= at_least,
        "{section} has only {} entries",
        entries.len()
    );
    entries.iter().for_each(check);
}

fn text<'a>(entry: &'a Value, field: &str) -> &'a str {
    entry[field]
        .as_str()
        .unwrap_or_else(|| panic!("no text {field} in {entry}"))
}

fn number(value: &Value) -> i64 {
    value
        .as_i64()
        .or_else(|| value.as_str()?.parse().ok())
        .unwrap()
}

fn size(entry: &Value, field: &str) -> usize {
    usize::try_from(number(&entry[field])).unwrap()
}

/// Compares with the entry's `output`, or its `error`.
fn expect(entry: &Value, field: &str, seen: Result<String, LockError>) {
    match (entry[field].as_str(), seen) {
        (Some(expected), Ok(seen)) => assert_eq!(seen, expected, "{entry}"),
        (None, Err(error)) => {
            assert_eq!(error.code(), ErrorCode::InvalidArgument, "{entry}");
            let code = entry["error"].as_str();
            assert!(
                code.is_none_or(|code| code == error.code().as_str()),
                "{entry}"
            );
        }
        (expected, seen) => panic!("expected {expected:?}, saw {seen:?} for {entry}"),
    }
}

#[test]
fn hash_key_matches() {
    each("hashKey", 53, |entry| {
        assert_eq!(
            hash_key(text(entry, "input")).to_string(),
            text(entry, "output"),
            "{entry}"
        );
    });
}

#[test]
fn normalization_matches() {
    each("normalize", 58, |entry| {
        let key = LockKey::new(text(entry, "input"));
        expect(entry, "output", key.map(|key| key.as_str().to_owned()));
    });
}

#[test]
fn storage_keys_and_their_fence_keys_match() {
    each("makeStorageKey", 270, |entry| {
        let (prefix, limit, reserve) = (
            text(entry, "prefix"),
            size(entry, "limit"),
            size(entry, "reserve"),
        );
        let key = LockKey::new(text(entry, "key")).unwrap();
        let storage_key = make_storage_key(prefix, key.as_str(), limit, reserve);
        expect(entry, "output", storage_key.clone());
        if let Ok(storage_key) = storage_key {
            expect(
                entry,
                "fence",
                make_fence_key(prefix, &storage_key, limit, reserve),
            );
        }
    });
}

#[test]
fn fence_format_matches() {
    each("formatFence", 13, |entry| {
        // A negative number is refused by the type.
        let number = text(entry, "input").parse::<u64>();
        let negative = || LockError::invalid_argument("negative");
        expect(
            entry,
            "output",
            number.map_err(|_| negative()).and_then(format_fence),
        );
    });
}

#[test]
fn lock_id_validation_matches() {
    each("lockId", 11, |entry| {
        let verdict = LockId::parse(text(entry, "input"));
        assert_eq!(
            verdict.is_ok(),
            entry["valid"].as_bool().unwrap(),
            "{entry}"
        );
    });
}

#[test]
fn liveness_matches() {
    each("isLive", 8, |entry| {
        let [expires, now, tolerance] =
            ["expiresAtMs", "nowMs", "toleranceMs"].map(|field| number(&entry[field]));
        assert_eq!(
            is_live(expires, now, tolerance),
            entry["live"].as_bool().unwrap(),
            "{entry}"
        );
    });
}
