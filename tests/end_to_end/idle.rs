//! A cluster with nothing to do costs next to nothing: issue 3, behaviour 16.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use tidegate_harness::{Workload, process, wait, workload::messages};

use crate::case::{Case, DEADLINE, long, window_steps};
use crate::status;

/// Every file of the store with its length and the moment of its last change, but for the leases.
fn contents(store: &Path) -> BTreeMap<String, (u64, std::time::SystemTime)> {
    let mut found = BTreeMap::new();
    for folder in ["", "commits", "segments", "outbox"] {
        let Ok(entries) = std::fs::read_dir(store.join(folder)) else { continue };
        for entry in entries.flatten() {
            let path = entry.path();
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.is_file() {
                let changed = metadata.modified().unwrap_or(std::time::UNIX_EPOCH);
                found.insert(path.display().to_string(), (metadata.len(), changed));
            }
        }
    }
    found
}

/// The partitions are idle before the store counts as settled: their windows are saved as closed when they become it.
const EVENT_TIME: &str = "out_of_order: 2s, idle: 1s";

fn settle(store: &Path) -> BTreeMap<String, (u64, std::time::SystemTime)> {
    wait::until_it_stands("the store stands still", Duration::from_secs(2), DEADLINE, || contents(store))
}

// L60 S9
#[test]
fn four_idle_workers_use_under_a_twentieth_of_a_core_and_write_nothing_but_the_lease() {
    let case = Case::new("idle", 2);
    let events = Workload { partitions: 2, records: 200, ..Workload::default() }.events();
    case.kafka.produce(&case.input, &messages(&events));
    let flow = case.flow(&window_steps(EVENT_TIME, "tumbling: 10s")).recovery("commit_interval: 1s");
    let mut cluster = case.launch(&flow).shape(1, 4).recovery(&case.store()).start();
    case.wait_caught_up();
    let before = settle(&case.store());
    let span = Duration::from_secs(if long() { 60 } else { 10 });
    let cpu = || process::cpu_time(cluster.pid(0)).unwrap_or_default();
    let (cpu_before, started) = (cpu(), Instant::now());
    wait::holds_for("the store stands still", span, || contents(&case.store()) == before);
    let share = (cpu() - cpu_before).as_secs_f64() / started.elapsed().as_secs_f64();
    eprintln!("idle: {:.2} % of a core", share * 100.0);
    assert!(share < 0.05, "an idle cluster of 4 workers takes {:.1} % of a core", share * 100.0);
    assert_eq!(cluster.exited(0), None);
}

// S9
#[test]
fn thousands_of_idle_epochs_leave_the_size_of_the_store_unchanged() {
    let case = Case::new("idle-epochs", 1);
    let events = Workload { partitions: 1, records: 200, ..Workload::default() }.events();
    case.kafka.produce(&case.input, &messages(&events));
    let flow = case
        .flow(&window_steps(EVENT_TIME, "tumbling: 10s"))
        .top("epoch_interval: 5ms")
        .recovery("commit_interval: 5ms");
    let mut cluster = case.launch(&flow).recovery(&case.store()).start();
    case.wait_caught_up();
    let before = settle(&case.store());
    let epoch = |cluster: &tidegate_harness::Cluster| status::counter(cluster, 0, "epoch");
    let first = epoch(&cluster).unwrap_or_default();
    let epochs = if long() { 10_000 } else { 1_500 };
    cluster.wait_for("the epochs pass", DEADLINE + DEADLINE, |cluster| {
        epoch(cluster).is_some_and(|now| now >= first + epochs)
    });
    assert_eq!(contents(&case.store()), before);
}
