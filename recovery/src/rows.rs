//! State rows: what a step says about its state at the end of a commit epoch, and gets back at a resume.
//!
//! A row is addressed by (step, key, sub-key). The sub-key is the step's own (window start, sequence), so a
//! step that appends writes only what is new; a delete may name a prefix of sub-keys. Rows are encoded once,
//! into one growing buffer, in the framing that a segment holds: no allocation per row.

use crate::routing::Bucket;
use bytes::Bytes;

/// Number of a step in this run's list of steps that keep rows (the list is sorted by [`crate::StepId`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StepNumber(pub u16);

/// Who owns a row after a rescale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RowRoute {
    /// The worker that owns the key bucket.
    Bucket(Bucket),
    /// The worker that reads the input partition that the row's key names (see [`partition_key`]).
    Partition,
}

/// What a row says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowChange<'a> {
    /// The row's value is now this.
    Put(&'a [u8]),
    /// The row is gone.
    Delete,
    /// All rows of the key whose sub-key starts with the given sub-key are gone.
    DeletePrefix,
}

/// A row as it stands in a buffer or a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowRef<'a> {
    /// The step that wrote it.
    pub step: StepNumber,
    /// Who owns it.
    pub route: RowRoute,
    /// The key.
    pub key: &'a [u8],
    /// The step's sub-key.
    pub sub: &'a [u8],
    /// Put or delete.
    pub change: RowChange<'a>,
}

/// A growing buffer of encoded rows.
///
/// Within one buffer, a later row of the same (step, key, sub-key) wins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowBuffer {
    bytes: Vec<u8>,
    rows: usize,
}

const PUT: u8 = 0;
const DELETE: u8 = 1;
const DELETE_PREFIX: u8 = 2;
const PARTITION_ROUTE: u16 = u16::MAX;

impl RowBuffer {
    /// An empty buffer.
    pub fn new() -> RowBuffer {
        RowBuffer::default()
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.rows
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// The encoded rows.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Appends a row.
    pub fn push(&mut self, row: RowRef<'_>) {
        let (tag, value) = match row.change {
            RowChange::Put(value) => (PUT, value),
            RowChange::Delete => (DELETE, &[][..]),
            RowChange::DeletePrefix => (DELETE_PREFIX, &[][..]),
        };
        let route = match row.route {
            RowRoute::Bucket(bucket) => bucket.0,
            RowRoute::Partition => PARTITION_ROUTE,
        };
        self.bytes.push(tag);
        self.bytes.extend_from_slice(&row.step.0.to_le_bytes());
        self.bytes.extend_from_slice(&route.to_le_bytes());
        for part in [row.key, row.sub, value] {
            put_varint(&mut self.bytes, part.len() as u64);
            self.bytes.extend_from_slice(part);
        }
        self.rows += 1;
    }

    /// Appends all rows of `other`.
    pub fn append(&mut self, other: &RowBuffer) {
        self.bytes.extend_from_slice(&other.bytes);
        self.rows += other.rows;
    }

    /// The rows, in the order in which they were pushed.
    pub fn iter(&self) -> impl Iterator<Item = RowRef<'_>> {
        let mut rest = &self.bytes[..];
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let (row, tail) = decode_row(rest).expect("a buffer holds only rows that it encoded");
            rest = tail;
            Some(row)
        })
    }
}

/// Decodes the first row of `bytes` and returns what follows it; `None` when the bytes are no row.
#[inline]
pub fn decode_row(bytes: &[u8]) -> Option<(RowRef<'_>, &[u8])> {
    let (head, mut rest) = bytes.split_at_checked(5)?;
    let step = StepNumber(u16::from_le_bytes([head[1], head[2]]));
    let route = match u16::from_le_bytes([head[3], head[4]]) {
        PARTITION_ROUTE => RowRoute::Partition,
        bucket if bucket < crate::BUCKETS => RowRoute::Bucket(Bucket(bucket)),
        _ => return None,
    };
    let mut parts = [&[][..]; 3];
    for part in &mut parts {
        let (length, tail) = take_varint(rest)?;
        let (bytes, tail) = tail.split_at_checked(usize::try_from(length).ok()?)?;
        *part = bytes;
        rest = tail;
    }
    let [key, sub, value] = parts;
    let change = match head[0] {
        PUT => RowChange::Put(value),
        DELETE => RowChange::Delete,
        DELETE_PREFIX => RowChange::DeletePrefix,
        _ => return None,
    };
    Some((RowRef { step, route, key, sub, change }, rest))
}

pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[inline]
pub(crate) fn take_varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    // Nearly every length is below 128.
    match bytes.split_first()? {
        (&short, tail) if short < 0x80 => Some((u64::from(short), tail)),
        _ => take_long_varint(bytes),
    }
}

fn take_long_varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0_u64;
    for (index, byte) in bytes.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f).checked_shl(7 * index as u32)?;
        if byte & 0x80 == 0 {
            return Some((value, &bytes[index + 1..]));
        }
    }
    None
}

/// The row key that names an input partition: the partition number (4 bytes, big endian), then the topic.
pub fn partition_key(partition: &crate::TopicPartition) -> Vec<u8> {
    let mut key = partition.partition.to_be_bytes().to_vec();
    key.extend_from_slice(partition.topic.as_bytes());
    key
}

/// The partition that a row key made by [`partition_key`] names; `None` when it was not made by it.
pub fn parse_partition_key(key: &[u8]) -> Option<crate::TopicPartition> {
    let (number, topic) = key.split_at_checked(4)?;
    let number = i32::from_be_bytes(number.try_into().ok()?);
    Some(crate::TopicPartition::new(std::str::from_utf8(topic).ok()?, number))
}

/// A live row that was read back from the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoredRow {
    /// Who owns it.
    pub route: RowRoute,
    /// The key.
    pub key: Bytes,
    /// The step's sub-key.
    pub sub: Bytes,
    /// The value.
    pub value: Bytes,
}

/// All live rows of one step that one worker now owns, and the version of the state that wrote them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RestoredRows {
    /// The rows, in no particular order.
    pub rows: Vec<RestoredRow>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back_as_they_were_pushed() {
        let long = vec![7_u8; 300];
        let rows = [
            RowRef {
                step: StepNumber(3),
                route: RowRoute::Bucket(Bucket(1023)),
                key: b"k",
                sub: b"",
                change: RowChange::Put(&long),
            },
            RowRef {
                step: StepNumber(0),
                route: RowRoute::Partition,
                key: b"",
                sub: b"s",
                change: RowChange::Delete,
            },
            RowRef {
                step: StepNumber(1),
                route: RowRoute::Bucket(Bucket(0)),
                key: &long,
                sub: b"pre",
                change: RowChange::DeletePrefix,
            },
        ];
        let mut buffer = RowBuffer::new();
        for row in rows {
            buffer.push(row);
        }
        assert_eq!(buffer.iter().collect::<Vec<_>>(), rows);
        assert_eq!(buffer.len(), 3);
    }
}
