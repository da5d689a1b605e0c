//! Behaviour 3, row S1: a power cut at every operation of a run, with every way of forgetting, resumes in a
//! state that is what its own offsets say, and never behind what was released.

use crate::cluster::*;
use crate::input::{counts_of, positions, read, state_at};
use std::sync::Arc;
use std::time::Duration;
use tidegate_recovery::storage::{Crash, FaultyStorage};
use tidegate_recovery::*;

/// Three generations of different shapes, each with some commits.
const GENERATIONS: [(u32, u32, u64); 4] = [(1, 1, 4), (3, 1, 4), (1, 2, 3), (2, 1, 2)];

/// Old rows are rewritten at every opportunity, so that the points of it are met.
fn limits() -> ProcessOptions {
    ProcessOptions {
        dead_bytes_min: 0,
        rewrite_bytes_min: 300,
        store_timeout: Duration::ZERO,
        ..process_options()
    }
}

/// A disk that stopped does not come back.
fn hasty(options: OpenOptions) -> OpenOptions {
    OpenOptions { store_timeout: Duration::ZERO, ..options }
}

/// Runs until the disk stops; returns the offsets that were released.
fn run(storage: &FaultyStorage) -> Vec<(TopicPartition, NextOffset)> {
    let storage: Arc<dyn Storage> = Arc::new(storage.clone());
    let mut released = Vec::new();
    for (index, (processes, workers, commits)) in GENERATIONS.into_iter().enumerate() {
        let options = hasty(options(100 + index as u128, processes, workers));
        let Ok(mut cluster) = Cluster::start_with(&storage, &options, limits()) else { return released };
        // Some slots are behind with their publication, and one never publishes anything.
        cluster.outputs = true;
        cluster.opened.publisher.leftovers_published();
        let mut at = positions(&cluster.opened.resume);
        for commit in 0..commits {
            let offsets = read(&mut cluster, &mut at, 3 + commit as i64);
            let epoch = Epoch(cluster.next_epoch().0 + 4);
            cluster
                .opened
                .publisher
                .output_published(Slot(commit as u32 % 2), cluster.opened.publisher.epoch());
            match cluster.publish(epoch, offsets.clone()) {
                Ok(Published::Record(_)) => released = offsets,
                Ok(Published::Unchanged) => panic!("offsets moved"),
                Err(_) => return released,
            }
            if cluster.opened.publisher.retain().is_err() {
                return released;
            }
        }
    }
    released
}

/// Starts on what a crash left and checks it; then goes on for a commit, and checks that too.
fn check(storage: FaultyStorage, released: &[(TopicPartition, NextOffset)], what: &str) {
    let storage: Arc<dyn Storage> = Arc::new(storage);
    for (again, (processes, workers)) in [(2, 1), (1, 1)].into_iter().enumerate() {
        let started =
            Cluster::start_with(&storage, &hasty(options(900 + again as u128, processes, workers)), limits());
        let mut cluster = match started {
            Ok(cluster) => cluster,
            Err(error) => panic!("{what}: the start failed: {error}"),
        };
        let resume = &cluster.opened.resume;
        assert_eq!(counts_of(&cluster), state_at(&resume.offsets), "{what}: state and offsets do not fit");
        for (partition, next) in released {
            assert!(
                resume.offset(partition) >= Some(*next),
                "{what}: {partition} goes on before what was released"
            );
        }
        for outbox in &resume.outboxes {
            let read =
                RecoveryStore::new(storage.clone()).read_outbox(outbox).and_then(|outbox| outbox.rows());
            match read {
                Ok(rows) => assert!(rows > 0, "{what}: an outbox without rows"),
                Err(error) => panic!("{what}: the record names an outbox that cannot be read: {error}"),
            }
        }
        let mut at = positions(resume);
        let offsets = read(&mut cluster, &mut at, 5);
        let epoch = cluster.next_epoch();
        if let Err(error) = cluster.commit(epoch, offsets) {
            panic!("{what}: the first commit after the start failed: {error}");
        }
    }
}

// S1 S3 S10: behaviour 3
#[test]
fn a_power_cut_at_any_operation_resumes_in_a_state_that_fits_its_own_offsets() {
    let whole = FaultyStorage::new();
    let released = run(&whole);
    let operations = whole.operations();
    assert_eq!(released[0].1, NextOffset(18 + 18 + 12 + 7), "the run goes to its end on a disk that is well");
    let mut starts = 0_u64;
    for count in 0..=operations {
        let disk = FaultyStorage::new();
        disk.stop_at(count);
        let released = run(&disk);
        let mut ways = vec![Crash::KeepAll, Crash::LoseAll, Crash::TearLast];
        ways.extend((0..disk.unsynced()).map(Crash::LoseOne));
        for way in ways {
            starts += 1;
            check(
                disk.crash(way),
                &released,
                &format!("power cut at operation {count} of {operations}, {way:?}"),
            );
        }
    }
    println!("{} crash points, {starts} disks after a crash, each started twice", operations + 1);
}
