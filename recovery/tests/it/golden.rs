//! A whole store that version 1 wrote, kept in the repository: every later build must go on from it.
//!
//! It is never made anew for a version that was released. `TIDEGATE_BLESS=1` makes it when it is not there.

use crate::cluster::*;
use crate::input::{counts_of, positions, read, state_at};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidegate_recovery::storage::FaultyStorage;
use tidegate_recovery::*;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/v1/store")
}

fn bless() {
    let disk = FaultyStorage::new();
    let storage: Arc<dyn Storage> = Arc::new(disk.clone());
    for (run, (processes, workers)) in [(1, 1), (2, 2)].into_iter().enumerate() {
        let mut cluster =
            Cluster::start(&storage, &options(run as u128 + 1, processes, workers)).expect("a start");
        let mut at = positions(&cluster.opened.resume);
        for _ in 0..5 {
            let offsets = read(&mut cluster, &mut at, 4);
            let epoch = Epoch(cluster.next_epoch().0 + 9);
            cluster.commit(epoch, offsets).expect("the disk is well");
        }
    }
    for (name, bytes) in disk.files() {
        let path = folder().join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("the golden folder can be written");
        std::fs::write(path, bytes).expect("the golden folder can be written");
    }
}

fn plant(disk: &FaultyStorage, folder: &Path, prefix: &str) {
    for entry in std::fs::read_dir(folder).expect("the golden store is there") {
        let path = entry.expect("an entry").path();
        let name = format!("{prefix}{}", path.file_name().expect("a name").to_string_lossy());
        if path.is_dir() {
            plant(disk, &path, &format!("{name}/"));
        } else {
            disk.plant(&name, &std::fs::read(&path).expect("a file"));
        }
    }
}

// S13
#[test]
fn a_store_of_version_1_is_read_and_goes_on() {
    if std::env::var_os("TIDEGATE_BLESS").is_some() && !folder().exists() {
        bless();
    }
    let disk = FaultyStorage::new();
    plant(&disk, &folder(), "");
    let storage: Arc<dyn Storage> = Arc::new(disk);
    let mut cluster = Cluster::start(&storage, &options(9, 3, 1)).expect("version 1 can be read");
    let resume = &cluster.opened.resume;
    assert_eq!((resume.record, resume.epoch), (Some(RecordNumber(10)), Epoch(100)));
    assert_eq!(resume.offsets[0].1, NextOffset(40));
    assert_eq!(counts_of(&cluster), state_at(&resume.offsets));
    let mut at = positions(resume);
    let offsets = read(&mut cluster, &mut at, 4);
    cluster.commit(Epoch(110), offsets).expect("it goes on");
}
