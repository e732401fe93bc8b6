//! Properties of keys, storage keys, fences, TTLs and liveness, over generated input.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use proptest::prelude::*;
use syncguard_core::backend::{
    FENCE_MAX, MAX_KEY_LENGTH_BYTES, format_fence, is_live, make_fence_key, make_storage_key,
};
use syncguard_core::{ErrorCode, Fence, LockError, LockId, LockKey, Ttl, hash_key};
use unicode_normalization::UnicodeNormalization as _;

fn nfc(text: &str) -> String {
    text.nfc().collect()
}

proptest! {
    #[test]
    fn a_key_is_its_nfc_form_or_refused(text in any::<String>()) {
        let normalized = nfc(&text);
        let acceptable = !text.is_empty()
            && !text.contains('\0')
            && normalized.len() <= MAX_KEY_LENGTH_BYTES;
        match LockKey::new(&text) {
            Ok(key) => {
                prop_assert!(acceptable);
                prop_assert_eq!(key.as_str(), &normalized);
                prop_assert_eq!(LockKey::new(key.as_str()).unwrap(), key, "parsing is idempotent");
            }
            Err(_) => prop_assert!(!acceptable),
        }
    }

    #[test]
    fn spellings_of_one_text_are_one_key(text in "[a-zà-ÿ\u{1100}-\u{1112}\u{1161}-\u{1175}\u{300}-\u{36f}]{1,60}") {
        let composed = LockKey::new(&text.nfc().collect::<String>());
        let decomposed = LockKey::new(&text.nfd().collect::<String>());
        prop_assert_eq!(composed.ok(), decomposed.ok());
        let nfd: String = text.nfd().collect();
        prop_assert_eq!(hash_key(&text), hash_key(&nfd));
    }

    #[test]
    fn a_storage_key_fits_and_keeps_its_prefix(
        prefix in "[a-z:{}]{0,40}", key in ".{1,300}", limit in 20_usize..400, reserve in 0_usize..40,
    ) {
        let kept = prefix.trim_end_matches(':');
        let full_length = kept.len()
            + usize::from(!kept.is_empty())
            + nfc(&key).len();
        match make_storage_key(&prefix, &nfc(&key), limit, reserve) {
            Ok(name) => {
                prop_assert!(name.len() + reserve <= limit);
                prop_assert!(name.starts_with(kept));
                let fits = full_length + reserve <= limit;
                let shortened = kept.len() + usize::from(!kept.is_empty()) + 22;
                prop_assert_eq!(name.len(), if fits { full_length } else { shortened });
                prop_assert_eq!(&name, &make_storage_key(kept, &nfc(&key), limit, reserve).unwrap());
            }
            Err(_) => {
                prop_assert!(full_length + reserve > limit);
                prop_assert!(kept.len() + usize::from(!kept.is_empty()) + 22 + reserve > limit);
            }
        }
    }

    #[test]
    fn distinct_keys_have_distinct_names_and_counters(
        prefix in "[a-z]{0,8}", first in ".{1,120}", second in ".{1,120}",
    ) {
        let name = |key: &str| make_storage_key(&prefix, &nfc(key), 100, 26).unwrap();
        let counter = |key: &str| make_fence_key(&prefix, &name(key), 100, 26).unwrap();
        let same = first.nfc().eq(second.nfc());
        prop_assert_eq!(name(&first) == name(&second), same);
        prop_assert_eq!(counter(&first) == counter(&second), same);
    }

    #[test]
    fn shortened_names_differ_between_prefixes(key in "[a-z]{200,300}") {
        let hash_of = |prefix: &str| {
            let name = make_storage_key(prefix, &key, 100, 0).unwrap();
            name.rsplit(':').next().unwrap().to_owned()
        };
        prop_assert_ne!(hash_of("a"), hash_of("b"));
    }

    #[test]
    fn a_fences_text_sorts_as_its_number(first in 0..=FENCE_MAX, second in 0..=FENCE_MAX) {
        let [first, second] = [first, second].map(|n| Fence::from_counter(n).unwrap());
        prop_assert_eq!(first.cmp(&second), first.to_string().cmp(&second.to_string()));
        prop_assert_eq!(first.cmp(&second), first.get().cmp(&second.get()));
        prop_assert_eq!(first.to_string().parse::<Fence>().unwrap(), first);
        prop_assert_eq!(format_fence(first.get()).unwrap(), first.to_string());
        let json = serde_json::to_string(&first).unwrap();
        prop_assert_eq!(&json, &format!("\"{first}\""));
        prop_assert_eq!(serde_json::from_str::<Fence>(&json).unwrap(), first);
    }

    #[test]
    fn a_fence_beyond_the_maximum_is_never_granted(counter in FENCE_MAX + 1..=999_999_999_999_999) {
        prop_assert!(Fence::from_counter(counter).is_err());
        prop_assert!(counter.to_string().parse::<Fence>().is_err());
    }

    #[test]
    fn only_15_digits_parse_as_a_fence(text in "[0-8]?[0-9+ \\-٣a]{0,16}") {
        let strict = text.len() == 15
            && text.bytes().all(|byte| byte.is_ascii_digit())
            && *text <= *"900000000000000";
        prop_assert_eq!(text.parse::<Fence>().is_ok(), strict);
    }

    #[test]
    fn only_22_base64url_characters_parse_as_a_lock_id(text in "[A-Za-z0-9_+=/é \\-]{20,24}") {
        let base64url = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let strict = text.len() == 22 && text.chars().all(base64url);
        prop_assert_eq!(LockId::parse(&text).is_ok(), strict);
    }

    #[test]
    fn a_ttl_is_rounded_up_exactly_or_refused(nanos in prop_oneof![0_u64..5_000_000, any::<u64>()]) {
        let duration = Duration::from_nanos(nanos);
        match Ttl::new(duration) {
            Ok(ttl) => {
                prop_assert!(ttl >= Ttl::MIN && ttl <= Ttl::MAX);
                let rounding = ttl.as_duration() - duration;
                prop_assert!(rounding < Duration::from_millis(1));
            }
            Err(_) => prop_assert!(nanos == 0 || duration > Ttl::MAX.as_duration()),
        }
    }

    #[test]
    fn liveness_ends_once_and_for_all(
        expires in -1_000_000_000_000_i64..9_000_000_000_000, tolerance in 0_i64..5_000, by in 0_i64..5_000,
    ) {
        let end = expires + tolerance;
        prop_assert!(is_live(expires, end - 1 - by, tolerance));
        prop_assert!(!is_live(expires, end + by, tolerance));
    }

    #[test]
    fn no_clock_value_overflows_liveness(expires: i64, now: i64, tolerance in 0_i64..=1_000) {
        let exact = i128::from(expires) > i128::from(now) - i128::from(tolerance);
        let saturated = now < i64::MIN + tolerance;
        prop_assert!(saturated || is_live(expires, now, tolerance) == exact);
    }
}

