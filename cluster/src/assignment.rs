//! Which worker reads which input partition.
//!
//! Partitions, sorted by (topic, partition), are dealt round-robin over all workers of the cluster. The
//! result depends only on the set of partitions and the number of workers, so every process computes the
//! same one without a word to the others.

use tidegate_recovery::WorkerIndex;

/// The worker that owns the partition at `position` of the sorted list.
pub fn owner(position: usize, workers: usize) -> WorkerIndex {
    WorkerIndex((position % workers) as u32)
}

/// Deals `partitions` to `workers` workers: the list of each worker, in order.
///
/// The partitions may come in any order and more than once; each is dealt once.
///
/// ```
/// use tidegate_cluster::deal;
/// assert_eq!(deal([0, 1, 2], 2), vec![vec![0, 2], vec![1]]);
/// ```
pub fn deal<P: Ord>(partitions: impl IntoIterator<Item = P>, workers: usize) -> Vec<Vec<P>> {
    let mut partitions: Vec<P> = partitions.into_iter().collect();
    partitions.sort();
    partitions.dedup();
    let mut dealt: Vec<Vec<P>> = (0..workers).map(|_| Vec::new()).collect();
    for (position, partition) in partitions.into_iter().enumerate() {
        dealt[owner(position, workers).0 as usize].push(partition);
    }
    dealt
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tidegate_recovery::TopicPartition;

    #[test] // L45
    fn three_partitions_on_two_workers_give_0_2_and_1() {
        let partitions = [2, 0, 1].map(|number| TopicPartition::new("orders", number));
        let dealt = deal(partitions, 2);
        let numbers: Vec<Vec<i32>> =
            dealt.iter().map(|list| list.iter().map(|partition| partition.partition).collect()).collect();
        assert_eq!(numbers, vec![vec![0, 2], vec![1]]);
    }

    #[test] // L45
    fn topics_are_dealt_in_one_order() {
        let partitions =
            [("b", 0), ("a", 1), ("a", 0)].map(|(topic, number)| TopicPartition::new(topic, number));
        let dealt = deal(partitions, 2);
        assert_eq!(dealt[0], [TopicPartition::new("a", 0), TopicPartition::new("b", 0)]);
        assert_eq!(dealt[1], [TopicPartition::new("a", 1)]);
    }

    proptest! {
        #[test] // L41, L45, A11
        fn every_partition_has_exactly_one_owner(mut partitions: Vec<u16>, workers in 1_usize..9) {
            let dealt = deal(partitions.clone(), workers);
            let mut all: Vec<u16> = dealt.iter().flatten().copied().collect();
            all.sort();
            partitions.sort();
            partitions.dedup();
            prop_assert_eq!(all, partitions);
            let lengths: Vec<usize> = dealt.iter().map(Vec::len).collect();
            prop_assert!(lengths.iter().max().unwrap() - lengths.iter().min().unwrap() <= 1);
        }
    }
}
