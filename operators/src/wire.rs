//! How a batch looks between processes: a checked frame around postcard-encoded items.
//!
//! | bytes | what |
//! |---|---|
//! | 0..2 | `TG` |
//! | 2 | version of the frame, 1 |
//! | 3 | codec of the payload, see [`WireCodec::ID`] |
//! | 4..8 | number of items, little endian |
//! | 8..16 | length of the payload, little endian |
//! | 16..20 | CRC-32 of the payload |
//! | 20..24 | zero |
//! | 24.. | the payload, then zeros up to a multiple of 8 |
//!
//! The payload of a received batch is copied once into an arena of its own. Byte fields that are read with
//! [`arena_bytes`] are slices of that arena: no allocation per record. So one field keeps its whole batch
//! alive (some tens of KiB); state that outlives a batch copies what it keeps.
//!
//! A frame that is damaged, or was written by another version, is a [`WireError`], never a wrong record.

use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};
use std::cell::RefCell;
use std::io::Write;

const MAGIC: [u8; 2] = *b"TG";
const VERSION: u8 = 1;
const HEADER_BYTES: usize = 24;

/// Why a frame cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The bytes do not begin with a frame of this version.
    #[error(
        "the frame begins with {found:02x?} where {expected:02x?} was expected; do both processes run the same build?"
    )]
    Header {
        /// What was found.
        found: [u8; 4],
        /// What was expected.
        expected: [u8; 4],
    },
    /// The frame is shorter than it says.
    #[error("the frame says {said} payload bytes and holds {held}")]
    Length {
        /// Payload bytes according to the header.
        said: u64,
        /// Bytes that are there.
        held: u64,
    },
    /// The checksum does not match.
    #[error("the checksum of a frame of {length} bytes does not match: damage on the network or in memory")]
    Checksum {
        /// Length of the payload.
        length: u64,
    },
    /// An item does not decode.
    #[error("item {index} of {count} does not decode: {reason}")]
    Item {
        /// Place of the item in the batch.
        index: u32,
        /// Items in the batch.
        count: u32,
        /// What the codec says.
        reason: String,
    },
}

/// How the items of a batch become bytes. A codec is chosen when the program is built; both sides of a
/// connection have proved in the handshake that they run the same build.
pub trait WireCodec {
    /// Byte in the frame's header.
    const ID: u8;

    /// Appends the items to `out`.
    fn encode<D: Serialize>(items: &[D], out: &mut Vec<u8>) -> Result<(), WireError>;

    /// Reads `count` items from the whole of `payload`.
    fn decode<D: DeserializeOwned>(count: u32, payload: &Bytes) -> Result<Vec<D>, WireError>;
}

/// The default codec: postcard, portable and checked.
#[derive(Clone, Copy, Debug)]
pub struct Portable;

impl WireCodec for Portable {
    const ID: u8 = 0;

    fn encode<D: Serialize>(items: &[D], out: &mut Vec<u8>) -> Result<(), WireError> {
        let mut buffer = std::mem::take(out);
        for (index, item) in items.iter().enumerate() {
            buffer = postcard::to_extend(item, buffer).map_err(|error| WireError::Item {
                index: index as u32,
                count: items.len() as u32,
                reason: error.to_string(),
            })?;
        }
        *out = buffer;
        Ok(())
    }

    fn decode<D: DeserializeOwned>(count: u32, payload: &Bytes) -> Result<Vec<D>, WireError> {
        let _arena = Arena::enter(payload.clone());
        let fail = |index: u32, reason: String| WireError::Item { index, count, reason };
        // A damaged count must not make us reserve gigabytes; an item without bytes is a rare thing.
        let mut items = Vec::with_capacity((count as usize).min(payload.len().max(1024)));
        let mut rest = &payload[..];
        for index in 0..count {
            let (item, tail) =
                postcard::take_from_bytes(rest).map_err(|error| fail(index, error.to_string()))?;
            items.push(item);
            rest = tail;
        }
        if rest.is_empty() {
            Ok(items)
        } else {
            Err(fail(count, format!("{} bytes are left over", rest.len())))
        }
    }
}

/// The codec of this build.
pub type Codec = Portable;

/// The last batch that was measured on this thread: timely asks for the length of a message and then for its
/// bytes, and encoding twice would double the cost.
#[derive(Default)]
struct Measured {
    frame: Vec<u8>,
    of: Option<(usize, usize)>,
}

thread_local! {
    static MEASURED: RefCell<Measured> = RefCell::default();
    static ARENA: RefCell<Option<Bytes>> = const { RefCell::new(None) };
}

fn identity<D>(items: &[D]) -> (usize, usize) {
    (items.as_ptr() as usize, items.len())
}

