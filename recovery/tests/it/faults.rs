//! Damage, refusals and failing disks: what a person is told, and what is left alone.

use crate::cluster::*;
use crate::input::{counts_of, positions, read, state_at};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_recovery::storage::{Crash, FaultyStorage, OperationKind, Verdict};
use tidegate_recovery::*;

/// A store with some commits in it, and the cluster that made it.
fn filled(disk: &FaultyStorage, run: u128, commits: i64) -> Cluster {
    let storage: Arc<dyn Storage> = Arc::new(disk.clone());
    let mut cluster = Cluster::start(&storage, &options(run, 1, 1)).expect("a start");
    go_on(&mut cluster, commits).expect("the disk is well");
    cluster
}

fn go_on(cluster: &mut Cluster, commits: i64) -> Result<(), StoreError> {
    let mut at = positions(&cluster.opened.resume);
    if cluster.opened.publisher.epoch() > cluster.opened.resume.epoch {
        panic!("a cluster reads on from its resume state only once");
    }
    for commit in 0..commits {
        let offsets = read(cluster, &mut at, 4 + commit % 3);
        let epoch = cluster.next_epoch();
        cluster.commit(epoch, offsets)?;
    }
    Ok(())
}

fn start(disk: &FaultyStorage, options: &OpenOptions) -> Result<Cluster, StoreError> {
    let storage: Arc<dyn Storage> = Arc::new(disk.clone());
    Cluster::start(&storage, options)
}

fn newest(disk: &FaultyStorage, folder: &str) -> String {
    let files = disk.files();
    let ours = files.keys().filter(|name| name.starts_with(folder) && !name.ends_with(".tmp"));
    ours.max().expect("there is a file").clone()
}

// S2
#[test]
fn every_flipped_byte_of_a_store_is_named_with_file_and_offset_and_never_gives_wrong_state() {
    let disk = FaultyStorage::new();
    drop(filled(&disk, 1, 6));
    let disk = disk.crash(Crash::KeepAll);
    let newest_record = newest(&disk, "commits/");
    let (mut flips, mut refused) = (0, 0);
    for (name, bytes) in disk.files() {
        for at in 0..bytes.len() {
            for bit in [0x01, 0x80] {
                let mut bytes = bytes.clone();
                bytes[at] ^= bit;
                let broken = disk.crash(Crash::KeepAll);
                broken.plant(&name, &bytes);
                flips += 1;
                match start(&broken, &options(2, 1, 1)) {
                    Ok(cluster) => {
                        let resume = &cluster.opened.resume;
                        assert_eq!(counts_of(&cluster), state_at(&resume.offsets), "{name}@{at}");
                        assert_eq!(
                            newest_record,
                            format!("commits/{:020}", resume.record.map_or(0, |n| n.0))
                        );
                    }
                    Err(error) => {
                        refused += 1;
                        let text = error.to_string();
                        assert!(text.contains(&name), "{name}@{at}: {text}");
                        let place = matches!(error, StoreError::Damaged { .. });
                        assert!(place && text.contains("at byte"), "{name}@{at}: {text}");
                        assert_eq!(error.class(), ErrorClass::Data);
                    }
                }
            }
        }
    }
    println!("{flips} flips, {refused} refused, the others are in files that a start does not need");
    assert!(refused > 1000);
}

// S2 S3
#[test]
fn every_truncation_of_a_needed_file_is_refused_by_name() {
    let disk = FaultyStorage::new();
    drop(filled(&disk, 1, 3));
    let disk = disk.crash(Crash::KeepAll);
    for name in ["STORE".to_owned(), newest(&disk, "commits/"), newest(&disk, "segments/")] {
        let bytes = disk.files()[&name].clone();
        for length in 0..bytes.len() {
            let broken = disk.crash(Crash::KeepAll);
            broken.plant(&name, &bytes[..length]);
            let error = start(&broken, &options(2, 1, 1)).expect_err("a file is short");
            assert!(error.to_string().contains(&name), "{name} cut at {length}: {error}");
            assert_eq!(error.code(), "STORE_DAMAGED", "{error}");
        }
    }
}

