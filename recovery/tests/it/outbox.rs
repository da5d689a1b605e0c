//! Outboxes: named by every record until they are known to be published, readable by any later generation, and freed of a row
//! only by a person.

use crate::cluster::*;
use crate::input::{positions, read};
use std::sync::Arc;
use tidegate_recovery::exactly_once::{
    Action, Answer, Chosen, Marker, OutputStart, OutputStartSettings, SeenMarker,
};
use tidegate_recovery::outbox::Decision;
use tidegate_recovery::storage::FaultyStorage;
use tidegate_recovery::*;

fn storage(disk: &FaultyStorage) -> Arc<dyn Storage> {
    Arc::new(disk.clone())
}

fn start(disk: &FaultyStorage, run: u128, processes: u32) -> Cluster {
    let mut cluster = Cluster::start(&storage(disk), &options(run, processes, 1)).expect("a start");
    cluster.outputs = true;
    cluster
}

fn go_on(cluster: &mut Cluster, commits: u64) {
    let mut at = positions(&cluster.opened.resume);
    for _ in 0..commits {
        let offsets = read(cluster, &mut at, 3);
        let epoch = cluster.next_epoch();
        cluster.commit(epoch, offsets).expect("the disk is well");
    }
}

fn outboxes(disk: &FaultyStorage) -> Vec<String> {
    disk.files().into_keys().filter(|name| name.starts_with("outbox/")).collect()
}

fn keys(outbox: &Outbox) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    outbox
        .visit(|stored| {
            keys.push(stored.row.key.expect("every row of the test has a key").to_vec());
            Ok::<(), StoreError>(())
        })
        .expect("the outbox is whole");
    keys
}

#[test]
fn at_the_end_one_more_record_says_that_all_output_is_published_and_only_then() {
    let disk = FaultyStorage::new();
    let mut cluster = start(&disk, 1, 2);
    go_on(&mut cluster, 2);
    let publisher = &mut cluster.opened.publisher;
    publisher.output_published(Slot(0), Epoch(2));
    assert_eq!(publisher.settle().expect("the disk is well"), Published::Unchanged, "slot 1 owes two epochs");
    publisher.output_published(Slot(1), Epoch(2));
    assert_eq!(publisher.settle().expect("the disk is well"), Published::Record(RecordNumber(3)));
    assert_eq!(publisher.settle().expect("the disk is well"), Published::Unchanged, "it is said");
    let offsets = cluster.opened.publisher.epoch();
    drop(cluster);
    let next = start(&disk, 2, 1);
    assert_eq!(next.opened.resume.epoch, offsets, "the epochs go on");
    assert_eq!((next.opened.resume.outboxes.len(), next.opened.resume.offsets.len()), (0, 2));
}

// fault E3 E12
#[test]
fn every_record_names_an_outbox_until_it_is_known_to_be_published_and_then_it_goes() {
    let disk = FaultyStorage::new();
    let mut cluster = start(&disk, 1, 2);
    go_on(&mut cluster, 5);
    assert_eq!(outboxes(&disk).len(), 10, "nobody said that anything was published");
    let owed: Vec<u64> = cluster.opened.publisher.owed().map(|outbox| outbox.epoch.0).collect();
    assert_eq!(owed, [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]);

    cluster.opened.publisher.output_published(Slot(0), Epoch(5));
    cluster.opened.publisher.output_published(Slot(1), Epoch(3));
    cluster.outputs = false;
    let mut at: std::collections::BTreeMap<i32, i64> = [(0, 15), (1, 15)].into();
    for _ in 0..3 {
        let offsets = read(&mut cluster, &mut at, 3);
        let epoch = cluster.next_epoch();
        cluster.commit(epoch, offsets).expect("the disk is well");
    }
    let left = outboxes(&disk);
    assert_eq!(left.len(), 2, "only what slot 1 owes is left: {left:?}");

    let resume = start(&disk.crash(tidegate_recovery::storage::Crash::KeepAll), 2, 1).opened.resume;
    let found: Vec<(u64, Slot)> =
        resume.outboxes.iter().map(|outbox| (outbox.epoch.0, outbox.slot)).collect();
    assert_eq!(found, [(4, Slot(1)), (5, Slot(1))]);
}

