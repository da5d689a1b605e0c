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
        // From an independent implementation of XXH3-64. The lengths are those at which the hash changes its way.
        let all: Vec<u8> = (0..1280_u32).map(|at| at as u8).collect();
        for (key, hash, bucket) in [
            (&b""[..], 0x2d06_8005_38d3_94c2_u64, 180_u16),
            (b"a", 0xe6c6_32b6_1e96_4e1f, 923),
            (&[0; 8], 0xc77b_3abb_6f87_acd9, 797),
            ("ключ".as_bytes(), 0x9a13_7c08_c1e5_5ede, 616),
            (b"customer-1", 0x76ed_62b8_9efb_594c, 475),
            (&[b'x'; 17], 0x8997_5e6b_7d2f_5a11, 550),
            (&[b'x'; 129], 0xe4f9_7421_08fe_27dc, 915),
            (&[b'x'; 241], 0x14da_9e5c_301a_6a1d, 83),
            (&all, 0x4844_b009_e164_352e, 289),
        ] {
            assert_eq!(KeyHash::of(key), KeyHash(hash));
            assert_eq!(KeyHash(hash).bucket(), Bucket(bucket));
        }
    }

    #[test]
    fn golden_vectors_from_bucket_to_worker() {
        for (bucket, workers, worker) in
            [(180, 1, 0), (180, 4, 0), (923, 4, 3), (475, 3, 1), (1023, 1000, 23)]
        {
            assert_eq!(Bucket(bucket).worker(workers), WorkerIndex(worker));
        }
    }
}
