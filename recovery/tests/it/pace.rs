//! How fast it is: figures of a release build, on the disk at hand. They run when `TIDEGATE_BENCH` is set:
//!
//! `TIDEGATE_BENCH=1 cargo test --release -p tidegate-recovery pace -- --nocapture --test-threads 1`

use crate::cluster::*;
use std::fs::File;
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_recovery::rows::{RowChange, RowRef};
use tidegate_recovery::*;

const VALUE: usize = 64;

fn wanted() -> bool {
    std::env::var_os("TIDEGATE_BENCH").is_some()
}

/// Rows for `keys`, with values that hardly shrink.
fn rows(keys: impl Iterator<Item = u64>, commit: u64) -> RowBuffer {
    let mut buffer = RowBuffer::new();
    for key in keys {
        let bytes = key.to_be_bytes();
        let mut value = [0_u8; VALUE];
        let mut state = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ commit;
        for chunk in value.chunks_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            chunk.copy_from_slice(&state.to_le_bytes());
        }
        buffer.push(RowRef {
            step: StepNumber(0),
            route: RowRoute::Bucket(KeyHash::of(&bytes).bucket()),
            key: &bytes,
            sub: b"",
            change: RowChange::Put(&value),
        });
    }
    buffer
}

fn commits(storage: &Arc<dyn Storage>, buffers: &[RowBuffer]) -> Duration {
    let mut cluster =
        Cluster::start_with(storage, &options(1, 1, 1), ProcessOptions::default()).expect("an empty store");
    let started = Instant::now();
    for (commit, buffer) in buffers.iter().enumerate() {
        let epoch = Epoch(commit as u64 + 1);
        let offsets = vec![(TopicPartition::new("t", 0), NextOffset(commit as i64 + 1))];
        let part = cluster.processes[0].write_part(epoch, std::slice::from_ref(buffer), offsets);
        let part = part.expect("the disk is well").expect("rows changed");
        cluster.opened.publisher.publish(epoch, &[part]).expect("the disk is well");
        cluster.opened.publisher.retain().expect("the disk is well");
    }
    started.elapsed()
}

fn sequential(file: &std::path::Path, buffers: &[RowBuffer]) -> Duration {
    let mut file = File::create(file).expect("a file");
    let started = Instant::now();
    for buffer in buffers {
        file.write_all(buffer.as_bytes()).expect("room");
        file.sync_data().expect("a sync");
    }
    started.elapsed()
}

#[test]
fn thirty_commits_of_a_hundred_thousand_rows_cost_at_most_twice_one_file_with_a_sync_per_commit() {
    if !wanted() {
        return;
    }
    for (what, changed) in [
        ("the same 100 000 keys", 100_000_u64),
        ("any of 300 000 keys", 300_000),
        ("new keys every time", u64::MAX),
    ] {
        let buffers: Vec<RowBuffer> = (0..30_u64)
            .map(|commit| {
                let keys = (0..100_000_u64).map(move |index| {
                    let key = (commit * 100_000 + index).wrapping_mul(7_919);
                    if changed == u64::MAX { key } else { key % changed }
                });
                rows(keys, commit)
            })
            .collect();
        let mut ratios = Vec::new();
        for _ in 0..5 {
            let folder = tempfile::tempdir_in(".").expect("a folder on the disk at hand");
            let raw = sequential(&folder.path().join("raw"), &buffers);
            let storage: Arc<dyn Storage> = Arc::new(LocalDirectory::new(folder.path().join("store")));
            let store = commits(&storage, &buffers);
            println!("{what}: one file {raw:.2?}, store {store:.2?}");
            ratios.push(store.as_secs_f64() / raw.as_secs_f64());
        }
        ratios.sort_by(f64::total_cmp);
        println!("{what}: {:.2} times one file (median of {})", ratios[2], ratios.len());
        assert!(ratios[2] <= 2.0, "{what}: {ratios:?}");
    }
}

#[test]
fn a_million_keys_come_back_within_a_second() {
    if !wanted() {
        return;
    }
    let folder = tempfile::tempdir_in(".").expect("a folder on the disk at hand");
    let storage: Arc<dyn Storage> = Arc::new(LocalDirectory::new(folder.path().join("store")));
    let buffers: Vec<RowBuffer> =
        (0..10_u64).map(|commit| rows(commit * 100_000..(commit + 1) * 100_000, commit)).collect();
    commits(&storage, &buffers);
    let mut times = Vec::new();
    for run in 0..5_u128 {
        let started = Instant::now();
        let opened =
            RecoveryStore::new(storage.clone()).open(&options(2 + run, 1, 2), None).expect("a start");
        let mut process =
            ProcessStore::new(storage.clone(), &opened.resume, ProcessIndex(0), ProcessOptions::default());
        let restoration = process
            .restore(2, &|row| match row.route {
                RowRoute::Bucket(bucket) => Some(bucket.worker(2).0 as usize),
                RowRoute::Partition => Some(0),
            })
            .expect("the files are well");
        let took = started.elapsed();
        assert_eq!(restoration.rows, 1_000_000);
        println!("1 000 000 rows restored in {took:.2?}");
        times.push(took);
    }
    times.sort();
    assert!(times[2] <= Duration::from_secs(1), "{times:?}");
}