// S10 fault E3
#[test]
fn what_was_left_over_is_read_by_a_later_generation_of_another_shape() {
    let disk = FaultyStorage::new();
    let mut cluster = start(&disk, 1, 2);
    go_on(&mut cluster, 2);
    drop(cluster);
    let storage = storage(&disk);
    let store = RecoveryStore::new(storage);
    let mut claim = store.claim(&options(2, 1, 1), None).expect("the lock is free");
    assert_eq!(claim.slots().expect("the leases can be read"), [Slot(0), Slot(1)], "of the old shape");
    let resume = claim.choose().expect("the store is sound").clone();
    let chosen = Chosen::from(&resume);
    assert_eq!((chosen.epoch, chosen.slots.len()), (Some(Epoch(2)), 2));
    let read: Vec<_> =
        resume.outboxes.iter().map(|outbox| keys(&store.read_outbox(outbox).expect("it is whole"))).collect();
    let row = |partition: i32, offset: i64| format!("{partition}@{offset}").into_bytes();
    // Partition 0 is process 0's, 1 is process 1's, and each read three records an epoch.
    assert_eq!(read[0], [row(0, 0), row(0, 1), row(0, 2)]);
    assert_eq!(read[1], [row(1, 0), row(1, 1), row(1, 2)]);
    assert_eq!(read[3], [row(1, 3), row(1, 4), row(1, 5)]);
    let mut opened = claim.open().expect("a record was chosen");
    assert_eq!(opened.publisher.owed().count(), 4);
    opened.publisher.leftovers_published();
    assert_eq!(opened.publisher.owed().count(), 0);
}

// fault E9
#[test]
fn a_record_that_appears_between_the_lease_and_the_choice_is_the_one_that_is_chosen() {
    let disk = FaultyStorage::new();
    let mut old = start(&disk, 1, 1);
    go_on(&mut old, 1);
    // The same store a commit later: what the old generation adds that had looked at the lease just before.
    let later = disk.crash(tidegate_recovery::storage::Crash::KeepAll);
    let mut further = start(&later, 9, 1);
    go_on(&mut further, 1);
    let store = RecoveryStore::new(storage(&disk.another_process()));
    let mut claim = store.claim(&options(2, 1, 1), None).expect("the old one stood still");
    assert_eq!(claim.choose().expect("the store is sound").epoch, Epoch(1));
    for (name, bytes) in later.files() {
        if !name.starts_with("lease/") {
            disk.plant(&name, &bytes);
        }
    }
    let resume = claim.choose().expect("the store is sound");
    assert_eq!((resume.record, resume.epoch), (Some(RecordNumber(2)), Epoch(2)));
}

// fault P1
#[test]
fn a_row_that_can_never_be_published_is_removed_by_a_person_and_only_once() {
    let disk = FaultyStorage::new();
    let mut cluster = start(&disk, 1, 1);
    go_on(&mut cluster, 1);
    let outside = RecoveryStore::new(storage(&disk.another_process()));
    let waiting = outside.outboxes().expect("the store is sound");
    assert_eq!((waiting.len(), waiting[0].rows), (1, Some(6)));
    let file = waiting[0].file.clone();
    let running = outside.decide(&file, 1, Decision::Skip).expect_err("the flow runs");
    assert_eq!((running.code(), running.class().exit_code()), ("CLUSTER_ALREADY_RUNNING", 75));
    drop(cluster);

    let letter = Decision::DeadLetter { topic: "orders.dlq".to_owned() };
    outside.decide(&file, 1, Decision::Skip).expect("the flow is stopped");
    outside.decide(&file, 4, letter.clone()).expect("the flow is stopped");
    for (file, row) in [(file.as_str(), 1), (file.as_str(), 6), ("outbox/none", 0)] {
        let error = outside.decide(file, row, Decision::Skip).expect_err("there is nothing to decide");
        assert!(error.to_string().contains(&format!("row {row} of {file}")), "{error}");
        assert_eq!(error.class().exit_code(), 64);
    }
    let waiting = outside.outboxes().expect("the store is sound");
    assert_eq!(waiting[0].decisions, [(1, Decision::Skip), (4, letter.clone())]);

    // It survives a power cut, and the next generation goes by it.
    let disk = disk.crash(tidegate_recovery::storage::Crash::LoseAll);
    let mut next = start(&disk, 2, 1);
    let outbox = next.opened.resume.outboxes[0].clone();
    let read = RecoveryStore::new(storage(&disk)).read_outbox(&outbox).expect("it is whole");
    let mut decided = Vec::new();
    read.visit(|stored| {
        decided.push(stored.decision.cloned());
        Ok::<(), StoreError>(())
    })
    .expect("it is whole");
    assert_eq!(decided, [None, Some(Decision::Skip), None, None, Some(letter), None]);

    // With the outbox the decisions go.
    next.opened.publisher.leftovers_published();
    next.outputs = false;
    go_on(&mut next, 3);
    assert_eq!(outboxes(&disk), Vec::<String>::new());
}

