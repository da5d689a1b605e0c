//! Durations and sizes, as a person writes them.

use std::time::Duration;

/// Units of a duration and their milliseconds.
const DURATIONS: [(&str, u64); 5] =
    [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Units of a size and their bytes.
const SIZES: [(&str, u64); 7] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("B", 1),
];

/// What a duration looks like, for messages.
pub const DURATION_FORM: &str = "a duration with a unit, such as 500ms, 10s, 5m, 1h or 1h30m";
/// What a size looks like, for messages.
pub const SIZE_FORM: &str = "a number of bytes, or a size such as 64KiB, 16MiB or 1GiB";

/// Reads `500ms`, `10s`, `1h30m`, `1.5s`; a unit is needed (except for a plain 0).
///
/// # Errors
/// What is wrong with the text.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return Err(format!("`{text}` has no unit"));
    }
    let mut millis = 0.0_f64;
    let dense: String = text.split_whitespace().collect();
    let mut rest = dense.as_str();
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, tail) = rest.split_at(digits);
        let letters = tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(letters);
        let number: f64 = number.parse().map_err(|_| format!("`{text}` is no duration"))?;
        let (_, factor) = DURATIONS
            .iter()
            .find(|(known, _)| *known == unit)
            .ok_or_else(|| format!("`{text}` has the unknown unit `{unit}`"))?;
        millis += number * *factor as f64;
        rest = tail;
    }
    if text.is_empty() || !millis.is_finite() || millis > i64::MAX as f64 / 4.0 {
        return Err(format!("`{text}` is no duration"));
    }
    if millis.fract() != 0.0 {
        return Err(format!("`{text}` is finer than a millisecond"));
    }
    Ok(Duration::from_millis(millis as u64))
}

/// Reads `1048576` or `64MiB`.
///
/// # Errors
/// What is wrong with the text.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim();
    if unit.is_empty() {
        return number.parse().map_err(|_| format!("`{text}` is no size"));
    }
    let (_, factor) = SIZES
        .iter()
        .find(|(known, _)| *known == unit)
        .ok_or_else(|| format!("`{text}` has the unknown unit `{unit}`"))?;
    let number: f64 = number.parse().map_err(|_| format!("`{text}` is no size"))?;
    let bytes = number * *factor as f64;
    if bytes.fract() != 0.0 || bytes > 2.0_f64.powi(53) {
        return Err(format!("`{text}` is no whole number of bytes"));
    }
    Ok(bytes as u64)
}

/// The shortest way to write a duration: `90s` is `1m30s`.
pub fn show_duration(duration: Duration) -> String {
    let mut millis = duration.as_millis() as u64;
    if millis == 0 {
        return "0s".into();
    }
    let mut text = String::new();
    for (unit, factor) in DURATIONS {
        if millis >= factor {
            text.push_str(&format!("{}{unit}", millis / factor));
            millis %= factor;
        }
    }
    text
}

/// A size in the largest binary unit that fits exactly.
pub fn show_size(bytes: u64) -> String {
    for (unit, factor) in &SIZES[..3] {
        if bytes > 0 && bytes.is_multiple_of(*factor) {
            return format!("{}{unit}", bytes / factor);
        }
    }
    bytes.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(parse_duration("5s"), Ok(Duration::from_secs(5)));
        assert_eq!(parse_duration("1h30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(parse_duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse_duration("0"), Ok(Duration::ZERO));
        assert_eq!(parse_duration("5"), Err("`5` has no unit".into()));
        assert_eq!(parse_duration("5 s"), Ok(Duration::from_secs(5)));
        assert_eq!(parse_duration("5sec"), Err("`5sec` has the unknown unit `sec`".into()));
        assert!(parse_duration("").is_err());
        assert!(parse_duration("-5s").is_err());
        assert!(parse_duration("0.1ms").is_err());
        assert!(parse_duration("99999999999999999999d").is_err());
    }

    #[test]
    fn sizes_are_bytes_or_have_a_unit() {
        assert_eq!(parse_size("64MiB"), Ok(64 << 20));
        assert_eq!(parse_size("1000"), Ok(1000));
        assert_eq!(parse_size("1.5KiB"), Ok(1536));
        assert!(parse_size("64M").is_err());
        assert!(parse_size("-1").is_err());
        assert_eq!(show_size(64 << 20), "64MiB");
        assert_eq!(show_size(1001), "1001");
    }

    proptest! {
        #[test]
        fn a_shown_duration_is_read_again(millis in 0_u64..10_000_000_000) {
            let duration = Duration::from_millis(millis);
            prop_assert_eq!(parse_duration(&show_duration(duration)), Ok(duration));
        }

        #[test]
        fn arbitrary_text_never_panics(text in ".{0,20}") {
            let _ = parse_duration(&text);
            let _ = parse_size(&text);
        }
    }
}