// S3
#[test]
fn a_torn_record_under_its_temporary_name_was_never_published_and_is_ignored() {
    let disk = FaultyStorage::new();
    drop(filled(&disk, 1, 3));
    let disk = disk.crash(Crash::KeepAll);
    let record = newest(&disk, "commits/");
    let number: u64 = record["commits/".len()..].parse().expect("a record's name is its number");
    let torn = format!("commits/{:020}.{:010}.tmp", number + 1, 1);
    disk.plant(&torn, &disk.files()[&record][..30]);
    let mut cluster = start(&disk, &options(2, 1, 1)).expect("the torn file counts for nothing");
    assert_eq!(cluster.opened.resume.record, Some(RecordNumber(number)));
    go_on(&mut cluster, 1).expect("its number can be used");
    assert!(!disk.files().contains_key(&torn), "retention takes it away later");
}

// S4
#[test]
fn a_missing_segment_is_named_and_says_how_to_go_on() {
    let disk = FaultyStorage::new();
    drop(filled(&disk, 1, 4));
    let disk = disk.crash(Crash::KeepAll);
    let segment = newest(&disk, "segments/");
    disk.take_away(&segment);
    let error = start(&disk, &options(2, 1, 1)).expect_err("a segment is missing");
    assert!(error.to_string().contains(&segment), "{error}");
    assert!(error.to_string().contains("--allow-older-snapshot"), "{error}");
    assert_eq!(error.class().exit_code(), 65);
}

// S2
#[test]
fn a_start_falls_back_only_when_it_is_told_to_and_the_damaged_number_is_used_again() {
    for damaged in ["commits/", "segments/"] {
        let disk = FaultyStorage::new();
        drop(filled(&disk, 1, 4));
        let disk = disk.crash(Crash::KeepAll);
        let name = newest(&disk, damaged);
        let mut bytes = disk.files()[&name].clone();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0x10;
        disk.plant(&name, &bytes);
        let refused = start(&disk, &options(2, 1, 1));
        if damaged == "commits/" {
            let error = refused.expect_err("the newest record is damaged");
            assert!(error.to_string().contains("--allow-older-snapshot"), "{error}");
        } else {
            assert!(refused.is_err());
        }
        let allowed = OpenOptions { allow_older_snapshot: true, ..options(3, 1, 1) };
        let mut cluster = start(&disk, &allowed).expect("there is a record before it");
        assert_eq!(cluster.opened.resume.record, Some(RecordNumber(3)));
        assert_eq!(counts_of(&cluster), state_at(&cluster.opened.resume.offsets));
        go_on(&mut cluster, 1).expect("number 4 is free again");
        assert_eq!(cluster.opened.publisher.record(), Some(RecordNumber(4)));
        assert!(
            disk.files().keys().any(|name| name.contains(".damaged-")),
            "the damaged record is kept aside"
        );
    }
}

// S4
#[test]
fn a_folder_that_cannot_be_written_is_named_with_what_to_do() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("not-a-folder");
    std::fs::write(&file, b"").expect("a file");
    let storage: Arc<dyn Storage> = Arc::new(LocalDirectory::new(file.join("store")));
    let error = Cluster::start(&storage, &options(1, 1, 1)).expect_err("a file stands in the way");
    assert_eq!(error.class().exit_code(), 74);
    assert!(error.to_string().contains("not-a-folder"), "{error}");

    let disk = FaultyStorage::new();
    disk.set_hook(|operation| match operation.kind {
        OperationKind::Create => Verdict::Fail(io::ErrorKind::PermissionDenied),
        _ => Verdict::Proceed,
    });
    let error = start(&disk, &options(1, 1, 1)).expect_err("nothing can be created");
    assert_eq!(error.class().exit_code(), 74);
    assert!(error.to_string().contains("needs to read and write there"), "{error}");
}

