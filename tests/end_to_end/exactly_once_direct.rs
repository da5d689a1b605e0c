//! Exactly once without a store: a transaction for each input partition and commit epoch. Issue 4, points 1, 7 and 11.

use std::time::Duration;

use rand::SeedableRng as _;
use rand::rngs::SmallRng;
use tidegate_harness::workload::messages;
use tidegate_harness::{Broker, Event, Launch, OffsetWatch, Outcome, Workload, Writer, checker, wait};

use crate::case::{BINARY, Case, DEADLINE, FlowText, numbered, seed};
use crate::feed::Feed;
use crate::restore::{kill_once, kills};

/// A flow that copies bytes, exactly once.
pub(crate) fn copy_once(case: &Case) -> FlowText {
    case.copy().consumer("delivery: exactly_once")
}

// E9 E12 E14 A33 A36
#[test]
fn a_flow_without_state_is_exactly_once_without_a_store() {
    let case = Case::new("direct", 3);
    case.kafka.produce(&case.input, &numbered(0..3_000, 3));
    let launch = case.launch(&copy_once(&case)).shape(2, 2);
    let mut cluster = launch.clone().until_end().start();
    cluster.expect_exit(0, DEADLINE);
    checker::assert_exactly(&case.kafka.drain(&case.output), 0..3_000);
    case.wait_caught_up();
    // A stop is complete when everything that was read is published.
    let mut cluster = launch.start();
    case.kafka.produce(&case.input, &numbered(3_000..4_000, 3));
    wait::until("some of it came out", DEADLINE, || (case.outputs() > 3_000).then_some(()));
    cluster.terminate_all();
    cluster.expect_exit_in(&[0, 75], DEADLINE);
    let rows = case.kafka.drain(&case.output);
    checker::assert_no_repeats(&rows);
    let committed: i64 = case.kafka.group_offsets(&case.group, &case.input).values().sum();
    assert_eq!(committed, rows.len() as i64, "everything below the offsets is there, and nothing else");
}

/// Everything that a reader sees is below the group's offset of the partition that it was read from: both came with one
/// transaction. (The group shows it a moment later.)
#[track_caller]
fn assert_nothing_is_ahead_of_the_offsets(case: &Case, events: &[Event]) {
    let rows = case.kafka.drain(&case.output);
    let came_out: Vec<&Event> = checker::ids(&rows)
        .into_keys()
        .map(|id| &events[usize::try_from(id).unwrap_or(usize::MAX)])
        .collect();
    wait::until("the group has all that came out", DEADLINE, || {
        let offsets = case.kafka.group_offsets_now(&case.group, &case.input);
        let is_below =
            |event: &&Event| offsets.get(&event.partition).is_some_and(|next| event.offset < *next);
        came_out.iter().all(is_below).then_some(())
    });
}

/// Kills at random moments, over these shapes; each record comes out once.
pub(crate) fn killed_at_random(broker: &Broker, name: &str, shapes: &[(usize, usize)]) {
    let seed = seed(name);
    let mut random = SmallRng::seed_from_u64(seed);
    let case = Case::on(broker.kafka(), name, 4);
    let rounds = kills() * shapes.len();
    let workload = Workload { seed, records: 1_000 * rounds, ..Workload::default() };
    let events = workload.events();
    let launch = case.launch(&copy_once(&case));
    let watch = OffsetWatch::start(&case.kafka, &case.group, &case.input);
    let pause = Duration::from_millis(250);
    let feed = Feed::start(&case.kafka, &case.input, messages(&events), rounds * 4, pause);
    for (processes, workers) in shapes.iter().cycle().take(rounds) {
        kill_once(&launch.clone().shape(*processes, *workers), &mut random);
        assert_nothing_is_ahead_of_the_offsets(&case, &events);
    }
    feed.finish();
    launch.shape(2, 1).until_end().run_to_exit(0, DEADLINE);
    case.assert_copied_once(&events);
    case.wait_caught_up();
    watch.assert_only_rises();
}

// E12 E13 E33 F4 I1 I2 I4 fault E1 E2
#[test]
fn two_processes_killed_at_random_copy_each_record_once() {
    killed_at_random(Broker::shared(), "direct-kill", &[(2, 2)]);
}

