//! The rows of one step: what a keyed step writes to the store, and what it reads back.
//!
//! A row is addressed by the key and a sub-key. The sub-key begins with one byte that says what kind of row
//! it is ([`RowKind`]), so that the null key, the empty key and the step's own rows never meet. Every value
//! begins with one byte: the version of the step that wrote it. A newer version is refused, an older one is
//! handed to the step together with its number.
//!
//! Without a store a [`StepRows`] is switched off: nothing is encoded and nothing grows.

use crate::fault::Fault;
use bytes::Bytes;
use tidegate_recovery::rows::{RowChange, RowRef};
use tidegate_recovery::{Bucket, ErrorClass, RestoredRow, RowBuffer, RowRoute, StepId, StepNumber};

/// First byte of every sub-key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum RowKind {
    /// A row of an ordinary key.
    Key = 0,
    /// A row of the null key; the row's key is empty.
    NullKey = 1,
    /// The acted-on watermark of a bucket; the row's key is empty.
    Watermark = 2,
}

/// Why a row that came back from the store cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// A later version of the step wrote it.
    #[error(
        "state of version {found} was written by a newer build, this one reads up to {known}: start the newer build, or begin with an empty store"
    )]
    Newer {
        /// The version found.
        found: u8,
        /// The newest version that this build reads.
        known: u8,
    },
    /// The bytes are not what any version writes.
    #[error("a state row cannot be read: {0}")]
    Damaged(&'static str),
}

impl StateError {
    /// The fault that ends the run, for a step.
    pub fn into_fault(self, step: &StepId) -> Fault {
        let (class, code) = match self {
            StateError::Newer { .. } => (ErrorClass::Config, "STATE_VERSION_UNSUPPORTED"),
            StateError::Damaged(_) => (ErrorClass::Data, "STORE_DAMAGED"),
        };
        Fault::new(class, self.to_string()).code(code).at_step(step.clone())
    }
}

/// The changed rows of one step since the last commit epoch.
#[derive(Debug)]
pub struct StepRows {
    step: StepNumber,
    version: u8,
    kept: bool,
    buffer: RowBuffer,
    sub: Vec<u8>,
    value: Vec<u8>,
}

impl StepRows {
    /// Rows of step `step`, whose values carry `version`.
    pub fn new(step: StepNumber, version: u8) -> StepRows {
        StepRows { step, version, kept: true, buffer: RowBuffer::new(), sub: Vec::new(), value: Vec::new() }
    }

    /// Rows that nobody keeps: there is no store.
    pub fn volatile() -> StepRows {
        StepRows { kept: false, ..StepRows::new(StepNumber(0), 0) }
    }

    /// Whether rows are kept at all; a step need not remember what changed otherwise.
    pub fn kept(&self) -> bool {
        self.kept
    }

    /// The row of `key` and `sub` now has the value that `encode` appends.
    pub fn put(&mut self, bucket: Bucket, key: Option<&[u8]>, sub: &[u8], encode: impl FnOnce(&mut Vec<u8>)) {
        if !self.kept {
            return;
        }
        let kind = if key.is_some() { RowKind::Key } else { RowKind::NullKey };
        self.put_kind(kind, bucket, key.unwrap_or(&[]), sub, encode);
    }

    /// The row of `key` and `sub` is gone.
    pub fn delete(&mut self, bucket: Bucket, key: Option<&[u8]>, sub: &[u8]) {
        if !self.kept {
            return;
        }
        let kind = if key.is_some() { RowKind::Key } else { RowKind::NullKey };
        self.address(kind, sub);
        self.buffer.push(RowRef {
            step: self.step,
            route: RowRoute::Bucket(bucket),
            key: key.unwrap_or(&[]),
            sub: &self.sub,
            change: RowChange::Delete,
        });
    }

    /// Puts the acted-on watermark of a bucket.
    pub fn put_watermark(&mut self, bucket: Bucket, watermark: i64) {
        if self.kept {
            self.put_kind(RowKind::Watermark, bucket, &[], &[], |out| {
                out.extend_from_slice(&watermark.to_le_bytes());
            });
        }
    }

    /// Takes all rows that were put since the last call.
    pub fn take(&mut self) -> RowBuffer {
        std::mem::take(&mut self.buffer)
    }

    /// Bytes of the rows that wait for the next commit epoch.
    pub fn bytes(&self) -> usize {
        self.buffer.as_bytes().len()
    }

    fn put_kind(
        &mut self,
        kind: RowKind,
        bucket: Bucket,
        key: &[u8],
        sub: &[u8],
        encode: impl FnOnce(&mut Vec<u8>),
    ) {
        self.address(kind, sub);
        self.value.clear();
        self.value.push(self.version);
        encode(&mut self.value);
        self.buffer.push(RowRef {
            step: self.step,
            route: RowRoute::Bucket(bucket),
            key,
            sub: &self.sub,
            change: RowChange::Put(&self.value),
        });
    }

    fn address(&mut self, kind: RowKind, sub: &[u8]) {
        self.sub.clear();
        self.sub.push(kind as u8);
        self.sub.extend_from_slice(sub);
    }
}