// S5
#[test]
fn a_full_disk_is_tried_again_and_then_ends_with_74_without_half_a_record() {
    let disk = FaultyStorage::new();
    let mut cluster = filled(&disk, 1, 2);
    let free = std::sync::atomic::AtomicU32::new(3);
    disk.set_hook(move |operation| {
        let full = operation.kind == OperationKind::Write
            && free.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok();
        if full { Verdict::Fail(io::ErrorKind::StorageFull) } else { Verdict::Proceed }
    });
    let mut at = positions(&cluster.opened.resume);
    at.insert(0, 50);
    at.insert(1, 50);
    let offsets = read(&mut cluster, &mut at, 1);
    let epoch = cluster.next_epoch();
    cluster.commit(epoch, offsets).expect("room was made in time");
    disk.set_hook(|operation| match operation.kind {
        OperationKind::Write => Verdict::Fail(io::ErrorKind::StorageFull),
        _ => Verdict::Proceed,
    });
    let offsets = read(&mut cluster, &mut at, 1);
    let before = newest(&disk, "commits/");
    let started = Instant::now();
    let error = cluster.commit(epoch.next(), offsets).expect_err("the disk stays full");
    assert!(started.elapsed() >= Duration::from_millis(250), "it was tried again for the store's timeout");
    assert_eq!(error.class().exit_code(), 74);
    assert!(error.to_string().contains("make room"), "{error}");
    assert_eq!(newest(&disk, "commits/"), before);
}

// S6
#[test]
fn a_failed_sync_is_never_tried_again() {
    for part in ["segments/", "commits/"] {
        let disk = FaultyStorage::new();
        let mut cluster = filled(&disk, 1, 2);
        let released = cluster.opened.publisher.epoch();
        let place = part.to_owned();
        disk.start_log();
        disk.set_hook(move |operation| {
            let sync = operation.kind == OperationKind::SyncFile && operation.name.starts_with(&place);
            if sync { Verdict::Fail(io::ErrorKind::Other) } else { Verdict::Proceed }
        });
        cluster.change(0, b"a key", b"", rows::RowChange::Put(b"a value"));
        let error = cluster.commit(released.next(), Vec::new()).expect_err("the sync fails");
        assert_eq!(error.class().exit_code(), 74);
        let log = disk.take_log();
        let syncs =
            log.iter().filter(|done| done.kind == OperationKind::SyncFile && done.name.starts_with(part));
        assert_eq!(syncs.count(), 1, "{part}");
        disk.clear_hook();
        cluster.change(0, b"a key", b"", rows::RowChange::Put(b"another value"));
        assert!(cluster.commit(released.next().next(), Vec::new()).is_err(), "the store stays closed");
    }
}

// S8
#[test]
fn foreign_files_are_ignored_and_never_deleted() {
    let disk = FaultyStorage::new();
    drop(filled(&disk, 1, 2));
    let disk = disk.crash(Crash::KeepAll);
    let foreign = [
        ".DS_Store",
        "lost+found",
        "commits/.DS_Store",
        "commits/00000000000000000001 (copy)",
        "commits/9",
        "commits/99999999999999999999999",
        "segments/00000000000000000001-0000000001-00000.bak",
        "segments/~",
        "lease/0000000099.old",
        "lease/notes.txt",
        "outbox/something",
    ];
    for name in foreign {
        disk.plant(name, b"not ours");
    }
    for run in 2..5 {
        let mut cluster = start(&disk, &options(run, 1, 1)).expect("they are in nobody's way");
        go_on(&mut cluster, 4).expect("the disk is well");
    }
    let files = disk.files();
    for name in foreign {
        assert_eq!(files.get(name).map(Vec::as_slice), Some(&b"not ours"[..]), "{name}");
    }
}

