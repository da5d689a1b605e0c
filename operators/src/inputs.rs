//! All input partitions of a run and who reads them.

use crate::element::PartitionId;
use std::collections::HashMap;
use tidegate_recovery::{TopicPartition, WorkerIndex, deal};

/// An input partition and the worker that reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputPartition {
    /// Its name.
    pub name: TopicPartition,
    /// Who reads it.
    pub owner: WorkerIndex,
}

/// The run's list of all input partitions, sorted by (topic, partition); the same on every worker.
#[derive(Clone, Debug, Default)]
pub struct InputTable {
    partitions: Vec<InputPartition>,
    ids: HashMap<TopicPartition, PartitionId>,
}

impl InputTable {
    /// Sorts the partitions and deals them round-robin over all `workers` of the cluster: three partitions on
    /// two workers give `[0, 2]` and `[1]`.
    pub fn deal(partitions: impl IntoIterator<Item = TopicPartition>, workers: usize) -> InputTable {
        let dealt = deal(partitions, workers).into_iter();
        let partitions: Vec<_> = dealt.map(|(name, owner)| InputPartition { name, owner }).collect();
        let ids = partitions
            .iter()
            .enumerate()
            .map(|(place, partition)| (partition.name.clone(), PartitionId(place as u32)))
            .collect();
        InputTable { partitions, ids }
    }

    /// Number of partitions.
    pub fn len(&self) -> usize {
        self.partitions.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.partitions.is_empty()
    }

    /// The partition with this id; `None` for [`PartitionId::NONE`].
    pub fn get(&self, id: PartitionId) -> Option<&InputPartition> {
        self.partitions.get(id.0 as usize)
    }

    /// The name of a partition; `None` for [`PartitionId::NONE`].
    pub fn name(&self, id: PartitionId) -> Option<&TopicPartition> {
        self.get(id).map(|partition| &partition.name)
    }

    /// The id of a partition; `None` when it is not an input of this run.
    pub fn id(&self, name: &TopicPartition) -> Option<PartitionId> {
        self.ids.get(name).copied()
    }

    /// All partitions with their ids, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (PartitionId, &InputPartition)> {
        self.partitions.iter().enumerate().map(|(place, partition)| (PartitionId(place as u32), partition))
    }

    /// The partitions that `worker` reads, ascending.
    pub fn owned_by(&self, worker: WorkerIndex) -> Vec<PartitionId> {
        self.iter().filter(|(_, partition)| partition.owner == worker).map(|(id, _)| id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test] // L45
    fn three_partitions_on_two_workers_give_0_2_and_1() {
        let names = [2, 0, 1].map(|number| TopicPartition::new("t", number));
        let table = InputTable::deal(names.clone(), 2);
        assert_eq!(table.owned_by(WorkerIndex(0)), [PartitionId(0), PartitionId(2)]);
        assert_eq!(table.owned_by(WorkerIndex(1)), [PartitionId(1)]);
        assert_eq!(table.id(&names[0]), Some(PartitionId(2)));
        assert_eq!(table.name(PartitionId(2)), Some(&names[0]));
        assert_eq!(table.name(PartitionId::NONE), None);
    }
}
