//! An endless input of which the state is a function: what a store must hold is recounted from its offsets alone.

use crate::cluster::Cluster;
use std::collections::BTreeMap;
use tidegate_recovery::rows::RowChange;
use tidegate_recovery::*;

/// Partitions of the input.
pub(crate) const PARTITIONS: i32 = 2;

/// What one record does to the state.
#[derive(Clone, Copy, Debug)]
enum Effect {
    /// One more under a sub-key of its key.
    Count { key: u64, sub: u8 },
    /// The row of a key and sub-key goes.
    Forget { key: u64, sub: u8 },
    /// All rows of a key go.
    Close { key: u64 },
}

fn effect(partition: i32, offset: i64) -> Effect {
    let mixed = (offset as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23)
        ^ (partition as u64).wrapping_mul(0x85eb_ca6b);
    let (key, sub) = (u64::from(partition as u32) * 100 + mixed % 7, (mixed >> 8) as u8 % 3);
    match (mixed >> 17) % 8 {
        0 => Effect::Close { key },
        1 => Effect::Forget { key, sub },
        _ => Effect::Count { key, sub },
    }
}

/// State as (key, sub-key) → count.
pub(crate) type Counts = BTreeMap<(Vec<u8>, Vec<u8>), u64>;

fn key_of(key: u64) -> Vec<u8> {
    format!("key-{key}").into_bytes()
}

fn apply(counts: &mut Counts, partition: i32, offset: i64) {
    match effect(partition, offset) {
        Effect::Count { key, sub } => *counts.entry((key_of(key), vec![sub])).or_default() += 1,
        Effect::Forget { key, sub } => {
            counts.remove(&(key_of(key), vec![sub]));
        }
        Effect::Close { key } => {
            let key = key_of(key);
            counts.retain(|(other, _), _| *other != key);
        }
    }
}

/// The state after everything below these offsets.
pub(crate) fn state_at(offsets: &[(TopicPartition, NextOffset)]) -> Counts {
    let mut counts = Counts::new();
    for (partition, next) in offsets {
        for offset in 0..next.0 {
            apply(&mut counts, partition.partition, offset);
        }
    }
    counts
}

/// The state that a cluster has.
pub(crate) fn counts_of(cluster: &Cluster) -> Counts {
    cluster
        .rows
        .iter()
        .filter(|((step, ..), _)| *step == 0)
        .map(|((_, key, sub), value)| {
            let count = u64::from_le_bytes(value[..8].try_into().expect("a count has eight bytes"));
            ((key.clone(), sub.clone()), count)
        })
        .collect()
}

pub(crate) fn partition(number: i32) -> TopicPartition {
    TopicPartition::new("orders.in", number)
}

/// Reads `records` records of every partition, changes the cluster's rows, and returns where it goes on.
pub(crate) fn read(
    cluster: &mut Cluster,
    at: &mut BTreeMap<i32, i64>,
    records: i64,
) -> Vec<(TopicPartition, NextOffset)> {
    for number in 0..PARTITIONS {
        let next = at.entry(number).or_default();
        for offset in *next..*next + records {
            if cluster.outputs {
                cluster.output(number, offset);
            }
            match effect(number, offset) {
                Effect::Count { key, sub } => {
                    let key = key_of(key);
                    let row = cluster.rows.get(&(0, key.clone(), vec![sub]));
                    let count =
                        row.map_or(0, |row| u64::from_le_bytes(row[..8].try_into().expect("a count"))) + 1;
                    // Long enough that a lost half of a write is seen.
                    let mut value = count.to_le_bytes().to_vec();
                    value.resize(40, count as u8);
                    cluster.change(0, &key, &[sub], RowChange::Put(&value));
                }
                Effect::Forget { key, sub } => cluster.change(0, &key_of(key), &[sub], RowChange::Delete),
                Effect::Close { key } => cluster.change(0, &key_of(key), &[], RowChange::DeletePrefix),
            }
        }
        *next += records;
    }
    at.iter().map(|(number, next)| (partition(*number), NextOffset(*next))).collect()
}

/// Where a cluster goes on.
pub(crate) fn positions(resume: &ResumeState) -> BTreeMap<i32, i64> {
    resume.offsets.iter().map(|(partition, next)| (partition.partition, next.0)).collect()
}