// E33 S10
#[test]
fn a_cluster_killed_at_random_and_reshaped_copies_each_record_once() {
    killed_at_random(Broker::shared(), "direct-reshape", &[(2, 1), (1, 2), (3, 1)]);
}

// F11
#[test]
fn offsets_of_records_that_lead_to_no_output_are_committed_in_transactions_too() {
    let case = Case::new("direct-filtered", 2);
    let steps = "- decode: { json: {} }\n- filter: value.id < 0\n- sink: { kafka: { topic: OUT } }";
    let flow = case.flow(steps).consumer("delivery: exactly_once");
    case.kafka.produce(&case.input, &numbered(0..500, 2));
    let mut cluster = case.launch(&flow).start();
    case.wait_caught_up();
    case.kafka.produce(&case.input, &numbered(500..600, 2));
    case.wait_caught_up();
    // Its own end comes with each transaction: nobody wrote, and nothing but markers could be there.
    assert_eq!(case.kafka.log_bounds(&case.output).values().map(|(_, end)| end).sum::<i64>(), 0);
    cluster.terminate_all();
    cluster.expect_exit(0, DEADLINE);
    case.wait_caught_up();
}

// E8 F17: and the input of one topic that is held at an open transaction holds nothing of the other.
#[test]
fn two_topics_with_the_same_partition_numbers_do_not_fence_each_other() {
    let case = Case::new("direct-topics", 2);
    let other = format!("{}-b", case.input);
    case.kafka.create_topic(&other, 2);
    let topics = |topics: &[&str]| format!("topics: {topics:?}");
    let flow = copy_once(&case).yaml().replace(&topics(&[&case.input]), &topics(&[&case.input, &other]));
    case.kafka.produce(&case.input, &numbered(0..200, 2));
    case.kafka.produce(&other, &numbered(200..400, 2));
    let held = Writer::transactional(&case.kafka, &other);
    held.begin();
    for message in numbered(400..402, 2) {
        held.send(&other, &message);
    }
    held.flush();
    let mut cluster = Launch::new(BINARY, &case.scratch, &flow).shape(2, 1).start();
    case.kafka.wait_lag_zero(&case.group, &other, DEADLINE);
    for round in 0..3_u64 {
        let first = 1_000 + round * 100;
        case.kafka.produce(&case.input, &numbered(first..first + 100, 2));
        case.wait_caught_up();
    }
    let open: i64 = case.kafka.log_bounds(&other).values().map(|(_, end)| end).sum();
    let read: i64 = case.kafka.group_offsets(&case.group, &other).values().sum();
    assert_eq!((open, read), (202, 200), "the other topic is read up to the open transaction");
    held.end(Outcome::Commit);
    case.kafka.wait_lag_zero(&case.group, &other, DEADLINE);
    cluster.terminate_all();
    cluster.expect_exit_in(&[0, 75], DEADLINE);
    assert!(!cluster.all_stderr().contains("PRODUCER_FENCED"), "nobody fenced anybody");
    let rows = case.kafka.drain(&case.output);
    checker::assert_exactly(&rows, (0..402).chain(1_000..1_300));
}

// L6 L43: what `latest` chose is committed before anything is read, and in a transaction.
#[test]
fn a_start_at_the_end_is_kept_by_a_transaction() {
    let case = Case::new("direct-latest", 1);
    case.kafka.produce(&case.input, &numbered(0..10, 1));
    let flow = copy_once(&case).consumer("auto_offset_reset: latest");
    let mut cluster = case.launch(&flow).start();
    cluster.wait_ready(DEADLINE);
    assert_eq!(case.kafka.group_offsets(&case.group, &case.input), [(0, 10)].into());
    cluster.kill_all();
    case.kafka.produce(&case.input, &numbered(10..20, 1));
    case.launch(&flow).until_end().run_to_exit(0, DEADLINE);
    checker::assert_exactly(&case.kafka.drain(&case.output), 10..20);
    case.wait_caught_up();
}

