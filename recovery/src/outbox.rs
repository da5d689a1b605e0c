//! Output rows: what exactly-once sinks have to publish of a commit epoch, in the form that an outbox holds.
//!
//! Rows are encoded once, into chunks that never move: a second of a fast flow is tens of megabytes. A row names its sink and topic by a number of the buffer's own table; the
//! tables of all worker threads become one when the outbox is written.

use crate::rows::{put_varint, take_varint};
use crate::{OutboxRef, StepId};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Where a row goes: the sink that made it, and its topic.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Destination {
    /// The sink's step.
    pub step: StepId,
    /// The topic.
    pub topic: Arc<str>,
}

/// Number of a destination in the table of a buffer or an outbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DestinationNumber(pub u16);

/// A record to publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputRow<'a> {
    /// Where it goes.
    pub destination: DestinationNumber,
    /// Its partition; `None` leaves it to the partitioner.
    pub partition: Option<i32>,
    /// Its timestamp in milliseconds; `None` is the time at which it is produced.
    pub timestamp: Option<i64>,
    /// The key.
    pub key: Option<&'a [u8]>,
    /// The value; `None` is a tombstone.
    pub value: Option<&'a [u8]>,
    /// The headers, in their order.
    pub headers: Vec<(&'a str, Option<&'a [u8]>)>,
}

/// A growing buffer of encoded output rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutputBuffer {
    destinations: Vec<Destination>,
    /// Whole rows each.
    chunks: Vec<Vec<u8>>,
    byte_len: usize,
    rows: u64,
}

/// The size of a buffer's first chunk; a next one is as large as all before it together, up to [`CHUNK_BYTES_MAX`].
const CHUNK_BYTES_MIN: usize = 1 << 10;
const CHUNK_BYTES_MAX: usize = 1 << 18;

const PARTITION: u8 = 1;
const TIMESTAMP: u8 = 2;
const KEY: u8 = 4;
const VALUE: u8 = 8;

impl OutputBuffer {
    /// An empty buffer.
    pub fn new() -> OutputBuffer {
        OutputBuffer::default()
    }

    /// Number of rows.
    pub fn len(&self) -> u64 {
        self.rows
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// The encoded rows, in pieces that hold whole ones.
    pub fn chunks(&self) -> impl Iterator<Item = &[u8]> {
        self.chunks.iter().map(Vec::as_slice)
    }

    /// The rows, in their order.
    pub fn rows(&self) -> impl Iterator<Item = OutputRow<'_>> {
        self.chunks().flat_map(|chunk| {
            let mut rest = chunk;
            std::iter::from_fn(move || {
                let (row, tail) = decode_output(rest)?;
                rest = tail;
                Some(row)
            })
        })
    }

    /// Bytes of the encoded rows.
    pub fn byte_len(&self) -> usize {
        self.byte_len
    }

    /// The table that the rows' numbers mean.
    pub fn destinations(&self) -> &[Destination] {
        &self.destinations
    }

    /// The number of a destination; `None` when the table is full.
    pub fn destination(&mut self, step: &StepId, topic: &str) -> Option<DestinationNumber> {
        let known = self.destinations.iter().position(|known| known.step == *step && *known.topic == *topic);
        let number = known.unwrap_or(self.destinations.len());
        let number = u16::try_from(number).ok()?;
        if known.is_none() {
            self.destinations.push(Destination { step: step.clone(), topic: Arc::from(topic) });
        }
        Some(DestinationNumber(number))
    }