#[test]
fn ttl_limits() {
    for refused in [
        Duration::ZERO,
        Duration::MAX,
        Duration::from_secs(11 * 365 * 86_400),
    ] {
        assert!(Ttl::new(refused).is_err(), "{refused:?}");
    }
    let millis = |duration| Ttl::new(duration).unwrap().as_millis();
    assert_eq!(millis(Duration::from_nanos(1)), 1);
    assert_eq!(millis(Duration::from_micros(999)), 1);
    assert_eq!(millis(Duration::from_millis(1)), 1);
    assert_eq!(millis(Duration::from_micros(1_500)), 2);
    assert_eq!(millis(Duration::from_secs(365 * 86_400)), 31_536_000_000);
    assert_eq!(millis(Duration::from_secs(3_650 * 86_400)), 315_360_000_000);
    assert!(Ttl::new(Duration::from_secs(3_650 * 86_400) + Duration::from_nanos(1)).is_err());
}

#[test]
fn generated_lock_ids_are_valid_and_distinct() {
    let ids: std::collections::HashSet<_> =
        (0..10_000).map(|_| LockId::generate().unwrap()).collect();
    assert_eq!(ids.len(), 10_000);
    for id in ids {
        assert_eq!(LockId::parse(id.as_str()).unwrap(), id);
    }
}

/// A driver's error that shows the same text by `Debug`, which escapes it, and by `Display`.
#[derive(Debug)]
struct Driver(String);

impl fmt::Display for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Driver {}

/// One that shows its text by `Debug` alone.
#[derive(Debug)]
struct Terse(#[expect(dead_code, reason = "it is for Debug")] String);

impl fmt::Display for Terse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("!")
    }
}

impl Error for Terse {}

/// Whether the source is still the driver's own.
fn keeps<E: Error + Send + Sync + 'static>(key: &str, source: E) -> bool {
    let error = LockError::new(ErrorCode::Internal, "!")
        .with_source(source)
        .with_key(&LockKey::new(key).unwrap());
    error.source().unwrap().is::<E>()
}

proptest! {
    #[test]
    fn a_quoted_key_is_redacted_whatever_surrounds_it(
        key in "[a-zA-Z0-9]{1,4}|[^\0a-zA-Z0-9]{1,3}|.{5,9}",
        before in "(.*[^a-zA-Z0-9])?", after in "([^a-zA-Z0-9].*)?",
    ) {
        let Ok(parsed) = LockKey::new(&key) else { return Ok(()) };
        // `Debug` shows the end of a quoted word so.
        prop_assume!(!(before.ends_with('\\') && key.starts_with('"')));
        let text = format!("{before}{}{after}", parsed.as_str());
        prop_assert!(!keeps(&key, Driver(text.clone())));
        prop_assert!(!keeps(&key, Terse(text)));
    }

    #[test]
    fn an_escape_before_a_quoted_key_hides_nothing(
        key in "[a-zA-Z0-9]{1,4}", before in ".*",
        escape in r"\\[nrt0]|\\x[0-9a-f]{2}|\\u[0-9a-f]{4}|\\u\{[0-9a-f]{1,6}\}|%[0-9A-F]{2}",
    ) {
        let text = format!("{before}{escape}{key}");
        prop_assert!(!keeps(&key, Driver(text)));
    }

    #[test]
    fn a_short_key_of_signs_in_ordinary_text_redacts_nothing(
        key in r#"["'.,:=-]"#, word in "[a-z]{1,5}",
    ) {
        let text = format!("{word}, \"{word}\" '{word}' {word}.{word}={word}: {word}-{word}");
        prop_assert!(keeps(&key, Driver(text)));
    }

    #[test]
    fn a_short_key_inside_ordinary_words_redacts_nothing(
        key in "[a-z0-9]{1,3}", first in "[a-z]{1,5}", last in "[a-z]{1,5}",
    ) {
        for word in [format!("{first}{key}"), format!("{key}{last}"), format!("{first}{key}{last}")] {
            let text = format!("! ({word}): {word}.");
            prop_assert!(keeps(&key, Driver(text)));
        }
    }
}