fn encode_into<D: Serialize>(items: &[D], frame: &mut Vec<u8>) {
    frame.clear();
    frame.resize(HEADER_BYTES, 0);
    // A value that cannot be encoded is a defect of its `Serialize`: the batch cannot be sent, nor dropped.
    Codec::encode(items, frame)
        .unwrap_or_else(|error| panic!("a batch cannot be sent to another process: {error}"));
    let count = u32::try_from(items.len()).expect("batches stay far below four thousand million items");
    let length = frame.len() - HEADER_BYTES;
    let checksum = crc32fast::hash(&frame[HEADER_BYTES..]);
    frame[0..4].copy_from_slice(&start::<Codec>());
    frame[4..8].copy_from_slice(&count.to_le_bytes());
    frame[8..16].copy_from_slice(&(length as u64).to_le_bytes());
    frame[16..20].copy_from_slice(&checksum.to_le_bytes());
    frame.resize(frame.len().next_multiple_of(8), 0);
}

fn start<C: WireCodec>() -> [u8; 4] {
    [MAGIC[0], MAGIC[1], VERSION, C::ID]
}

/// Length of the frame of `items`. The frame is kept for the [`write()`] that follows.
pub fn measure<D: Serialize>(items: &[D]) -> usize {
    MEASURED.with_borrow_mut(|measured| {
        encode_into(items, &mut measured.frame);
        measured.of = Some(identity(items));
        measured.frame.len()
    })
}

/// Writes the frame of `items`.
pub fn write<D: Serialize>(items: &[D], writer: &mut impl Write) -> std::io::Result<()> {
    MEASURED.with_borrow_mut(|measured| {
        if measured.of.take() != Some(identity(items)) {
            encode_into(items, &mut measured.frame);
        }
        writer.write_all(&measured.frame)?;
        // One huge batch must not keep its buffer for ever.
        measured.frame.shrink_to(1 << 20);
        Ok(())
    })
}

/// Reads a frame.
pub fn decode<D: DeserializeOwned>(frame: &[u8]) -> Result<Vec<D>, WireError> {
    let expected = start::<Codec>();
    let Some((header, body)) = frame.split_first_chunk::<HEADER_BYTES>() else {
        let mut found = [0; 4];
        let known = frame.len().min(4);
        found[..known].copy_from_slice(&frame[..known]);
        return Err(WireError::Header { found, expected });
    };
    let found = [header[0], header[1], header[2], header[3]];
    if found != expected {
        return Err(WireError::Header { found, expected });
    }
    let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let count = word(4);
    let said = u64::from(word(8)) | u64::from(word(12)) << 32;
    let held = body.len() as u64;
    if said > held || held - said >= 8 {
        return Err(WireError::Length { said, held });
    }
    let payload = Bytes::copy_from_slice(&body[..said as usize]);
    if crc32fast::hash(&payload) != word(16) {
        return Err(WireError::Checksum { length: said });
    }
    Codec::decode(count, &payload)
}

/// While it lives, byte fields that are read on this thread become slices of its buffer.
struct Arena;

impl Arena {
    fn enter(buffer: Bytes) -> Arena {
        ARENA.with_borrow_mut(|arena| *arena = Some(buffer));
        Arena
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        ARENA.with_borrow_mut(|arena| *arena = None);
    }
}

fn slice_or_copy(bytes: &[u8]) -> Bytes {
    ARENA.with_borrow(|arena| match arena {
        Some(arena) if arena.as_ptr_range().contains(&bytes.as_ptr()) && !bytes.is_empty() => {
            arena.slice_ref(bytes)
        }
        _ => Bytes::copy_from_slice(bytes),
    })
}

/// For `#[serde(with = "tidegate_operators::wire::arena_bytes")]` on a field of type [`Bytes`]: it is read
/// without a copy where it comes from another process.
pub mod arena_bytes {
    use super::slice_or_copy;
    use bytes::Bytes;
    use serde::de::{Error, SeqAccess, Visitor};
    use serde::{Deserializer, Serializer};
    use std::fmt;

    /// Writes the bytes.
    pub fn serialize<S: Serializer>(bytes: &Bytes, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(bytes)
    }

