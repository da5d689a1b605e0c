//! The container of every stream: a vector that travels by pointer between the worker threads of a process
//! and in a checked frame (see [`crate::wire`]) between processes.
//!
//! Timely counts the elements of a batch for its progress tracking, so a batch says its true length, always.

use crate::element::Element;
use crate::wire;
use serde::{Serialize, de::DeserializeOwned};
use std::ops::{Deref, DerefMut};
use timely::container::{Accountable, DrainContainer, PushInto, SizableContainer};
use timely::dataflow::Stream;
use timely::dataflow::channels::ContainerBytes;

use crate::time::Time;

/// What travels from operator to operator at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parcel<D>(pub Vec<D>);

/// The elements of a stream of records and of what steps make of them.
pub type Batch<T> = Parcel<Element<T>>;

/// A stream of elements.
pub type ElementStream<'s, T> = Stream<'s, Time, Batch<T>>;

/// The container of a stream that carries no message: only its frontier speaks.
pub type FrontierOnly = Vec<std::convert::Infallible>;

/// A stream that carries no message: only its frontier speaks.
pub type FrontierStream<'s> = Stream<'s, Time, FrontierOnly>;

/// Bytes that a batch is filled up to where an exchange or a session builds it.
const PARCEL_BYTES: usize = 32 << 10;

impl<D> Parcel<D> {
    /// Number of items at which a batch that is built item by item is shipped.
    pub const fn preferred_len() -> usize {
        let size = if size_of::<D>() == 0 { 1 } else { size_of::<D>() };
        let fit = PARCEL_BYTES / size;
        if fit < 16 {
            16
        } else if fit > 1024 {
            1024
        } else {
            fit
        }
    }
}

impl<D> Default for Parcel<D> {
    fn default() -> Self {
        Parcel(Vec::new())
    }
}

impl<D> From<Vec<D>> for Parcel<D> {
    fn from(items: Vec<D>) -> Self {
        Parcel(items)
    }
}

impl<D> Deref for Parcel<D> {
    type Target = Vec<D>;

    fn deref(&self) -> &Vec<D> {
        &self.0
    }
}

impl<D> DerefMut for Parcel<D> {
    fn deref_mut(&mut self) -> &mut Vec<D> {
        &mut self.0
    }
}

impl<D> Accountable for Parcel<D> {
    fn record_count(&self) -> i64 {
        self.0.len() as i64
    }
}

impl<D> DrainContainer for Parcel<D> {
    type Item<'a>
        = D
    where
        D: 'a;
    type DrainIter<'a>
        = std::vec::Drain<'a, D>
    where
        D: 'a;

    fn drain(&mut self) -> Self::DrainIter<'_> {
        self.0.drain(..)
    }
}

impl<D> SizableContainer for Parcel<D> {
    fn at_capacity(&self) -> bool {
        self.0.len() >= Self::preferred_len()
    }

    fn ensure_capacity(&mut self, stash: &mut Option<Self>) {
        if self.0.capacity() == 0 {
            *self = stash.take().unwrap_or_default();
            self.0.clear();
            let preferred = Self::preferred_len();
            if self.0.capacity() < preferred {
                self.0.reserve_exact(preferred);
            }
        }
    }
}

impl<D> PushInto<D> for Parcel<D> {
    fn push_into(&mut self, item: D) {
        self.0.push(item);
    }
}

impl<D: Serialize + DeserializeOwned> ContainerBytes for Parcel<D> {
    fn from_bytes(bytes: timely::bytes::arc::Bytes) -> Self {
        match wire::decode(&bytes) {
            Ok(items) => Parcel(items),
            // Timely has no way to refuse a message, and the handshake has proved that both sides run the same
            // build: a frame that does not decode is damage on the way. The supervisor ends the generation.
            Err(error) => panic!("a batch from another process cannot be read: {error}"),
        }
    }

    fn length_in_bytes(&self) -> usize {
        wire::measure(&self.0)
    }

    fn into_bytes<W: std::io::Write>(&self, writer: &mut W) {
        // The writer is a region of memory that timely sized by `length_in_bytes`.
        wire::write(&self.0, writer).expect("timely hands out as many bytes as it was told");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::{Headers, Meta, PartitionId, Record};
    use bytes::Bytes;
    use tidegate_recovery::EventTime;

    #[test]
    fn a_batch_survives_the_way_to_another_process() {
        let element = |offset: i64| Element {
            value: Record {
                key: Some(Bytes::from(format!("k{offset}"))),
                value: (offset % 2 == 0).then(|| Bytes::from(vec![7; 200])),
            },
            meta: Meta {
                partition: PartitionId(3),
                offset,
                timestamp: Some(1),
                event: EventTime::MIN,
                watermark: EventTime(-5),
                headers: Headers::default(),
                original: None,
            },
        };
        let batch: Batch<Record> = Parcel((0..100).map(element).collect());
        let length = batch.length_in_bytes();
        assert_eq!(length % 8, 0);
        let mut written = Vec::new();
        batch.into_bytes(&mut written);
        assert_eq!(written.len(), length);
        let bytes = timely::bytes::arc::BytesMut::from(written).freeze();
        assert_eq!(Batch::<Record>::from_bytes(bytes), batch);
    }
}
