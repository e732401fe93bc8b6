//! Durations, as people write and read them.

use std::time::Duration;

const UNITS: [(&str, u64); 5] = [
    ("ms", 1),
    ("s", 1_000),
    ("m", 60_000),
    ("h", 3_600_000),
    ("d", 86_400_000),
];

/// Parses `500ms`, `30s`, `1h30m`.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let bad =
        || "a duration is a number with a unit, such as 500ms, 30s, 5m, 1h30m or 2d".to_owned();
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut millis = 0_u64;
    let mut rest = text;
    while !rest.is_empty() || text.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(bad)?;
        let (number, tail) = rest.split_at(digits);
        let letters = tail.find(|c: char| !c.is_ascii_alphabetic());
        let (unit, tail) = tail.split_at(letters.unwrap_or(tail.len()));
        let (_, size) = UNITS
            .iter()
            .find(|(name, _)| *name == unit)
            .ok_or_else(bad)?;
        let part = number.parse::<u64>().map_err(|_| bad())?.checked_mul(*size);
        millis = part
            .and_then(|part| millis.checked_add(part))
            .ok_or_else(|| "the duration is too long".to_owned())?;
        rest = tail;
    }
    Ok(Duration::from_millis(millis))
}

/// As [`parse`], and `forever`.
pub(crate) fn parse_wait(text: &str) -> Result<Duration, String> {
    match text {
        "forever" => Ok(Duration::MAX),
        _ => parse(text).map_err(|error| format!("{error}; or it is `forever`")),
    }
}

/// Time that is left, in its two largest units: `1d 2h`, `2m 5s`, `350ms`. Rounded up, so nothing ends later than is
/// shown.
pub(crate) fn show(duration: Duration) -> String {
    let millis = duration.as_millis();
    let smallest = match millis {
        0..1_000 => 1,
        1_000..3_600_000 => 1_000,
        3_600_000..86_400_000 => 60_000,
        _ => 3_600_000,
    };
    show_age(Duration::from_millis(
        u64::try_from(millis.next_multiple_of(smallest)).unwrap_or(u64::MAX),
    ))
}

/// Time that has passed, in the same units, rounded down.
pub(crate) fn show_age(duration: Duration) -> String {
    let millis = duration.as_millis();
    let seconds = millis / 1_000;
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    let two = |large: u128, unit: &str, small: u128, part: &str| match small {
        0 => format!("{large}{unit}"),
        _ => format!("{large}{unit} {small}{part}"),
    };
    match (days, hours, minutes, seconds) {
        (1.., ..) => two(days, "d", hours, "h"),
        (_, 1.., ..) => two(hours, "h", minutes, "m"),
        (_, _, 1.., _) => two(minutes, "m", seconds % 60, "s"),
        (.., 1..) => format!("{seconds}s"),
        _ => format!("{millis}ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_with_units_are_parsed() {
        for (text, millis) in [
            ("0", 0),
            ("500ms", 500),
            ("30s", 30_000),
            ("1h30m", 5_400_000),
            ("2d", 172_800_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        assert_eq!(parse_wait("forever"), Ok(Duration::MAX));
    }

    #[test]
    fn other_texts_are_refused_with_an_example() {
        for text in [
            "",
            "30",
            "s",
            "-1s",
            "1.5s",
            "1 s",
            "1w",
            "1s2",
            "999999999999999999999s",
        ] {
            assert!(
                parse(text).is_err_and(|error| error.contains("30s")),
                "{text}"
            );
        }
        assert!(parse("18446744073709551615d").is_err());
        assert!(parse_wait("soon").is_err_and(|error| error.contains("forever")));
    }

    #[test]
    fn durations_are_shown_in_two_units_and_never_as_less() {
        for (millis, text) in [
            (0, "0ms"),
            (350, "350ms"),
            (1_001, "2s"),
            (59_999, "1m"),
            (125_000, "2m 5s"),
            (3_599_001, "1h"),
            (3_600_001, "1h 1m"),
            (86_399_999, "1d"),
            (93_600_000, "1d 2h"),
        ] {
            assert_eq!(show(Duration::from_millis(millis)), text);
        }
        assert_eq!(show_age(Duration::from_millis(86_401_000)), "1d");
    }
}