    /// Reads bytes, as a slice of the received batch where that is possible.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
        deserializer.deserialize_bytes(BytesVisitor)
    }

    struct BytesVisitor;

    impl<'de> Visitor<'de> for BytesVisitor {
        type Value = Bytes;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("bytes")
        }

        fn visit_borrowed_bytes<E: Error>(self, bytes: &'de [u8]) -> Result<Bytes, E> {
            Ok(slice_or_copy(bytes))
        }

        fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Bytes, E> {
            Ok(Bytes::copy_from_slice(bytes))
        }

        fn visit_byte_buf<E: Error>(self, bytes: Vec<u8>) -> Result<Bytes, E> {
            Ok(Bytes::from(bytes))
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<Bytes, E> {
            Ok(Bytes::copy_from_slice(text.as_bytes()))
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Bytes, A::Error> {
            let mut bytes = Vec::with_capacity(seq.size_hint().unwrap_or(0).min(4096));
            while let Some(byte) = seq.next_element()? {
                bytes.push(byte);
            }
            Ok(Bytes::from(bytes))
        }
    }

    /// The same for a field of type `Option<Bytes>`.
    pub mod option {
        use bytes::Bytes;
        use serde::de::{Error, Visitor};
        use serde::{Deserializer, Serialize, Serializer};
        use std::fmt;

        struct Shown<'a>(&'a Bytes);

        impl Serialize for Shown<'_> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                super::serialize(self.0, serializer)
            }
        }

        /// Writes the bytes, if any.
        pub fn serialize<S: Serializer>(bytes: &Option<Bytes>, serializer: S) -> Result<S::Ok, S::Error> {
            match bytes {
                Some(bytes) => serializer.serialize_some(&Shown(bytes)),
                None => serializer.serialize_none(),
            }
        }

        /// Reads bytes, if any, as a slice of the received batch where that is possible.
        pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Bytes>, D::Error> {
            deserializer.deserialize_option(OptionVisitor)
        }

        struct OptionVisitor;

        impl<'de> Visitor<'de> for OptionVisitor {
            type Value = Option<Bytes>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("optional bytes")
            }

            fn visit_none<E: Error>(self) -> Result<Option<Bytes>, E> {
                Ok(None)
            }

            fn visit_unit<E: Error>(self) -> Result<Option<Bytes>, E> {
                Ok(None)
            }

            fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<Bytes>, D::Error> {
                super::deserialize(deserializer).map(Some)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::Record;
    use proptest::prelude::*;

    fn frame_of<D: Serialize>(items: &[D]) -> Vec<u8> {
        let mut frame = Vec::new();
        write(items, &mut frame).expect("a vector takes everything");
        frame
    }

    fn record(key: &[u8], value: Option<&[u8]>) -> Record {
        Record { key: Some(Bytes::copy_from_slice(key)), value: value.map(Bytes::copy_from_slice) }
    }

    #[test]
    fn byte_fields_of_a_received_batch_share_one_arena() {
        let records = vec![record(b"first-key", Some(b"value")), record(b"second-key", None)];
        let frame = frame_of(&records);
        let back: Vec<Record> = decode(&frame).expect("a frame just written");
        assert_eq!(back, records);
        let start = |at: usize| back[at].key.as_ref().expect("both have keys").as_ptr() as usize;
        let distance = start(1) - start(0);
        assert!(distance < frame.len(), "both keys lie in one buffer");
    }

    #[test]
    fn the_frame_has_the_documented_layout() {
        let frame = frame_of(&[1_u8, 2, 3]);
        assert_eq!(frame.len(), 32);
        assert_eq!(&frame[..8], &[b'T', b'G', 1, 0, 3, 0, 0, 0]);
        assert_eq!(&frame[8..16], &3_u64.to_le_bytes());
        assert_eq!(&frame[16..20], &crc32fast::hash(&[1, 2, 3]).to_le_bytes());
        assert_eq!(&frame[20..], &[0, 0, 0, 0, 1, 2, 3, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn measuring_another_batch_in_between_does_not_mix_them_up() {
        let (one, two) = (vec![1_u32; 5], vec![2_u32; 5]);
        measure(&one);
        measure(&two);
        assert_eq!(decode::<u32>(&frame_of(&one)).as_ref(), Ok(&one));
        assert_eq!(decode::<u32>(&frame_of(&two)).as_ref(), Ok(&two));
    }

    #[test]
    fn a_frame_of_another_version_is_named() {
        let mut frame = frame_of(&[1_u8]);
        frame[2] = 9;
        assert!(matches!(decode::<u8>(&frame), Err(WireError::Header { .. })));
        assert!(matches!(decode::<u8>(&[]), Err(WireError::Header { .. })));
    }

    proptest! {
        #[test]
        fn a_damaged_frame_is_an_error_and_never_other_records(
            keys in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..20),
            at in any::<prop::sample::Index>(),
            flip in 1_u8..=255,
            cut in any::<prop::sample::Index>(),
        ) {
            let records: Vec<_> = keys.iter().map(|key| record(key, Some(key))).collect();
            let frame = frame_of(&records);
            let mut damaged = frame.clone();
            let place = at.index(frame.len());
            damaged[place] ^= flip;
            if let Ok(back) = decode::<Record>(&damaged) {
                // Only bytes that carry nothing may change unseen.
                prop_assert_eq!(back, records);
            }
            let short = &frame[..cut.index(frame.len() / 8) * 8];
            prop_assert!(decode::<Record>(short).is_err());
        }
    }
}