/// A row of a keyed step that came back from the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRow {
    /// The key; `None` is the null key.
    pub key: Option<Bytes>,
    /// The bucket it is stored under.
    pub bucket: Bucket,
    /// The step's sub-key.
    pub sub: Bytes,
    /// Version of the step that wrote it, at most the step's own.
    pub version: u8,
    /// The value.
    pub value: Bytes,
}

/// What a restored row of a keyed step says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyedRow {
    /// State of a key.
    Key(KeyRow),
    /// The watermark that the step acted on for a bucket.
    Watermark(Bucket, i64),
}

/// Reads a row that was written through [`StepRows`] by a step of at most version `known`.
pub fn read_row(row: &RestoredRow, known: u8) -> Result<KeyedRow, StateError> {
    let RowRoute::Bucket(bucket) = row.route else {
        return Err(StateError::Damaged("a keyed step has no rows of partitions"));
    };
    let version = *row.value.first().ok_or(StateError::Damaged("its version is missing"))?;
    if version > known {
        return Err(StateError::Newer { found: version, known });
    }
    let kind = *row.sub.first().ok_or(StateError::Damaged("its kind is missing"))?;
    let key_row = |key| KeyRow { key, bucket, sub: row.sub.slice(1..), version, value: row.value.slice(1..) };
    match kind {
        kind if kind == RowKind::Key as u8 => Ok(KeyedRow::Key(key_row(Some(row.key.clone())))),
        kind if kind == RowKind::NullKey as u8 => Ok(KeyedRow::Key(key_row(None))),
        kind if kind == RowKind::Watermark as u8 => {
            let bytes =
                row.value[1..].try_into().map_err(|_| StateError::Damaged("no watermark of 8 bytes"))?;
            Ok(KeyedRow::Watermark(bucket, i64::from_le_bytes(bytes)))
        }
        _ => Err(StateError::Damaged("its kind is unknown")),
    }
}

/// Appends `time` so that the bytes sort as the times do.
pub fn put_time(out: &mut Vec<u8>, time: i64) {
    out.extend_from_slice(&time_bytes(time));
}

/// `time` in eight bytes that sort as the times do.
pub fn time_bytes(time: i64) -> [u8; 8] {
    ((time as u64) ^ (1 << 63)).to_be_bytes()
}

/// The time that [`time_bytes`] encoded.
pub fn parse_time(bytes: &[u8]) -> Option<i64> {
    let bytes: [u8; 8] = bytes.try_into().ok()?;
    Some((u64::from_be_bytes(bytes) ^ (1 << 63)) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn restored(buffer: &RowBuffer) -> Vec<RestoredRow> {
        let row = |row: RowRef<'_>| RestoredRow {
            route: row.route,
            key: Bytes::copy_from_slice(row.key),
            sub: Bytes::copy_from_slice(row.sub),
            value: match row.change {
                RowChange::Put(value) => Bytes::copy_from_slice(value),
                other => panic!("no put: {other:?}"),
            },
        };
        buffer.iter().map(row).collect()
    }

    #[test]
    fn the_null_key_the_empty_key_and_a_watermark_are_three_things() {
        let mut rows = StepRows::new(StepNumber(1), 3);
        rows.put(Bucket(5), None, b"s", |out| out.push(1));
        rows.put(Bucket(5), Some(b""), b"s", |out| out.push(2));
        rows.put_watermark(Bucket(5), -7);
        let rows = restored(&rows.take());
        let key = |key, value| {
            KeyedRow::Key(KeyRow {
                key,
                bucket: Bucket(5),
                sub: Bytes::from_static(b"s"),
                version: 3,
                value: Bytes::copy_from_slice(&[value]),
            })
        };
        assert_eq!(read_row(&rows[0], 3), Ok(key(None, 1)));
        assert_eq!(read_row(&rows[1], 3), Ok(key(Some(Bytes::new()), 2)));
        assert_eq!(read_row(&rows[2], 3), Ok(KeyedRow::Watermark(Bucket(5), -7)));
    }

    #[test]
    fn state_of_a_newer_version_is_refused_and_says_what_to_do() {
        let mut rows = StepRows::new(StepNumber(1), 4);
        rows.put(Bucket(5), Some(b"k"), b"", |_| ());
        let error = read_row(&restored(&rows.take())[0], 3).expect_err("newer");
        assert_eq!(error, StateError::Newer { found: 4, known: 3 });
        let fault = error.into_fault(&StepId::new("per-minute"));
        assert_eq!((fault.code, fault.class), ("STATE_VERSION_UNSUPPORTED", ErrorClass::Config));
    }

    #[test]
    fn without_a_store_nothing_grows() {
        let mut rows = StepRows::volatile();
        rows.put(Bucket(0), Some(b"k"), b"", |_| panic!("nobody asks for the value"));
        rows.delete(Bucket(0), Some(b"k"), b"");
        rows.put_watermark(Bucket(0), 1);
        assert!(rows.take().is_empty());
    }

    #[test]
    fn times_sort_as_their_bytes() {
        let times = [i64::MIN, -1000, -1, 0, 1, i64::MAX];
        assert!(times.windows(2).all(|pair| time_bytes(pair[0]) < time_bytes(pair[1])));
        assert!(times.iter().all(|time| parse_time(&time_bytes(*time)) == Some(*time)));
    }
}
