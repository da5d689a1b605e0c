//! What was committed comes back: on memory and on a directory, on the same and on another shape.

use crate::cluster::*;
use std::sync::Arc;
use tidegate_recovery::rows::RowChange;
use tidegate_recovery::*;

fn offsets(next: i64) -> Vec<(TopicPartition, NextOffset)> {
    vec![(TopicPartition::new("orders.in", 0), NextOffset(next))]
}

fn some_commits(cluster: &mut Cluster, commits: u32) {
    for commit in 0..commits {
        for key in 0..40_u32 {
            let key = format!("customer-{}", (key * 7 + commit * 13) % 97);
            let sub = (commit % 3).to_be_bytes();
            cluster.change(0, key.as_bytes(), &sub, RowChange::Put(format!("value {commit}").as_bytes()));
        }
        let gone = format!("customer-{}", commit % 97);
        cluster.change(0, gone.as_bytes(), b"", RowChange::DeletePrefix);
        cluster.change(0, b"customer-5", &1_u32.to_be_bytes(), RowChange::Delete);
        let epoch = Epoch(cluster.next_epoch().0 + 9);
        cluster.commit(epoch, offsets(i64::from(commit))).expect("the disk is well");
    }
}

// S10
#[test]
fn rows_and_offsets_come_back_on_any_number_of_workers_and_processes() {
    let directory = tempfile::tempdir().expect("a temporary folder");
    let stores: [Arc<dyn Storage>; 2] =
        [Arc::new(FaultyStorage::new()), Arc::new(LocalDirectory::new(directory.path().join("store")))];
    for storage in stores {
        let mut expected = None;
        for (run, (processes, workers)) in
            [(1, 1), (3, 2), (1, 4), (3, 1), (5, 1), (1, 1)].into_iter().enumerate()
        {
            let mut cluster =
                Cluster::start(&storage, &options(run as u128 + 1, processes, workers)).expect("a start");
            if let Some((rows, epoch)) = expected {
                assert_eq!(cluster.rows, rows);
                assert_eq!(cluster.opened.resume.epoch, epoch);
                assert_eq!(cluster.opened.resume.offsets, offsets(29));
            }
            some_commits(&mut cluster, 30);
            expected = Some((cluster.rows.clone(), cluster.opened.publisher.epoch()));
        }
    }
}
