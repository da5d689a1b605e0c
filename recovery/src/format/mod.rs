//! The bytes of the store's files. `FORMAT.md` beside this crate has the map of every byte.
//!
//! Every file opens with the same 20 bytes: magic, kind, version, checksum. So a file of a newer version is told
//! from a damaged one, and nothing is allocated or trusted before its checksum was seen.

pub(crate) mod builder;
pub(crate) mod lease;
pub(crate) mod outbox;
pub(crate) mod record;
pub(crate) mod segment;

#[cfg(test)]
mod golden;

use crate::StoreError;
use crate::{StoreId, names};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

const MAGIC: &[u8; 8] = b"TIDEGATE";
/// Length of the head of every file.
pub(crate) const HEAD: usize = 20;

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Store,
    Lease,
    Segment,
    Outbox,
    Decision,
    Record,
}

impl Kind {
    fn tag(self) -> &'static [u8; 4] {
        match self {
            Kind::Store => b"STOR",
            Kind::Lease => b"LEAS",
            Kind::Segment => b"SEGM",
            Kind::Outbox => b"OUTB",
            Kind::Decision => b"DECI",
            Kind::Record => b"COMM",
        }
    }

    /// The version that is written, and the newest that is read.
    pub(crate) fn version(self) -> u32 {
        match self {
            Kind::Store | Kind::Lease | Kind::Segment | Kind::Outbox | Kind::Decision => 1,
            Kind::Record => 3,
        }
    }
}

/// The content of `STORE`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoreBody {
    pub(crate) store: StoreId,
    pub(crate) flow: String,
}

impl StoreBody {
    pub(crate) fn encode(&self) -> Result<Vec<u8>, StoreError> {
        seal(Kind::Store, self)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<StoreBody, StoreError> {
        let (body, rest) = unseal(names::STORE, bytes, Kind::Store)?;
        nothing_after(names::STORE, bytes, rest)?;
        Ok(body)
    }
}

/// The first 20 bytes of a file of this kind.
pub(crate) fn head(kind: Kind) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[..8].copy_from_slice(MAGIC);
    head[8..12].copy_from_slice(kind.tag());
    head[12..16].copy_from_slice(&kind.version().to_le_bytes());
    let check = crc32fast::hash(&head[..16]);
    head[16..].copy_from_slice(&check.to_le_bytes());
    head
}

/// Checks the first 20 bytes of a file and returns its version.
pub(crate) fn check_head(file: &str, bytes: &[u8], kind: Kind) -> Result<u32, StoreError> {
    let Some(head) = bytes.first_chunk::<HEAD>() else {
        let what = format!("the file ends inside its head of {HEAD} bytes");
        return Err(StoreError::damaged(file, bytes.len(), what));
    };
    if head[..8] != MAGIC[..] {
        return Err(StoreError::damaged(file, 0, "it does not begin as a file of Tidegate does"));
    }
    if crc32fast::hash(&head[..16]) != u32_at(head, 16) {
        return Err(StoreError::damaged(file, 16, "the checksum of its head does not fit"));
    }
    if head[8..12] != kind.tag()[..] {
        let found = String::from_utf8_lossy(&head[8..12]).into_owned();
        return Err(StoreError::damaged(file, 8, format!("it is a file of another kind ({found})")));
    }
    let found = u32_at(head, 12);
    if found > kind.version() {
        return Err(StoreError::NewerFormat { file: file.to_owned(), found, supported: kind.version() });
    }
    if found == 0 {
        return Err(StoreError::damaged(file, 12, "there is no format version 0"));
    }
    Ok(found)
}

/// Head, length, body and the checksum of both.
pub(crate) fn seal(kind: Kind, body: &impl Serialize) -> Result<Vec<u8>, StoreError> {
    let mut bytes = head(kind).to_vec();
    append_sealed(&mut bytes, body)?;
    Ok(bytes)
}

/// Length, body and the checksum of both.
pub(crate) fn append_sealed(bytes: &mut Vec<u8>, body: &impl Serialize) -> Result<(), StoreError> {
    let start = bytes.len();
    let encoded = postcard::to_allocvec(body)
        .map_err(|error| StoreError::Internal(format!("a file of the store cannot be encoded ({error})")))?;
    let length = u32::try_from(encoded.len())
        .map_err(|_| StoreError::Internal("a file of the store is larger than 4 GiB".to_owned()))?;
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(&encoded);
    let check = crc32fast::hash(&bytes[start..]);
    bytes.extend_from_slice(&check.to_le_bytes());
    Ok(())
}

/// Checks the head of a file, then decodes its body; returns the offset of what follows it.
pub(crate) fn unseal<T: DeserializeOwned>(
    file: &str,
    bytes: &[u8],
    kind: Kind,
) -> Result<(T, usize), StoreError> {
    check_head(file, bytes, kind)?;
    read_sealed(file, bytes, HEAD)
}

/// Decodes a sealed body that begins at `start`; returns the offset of what follows it.
pub(crate) fn read_sealed<T: DeserializeOwned>(
    file: &str,
    bytes: &[u8],
    start: usize,
) -> Result<(T, usize), StoreError> {
    let short = || StoreError::damaged(file, bytes.len(), "the file ends inside its body");
    let tail = bytes.get(start..).ok_or_else(short)?;
    let length = u32::from_le_bytes(*tail.first_chunk::<4>().ok_or_else(short)?) as usize;
    let checked = tail.get(..4 + length).ok_or_else(short)?;
    let check = tail.get(4 + length..8 + length).ok_or_else(short)?;
    if check != crc32fast::hash(checked).to_le_bytes() {
        return Err(StoreError::damaged(
            file,
            start,
            format!("the checksum of the {length} bytes there does not fit"),
        ));
    }
    let body = postcard::from_bytes(&checked[4..]).map_err(|error| {
        StoreError::damaged(file, start + 4, format!("its content cannot be read ({error})"))
    })?;
    Ok((body, start + 8 + length))
}

/// A file is as long as the record that names it says.
pub(crate) fn check_length(
    file: impl std::fmt::Display,
    found: u64,
    recorded: u64,
) -> Result<(), StoreError> {
    if found == recorded {
        return Ok(());
    }
    let what = format!("it has {found} bytes, the record says {recorded}");
    Err(StoreError::damaged(file, found.min(recorded) as usize, what))
}

/// A file whose parts were checked one by one, so that an error names its place, is as a whole the one that the record names.
pub(crate) fn check_whole(file: &str, bytes: &[u8], recorded: u32) -> Result<(), StoreError> {
    if crc32fast::hash(bytes) == recorded {
        return Ok(());
    }
    Err(StoreError::damaged(file, 0, "it is not the file that the record names"))
}

/// A file has an end.
pub(crate) fn nothing_after(file: &str, bytes: &[u8], end: usize) -> Result<(), StoreError> {
    if bytes.len() == end {
        return Ok(());
    }
    Err(StoreError::damaged(file, end, format!("{} bytes follow its end", bytes.len() - end)))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}