// S2
#[test]
fn every_flipped_byte_of_an_outbox_is_named_with_file_and_offset_and_nothing_of_it_is_published() {
    let disk = FaultyStorage::new();
    let mut cluster = start(&disk, 1, 1);
    go_on(&mut cluster, 1);
    let outbox = cluster.opened.publisher.owed().next().expect("nothing is published").clone();
    let name = outboxes(&disk).remove(0);
    let whole = disk.files()[&name].clone();
    for at in 0..whole.len() {
        for bit in [0x01, 0x80] {
            let mut bytes = whole.clone();
            bytes[at] ^= bit;
            disk.plant(&name, &bytes);
            let error = RecoveryStore::new(storage(&disk)).read_outbox(&outbox).expect_err("it is damaged");
            assert!(error.to_string().contains(&name), "{error}");
            assert!([65, 78].contains(&error.class().exit_code()), "{error}");
        }
    }
    disk.plant(&name, &whole[..whole.len() - 1]);
    let error = RecoveryStore::new(storage(&disk)).read_outbox(&outbox).expect_err("it is cut");
    assert_eq!((error.code(), error.class().exit_code()), ("STORE_DAMAGED", 65));
    disk.plant(&name, &whole);
    let verified = RecoveryStore::new(storage(&disk)).verify().expect("there is a store");
    assert!(verified.is_sound(), "{verified}");
}

// fault E3 fault E4 S10
#[test]
fn a_start_on_a_real_store_publishes_what_no_marker_covers_in_order_under_its_own_slots() {
    let disk = FaultyStorage::new();
    let mut cluster = start(&disk, 1, 2);
    go_on(&mut cluster, 2);
    drop(cluster);
    let store = RecoveryStore::new(storage(&disk));
    let mut claim = store.claim(&options(2, 1, 1), None).expect("the lock is free");
    let mut machine = OutputStart::new(OutputStartSettings {
        store: claim.store(),
        generation: claim.generation(),
        slots: claim.slots().expect("the leases can be read"),
        own: Slot(0),
        allow_lost_state: false,
        nonce: 7,
    });
    // Slot 1 had published epoch 1 when everything stopped.
    let marker = Marker { generation: Generation(1), epoch: Epoch(1) };
    let seen = SeenMarker { store: claim.store(), slot: Slot(1), marker };
    let (mut fenced, mut sent, mut lost) = (Vec::new(), Vec::new(), true);
    let mut action = machine.begin();
    loop {
        let answer = match &action {
            Action::Initialise(slot) => {
                fenced.push(slot.0);
                Answer::Done
            }
            Action::LookAtLease => Answer::InCharge,
            Action::ChooseRecord => Answer::Chosen(claim.choose().expect("the store is sound").into()),
            Action::ReadMarkers { .. } => Answer::Markers(vec![seen]),
            Action::SendOutbox(outbox) => {
                sent.push((outbox.epoch.0, outbox.slot.0));
                Answer::Done
            }
            // The first answer is lost: the slot is initialised once more, and the markers are read again.
            Action::Commit(_) if std::mem::take(&mut lost) => Answer::Unclear,
            Action::Begin(_) | Action::SendMarker { .. } | Action::Commit(_) => Answer::Done,
            Action::Ready => break,
            other => panic!("{other:?}"),
        };
        action = machine.on(answer);
    }
    assert_eq!(fenced, [0, 1, 0]);
    assert_eq!(sent, [(1, 0), (1, 0), (2, 0), (2, 1)]);
}