    /// Appends a row.
    pub fn push(&mut self, row: &OutputRow<'_>) {
        let flag = |there: bool, flag: u8| if there { flag } else { 0 };
        let flags = flag(row.partition.is_some(), PARTITION)
            | flag(row.timestamp.is_some(), TIMESTAMP)
            | flag(row.key.is_some(), KEY)
            | flag(row.value.is_some(), VALUE);
        let byte_len = self.byte_len;
        let out = self.room(encoded_len_max(row));
        let before = out.len();
        out.push(flags);
        out.extend_from_slice(&row.destination.0.to_le_bytes());
        out.extend(row.partition.into_iter().flat_map(i32::to_le_bytes));
        out.extend(row.timestamp.into_iter().flat_map(i64::to_le_bytes));
        for part in [row.key, row.value].into_iter().flatten() {
            put_bytes(out, part);
        }
        put_varint(out, row.headers.len() as u64);
        for (name, value) in &row.headers {
            put_bytes(out, name.as_bytes());
            out.push(u8::from(value.is_some()));
            if let Some(value) = value {
                put_bytes(out, value);
            }
        }
        self.byte_len = byte_len + out.len() - before;
        self.rows += 1;
    }

    /// A chunk that takes so many more bytes without moving.
    fn room(&mut self, bytes: usize) -> &mut Vec<u8> {
        if self.chunks.last().is_none_or(|chunk| chunk.capacity() - chunk.len() < bytes) {
            let capacity = self.byte_len.clamp(CHUNK_BYTES_MIN, CHUNK_BYTES_MAX).max(bytes);
            self.chunks.push(Vec::with_capacity(capacity));
        }
        let last = self.chunks.len() - 1;
        &mut self.chunks[last]
    }
}

/// No encoded row is longer than this.
fn encoded_len_max(row: &OutputRow<'_>) -> usize {
    /// Flags, destination, partition, timestamp, three lengths.
    const FIXED: usize = 1 + 2 + 4 + 8 + 3 * VARINT_MAX;
    const VARINT_MAX: usize = 10;
    let length = |bytes: Option<&[u8]>| bytes.map_or(0, <[u8]>::len);
    let headers: usize =
        row.headers.iter().map(|(name, value)| 2 * VARINT_MAX + 1 + name.len() + length(*value)).sum();
    FIXED + length(row.key) + length(row.value) + headers
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Decodes the first row of `bytes` and returns what follows it; `None` when the bytes are no row.
pub(crate) fn decode_output(bytes: &[u8]) -> Option<(OutputRow<'_>, &[u8])> {
    let (flags, rest) = bytes.split_first()?;
    if flags & !(PARTITION | TIMESTAMP | KEY | VALUE) != 0 {
        return None;
    }
    let (number, mut rest) = rest.split_first_chunk::<2>()?;
    let destination = DestinationNumber(u16::from_le_bytes(*number));
    let mut partition = None;
    if flags & PARTITION != 0 {
        let (number, tail) = rest.split_first_chunk::<4>()?;
        (partition, rest) = (Some(i32::from_le_bytes(*number)), tail);
    }
    let mut timestamp = None;
    if flags & TIMESTAMP != 0 {
        let (number, tail) = rest.split_first_chunk::<8>()?;
        (timestamp, rest) = (Some(i64::from_le_bytes(*number)), tail);
    }
    let mut parts = [None; 2];
    for (part, flag) in parts.iter_mut().zip([KEY, VALUE]) {
        if flags & flag != 0 {
            let (bytes, tail) = take_bytes(rest)?;
            (*part, rest) = (Some(bytes), tail);
        }
    }
    let [key, value] = parts;
    let (count, mut rest) = take_varint(rest)?;
    let mut headers = Vec::new();
    for _ in 0..count {
        let (name, tail) = take_bytes(rest)?;
        let (there, mut tail) = tail.split_first()?;
        let value = match there {
            0 => None,
            1 => {
                let (value, after) = take_bytes(tail)?;
                tail = after;
                Some(value)
            }
            _ => return None,
        };
        headers.push((std::str::from_utf8(name).ok()?, value));
        rest = tail;
    }
    Some((OutputRow { destination, partition, timestamp, key, value, headers }, rest))
}

fn take_bytes(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, tail) = take_varint(bytes)?;
    tail.split_at_checked(usize::try_from(length).ok()?)
}

