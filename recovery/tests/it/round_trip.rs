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

// K10 S13
#[test]
fn topic_ids_stand_in_every_record_and_a_topic_that_begins_anew_loses_its_offsets() {
    let storage: Arc<dyn Storage> = Arc::new(FaultyStorage::new());
    let (a, b): (Arc<str>, Arc<str>) = ("a".into(), "b".into());
    let at = |topic: &str, partition, next| (TopicPartition::new(topic, partition), NextOffset(next));
    let mut cluster = Cluster::start(&storage, &options(1, 1, 1)).expect("a start");
    let publisher = &mut cluster.opened.publisher;
    publisher.reads([(a.clone(), TopicId(1)), (b.clone(), TopicId(2))], &[]);
    cluster.commit(Epoch(1), vec![at("a", 0, 10), at("a", 1, 20), at("b", 0, 30)]).expect("a commit");
    drop(cluster);

    let mut cluster = Cluster::start(&storage, &options(2, 1, 1)).expect("a start");
    let resume = &cluster.opened.resume;
    assert_eq!((resume.topic("a"), resume.topic("b")), (Some(TopicId(1)), Some(TopicId(2))));
    assert_eq!(resume.topic("c"), None);
    cluster.opened.publisher.reads([(a.clone(), TopicId(7))], std::slice::from_ref(&a));
    cluster.commit(Epoch(2), vec![at("a", 0, 3)]).expect("a commit");
    drop(cluster);

    let cluster = Cluster::start(&storage, &options(3, 1, 1)).expect("a start");
    let resume = &cluster.opened.resume;
    assert_eq!(resume.offsets, [at("a", 0, 3), at("b", 0, 30)], "a:1 was a partition of the old topic");
    assert_eq!(resume.topics, [(a, TopicId(7)), (b, TopicId(2))]);
}
