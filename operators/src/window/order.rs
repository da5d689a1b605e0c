//! Which of two records comes first, whatever order they arrive in.

use crate::element::{Meta, PartitionId};
use crate::keyed::StateError;
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::collections::HashMap;
use tidegate_recovery::{EventTime, TopicPartition};

/// Where a record stands: event time, then topic and partition, then offset.
///
/// The partition is a number of this run; [`PartitionNames`] compares by name and takes the numbers to the
/// store and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// Event time.
    pub event: EventTime,
    /// Input partition; [`PartitionId::NONE`] for a result made of several records.
    pub partition: PartitionId,
    /// Offset there; -1 for a result made of several records.
    pub offset: i64,
}

impl Order {
    /// The place of the record that this meta describes.
    pub fn of(meta: &Meta) -> Order {
        Order { event: meta.event, partition: meta.partition, offset: meta.offset }
    }
}

/// The form in which the store keeps an [`Order`].
#[derive(Serialize, Deserialize)]
struct StoredOrder {
    event: EventTime,
    partition: Option<TopicPartition>,
    offset: i64,
}

/// The names of the input partitions of a run, and of those that only the restored state knows.
#[derive(Clone, Debug, Default)]
pub struct PartitionNames {
    names: Vec<TopicPartition>,
    numbers: HashMap<TopicPartition, PartitionId>,
}

impl PartitionNames {
    /// The run's partitions, in the order of their numbers.
    pub fn new(names: impl IntoIterator<Item = TopicPartition>) -> PartitionNames {
        let mut all = PartitionNames::default();
        for name in names {
            all.number(name);
        }
        all
    }

    /// Compares two places.
    pub fn compare(&self, left: &Order, right: &Order) -> Ordering {
        let partitions = || {
            if left.partition == right.partition {
                Ordering::Equal
            } else {
                // Absent (a result of several records) comes first.
                self.name(left.partition).cmp(&self.name(right.partition))
            }
        };
        left.event.cmp(&right.event).then_with(partitions).then(left.offset.cmp(&right.offset))
    }

    pub(super) fn encode(&self, order: &Order, out: &mut Vec<u8>) {
        let partition = self.name(order.partition).cloned();
        encode(&StoredOrder { event: order.event, partition, offset: order.offset }, out);
    }

    pub(super) fn decode(&mut self, bytes: &mut &[u8]) -> Result<Order, StateError> {
        let stored: StoredOrder = decode(bytes)?;
        let partition = stored.partition.map_or(PartitionId::NONE, |name| self.number(name));
        Ok(Order { event: stored.event, partition, offset: stored.offset })
    }

    fn name(&self, partition: PartitionId) -> Option<&TopicPartition> {
        self.names.get(partition.0 as usize)
    }

    fn number(&mut self, name: TopicPartition) -> PartitionId {
        let next = PartitionId(self.names.len() as u32);
        *self.numbers.entry(name).or_insert_with_key(|name| {
            self.names.push(name.clone());
            next
        })
    }
}

/// Appends `value` in the store's encoding.
pub(super) fn encode<V: Serialize + ?Sized>(value: &V, out: &mut Vec<u8>) {
    *out = postcard::to_extend(value, std::mem::take(out)).expect("encoding into memory cannot fail");
}

/// Reads a value from the front of `bytes`.
pub(super) fn decode<V: for<'de> Deserialize<'de>>(bytes: &mut &[u8]) -> Result<V, StateError> {
    let (value, rest) = postcard::take_from_bytes(bytes)
        .map_err(|_| StateError::Damaged("an aggregate's state ends early"))?;
    *bytes = rest;
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(event: i64, partition: PartitionId, offset: i64) -> Order {
        Order { event: EventTime(event), partition, offset }
    }

    #[test]
    fn a_partition_that_only_the_store_knows_is_ordered_by_its_name() {
        let old = PartitionNames::new([TopicPartition::new("b", 0), TopicPartition::new("m", 0)]);
        let mut bytes = Vec::new();
        old.encode(&order(1, PartitionId(1), 7), &mut bytes);
        let mut new = PartitionNames::new([TopicPartition::new("a", 0), TopicPartition::new("z", 0)]);
        let restored = new.decode(&mut &bytes[..]).expect("what was encoded");
        assert_eq!(restored, order(1, PartitionId(2), 7));
        assert_eq!(new.compare(&order(1, PartitionId(0), 9), &restored), Ordering::Less);
        assert_eq!(new.compare(&order(1, PartitionId(1), 0), &restored), Ordering::Greater);
        assert_eq!(new.compare(&order(0, PartitionId(1), 0), &restored), Ordering::Less);
        assert_eq!(new.compare(&order(1, PartitionId::NONE, -1), &restored), Ordering::Less);
    }
}
