//! The straight recount: what the records of every partition, in their order, amount to.

use std::collections::BTreeMap;

/// A record as the recount sees it.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) key: String,
    pub(crate) event: i64,
    pub(crate) id: u64,
}

/// Which windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Tumbling { size: i64 },
    Sliding { size: i64, every: i64 },
    Session { gap: i64 },
}

/// (key, start, end) → (records, sum of their values).
pub(crate) type Windows = BTreeMap<(String, i64, i64), (i64, i64)>;

/// The windows of these partitions. Late is what the record's own partition says, and nothing else.
pub(crate) fn windows(partitions: &[Vec<Seen>], kind: Kind, lateness: i64, out_of_order: i64) -> Windows {
    let mut found = Windows::new();
    let mut on_time = BTreeMap::<String, Vec<(i64, u64)>>::new();
    for records in partitions {
        let mut watermark = i64::MIN;
        for record in records {
            match kind {
                Kind::Tumbling { size } => borders(&mut found, record, size, size, lateness, watermark),
                Kind::Sliding { size, every } => {
                    borders(&mut found, record, size, every, lateness, watermark)
                }
                Kind::Session { .. } => {
                    if record.event + lateness >= watermark {
                        on_time.entry(record.key.clone()).or_default().push((record.event, record.id));
                    }
                }
            }
            watermark = watermark.max(record.event - out_of_order);
        }
    }
    if let Kind::Session { gap } = kind {
        for (key, mut records) in on_time {
            records.sort_unstable();
            let mut open: Option<(i64, i64, i64, i64)> = None;
            for (event, id) in records {
                open = Some(match open {
                    Some((first, last, count, sum)) if event - last <= gap => {
                        (first, event, count + 1, sum + id as i64)
                    }
                    other => {
                        close(&mut found, &key, gap, other);
                        (event, event, 1, id as i64)
                    }
                });
            }
            close(&mut found, &key, gap, open);
        }
    }
    found
}

fn close(found: &mut Windows, key: &str, gap: i64, session: Option<(i64, i64, i64, i64)>) {
    if let Some((first, last, count, sum)) = session {
        found.insert((key.to_owned(), first, last + gap), (count, sum));
    }
}

fn borders(found: &mut Windows, record: &Seen, size: i64, every: i64, lateness: i64, watermark: i64) {
    let mut start = record.event.div_euclid(every) * every;
    while start + size > record.event {
        if start + size + lateness > watermark {
            let window = found.entry((record.key.clone(), start, start + size)).or_default();
            window.0 += 1;
            window.1 += record.id as i64;
        }
        start -= every;
    }
}
