//! Partitions and workers that are silent: issue 3, behaviour 11.
//!
//! Idleness is by the wall clock: a partition that falls silent no longer holds the others back, and one that was
//! silent joins again with its next record. Records come at a pace here, as they do where this matters: a burst
//! that hits many silent partitions at one instant reaches one worker before the next.

use std::time::Duration;

use tidegate_harness::oracle::Windows;
use tidegate_harness::workload::messages;
use tidegate_harness::{Event, Oracle, Outcome, WindowKind, Workload, Writer, checker, wait};

use crate::case::{Case, DEADLINE, window_steps};
use crate::status;

/// The idle time of these tests.
const IDLE: Duration = Duration::from_secs(1);

/// One worker, and six of which two own no partition.
const SHAPES: [(usize, usize); 2] = [(1, 1), (3, 2)];

/// Allows more disorder than the records have, by more than one portion of the feed spans in event time.
fn steps() -> String {
    window_steps("out_of_order: 2s, idle: 1s", "tumbling: 10s")
}

/// Produces portions that span a second of event time, each when the one before is done.
fn feed(case: &Case, events: &[Event]) {
    for portion in events.chunks(20) {
        case.kafka.produce(&case.input, &messages(portion));
        case.wait_caught_up();
    }
}

fn windows(events: &[Event]) -> Windows {
    Oracle { kind: WindowKind::Tumbling { size: 10_000 }, out_of_order_ms: 2_000, lateness_ms: 0 }
        .paid(events)
        .windows
}

fn workload(seed: u64) -> Workload {
    Workload { seed, records: 800, keys: 10, disorder_ms: 500, ..Workload::default() }
}

/// The highest event time of the rows that are out: no window may be out before its end is passed somewhere.
fn ends(case: &Case) -> Vec<i64> {
    case.kafka.drain(&case.output).iter().filter_map(|row| row.json()["window_end"].as_i64()).collect()
}

// fault P7 I9
#[test]
fn a_partition_that_is_silent_and_comes_back_holds_nothing_up_and_is_not_late() {
    for (processes, workers) in SHAPES {
        let case = Case::new("silent-partition", 4);
        let events = workload(11).events();
        // Partition 0 has nothing in the second third, and comes back in the third one.
        let silent = |event: &&Event| event.partition != 0 || !(200..500).contains(&event.id);
        let kept: Vec<Event> = events.iter().filter(silent).cloned().collect();
        let at = |id: u64| kept.iter().position(|event| event.id >= id).unwrap_or(kept.len());
        let launch = case.launch(&case.flow(&steps())).shape(processes, workers).recovery(&case.store());
        let mut cluster = launch.start();
        feed(&case, &kept[..at(200)]);
        feed(&case, &kept[at(200)..at(500)]);
        // Without idleness the windows of the second third would wait for partition 0.
        let middle = kept[at(300)].at_ms;
        cluster.wait_for("windows behind the silence come out", DEADLINE, |_| {
            ends(&case).iter().any(|end| *end > middle)
        });
        let newest = kept[..at(500)].iter().map(|event| event.at_ms).max().unwrap_or(0);
        wait::holds_for("no window comes out before its end", IDLE * 3, || {
            ends(&case).iter().all(|end| *end <= newest - 2_000)
        });
        feed(&case, &kept[at(500)..]);
        cluster.terminate_all();
        let _codes: Vec<i32> = (0..cluster.len()).map(|n| cluster.wait_exit(n, DEADLINE)).collect();
        launch.until_end().run_to_exit(0, DEADLINE);
        checker::assert_windows(&case.kafka.drain(&case.output), &windows(&kept));
    }
}

// fault P7
#[test]
fn when_all_partitions_are_idle_only_windows_that_ended_before_the_newest_record_come_out() {
    for (processes, workers) in SHAPES {
        let case = Case::new("all-idle", 4);
        let events = workload(12).events();
        let launch = case.launch(&case.flow(&steps())).shape(processes, workers).recovery(&case.store());
        let mut cluster = launch.start();
        feed(&case, &events[..400]);
        let newest = events[..400].iter().map(|event| event.at_ms).max().unwrap_or(0);
        let due = windows(&events[..400]).values().filter(|(end, _)| *end <= newest - 2_000).count();
        cluster.wait_for("the windows that are due come out", DEADLINE, |_| case.outputs() == due);
        wait::holds_for("the open ones stay open", IDLE * 3, || case.outputs() == due);
        feed(&case, &events[400..]);
        cluster.kill_all();
        launch.until_end().run_to_exit(0, DEADLINE);
        checker::assert_windows(&case.kafka.drain(&case.output), &windows(&events));
    }
}

// fault P7 L7
#[test]
fn a_partition_whose_records_are_all_filtered_moves_the_watermark_all_the_same() {
    for (processes, workers) in SHAPES {
        let case = Case::new("all-filtered", 4);
        let mut events = workload(13).events();
        for event in events.iter_mut().filter(|event| event.partition == 1) {
            event.paid = false;
        }
        let flow = case.flow(&window_steps("out_of_order: 2s, idle: 1h", "tumbling: 10s"));
        let launch = case.launch(&flow).shape(processes, workers).recovery(&case.store());
        let mut cluster = launch.start();
        case.kafka.produce(&case.input, &messages(&events));
        let newest = |partition: i32| {
            let own = events.iter().filter(|event| event.partition == partition);
            own.map(|event| event.at_ms).max().unwrap_or(0) - 2_000
        };
        let watermark = (0..4).map(newest).min().unwrap_or(0);
        let due = windows(&events).values().filter(|(end, _)| *end <= watermark).count();
        cluster.wait_for("the windows that are due come out", DEADLINE, |_| case.outputs() == due);
        cluster.kill_all();
        launch.until_end().run_to_exit(0, DEADLINE);
        checker::assert_windows(&case.kafka.drain(&case.output), &windows(&events));
    }
}

// fault E13 fault P7 P16
#[test]
fn a_partition_held_at_an_open_transaction_is_not_idle() {
    for (processes, workers) in SHAPES {
        let case = Case::new("open-transaction", 4);
        let events = workload(14).events();
        let (held, free): (Vec<Event>, Vec<Event>) =
            events[200..].iter().cloned().partition(|event| event.partition == 3);
        let writer = Writer::transactional(&case.kafka, &case.name);
        let launch = case.launch(&case.flow(&steps())).shape(processes, workers).recovery(&case.store());
        let mut cluster = launch.start();
        feed(&case, &events[..200]);
        writer.begin();
        for event in &held {
            writer.send(&case.input, &event.message());
        }
        writer.flush();
        // From here on the partition has a backlog that nobody may read.
        let end = case.kafka.log_bounds(&case.input)[&3].1;
        cluster.wait_for("the backlog of partition 3 is seen", DEADLINE, |cluster| {
            status::log_end(cluster, 3) == Some(end)
        });
        feed(&case, &free);
        let first_held = held.iter().map(|event| event.at_ms).min().unwrap_or(0);
        wait::holds_for("no window passes the held records", IDLE * 3, || {
            ends(&case).iter().all(|end| *end <= first_held)
        });
        writer.end(Outcome::Commit);
        case.wait_caught_up();
        cluster.kill_all();
        launch.until_end().run_to_exit(0, DEADLINE);
        checker::assert_windows(&case.kafka.drain(&case.output), &windows(&events));
    }
}
