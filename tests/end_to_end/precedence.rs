//! Where reading begins: resume state, then the group's offset, then `auto_offset_reset`; and what happens when none can be had.

use std::time::Duration;

use tidegate_harness::proxy::api;
use tidegate_harness::{Broker, checker, wait};

use crate::case::{Case, DEADLINE, numbered};
use crate::status;

// L54 A2
#[test]
fn without_state_and_group_offset_the_reset_policy_decides() {
    let case = Case::new("reset", 1);
    case.kafka.produce(&case.input, &numbered(0..10, 1));
    let latest = case.copy().consumer("auto_offset_reset: latest");
    let mut cluster = case.launch(&latest).start();
    cluster.wait_ready(DEADLINE);
    case.kafka.produce(&case.input, &numbered(10..20, 1));
    case.wait_caught_up();
    cluster.terminate_all();
    cluster.expect_exit(0, DEADLINE);
    checker::assert_exactly(&case.kafka.drain(&case.output), 10..20);

    let mut earliest = case.copy();
    earliest.group += "-2";
    case.launch(&earliest).until_end().run_to_exit(0, DEADLINE);
    checker::assert_no_loss(&case.kafka.drain(&case.output), 0..20);
}

// L54 P48: `latest` is a number before anything is read, so what comes between the start and the first commit is not skipped by a crash.
#[test]
fn latest_is_made_durable_so_that_a_crash_before_the_first_record_skips_nothing() {
    let case = Case::new("latest", 1);
    case.kafka.produce(&case.input, &numbered(0..10, 1));
    let launch = case.launch(&case.copy().consumer("auto_offset_reset: latest")).recovery(&case.store());
    let mut cluster = launch.start();
    cluster.wait_ready(DEADLINE);
    cluster.kill_all();
    case.kafka.produce(&case.input, &numbered(10..20, 1));
    launch.until_end().run_to_exit(0, DEADLINE);
    checker::assert_exactly(&case.kafka.drain(&case.output), 10..20);
}

// L54
#[test]
fn a_group_offset_goes_before_the_reset_policy() {
    let case = Case::new("group-offset", 1);
    case.kafka.produce(&case.input, &numbered(0..10, 1));
    case.kafka.set_group_offsets(&case.group, &case.input, [(0, 4)]);
    let mut cluster = case.launch(&case.copy()).until_end().start();
    cluster.expect_exit(0, DEADLINE);
    checker::assert_exactly(&case.kafka.drain(&case.output), 4..10);
}

// L54 L53
#[test]
fn a_resume_state_goes_before_the_group_offset_also_when_it_is_ahead() {
    let case = Case::new("state-ahead", 1);
    case.kafka.produce(&case.input, &numbered(0..10, 1));
    let launch = case.launch(&case.copy()).recovery(&case.store()).until_end();
    launch.run_to_exit(0, DEADLINE);
    case.kafka.set_group_offsets(&case.group, &case.input, [(0, 2)]);
    case.kafka.produce(&case.input, &numbered(10..12, 1));
    launch.run_to_exit(0, DEADLINE);
    checker::assert_exactly(&case.kafka.drain(&case.output), 0..12);
    case.wait_caught_up();
}

// L48 K7
#[test]
fn added_partitions_are_announced_and_read_from_their_start_at_the_next_run_whatever_the_policy() {
    let case = Case::new("added", 2);
    case.kafka.produce(&case.input, &numbered(0..10, 2));
    let earliest = case.launch(&case.copy()).until_end();
    earliest.run_to_exit(0, DEADLINE);
    let latest = case.launch(&case.copy().consumer("auto_offset_reset: latest"));
    let mut cluster = latest.start();
    cluster.wait_ready(DEADLINE);
    case.kafka.add_partitions(&case.input, 3);
    let new: Vec<_> = numbered(10..20, 1).into_iter().map(|record| record.to(2)).collect();
    case.kafka.produce(&case.input, &new);
    // The client asks for the topic's description every 30 s.
    cluster.wait_logged(0, "PARTITIONS_ADDED", DEADLINE + DEADLINE);
    cluster.wait_for("the new partition is counted", DEADLINE, |cluster| {
        status::metric(cluster, 0, "tidegate_partitions_added") == Some(1.0)
    });
    cluster.terminate_all();
    cluster.expect_exit(0, DEADLINE);
    assert_eq!(case.outputs(), 10, "the number of partitions is fixed while a run lasts");
    let mut cluster = latest.start();
    wait::until("the new partition came out", DEADLINE, || (case.outputs() == 20).then_some(()));
    cluster.kill_all();
    checker::assert_exactly(&case.kafka.drain(&case.output), 0..20);
}

