//! Who is in charge: leases, frozen holders, and the writer that comes back too late.

use crate::cluster::*;
use crate::input::{counts_of, positions, read, state_at};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_recovery::storage::{FaultyStorage, OperationKind};
use tidegate_recovery::*;

const DEADLINE: Duration = Duration::from_secs(10);

fn storage(disk: &FaultyStorage) -> Arc<dyn Storage> {
    Arc::new(disk.clone())
}

// L46 C3
#[test]
fn a_second_cluster_on_the_same_store_is_refused_with_both_sides_named() {
    for on_disk in [false, true] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let place: Arc<dyn Storage> = if on_disk {
            Arc::new(LocalDirectory::new(folder.path()))
        } else {
            storage(&FaultyStorage::new())
        };
        let first = Cluster::start(&place, &options(1, 1, 1)).expect("an empty store");
        let keeper =
            first.opened.lease.keep(|error| panic!("nobody takes the lease: {error}")).expect("a thread");
        let mut second = options(2, 3, 2);
        second.host = "b-host".to_owned();
        let error = Cluster::start(&place, &second).expect_err("the first one lives");
        assert_eq!((error.code(), error.class().exit_code()), ("CLUSTER_ALREADY_RUNNING", 75));
        let text = error.to_string();
        for named in ["host a-host", "host b-host", "1 x 1 workers", "3 x 2 workers"] {
            assert!(text.contains(named), "{named:?} is missing in: {text}");
        }
        drop(keeper);
        drop(first);
        let third = Cluster::start(&place, &options(3, 1, 1)).expect("its lock is free at once");
        assert_eq!(third.opened.resume.generation(), Generation(2), "a refused start takes no number");
    }
}

// fault E7 C2
#[test]
fn a_frozen_holder_is_dead_after_two_peer_timeouts_and_finds_its_lease_lost() {
    let disk = FaultyStorage::new();
    let frozen = Cluster::start(&storage(&disk), &options(1, 1, 1)).expect("an empty store");
    let started = Instant::now();
    let next = Cluster::start(&storage(&disk.another_process()), &options(2, 1, 1)).expect("it is dead");
    assert!(started.elapsed() >= 2 * PEER_TIMEOUT, "its lock is held, so it was given its time");
    assert_eq!(next.opened.resume.generation(), Generation(2));
    let error = frozen.opened.lease.renew().expect_err("generation 2 is in charge");
    assert_eq!((error.code(), error.class().exit_code()), ("LEASE_LOST", 75));
    assert!(error.to_string().contains("generation 2 on host a-host"), "{error}");
    let store = RecoveryStore::new(storage(&disk));
    assert_eq!(store.lease_view(Generation(1)).standing().expect("leases"), Standing::Lost(Generation(2)));
    assert_eq!(store.lease_view(Generation(2)).standing().expect("leases"), Standing::Mine);
}

#[test]
fn the_keeper_of_a_lease_says_when_it_is_lost() {
    let disk = FaultyStorage::new();
    let mut short = options(1, 1, 1);
    short.peer_timeout = Duration::from_millis(60);
    let first = Cluster::start(&storage(&disk), &short).expect("an empty store");
    let (said, heard) = std::sync::mpsc::channel();
    let keeper = first
        .opened
        .lease
        .keep(move |error| said.send(error.code()).expect("the test listens"))
        .expect("a thread");
    // A newer lease, as a start on another host would make it that saw the counter stand still.
    let lease = disk.files().remove("lease/0000000001").expect("the first lease");
    disk.plant("lease/0000000002", &lease);
    assert_eq!(heard.recv_timeout(DEADLINE), Ok("LEASE_LOST"));
    drop(keeper);
}

#[test]
fn a_generation_number_is_never_used_again() {
    let disk = FaultyStorage::new();
    for run in 1..8_u64 {
        let mut cluster = Cluster::start(&storage(&disk), &options(run.into(), 1, 1)).expect("a start");
        assert_eq!(cluster.opened.resume.generation(), Generation(run));
        if run % 2 == 0 {
            let mut at = positions(&cluster.opened.resume);
            let offsets = read(&mut cluster, &mut at, 2);
            let epoch = cluster.next_epoch();
            cluster.commit(epoch, offsets).expect("the disk is well");
        }
    }
    let leases: Vec<String> = disk.files().into_keys().filter(|name| name.starts_with("lease/")).collect();
    assert_eq!(leases, ["lease/0000000006", "lease/0000000007"], "those not older than the newest record's");
}

