//! Offsets without a record: control records, aborted transactions, compaction, tombstones.

use tidegate_harness::kafka::unique;
use tidegate_harness::{Message, Outcome, Writer, checker, wait};

use crate::case::{Case, DEADLINE, numbered};

// L34 K12 P16 I6
#[test]
fn interleaved_transactions_come_out_without_the_aborted_ones_and_the_lag_reaches_zero() {
    let case = Case::new("interleaved", 1);
    let writers =
        [Writer::transactional(&case.kafka, &unique("a")), Writer::transactional(&case.kafka, &unique("b"))];
    let mut committed = Vec::new();
    for round in 0..20_u64 {
        for writer in &writers {
            writer.begin();
        }
        for id in 0..6_u64 {
            let writer = &writers[usize::from(id % 2 == 1)];
            writer.send(&case.input, &Message::new("k", format!("{{\"id\":{}}}", round * 6 + id)));
            writer.flush();
        }
        // In turn: both commit, the first aborts, the second aborts, both abort; the commit comes first where they differ.
        let outcomes = match round % 4 {
            0 => [Outcome::Commit, Outcome::Commit],
            1 => [Outcome::Abort, Outcome::Commit],
            2 => [Outcome::Commit, Outcome::Abort],
            _ => [Outcome::Abort, Outcome::Abort],
        };
        for (which, outcome) in outcomes.into_iter().enumerate().rev() {
            writers[which].end(outcome);
            if outcome == Outcome::Commit {
                committed.extend((0..6).filter(|id| (id % 2 == 1) == (which == 1)).map(|id| round * 6 + id));
            }
        }
    }
    case.launch(&case.copy()).until_end().run_to_exit(0, DEADLINE);
    checker::assert_exactly(&case.kafka.drain(&case.output), committed);
    case.wait_caught_up();
}

// L34 K12
#[test]
fn a_partition_that_holds_markers_only_is_committed_to_its_end_while_running_and_until_end() {
    let case = Case::new("markers", 2);
    let writer = Writer::transactional(&case.kafka, &case.name);
    for _ in 0..3 {
        writer.transaction(&case.input, &[Message::new("k", "x").to(1)], Outcome::Abort);
    }
    let launch = case.launch(&case.copy()).shape(2, 1);
    launch.clone().until_end().run_to_exit(0, DEADLINE);
    case.wait_caught_up();
    let mut cluster = launch.start();
    cluster.wait_ready(DEADLINE);
    writer.transaction(&case.input, &[Message::new("k", "x").to(0)], Outcome::Abort);
    case.wait_caught_up();
    assert_eq!(case.outputs(), 0);
    cluster.terminate_all();
    cluster.expect_exit(0, DEADLINE);
}

// L35 K12
#[test]
fn gaps_that_compaction_left_hold_nothing_up() {
    let case = Case::without_topics(tidegate_harness::Broker::shared().kafka(), "compacted");
    case.kafka.create_topic(&case.output, 1);
    case.kafka.create_topic_with(
        &case.input,
        1,
        &[
            ("cleanup.policy", "compact"),
            ("segment.bytes", "1048576"),
            ("min.cleanable.dirty.ratio", "0.001"),
            ("min.compaction.lag.ms", "0"),
            ("max.compaction.lag.ms", "100"),
        ],
    );
    // Enough to roll several segments of 1 MiB; only closed ones are compacted.
    let filler = "x".repeat(2_000);
    let records: Vec<Message> = (0..4_000_u64)
        .map(|id| Message::new(format!("k{}", id % 10), format!("{{\"id\":{id},\"f\":\"{filler}\"}}")))
        .collect();
    case.kafka.produce(&case.input, &records);
    wait::until("compaction has removed records", DEADLINE, || {
        (case.kafka.drain(&case.input).len() < 3_000).then_some(())
    });
    let left = checker::ids(&case.kafka.drain(&case.input));
    case.launch(&case.copy()).until_end().run_to_exit(0, DEADLINE);
    let rows = case.kafka.drain(&case.output);
    // Compaction may go on between the drain and the run, but the newest record of each key stays.
    checker::assert_no_repeats(&rows);
    let found = checker::ids(&rows);
    assert!(found.keys().all(|id| left.contains_key(id)), "a record that was gone came out");
    for id in 3_990..4_000 {
        assert!(found.contains_key(&id), "I1 no loss: id {id}");
    }
    case.wait_caught_up();
}

// L36 L27 K15
#[test]
fn tombstones_are_skipped_by_default_delivered_on_request_and_never_hold_the_lag() {
    let case = Case::new("tombstones", 2);
    let tombstones: Vec<Message> = (0..30).map(|n| Message::tombstone(format!("k{n}")).to(n % 2)).collect();
    case.kafka.produce(&case.input, &tombstones);
    case.launch(&case.copy()).until_end().run_to_exit(0, DEADLINE);
    assert_eq!(case.outputs(), 0);
    case.wait_caught_up();

    let mut deliver = case.copy().consumer("tombstones: deliver").named(&format!("{}-2", case.name));
    deliver.group += "-2";
    case.launch(&deliver).until_end().run_to_exit(0, DEADLINE);
    let rows = case.kafka.drain(&case.output);
    assert_eq!(rows.len(), 30);
    assert!(rows.iter().all(|row| row.value.is_none()), "a tombstone got a value");
}

// L7 L27 L32
#[test]
fn a_topic_whose_records_are_all_filtered_or_fanned_out_to_nothing_is_committed_to_its_end() {
    let case = Case::new("filtered", 2);
    case.kafka.produce(&case.input, &numbered(0..500, 2));
    let steps = "- decode: { json: {} }\n- filter: value.id < 0\n- sink: { kafka: { topic: OUT } }";
    case.launch(&case.flow(steps)).until_end().run_to_exit(0, DEADLINE);
    case.wait_caught_up();
    assert_eq!(case.outputs(), 0);
}