/// What a person decided about a row that the broker refuses for ever.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Decision {
    /// It is not published.
    Skip,
    /// It is published to this topic instead, with the diagnostic headers of a dead letter.
    DeadLetter {
        /// The topic.
        topic: String,
    },
}

/// A row of an outbox that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRow<'a> {
    /// Its number in the outbox, from 0.
    pub number: u64,
    /// Where it goes.
    pub destination: &'a Destination,
    /// The record.
    pub row: OutputRow<'a>,
    /// What a person decided about it.
    pub decision: Option<&'a Decision>,
}

/// An outbox whose publication the newest commit record does not know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InspectedOutbox {
    /// Its file in the store.
    pub file: String,
    /// What the commit record says of it.
    pub outbox: OutboxRef,
    /// Its rows; `None` when damage hides them.
    pub rows: Option<u64>,
    /// What a person decided, by row.
    pub decisions: Vec<(u64, Decision)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_rows_come_back_as_they_were_pushed_absent_empty_or_of_any_bytes() {
        let mut buffer = OutputBuffer::new();
        let step = StepId::new("sink");
        let totals = buffer.destination(&step, "totals").expect("there is room");
        let other = buffer.destination(&step, "other").expect("there is room");
        assert_eq!(buffer.destination(&step, "totals"), Some(totals));
        let long = vec![0xff; 300];
        let plain = OutputRow {
            destination: totals,
            partition: None,
            timestamp: None,
            key: None,
            value: None,
            headers: Vec::new(),
        };
        let rows = [
            plain.clone(),
            OutputRow { key: Some(b""), value: Some(b""), ..plain.clone() },
            OutputRow {
                destination: other,
                partition: Some(-1),
                timestamp: Some(i64::MIN),
                key: Some(&long),
                value: Some(b"v"),
                headers: vec![("a", None), ("a", Some(b"")), ("ä", Some(&long))],
            },
        ];
        rows.iter().for_each(|row| buffer.push(row));
        let read: Vec<OutputRow<'_>> = buffer.rows().collect();
        assert_eq!(read, rows);
        assert_eq!(buffer.len(), 3);
    }

    #[test]
    fn chunks_hold_whole_rows_and_never_grow() {
        let mut buffer = OutputBuffer::new();
        let destination = buffer.destination(&StepId::new("sink"), "t").expect("there is room");
        let lengths = [0, 1, 100, 1_000, 5_000, 300_000, 20, 200_000, 70_000];
        let values: Vec<Vec<u8>> = lengths.iter().cycle().take(200).map(|length| vec![7; *length]).collect();
        for value in &values {
            let value = Some(&value[..]);
            buffer.push(&OutputRow {
                destination,
                partition: None,
                timestamp: None,
                key: None,
                value,
                headers: Vec::new(),
            });
        }
        assert!(buffer.rows().map(|row| row.value.expect("it has one")).eq(values.iter().map(Vec::as_slice)));
        assert_eq!(buffer.byte_len(), buffer.chunks().map(<[u8]>::len).sum::<usize>());
        for chunk in &buffer.chunks {
            let largest = CHUNK_BYTES_MAX.max(300_000 + 100);
            assert!(chunk.capacity() <= largest, "{} bytes", chunk.capacity());
        }
    }

    #[test]
    fn bytes_that_end_too_soon_are_no_row() {
        let mut buffer = OutputBuffer::new();
        let destination = buffer.destination(&StepId::new("sink"), "t").expect("there is room");
        buffer.push(&OutputRow {
            destination,
            partition: Some(1),
            timestamp: Some(2),
            key: Some(b"k"),
            value: Some(b"v"),
            headers: vec![("h", Some(b"x"))],
        });
        let bytes = buffer.chunks().next().expect("there is a row");
        for length in 0..bytes.len() {
            assert_eq!(decode_output(&bytes[..length]), None, "{length} bytes");
        }
    }
}