// P3 L59: one record more than the limit is in flight, and still every epoch closes.
#[test]
fn small_limits_slow_it_down_and_stop_nothing() {
    let case = Case::new("direct-limits", 2);
    case.kafka.produce(&case.input, &numbered(0..2_000, 2));
    let flow = copy_once(&case)
        .consumer("in_flight_bytes: 2000")
        .consumer("in_flight_records: 100")
        .recovery("commit_interval: 100ms")
        .recovery("commits_in_flight: 1");
    case.launch(&flow).until_end().run_to_exit(0, DEADLINE);
    checker::assert_exactly(&case.kafka.drain(&case.output), 0..2_000);
    case.wait_caught_up();
}

// K2 E41: and issue 4, point 4.
#[test]
fn a_broker_that_is_killed_and_frozen_in_transactions_costs_neither_a_record_nor_the_process() {
    let broker = Broker::start(&[]);
    let case = Case::on(broker.kafka(), "direct-bounce", 2);
    let flow = copy_once(&case).top("exactly_once: { request_timeout: 1s, transaction_timeout: 5s }");
    let watch = OffsetWatch::start(broker.kafka(), &case.group, &case.input);
    let mut cluster = case.launch(&flow).shape(2, 1).start();
    cluster.wait_ready(DEADLINE);
    for round in 0..2_u64 {
        let before = case.outputs();
        broker.kafka().produce(&case.input, &numbered(round * 500..round * 500 + 500, 2));
        wait::until("something of the part came out", DEADLINE, || (case.outputs() > before).then_some(()));
        broker.kafka().produce(&case.input, &numbered(10_000 + round * 500..10_500 + round * 500, 2));
        if round == 0 {
            broker.kill();
            broker.resume();
            continue;
        }
        broker.freeze();
        // Longer than an answer is waited for, and than a transaction may take.
        wait::holds_for("the processes wait for the broker", Duration::from_secs(7), || {
            cluster.exits() == [None, None]
        });
        broker.thaw();
    }
    case.wait_caught_up();
    assert_eq!(cluster.exits(), vec![None, None], "a process ended");
    checker::assert_exactly(&case.kafka.drain(&case.output), (0..1_000).chain(10_000..11_000));
    watch.assert_only_rises();
    cluster.terminate_all();
    cluster.expect_exit_in(&[0, 75], DEADLINE);
}

// E14 I6
#[test]
fn inputs_and_outputs_in_two_clusters_are_refused_with_both_named() {
    let output = Broker::start(&[]);
    let case = Case::new("direct-clusters", 1);
    output.kafka().create_topic(&case.output, 1);
    let flow = copy_once(&case).producer_at(output.kafka().bootstrap());
    let mut cluster = case.launch(&flow).run_to_exit(78, DEADLINE);
    let said = cluster.stderr(0);
    assert!(said.contains("EXACTLY_ONCE_BLOCKED") && said.contains(output.kafka().bootstrap()), "{said}");
    assert_eq!(cluster.exited(0), Some(78));
}

// L40
#[test]
fn the_offset_of_an_idle_partition_is_committed_again_before_it_expires() {
    the_group_is_told_again("direct-idle", |launch, _| launch);
}

// The same with a store, which has the offsets too: whoever watches the group would lose sight of it.
#[test]
fn with_a_store_the_offset_of_an_idle_partition_is_committed_again_too() {
    the_group_is_told_again("outbox-idle", |launch, case| launch.recovery(&case.store()));
}

fn the_group_is_told_again(name: &str, stored: impl Fn(Launch, &Case) -> Launch) {
    let case = Case::new(name, 1);
    case.kafka.produce(&case.input, &numbered(0..10, 1));
    let flow = case.copy().exactly_once().consumer("commit_keepalive_ms: 300");
    let mut cluster = stored(case.launch(&flow), &case).start();
    case.wait_caught_up();
    let commits = |cluster: &tidegate_harness::Cluster| {
        let status = cluster.status(0)?;
        status["partitions"][0]["commits"].as_u64()
    };
    let before = commits(&cluster).unwrap_or(0);
    cluster.wait_for("it commits again and again", DEADLINE, |cluster| {
        commits(cluster).is_some_and(|now| now >= before + 4)
    });
    checker::assert_exactly(&case.kafka.drain(&case.output), 0..10);
    cluster.terminate_all();
    cluster.expect_exit(0, DEADLINE);
    case.wait_caught_up();
}
