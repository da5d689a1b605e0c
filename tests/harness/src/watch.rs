//! A group's offsets, looked at every 20 ms by a thread that never joins the group.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::kafka::{Kafka, committed};

const INTERVAL: Duration = Duration::from_millis(20);

/// One change of a partition's committed offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// When the new offset was first seen.
    pub seen: Instant,
    /// The new offset.
    pub offset: i64,
}

type History = BTreeMap<i32, Vec<Change>>;

/// Watches until it is dropped.
pub struct OffsetWatch {
    history: Arc<Mutex<History>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    name: String,
}

impl OffsetWatch {
    /// Begins to watch a group's offsets of one topic.
    pub fn start(kafka: &Kafka, group: &str, topic: &str) -> OffsetWatch {
        let history = Arc::new(Mutex::new(History::new()));
        let stop = Arc::new(AtomicBool::new(false));
        let partitions = kafka.partitions(topic);
        let reader = kafka.reader(group, "read_committed");
        let (topic_name, seen, stopped) = (topic.to_owned(), Arc::clone(&history), Arc::clone(&stop));
        let thread = std::thread::Builder::new()
            .name("offset-watch".into())
            .spawn(move || {
                while !stopped.load(Ordering::Acquire) {
                    // A broker that is away at this moment has nothing to say; the next look is in 20 ms.
                    if let Ok(offsets) = committed(&reader, &topic_name, partitions) {
                        note(&mut seen.lock().unwrap_or_else(|e| e.into_inner()), offsets);
                    }
                    std::thread::sleep(INTERVAL);
                }
            })
            .unwrap_or_else(|e| panic!("start the offset watch: {e}"));
        OffsetWatch { history, stop, thread: Some(thread), name: format!("group {group}, topic {topic}") }
    }

    /// Every change seen so far, by partition.
    pub fn history(&self) -> BTreeMap<i32, Vec<Change>> {
        self.history.lock().unwrap_or_else(|e| e.into_inner()).clone()
    }

    /// The newest offsets.
    pub fn latest(&self) -> BTreeMap<i32, i64> {
        self.history()
            .into_iter()
            .filter_map(|(partition, changes)| Some((partition, changes.last()?.offset)))
            .collect()
    }

    /// The lowest offset of a partition that was ever seen.
    pub fn lowest(&self, partition: i32) -> Option<i64> {
        self.history().get(&partition)?.iter().map(|change| change.offset).min()
    }

    /// Panics when an offset ever went down (I4).
    #[track_caller]
    pub fn assert_only_rises(&self) {
        for (partition, changes) in self.history() {
            for pair in changes.windows(2) {
                assert!(
                    pair[0].offset < pair[1].offset,
                    "I4 order of durability: {}, partition {partition}: the committed offset went from {} back to {}",
                    self.name,
                    pair[0].offset,
                    pair[1].offset
                );
            }
        }
    }
}

impl Drop for OffsetWatch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !std::thread::panicking()
        {
            panic!("the offset watch of {} panicked", self.name);
        }
    }
}

fn note(history: &mut History, offsets: BTreeMap<i32, i64>) {
    for (partition, offset) in offsets {
        let changes = history.entry(partition).or_default();
        if changes.last().is_none_or(|last| last.offset != offset) {
            changes.push(Change { seen: Instant::now(), offset });
        }
    }
}
