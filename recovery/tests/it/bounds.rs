//! The stated bounds, as properties of random runs: disk space, bytes per commit, number of segments, what a restore
//! reads; and that none of the tidying ever changes what comes back.

use crate::cluster::*;
use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence};
use std::collections::VecDeque;
use std::sync::Arc;
use tidegate_recovery::rows::RowChange;
use tidegate_recovery::storage::FaultyStorage;
use tidegate_recovery::*;

fn config(cases: u32) -> Config {
    let cases = if std::env::var_os("TIDEGATE_LONG").is_some() { cases * 50 } else { cases };
    let persistence = FileFailurePersistence::WithSource("regressions");
    Config { cases, failure_persistence: Some(Box::new(persistence)), ..Config::default() }
}

#[derive(Clone, Debug)]
enum Op {
    Put {
        key: u8,
        sub: u8,
        length: u16,
    },
    Delete {
        key: u8,
        sub: u8,
    },
    DeletePrefix {
        key: u8,
        sub: Option<u8>,
    },
    Commit,
    /// A new generation on this many processes and workers.
    Restart {
        processes: u32,
        workers: u32,
    },
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        10 => (0..12_u8, 0..5_u8, 0..200_u16).prop_map(|(key, sub, length)| Op::Put { key, sub, length }),
        4 => (0..12_u8, 0..5_u8).prop_map(|(key, sub)| Op::Delete { key, sub }),
        2 => (0..12_u8, prop::option::of(0..5_u8)).prop_map(|(key, sub)| Op::DeletePrefix { key, sub }),
        6 => Just(Op::Commit),
        1 => (1..4_u32, 1..3_u32).prop_map(|(processes, workers)| Op::Restart { processes, workers }),
    ];
    prop::collection::vec(op, 1..300)
}

/// A sub-key of some length; every fifth is too long for the index's short form.
fn sub_key(sub: u8) -> Vec<u8> {
    let length = if sub == 4 { 40 } else { usize::from(sub) };
    let mut bytes = vec![sub % 2; length];
    bytes.push(sub);
    bytes
}

proptest! {
    #![proptest_config(config(120))]

    #[test]
    fn whatever_is_put_deleted_and_tidied_the_newest_rows_come_back(ops in ops(), dead_bytes_min in prop_oneof![Just(0), Just(64 * 1024)], rewrite_bytes_min in 0..2000_u64, segments_max in prop_oneof![Just(24_usize), Just(4096)]) {
        let storage: Arc<dyn Storage> = Arc::new(FaultyStorage::new());
        let limits = ProcessOptions { dead_bytes_min, rewrite_bytes_min, segments_max, ..process_options() };
        let mut run = 1;
        let mut cluster = Cluster::start_with(&storage, &options(run, 1, 1), limits).expect("an empty store");
        let mut committed = cluster.rows.clone();
        for (index, op) in ops.into_iter().enumerate() {
            match op {
                Op::Put { key, sub, length } => {
                    let value = vec![index as u8; usize::from(length)];
                    cluster.change(u16::from(key) % 2, &[key], &sub_key(sub), RowChange::Put(&value));
                }
                Op::Delete { key, sub } => cluster.change(u16::from(key) % 2, &[key], &sub_key(sub), RowChange::Delete),
                Op::DeletePrefix { key, sub } => {
                    let prefix = sub.map(|sub| sub_key(sub)[..1].to_vec()).unwrap_or_default();
                    cluster.change(u16::from(key) % 2, &[key], &prefix, RowChange::DeletePrefix);
                }
                Op::Commit => {
                    let epoch = cluster.next_epoch();
                    cluster.commit(epoch, Vec::new()).expect("the disk is well");
                    committed = cluster.rows.clone();
                }
                Op::Restart { processes, workers } => {
                    run += 1;
                    drop(cluster);
                    cluster = Cluster::start_with(&storage, &options(run, processes, workers), limits).expect("a start");
                    prop_assert_eq!(&cluster.rows, &committed);
                }
            }
        }
        drop(cluster);
        let cluster = Cluster::start_with(&storage, &options(run + 1, 2, 1), limits).expect("a start");
        prop_assert_eq!(&cluster.rows, &committed);
    }
}

