//! Where a replay begins: `earliest`, `timestamp:WHEN` or `offset:TOPIC/PARTITION=OFFSET,…`.

use crate::value::time::parse_rfc3339_ms;

/// Where a flow is to go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplayTo {
    /// At the oldest record of every partition.
    Earliest,
    /// In every partition at the first record that is not older; in milliseconds since the Unix epoch.
    Timestamp(i64),
    /// At these offsets (topic, partition, offset); other partitions stay where they are.
    Offsets(Vec<(String, i32, i64)>),
}

/// Reads what was typed behind `--to`.
pub(super) fn parse(text: &str) -> Result<ReplayTo, String> {
    if text == "earliest" {
        return Ok(ReplayTo::Earliest);
    }
    if let Some(time) = text.strip_prefix("timestamp:") {
        let milliseconds = match time.parse::<i64>() {
            Ok(milliseconds) => milliseconds,
            Err(_) => {
                parse_rfc3339_ms(time).map_err(|error| format!("{time:?}: {error}, nor milliseconds"))?
            }
        };
        // Kafka's own words for the ends of a log are negative numbers.
        return match milliseconds {
            0.. => Ok(ReplayTo::Timestamp(milliseconds)),
            _ => Err("a time before 1970 is none that a record can have".to_owned()),
        };
    }
    if let Some(list) = text.strip_prefix("offset:") {
        let mut offsets: Vec<(String, i32, i64)> = Vec::new();
        for one in list.split(',') {
            let offset = parse_offset(one)
                .ok_or_else(|| format!("{one:?} is not TOPIC/PARTITION=OFFSET, such as orders.in/0=1200"))?;
            if offsets.iter().any(|(topic, partition, _)| (topic, partition) == (&offset.0, &offset.1)) {
                return Err(format!("{}/{} is named twice", offset.0, offset.1));
            }
            offsets.push(offset);
        }
        return Ok(ReplayTo::Offsets(offsets));
    }
    Err("write earliest, timestamp:2026-01-31T12:00:00Z, timestamp:MILLISECONDS, or offset:TOPIC/PARTITION=OFFSET,…"
        .to_owned())
}

fn parse_offset(text: &str) -> Option<(String, i32, i64)> {
    let (partition, offset) = text.rsplit_once('=')?;
    let (topic, partition) = partition.rsplit_once('/')?;
    let (partition, offset) = (partition.parse::<i32>().ok()?, offset.parse::<i64>().ok()?);
    (!topic.is_empty() && partition >= 0 && offset >= 0).then(|| (topic.to_owned(), partition, offset))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_is_read() {
        // A10
        assert_eq!(parse("earliest"), Ok(ReplayTo::Earliest));
        assert_eq!(parse("timestamp:1500"), Ok(ReplayTo::Timestamp(1500)));
        assert_eq!(parse("timestamp:1970-01-01T01:00:01.5+01:00"), Ok(ReplayTo::Timestamp(1500)));
        let offsets = vec![("a.b".to_owned(), 0, 12), ("a.b".to_owned(), 11, 0)];
        assert_eq!(parse("offset:a.b/0=12,a.b/11=0"), Ok(ReplayTo::Offsets(offsets)));
    }

    #[test]
    fn everything_else_is_refused() {
        for wrong in [
            "latest",
            "",
            "timestamp:",
            "timestamp:yesterday",
            "timestamp:-1",
            "timestamp:1969-12-31T00:00:00Z",
            "offset:",
            "offset:a/0",
            "offset:a=5",
            "offset:/0=5",
            "offset:a/-1=5",
            "offset:a/0=-2",
            "offset:a/0=5,",
            "offset:a/0=5,a/0=6",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
