//! Which worker reads which input partition.
//!
//! Partitions, sorted by (topic, partition), are dealt round-robin over all workers of the cluster. The
//! result depends only on the set of partitions and the number of workers, so every process computes the
//! same one without a word to the others.

use crate::WorkerIndex;

/// Deals `partitions` to `workers` workers: each partition with its worker, sorted.
///
/// The partitions may come in any order and more than once; each is dealt once.
///
/// ```
/// use tidegate_recovery::{WorkerIndex, deal};
/// let dealt = deal([2, 0, 1], 2);
/// assert_eq!(dealt, [(0, WorkerIndex(0)), (1, WorkerIndex(1)), (2, WorkerIndex(0))]);
/// ```
pub fn deal<P: Ord>(partitions: impl IntoIterator<Item = P>, workers: usize) -> Vec<(P, WorkerIndex)> {
    let mut partitions: Vec<P> = partitions.into_iter().collect();
    partitions.sort();
    partitions.dedup();
    let owners = (0..workers.max(1)).cycle().map(|worker| WorkerIndex(worker as u32));
    partitions.into_iter().zip(owners).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TopicPartition;
    use proptest::prelude::*;

    #[test] // L45
    fn topics_are_dealt_in_one_order() {
        let names = [("b", 0), ("a", 1), ("a", 0)].map(|(topic, number)| TopicPartition::new(topic, number));
        let [b0, a1, a0] = names.clone();
        assert_eq!(deal(names, 2), [(a0, WorkerIndex(0)), (a1, WorkerIndex(1)), (b0, WorkerIndex(0))]);
    }

    proptest! {
        #[test] // L41, L45, A11
        fn every_partition_has_exactly_one_owner(mut partitions: Vec<u16>, workers in 1_usize..9) {
            let dealt = deal(partitions.clone(), workers);
            partitions.sort();
            partitions.dedup();
            let all: Vec<u16> = dealt.iter().map(|(partition, _)| *partition).collect();
            prop_assert_eq!(all, partitions);
            let mut counts = vec![0_usize; workers];
            for (_, worker) in &dealt {
                counts[worker.0 as usize] += 1;
            }
            prop_assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1);
        }
    }
}