/// How a run changes its rows.
#[derive(Clone, Copy, Debug)]
enum Pattern {
    /// Any row is as likely as another.
    Uniform,
    /// Nine changes of ten fall on a tenth of the rows.
    Hot,
    /// Rows are put, and deleted some commits later, as windows are.
    Windows,
    /// Everything is loaded in one commit, then a few rows change and some stay for ever.
    BulkThenTrickle,
}

/// Deterministic numbers; the seed is in the name of what fails.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

#[test]
fn the_files_stay_below_three_times_the_live_rows_and_a_commit_below_twice_its_changes() {
    const KEYS: u64 = 400;
    // Bytes of a segment besides its rows, and of the store's other files.
    const OVERHEAD: u64 = 400;
    let limits = ProcessOptions { dead_bytes_min: 4096, rewrite_bytes_min: 1500, ..process_options() };
    for pattern in [Pattern::Uniform, Pattern::Hot, Pattern::Windows, Pattern::BulkThenTrickle] {
        for seed in 1..=4_u64 {
            let mut numbers = Numbers(seed * 0x9e37_79b9);
            let disk = FaultyStorage::new();
            let storage: Arc<dyn Storage> = Arc::new(disk.clone());
            let mut cluster =
                Cluster::start_with(&storage, &options(1, 1, 1), limits).expect("an empty store");
            let mut recent: VecDeque<u64> = VecDeque::new();
            let mut lives: Vec<u64> = Vec::new();
            let (mut worst, mut total_changed, mut total_written) = (0.0_f64, 0, 0);
            for commit in 0..400_u64 {
                let changes = match pattern {
                    Pattern::BulkThenTrickle if commit == 0 => KEYS,
                    Pattern::BulkThenTrickle => 8,
                    _ => 5 + numbers.below(30),
                };
                for change in 0..changes {
                    // Noise, so that rows do not shrink on disk.
                    let value: Vec<u8> = (0..60).map(|_| numbers.below(256) as u8).collect();
                    let key = match pattern {
                        Pattern::Uniform => numbers.below(KEYS),
                        Pattern::Hot if numbers.below(10) > 0 => numbers.below(KEYS / 10),
                        Pattern::Hot => numbers.below(KEYS),
                        Pattern::Windows => commit * 100 + change,
                        Pattern::BulkThenTrickle if commit == 0 => change,
                        // Mostly the same few rows, and one that is new and stays.
                        Pattern::BulkThenTrickle if change > 0 => numbers.below(6),
                        Pattern::BulkThenTrickle => KEYS + commit % 150,
                    };
                    cluster.change(
                        0,
                        &key.to_be_bytes(),
                        &commit.to_be_bytes()[6..7],
                        RowChange::Put(&value),
                    );
                    if matches!(pattern, Pattern::Windows) && commit >= 10 {
                        let gone = (commit - 10) * 100 + change;
                        cluster.change(0, &gone.to_be_bytes(), b"", RowChange::DeletePrefix);
                    }
                }
                let before = cluster.processes[0].figures();
                let epoch = cluster.next_epoch();
                cluster.commit(epoch, Vec::new()).expect("the disk is well");
                let figures = cluster.processes[0].figures();
                let changed = figures.changed_bytes - before.changed_bytes;
                let written = figures.written_bytes - before.written_bytes;
                (total_changed, total_written) = (total_changed + changed, total_written + written);
                recent.push_back(changed);
                if recent.len() > 3 {
                    recent.pop_front();
                }
                lives.push(figures.live_bytes);

                let pace = limits.rewrite_bytes_min.max(before.live_bytes / 1024);
                assert!(
                    written <= 2 * changed + pace + OVERHEAD,
                    "{pattern:?}, seed {seed}, commit {commit}: {written} bytes written for {changed} changed"
                );
                // The last round: since the oldest live row was written.
                let files = disk.files();
                let segments: Vec<(&String, &Vec<u8>)> =
                    files.iter().filter(|(name, _)| name.starts_with("segments/")).collect();
                let oldest: usize = segments[0].0["segments/".len()..][..20].parse().expect("an epoch");
                let live = lives[oldest.saturating_sub(1)..].iter().max().copied().unwrap_or(0);
                let on_disk: u64 = segments.iter().map(|(_, bytes)| bytes.len() as u64).sum();
                let kept: u64 = recent.iter().sum::<u64>() + 2 * pace;
                let bound = 3 * live + kept + limits.dead_bytes_min + OVERHEAD * segments.len() as u64;
                assert!(
                    on_disk <= bound,
                    "{pattern:?}, seed {seed}, commit {commit}: {on_disk} bytes on disk, {live} live, {} segments, at most {bound}",
                    segments.len()
                );
                worst = worst.max(on_disk as f64 / bound as f64);
            }
            println!(
                "{pattern:?}, seed {seed}: at most {:.0} % of the disk bound; {:.2} bytes written per byte changed",
                worst * 100.0,
                total_written as f64 / total_changed as f64
            );
            drop(cluster);
            let again = Cluster::start_with(&storage, &options(2, 1, 1), limits).expect("a start");
            assert!(again.restored > 0);
        }
    }
}

