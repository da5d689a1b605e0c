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

// A10
#[test]
fn a_replay_keeps_no_state_and_no_step_and_epochs_numbers_and_slots_go_on() {
    let storage: Arc<dyn Storage> = Arc::new(FaultyStorage::new());
    let at = |topic: &str, partition, next| (TopicPartition::new(topic, partition), NextOffset(next));
    let mut cluster = Cluster::start(&storage, &options(1, 3, 1)).expect("a start");
    some_commits(&mut cluster, 5);
    let epoch = Epoch(cluster.next_epoch().0 + 9);
    cluster.commit(epoch, vec![at("orders.in", 0, 70), at("orders.in", 1, 80)]).expect("a commit");
    let record = cluster.opened.publisher.record().expect("there were commits");
    assert!(!cluster.rows.is_empty());
    drop(cluster);

    let without_steps =
        OpenOptions { steps: StepTable::default(), allow_dropped_state: true, ..options(2, 1, 1) };
    let mut opened = RecoveryStore::new(storage.clone()).open(&without_steps, None).expect("it is stopped");
    let slots = opened.resume.slots.clone();
    assert_eq!(slots, [Slot(0), Slot(1), Slot(2)]);
    let published = opened.publisher.begin_anew([at("orders.in", 0, 12)], slots).expect("a record");
    assert_eq!(published, RecordNumber(record.0 + 1));
    opened.publisher.retain().expect("the disk is well");
    drop(opened);

    // Another table of steps is no difference: there is no state that it could not fit.
    let other = table(vec![StepShape::new("per-minute", "window").parameter("size", "5000ms")]);
    let mut cluster =
        Cluster::start(&storage, &OpenOptions { steps: other, ..options(3, 2, 1) }).expect("a start");
    let resume = &cluster.opened.resume;
    assert_eq!(resume.offsets, [at("orders.in", 0, 12), at("orders.in", 1, 80)]);
    assert_eq!((resume.epoch, resume.segments.len()), (epoch.next(), 0));
    assert_eq!(resume.slots, [Slot(0), Slot(1), Slot(2)], "the next start cuts all of them off");
    assert!(cluster.rows.is_empty());
    some_commits(&mut cluster, 5);
}

// A10
#[test]
fn a_replay_is_refused_while_output_is_owed() {
    let storage: Arc<dyn Storage> = Arc::new(FaultyStorage::new());
    let mut cluster = Cluster::start(&storage, &options(1, 1, 1)).expect("a start");
    cluster.output(0, 1);
    cluster.commit(Epoch(1), offsets(1)).expect("a commit");
    let publisher = &mut cluster.opened.publisher;
    publisher.begin_anew(offsets(0), Vec::new()).expect_err("nobody would publish it");
    publisher.leftovers_published();
    publisher.begin_anew(offsets(0), Vec::new()).expect("nothing is owed");
}
