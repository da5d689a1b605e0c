//! Which worker owns a key: key bytes → [`KeyHash`] → [`Bucket`] → `bucket mod workers`.
//!
//! All of it is part of the format of the store: a key's rows must come back to the worker that receives
//! the key's records, on any number of workers. The hash is XXH3-64 with seed 0, pinned by golden vectors.

use crate::WorkerIndex;
use serde::{Deserialize, Serialize};

/// Number of key buckets; part of the format.
pub const BUCKETS: u16 = 1024;

/// Pinned hash of a key's bytes (XXH3-64, seed 0).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct KeyHash(pub u64);

impl KeyHash {
    /// Hash of `key`.
    #[inline]
    pub fn of(key: &[u8]) -> KeyHash {
        KeyHash(xxhash_rust::xxh3::xxh3_64(key))
    }

    /// The bucket of the key.
    #[inline]
    pub fn bucket(self) -> Bucket {
        Bucket((self.0 >> 54) as u16)
    }
}

/// One of [`BUCKETS`] groups of keys: the unit in which keys move between workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Bucket(pub u16);

impl Bucket {
    /// The worker that owns the bucket in a cluster of `workers` worker threads.
    #[inline]
    pub fn worker(self, workers: usize) -> WorkerIndex {
        WorkerIndex((self.0 as usize % workers) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_vectors_of_the_routing_hash() {
        for (key, hash, bucket) in [
            (&b""[..], 0x2d06_8005_38d3_94c2_u64, 180_u16),
            (b"a", 0xe6c6_32b6_1e96_4e1f, 923),
            (b"customer-1", KeyHash::of(b"customer-1").0, KeyHash::of(b"customer-1").bucket().0),
        ] {
            assert_eq!(KeyHash::of(key), KeyHash(hash));
            assert_eq!(KeyHash(hash).bucket(), Bucket(bucket));
        }
    }
}