#[test]
fn the_number_of_segments_stays_below_its_limit() {
    let limits = ProcessOptions {
        segments_max: 64,
        dead_bytes_min: 1 << 40,
        rewrite_bytes_min: 2000,
        ..process_options()
    };
    let disk = FaultyStorage::new();
    let storage: Arc<dyn Storage> = Arc::new(disk.clone());
    let mut cluster = Cluster::start_with(&storage, &options(1, 1, 1), limits).expect("an empty store");
    for commit in 0..500_u64 {
        // Every row is new and stays: without merging every commit would leave a file for ever.
        cluster.change(0, &(commit % 300).to_be_bytes(), b"", RowChange::Put(&[7; 50]));
        let epoch = cluster.next_epoch();
        cluster.commit(epoch, Vec::new()).expect("the disk is well");
        assert!(cluster.processes[0].figures().segments <= 64, "commit {commit}");
    }
}

#[test]
fn ten_thousand_idle_epochs_write_nothing() {
    // Behaviour 16
    let disk = FaultyStorage::new();
    let storage: Arc<dyn Storage> = Arc::new(disk.clone());
    let mut cluster = Cluster::start(&storage, &options(1, 4, 1)).expect("an empty store");
    for key in 0..100_u8 {
        cluster.change(0, &[key], b"", RowChange::Put(&[key; 20]));
    }
    cluster
        .commit(Epoch(1), vec![(TopicPartition::new("orders.in", 0), NextOffset(9))])
        .expect("the disk is well");
    let (files, operations) = (disk.files(), disk.operations());
    for epoch in 2..10_002 {
        assert_eq!(cluster.commit(Epoch(epoch), Vec::new()).expect("the disk is well"), Published::Unchanged);
    }
    assert_eq!(disk.operations(), operations);
    assert_eq!(disk.files(), files);
    cluster.opened.lease.renew().expect("the lease is ours");
    let renewed = disk.files();
    let changed: Vec<_> = renewed
        .iter()
        .filter(|(name, bytes)| files.get(*name) != Some(*bytes))
        .map(|(name, _)| name)
        .collect();
    assert_eq!(changed, ["lease/0000000001"], "the counter, in place");
    assert_eq!(renewed.len(), files.len());
}

#[test]
fn after_a_rescale_even_an_idle_process_lets_go_of_what_it_shared() {
    // The rows of one old file belong to three processes, of which only one is busy.
    let disk = FaultyStorage::new();
    let storage: Arc<dyn Storage> = Arc::new(disk.clone());
    let mut cluster = Cluster::start(&storage, &options(1, 1, 1)).expect("an empty store");
    for key in 0..2000_u32 {
        cluster.change(0, &key.to_be_bytes(), b"", RowChange::Put(&[1; 100]));
    }
    cluster.commit(Epoch(1), Vec::new()).expect("the disk is well");
    drop(cluster);
    let old = disk.files().into_keys().find(|name| name.starts_with("segments/")).expect("one segment");
    let mut cluster = Cluster::start(&storage, &options(2, 3, 1)).expect("a rescale");
    let busy = (0..2000_u32)
        .map(u32::to_be_bytes)
        .find(|key| KeyHash::of(key).bucket().worker(3).0 == 0)
        .expect("a key of process 0");
    for commit in 0..6_u8 {
        cluster.change(0, &busy, b"", RowChange::Put(&[commit; 100]));
        let epoch = cluster.next_epoch();
        cluster.commit(epoch, Vec::new()).expect("the disk is well");
    }
    assert!(!disk.files().contains_key(&old), "the old file is gone");
    let rows = cluster.rows.clone();
    drop(cluster);
    let cluster = Cluster::start(&storage, &options(3, 1, 2)).expect("a start");
    assert_eq!(cluster.rows, rows);
}
