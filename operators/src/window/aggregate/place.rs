//! The first and the last value, by the places of their records.

use super::chosen::{Choice, Chosen};
use crate::keyed::StateError;
use crate::window::order::{Order, PartitionNames, decode, encode};
use serde::{Serialize, de::DeserializeOwned};
use std::cmp::Ordering;

/// What `of` takes from the first record by (event time, topic, partition, offset).
pub fn first<T, V, F: Fn(&T) -> V>(of: F) -> First<F> {
    Chosen::new(of)
}

/// What `of` takes from the last record by (event time, topic, partition, offset).
pub fn last<T, V, F: Fn(&T) -> V>(of: F) -> Last<F> {
    Chosen::new(of)
}

/// See [`first`].
pub type First<F> = Chosen<F, ByPlace<false>>;

/// See [`last`].
pub type Last<F> = Chosen<F, ByPlace<true>>;

/// Chooses the value of the first record, or of the last.
#[derive(Clone, Copy, Debug)]
pub struct ByPlace<const LAST: bool>;

impl<V, const LAST: bool> Choice<V> for ByPlace<LAST>
where
    V: Clone + Serialize + DeserializeOwned + 'static,
{
    const SHAPE: &'static str = if LAST { "last" } else { "first" };

    type Kept = Placed<V>;

    fn choose(kept: &mut Option<Placed<V>>, value: &V, order: &Order, names: &PartitionNames) {
        let wanted = if LAST { Ordering::Greater } else { Ordering::Less };
        keep_placed(kept, value, order, names, wanted);
    }

    fn merge(into: &mut Option<Placed<V>>, from: &Placed<V>, names: &PartitionNames) {
        Self::choose(into, &from.value, &from.order, names);
    }

    fn value(kept: &Placed<V>) -> &V {
        &kept.value
    }

    fn encode(kept: &Placed<V>, names: &PartitionNames, out: &mut Vec<u8>) {
        kept.encode(names, out);
    }

    fn decode(bytes: &mut &[u8], names: &mut PartitionNames) -> Result<Placed<V>, StateError> {
        Placed::decode(bytes, names)
    }
}

/// A value and the place of its record.
#[derive(Clone, Debug, PartialEq)]
pub struct Placed<V> {
    /// The place.
    pub order: Order,
    /// The value.
    pub value: V,
}

impl<V: Serialize + DeserializeOwned> Placed<V> {
    /// Appends both as the store keeps them.
    pub fn encode(&self, names: &PartitionNames, out: &mut Vec<u8>) {
        names.encode(&self.order, out);
        encode(&self.value, out);
    }

    /// Reads both from the front of `bytes`.
    pub fn decode(bytes: &mut &[u8], names: &mut PartitionNames) -> Result<Placed<V>, StateError> {
        let order = names.decode(bytes)?;
        Ok(Placed { order, value: decode(bytes)? })
    }
}

/// Keeps the first or the last of what is there and a value at `order`; at the same place the encoded values
/// decide.
pub(in crate::window) fn keep_placed<V: Clone + Serialize>(
    kept: &mut Option<Placed<V>>,
    value: &V,
    order: &Order,
    names: &PartitionNames,
    wanted: Ordering,
) {
    let better = match kept {
        None => true,
        Some(kept) => {
            let by_value = || {
                let (mut new, mut old) = (Vec::new(), Vec::new());
                encode(value, &mut new);
                encode(&kept.value, &mut old);
                new.cmp(&old)
            };
            names.compare(order, &kept.order).then_with(by_value) == wanted
        }
    };
    if better {
        *kept = Some(Placed { order: *order, value: value.clone() });
    }
}