// S12 L57
#[test]
fn the_store_of_another_flow_is_refused_with_both_names() {
    let disk = FaultyStorage::new();
    drop(filled(&disk, 1, 1));
    let other = OpenOptions { flow: "returns".to_owned(), ..options(2, 1, 1) };
    let error = start(&disk, &other).expect_err("it is the store of orders");
    assert_eq!(error.code(), "STORE_MISMATCH");
    assert!(error.to_string().contains("\"orders\"") && error.to_string().contains("\"returns\""), "{error}");
    assert_eq!(error.class().exit_code(), 78);
}

// S12
#[test]
fn changed_and_removed_steps_are_refused_with_the_difference_and_new_ones_start_empty() {
    let disk = FaultyStorage::new();
    drop(filled(&disk, 1, 2));
    let with = |steps| OpenOptions { steps: table(steps), ..options(2, 1, 1) };
    let watermark = || StepShape::new("watermark", "event_time");
    let resized =
        with(vec![StepShape::new("per-minute", "window").parameter("size", "30000ms"), watermark()]);
    let error = start(&disk, &resized).expect_err("the window has another size").to_string();
    assert!(error.contains("step per-minute: size is 60000ms in the store, 30000ms in the flow"), "{error}");
    let kind =
        with(vec![StepShape::new("per-minute", "stateful_map").parameter("size", "60000ms"), watermark()]);
    let error = start(&disk, &kind).expect_err("it is no window any more").to_string();
    assert!(error.contains("step per-minute: kind window in the store, stateful_map in the flow"), "{error}");
    let error = start(&disk, &with(vec![watermark()])).expect_err("the window is gone");
    assert_eq!((error.code(), error.class().exit_code()), ("STATE_MISMATCH", 78));
    assert!(error.to_string().contains("--allow-dropped-state"), "{error}");

    // Dropped, then back under the same name: its old rows are not its own any more, although their file
    // stays for the sake of another step.
    let mut cluster = start(&disk, &options(2, 1, 1)).expect("nothing changed");
    cluster.change(0, b"old", b"", rows::RowChange::Put(b"v"));
    cluster.change(1, b"kept", b"", rows::RowChange::Put(b"v"));
    let epoch = cluster.next_epoch();
    cluster.commit(epoch, Vec::new()).expect("the disk is well");
    drop(cluster);
    let dropped = OpenOptions {
        allow_dropped_state: true,
        ..with(vec![watermark(), StepShape::new("a-new-one", "dedup")])
    };
    let mut cluster = start(&disk, &dropped).expect("its state may go");
    assert_eq!(cluster.rows.len(), 1);
    cluster.change(1, b"k", b"", rows::RowChange::Put(b"v"));
    let epoch = cluster.next_epoch();
    cluster.commit(epoch, Vec::new()).expect("the disk is well");
    drop(cluster);
    let back = with(vec![
        StepShape::new("per-minute", "window").parameter("size", "60000ms"),
        watermark(),
        StepShape::new("a-new-one", "dedup"),
    ]);
    let cluster = start(&disk, &back).expect("a new step fits any store");
    let keys: Vec<_> = cluster.rows.keys().map(|(step, key, _)| (*step, key.clone())).collect();
    let expected = [(2, b"k".to_vec()), (2, b"kept".to_vec())];
    assert_eq!(keys, expected, "numbers changed, rows followed their names, the old ones are gone");
}