#[test]
fn a_rejoin_takes_the_next_number_while_it_holds_the_old_lock() {
    let disk = FaultyStorage::new();
    let store = RecoveryStore::new(storage(&disk));
    let first = store.open(&options(1, 1, 1), None).expect("an empty store");
    let started = Instant::now();
    let second = store.open(&options(2, 1, 1), Some(&first.lease)).expect("it is its own lease");
    assert_eq!(second.resume.generation(), Generation(2));
    assert!(started.elapsed() < PEER_TIMEOUT, "nothing to wait for");
}

#[test]
fn a_process_that_sees_another_directory_says_so() {
    let (shared, own) = (FaultyStorage::new(), FaultyStorage::new());
    let first = Cluster::start(&storage(&shared), &options(1, 2, 1)).expect("an empty store");
    let resume = &first.opened.resume;
    RecoveryStore::new(storage(&shared.another_process())).join(resume).expect("the same directory");
    let error = RecoveryStore::new(storage(&own)).join(resume).expect_err("nothing is there");
    assert_eq!((error.code(), error.class().exit_code()), ("STORE_NOT_SHARED", 78));
    drop(Cluster::start(&storage(&own), &options(2, 2, 1)).expect("a store of its own"));
    let error = RecoveryStore::new(storage(&own)).join(resume).expect_err("another store is there");
    assert!(error.to_string().contains(&resume.store.to_string()), "{error}");
    // A copy of the right store, without this start's lease.
    let copy = FaultyStorage::new();
    for (name, bytes) in shared.files() {
        copy.plant(&name, &bytes);
    }
    copy.take_away("lease/0000000001");
    let error = RecoveryStore::new(storage(&copy)).join(resume).expect_err("the nonce is not there");
    assert_eq!(error.code(), "STORE_NOT_SHARED");
}

/// Runs a cluster until it freezes at `kind` on a name with `part`, lets another one of another shape take over, commit
/// five epochs and end, thaws the first, and looks that nothing of the second's is harmed.
fn thawed_too_late(kind: OperationKind, part: &'static str) {
    let disk = FaultyStorage::new();
    let first = disk.another_process();
    let mut cluster = Cluster::start(&storage(&first), &options(1, 2, 1)).expect("an empty store");
    let mut at = positions(&cluster.opened.resume);
    let mut go_on = move |cluster: &mut Cluster, commits: u32| {
        for _ in 0..commits {
            let offsets = read(cluster, &mut at, 3);
            let epoch = cluster.next_epoch();
            cluster.commit(epoch, offsets)?;
        }
        Ok(())
    };
    go_on(&mut cluster, 3).expect("the disk is well");
    let point = first.freeze_at(kind, part);
    let writer = std::thread::spawn(move || go_on(&mut cluster, 40));
    assert!(point.reached(DEADLINE), "{kind:?} on {part} was never met");

    let mut second =
        Cluster::start(&storage(&disk.another_process()), &options(2, 1, 3)).expect("a take-over");
    assert_eq!(counts_of(&second), state_at(&second.opened.resume.offsets));
    let mut at = positions(&second.opened.resume);
    for _ in 0..5 {
        let offsets = read(&mut second, &mut at, 2);
        let epoch = second.next_epoch();
        second.commit(epoch, offsets).expect("it is in charge");
    }
    let (rows, record) = (counts_of(&second), second.opened.publisher.record());
    drop(second);

    point.thaw();
    let error: StoreError = writer.join().expect("no panic").expect_err("the first cluster ends by itself");
    assert_eq!((error.code(), error.class().exit_code()), ("LEASE_LOST", 75), "{error}");
    let third =
        Cluster::start(&storage(&disk.another_process()), &options(3, 1, 1)).expect("no file is damaged");
    assert_eq!(third.opened.resume.record, record);
    assert_eq!(counts_of(&third), rows);
}

// fault E7: behaviour 12
#[test]
fn a_writer_frozen_between_its_look_at_the_lease_and_its_record_is_fenced() {
    thawed_too_late(OperationKind::Link, "commits/");
}

#[test]
fn a_writer_frozen_before_its_record_is_synced_is_fenced() {
    thawed_too_late(OperationKind::SyncFile, "commits/");
}

#[test]
fn a_writer_frozen_in_the_middle_of_a_segment_is_fenced() {
    thawed_too_late(OperationKind::Write, "segments/");
}

#[test]
fn a_writer_frozen_in_the_middle_of_a_deletion_takes_nothing_that_is_needed() {
    thawed_too_late(OperationKind::Remove, "segments/");
}

#[test]
fn a_writer_frozen_before_it_looks_for_what_to_delete_takes_nothing_that_is_needed() {
    thawed_too_late(OperationKind::List, "segments");
}