// L50 L58
#[test]
fn a_group_offset_that_cannot_be_fetched_ends_the_process_and_nothing_comes_out() {
    let Some(proxy) = Broker::shared().proxy() else { return };
    let case = Case::new("no-coordinator", 1);
    case.kafka.produce(&case.input, &numbered(0..10, 1));
    proxy.swallow(api::OFFSET_FETCH);
    let flow = case.copy().consumer_at(&proxy.address()).cluster("startup_timeout: 4s");
    let mut cluster = case.launch(&flow).until_end().start();
    cluster.expect_exit(69, DEADLINE);
    assert!(proxy.swallowed() > 0, "the offsets were never asked for");
    assert_eq!(proxy.requests(api::FETCH), 0, "records were asked for without an offset");
    assert_eq!(case.outputs(), 0);
    assert!(case.kafka.group_offsets(&case.group, &case.input).is_empty());
}

// L58
#[test]
fn an_outage_of_a_second_at_the_start_is_waited_out() {
    let Some(proxy) = Broker::shared().proxy() else { return };
    let case = Case::new("outage", 1);
    case.kafka.produce(&case.input, &numbered(0..10, 1));
    proxy.cut();
    let mut cluster = case.launch(&case.copy().consumer_at(&proxy.address())).until_end().start();
    wait::holds_for("the process waits", Duration::from_secs(1), || cluster.exited(0).is_none());
    proxy.heal();
    cluster.expect_exit(0, DEADLINE);
    checker::assert_exactly(&case.kafka.drain(&case.output), 0..10);
}

// K13 A24 S16
#[test]
fn an_offset_that_the_broker_no_longer_has_is_refused_by_default_and_skipped_by_policy() {
    let case = Case::new("out-of-range", 1);
    case.kafka.produce(&case.input, &numbered(0..20, 1));
    case.kafka.set_group_offsets(&case.group, &case.input, [(0, 5)]);
    case.kafka.delete_records(&case.input, 0, 12);
    let mut cluster = case.launch(&case.copy()).until_end().start();
    cluster.expect_exit(65, DEADLINE);
    cluster.assert_one_line_with(0, "OFFSET_OUT_OF_RANGE");
    cluster.assert_one_line_with(0, "(7 offsets lost)");
    assert_eq!(case.outputs(), 0);
    let earliest = case.copy().consumer("on_out_of_range: earliest");
    let mut cluster = case.launch(&earliest).until_end().start();
    cluster.expect_exit(0, DEADLINE);
    cluster.assert_one_line_with(0, "7 offsets are lost");
    checker::assert_exactly(&case.kafka.drain(&case.output), 12..20);
}

// K4 K10: beyond the end no policy holds, since the offsets before it mean other records now.
#[test]
fn an_offset_beyond_the_end_of_the_log_is_refused_whatever_the_policy() {
    let case = Case::new("beyond", 1);
    case.kafka.produce(&case.input, &numbered(0..20, 1));
    case.kafka.set_group_offsets(&case.group, &case.input, [(0, 21)]);
    for policy in ["fail", "earliest", "latest"] {
        let flow = case.copy().consumer(&format!("on_out_of_range: {policy}"));
        let cluster = case.launch(&flow).until_end().run_to_exit(65, DEADLINE);
        cluster.assert_one_line_with(0, "goes on at offset 21, and its log ends at 20");
        assert_eq!(case.kafka.group_offsets(&case.group, &case.input)[&0], 21);
    }
    assert_eq!(case.outputs(), 0);
}

// K9
#[test]
fn a_topic_that_is_missing_at_the_start_is_named() {
    let case = Case::new("missing", 1);
    let mut flow = case.copy();
    flow.topics = format!("{}-not-there", case.input);
    let mut cluster = case.launch(&flow.cluster("startup_timeout: 5s")).until_end().start();
    cluster.expect_exit(66, DEADLINE);
    assert!(cluster.all_stderr().contains(&format!("{}-not-there", case.input)), "the topic is not named");
}