// S13
#[test]
fn state_of_a_newer_version_of_a_step_is_refused_and_older_rows_come_apart() {
    let disk = FaultyStorage::new();
    let shape = |version| {
        let mut shape = StepShape::new("per-minute", "window");
        shape.version = version;
        OpenOptions { steps: table(vec![shape]), ..options(10 + u128::from(version), 1, 1) }
    };
    let mut cluster = start(&disk, &shape(1)).expect("an empty store");
    cluster.change(0, b"old", b"", rows::RowChange::Put(b"1"));
    cluster.commit(Epoch(1), Vec::new()).expect("the disk is well");
    drop(cluster);
    let mut cluster = start(&disk, &shape(2)).expect("an older version can be read");
    cluster.change(0, b"new", b"", rows::RowChange::Put(b"2"));
    cluster.commit(Epoch(2), Vec::new()).expect("the disk is well");
    drop(cluster);
    let error = start(&disk, &shape(1)).expect_err("version 2 wrote there");
    assert_eq!(error.code(), "STATE_VERSION_UNSUPPORTED");
    let storage: Arc<dyn Storage> = Arc::new(disk.clone());
    let opened = RecoveryStore::new(storage.clone()).open(&shape(2), None).expect("a start");
    let mut process = ProcessStore::new(storage, &opened.resume, ProcessIndex(0), process_options());
    let restored = process.restore(1, &|_| Some(0)).expect("the files are well");
    let versions: Vec<(u32, usize)> =
        restored.workers[0].iter().map(|step| (step.version, step.rows.rows.len())).collect();
    assert_eq!(versions, [(1, 1), (2, 1)]);
}

// S13
#[test]
fn a_newer_format_is_refused_with_both_versions() {
    let disk = FaultyStorage::new();
    drop(filled(&disk, 1, 1));
    let name = newest(&disk, "commits/");
    let mut bytes = disk.files()[&name].clone();
    bytes[12..16].copy_from_slice(&9_u32.to_le_bytes());
    let check = crc32fast::hash(&bytes[..16]);
    bytes[16..20].copy_from_slice(&check.to_le_bytes());
    disk.plant(&name, &bytes);
    let error = start(&disk, &options(2, 1, 1)).expect_err("nobody knows version 9");
    assert_eq!((error.code(), error.class().exit_code()), ("STATE_VERSION_UNSUPPORTED", 78));
    assert!(error.to_string().contains("version 9") && error.to_string().contains("up to 3"), "{error}");
}

// S4
#[test]
fn a_store_without_its_first_file_is_damaged_not_empty() {
    let disk = FaultyStorage::new();
    drop(filled(&disk, 1, 1));
    disk.take_away("STORE");
    let error = start(&disk, &options(2, 1, 1)).expect_err("there are records");
    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
}

#[test]
fn inspect_and_verify_show_what_is_there_and_change_nothing() {
    let disk = FaultyStorage::new();
    let cluster = filled(&disk, 1, 5);
    let files = disk.files();
    let store = RecoveryStore::new(Arc::new(disk.clone()));
    let inspection = store.inspect().expect("a store");
    assert_eq!(
        inspection.offsets,
        cluster.opened.resume.offsets.iter().cloned().chain(inspection.offsets.clone()).collect::<Vec<_>>()
    );
    assert_eq!(inspection.steps[0].rows, Some(counts_of(&cluster).len() as u64));
    assert!(inspection.leases[0].locked && inspection.damage.is_empty());
    let text = inspection.to_string();
    for shown in [
        "flow       orders",
        "held: generation 1 on host a-host",
        "record     5: epoch 5",
        "goes on at",
        "per-minute (window, version 1, size 60000ms)",
    ] {
        assert!(text.contains(shown), "{shown:?} is missing in\n{text}");
    }
    let verification = store.verify().expect("a store");
    assert!(verification.is_sound() && verification.files > 4, "{verification}");
    assert_eq!(disk.files(), files);
    let name = newest(&disk, "segments/");
    let mut bytes = disk.files()[&name].clone();
    *bytes.last_mut().expect("a segment has bytes") ^= 1;
    disk.plant(&name, &bytes);
    let verification = store.verify().expect("damage is part of the answer");
    assert!(!verification.is_sound() && verification.to_string().contains(&name), "{verification}");
    let text = store.inspect().expect("damage is part of the answer").to_string();
    assert!(text.contains("hidden by damage") && text.contains(&name), "{text}");
}

use std::sync::atomic::Ordering::SeqCst;
