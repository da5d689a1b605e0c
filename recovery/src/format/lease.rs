//! A lease file: who holds the store, and a counter at its end that is renewed in place.

use super::{HEAD, Kind, seal, unseal};
use crate::lease::LeaseHolder;
use crate::{StoreError, StoreId};
use serde::{Deserialize, Serialize};

/// Length of the counter and its checksum.
const COUNTER: usize = 12;

/// What a lease says for good.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LeaseBody {
    pub(crate) store: StoreId,
    pub(crate) holder: LeaseHolder,
}

/// A lease as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeaseFile {
    pub(crate) body: LeaseBody,
    /// `None` while a renewal is half written.
    pub(crate) counter: Option<u64>,
}

impl LeaseFile {
    pub(crate) fn encode(&self) -> Result<Vec<u8>, StoreError> {
        let mut bytes = seal(Kind::Lease, &self.body)?;
        bytes.extend_from_slice(&counter_bytes(self.counter.unwrap_or(0)));
        Ok(bytes)
    }

    pub(crate) fn decode(file: &str, bytes: &[u8]) -> Result<LeaseFile, StoreError> {
        let (body, end) = unseal(file, bytes, Kind::Lease)?;
        let Some(counter) = bytes.get(end..).and_then(|tail| <[u8; COUNTER]>::try_from(tail).ok()) else {
            let what = format!("a counter of {COUNTER} bytes should end the file here");
            return Err(StoreError::damaged(file, end, what));
        };
        let value = u64::from_le_bytes(counter[..8].try_into().expect("eight bytes"));
        Ok(LeaseFile { body, counter: (counter_bytes(value) == counter).then_some(value) })
    }
}

/// The last 12 bytes of a lease file.
pub(crate) fn counter_bytes(counter: u64) -> [u8; COUNTER] {
    let mut bytes = [0; COUNTER];
    bytes[..8].copy_from_slice(&counter.to_le_bytes());
    let check = crc32fast::hash(&bytes[..8]);
    bytes[8..].copy_from_slice(&check.to_le_bytes());
    bytes
}

/// Where the counter of a lease file of this length begins.
pub(crate) fn counter_offset(length: usize) -> u64 {
    debug_assert!(length > HEAD + COUNTER, "a lease file has a head, a body and a counter");
    (length - COUNTER) as u64
}
