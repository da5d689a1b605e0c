//! The broker of a sitting, with its log in memory where there is room for it.
//!
//! What is compared is what the clients do; a disk that is shared with others only adds noise to the wall clock. So
//! the broker's log lies in `/dev/shm` when that has room, in a folder that is removed at the end (and that the next
//! benchmark removes, when this one is killed).

use std::path::{Path, PathBuf};

use tidegate_harness::{Broker, process};

use crate::error::{Error, Result};

/// Where memory can be had as files.
const MEMORY: &str = "/dev/shm";
/// The topic, two outputs and what was deleted a moment ago.
const ROOM_BYTES_PER_RECORD: u64 = 1_500;

/// A broker and where its log lies.
pub(crate) struct BenchBroker {
    // Fields are dropped in this order: first the broker, then its log.
    broker: Started,
    log: Option<MemoryLog>,
}

enum Started {
    Own(Broker),
    Foreign(&'static Broker),
}

struct MemoryLog(PathBuf);

impl Drop for MemoryLog {
    fn drop(&mut self) {
        // What cannot be removed now is removed by the next benchmark.
        let _left = std::fs::remove_dir_all(&self.0);
    }
}

impl BenchBroker {
    /// Starts a broker for this many records, or takes the one that `TIDEGATE_TEST_BROKERS` names.
    pub(crate) fn start(records: u64) -> Result<BenchBroker> {
        if std::env::var_os("TIDEGATE_TEST_BROKERS").is_some_and(|brokers| !brokers.is_empty()) {
            return Ok(BenchBroker { broker: Started::Foreign(Broker::shared()), log: None });
        }
        remove_leftovers();
        let memory = Path::new(MEMORY);
        if room(memory).is_none_or(|free| free < 4 * records * ROOM_BYTES_PER_RECORD) {
            return Ok(BenchBroker::on_disk());
        }
        let folder = memory.join(format!("tidegate-bench-{}", std::process::id()));
        std::fs::create_dir_all(&folder).map_err(|source| Error::File { path: folder.clone(), source })?;
        let log = MemoryLog(folder);
        let broker = Broker::start(&[("log.dirs", &log.0.join("logs").display().to_string())]);
        Ok(BenchBroker { broker: Started::Own(broker), log: Some(log) })
    }

    /// Starts a broker whose log lies on the disk, and that looks every second for what may be deleted.
    pub(crate) fn on_disk() -> BenchBroker {
        let broker = Broker::start(&[("log.retention.check.interval.ms", "1000")]);
        BenchBroker { broker: Started::Own(broker), log: None }
    }

    /// The broker.
    pub(crate) fn broker(&self) -> &Broker {
        match &self.broker {
            Started::Own(broker) => broker,
            Started::Foreign(broker) => broker,
        }
    }

    /// For the table: which broker it is, and where its log lies.
    pub(crate) fn description(&self) -> String {
        match (&self.broker, &self.log) {
            (Started::Foreign(_), _) => "a running broker, named by TIDEGATE_TEST_BROKERS".to_owned(),
            (Started::Own(_), Some(_)) => format!("{}, its log in memory", version()),
            (Started::Own(_), None) => format!("{}, its log on the disk", version()),
        }
    }
}

/// The broker's jar carries its version in its name.
fn version() -> String {
    let name = |folder: PathBuf| {
        std::fs::read_dir(folder).ok()?.flatten().find_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            Some(name.strip_prefix("kafka_2.13-")?.strip_suffix(".jar")?.to_owned())
        })
    };
    name(tidegate_harness::Line::Newest.jars())
        .map_or("Apache Kafka".to_owned(), |version| format!("Apache Kafka {version}"))
}

fn room(folder: &Path) -> Option<u64> {
    let room = rustix::fs::statvfs(folder).ok()?;
    Some(room.f_bavail * room.f_frsize)
}

fn remove_leftovers() {
    let Ok(entries) = std::fs::read_dir(MEMORY) else { return };
    for entry in entries.flatten() {
        let owner =
            entry.file_name().to_str().and_then(|name| name.strip_prefix("tidegate-bench-")?.parse().ok());
        if owner.is_some_and(|pid: u32| !process::exists(pid)) {
            // Another benchmark may have been faster.
            let _gone = std::fs::remove_dir_all(entry.path());
        }
    }
}
