//! Event times as texts.

use chrono::DateTime;

/// Milliseconds since the Unix epoch of an RFC 3339 text; finer parts of a second are cut off.
pub fn parse_rfc3339_ms(text: &str) -> Result<i64, String> {
    DateTime::parse_from_rfc3339(text)
        .map(|time| time.timestamp_millis())
        .map_err(|error| format!("it is no RFC 3339 time such as 2026-01-31T12:00:00Z ({error})"))
}

#[cfg(test)]
mod tests {
    use super::parse_rfc3339_ms;

    #[test]
    fn a_time_has_a_zone_and_milliseconds() {
        assert_eq!(parse_rfc3339_ms("1970-01-01T00:00:01.5Z"), Ok(1500));
        assert_eq!(parse_rfc3339_ms("1970-01-01T01:00:00+01:00"), Ok(0));
        assert_eq!(parse_rfc3339_ms("1969-12-31T23:59:59.999Z"), Ok(-1));
        assert!(parse_rfc3339_ms("1970-01-01 00:00:00").is_err());
        assert!(parse_rfc3339_ms("yesterday").is_err());
    }
}
