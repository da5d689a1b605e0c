//! Brokers that are away, slow, killed and frozen.

use std::time::Duration;

use tidegate_harness::{
    Broker, OffsetWatch, Oracle, WindowKind, Workload, checker, wait, workload::messages,
};

use crate::case::{Case, DEADLINE, highest_record, numbered, window_steps};

// K1
#[test]
fn a_broker_that_is_down_at_the_start_is_waited_for_and_given_up_at_the_deadline_with_69() {
    let broker = Broker::start(&[]);
    let case = Case::on(broker.kafka(), "broker-down", 1);
    broker.kafka().produce(&case.input, &numbered(0..10, 1));
    broker.stop();
    let impatient = case.launch(&case.copy().cluster("startup_timeout: 3s")).until_end();
    let mut cluster = impatient.run_to_exit(69, DEADLINE);
    assert!(cluster.stderr(0).contains(broker.kafka().bootstrap()), "the address is not named");
    assert_eq!(cluster.exited(0), Some(69));
    let mut cluster = case.launch(&case.copy()).until_end().start();
    wait::holds_for("the process waits for the broker", Duration::from_secs(1), || {
        cluster.exited(0).is_none()
    });
    broker.resume();
    cluster.expect_exit(0, DEADLINE);
    checker::assert_exactly(&broker.kafka().drain(&case.output), 0..10);
}

// K1 C1
#[test]
fn a_process_that_waits_for_its_broker_at_the_start_leaves_when_a_peer_is_lost() {
    let broker = Broker::start(&[]);
    let case = Case::on(broker.kafka(), "start-peer-lost", 2);
    broker.freeze();
    let flow = case.copy().cluster("unwind_timeout: 500ms");
    let mut cluster = case.launch(&flow).shape(2, 1).start();
    cluster.wait_for("the cluster is complete", DEADLINE, |cluster| {
        (0..2).all(|n| cluster.stderr(n).contains("the cluster is complete"))
    });
    cluster.kill(1);
    // A start may take 60 s.
    assert_eq!(cluster.wait_exit(0, Duration::from_secs(20)), 75);
    assert!(cluster.stderr(0).contains("PEER_LOST"), "{}", cluster.stderr(0));
    broker.thaw();
}

// K2 E41 A3
#[test]
fn a_broker_that_is_restarted_and_killed_mid_run_costs_neither_a_record_nor_the_process() {
    let broker = Broker::start(&[]);
    let case = Case::on(broker.kafka(), "bounce", 2);
    let mut cluster = case.launch(&case.copy()).shape(2, 1).recovery(&case.store()).start();
    cluster.wait_ready(DEADLINE);
    for round in 0..3_u64 {
        broker.kafka().produce(&case.input, &numbered(round * 500..round * 500 + 500, 2));
        if round % 2 == 0 {
            broker.kill()
        } else {
            broker.stop()
        }
        broker.resume();
    }
    case.wait_caught_up();
    assert_eq!(cluster.exits(), vec![None, None], "a process ended");
    checker::assert_exactly(&broker.kafka().drain(&case.output), 0..1_500);
}

// E28 L4 P1
#[test]
fn an_output_broker_that_is_away_holds_the_commits_and_gets_every_record_when_it_is_back() {
    let output = Broker::start(&[]);
    let case = Case::new("output-away", 2);
    output.kafka().create_topic(&case.output, 1);
    let flow = case.copy().producer_at(output.kafka().bootstrap());
    let mut cluster = case.launch(&flow).start();
    case.kafka.produce(&case.input, &numbered(0..100, 2));
    case.wait_caught_up();
    output.stop();
    case.kafka.produce(&case.input, &numbered(100..200, 2));
    wait::holds_for("nothing is committed that is not written", Duration::from_secs(3), || {
        case.kafka.lag(&case.group, &case.input) == 100
    });
    output.resume();
    case.wait_caught_up();
    assert_eq!(cluster.exited(0), None);
    checker::assert_exactly(&output.kafka().drain(&case.output), 0..200);
}

// L4 I4: behaviour 10, the commit waits for the sinks, on every process.
#[test]
fn a_frozen_output_broker_stops_commit_records_and_offsets_and_no_window_is_lost() {
    let output = Broker::start(&[]);
    let case = Case::new("frozen-output", 4);
    output.kafka().create_topic(&case.output, 3);
    let workload = Workload { records: 4_000, ..Workload::default() };
    let events = workload.events();
    let flow =
        case.flow(&window_steps("out_of_order: 2s", "tumbling: 5s")).producer_at(output.kafka().bootstrap());
    let launch = case.launch(&flow).shape(3, 2).recovery(&case.store());
    let watch = OffsetWatch::start(&case.kafka, &case.group, &case.input);
    let mut cluster = launch.start();
    case.kafka.produce(&case.input, &messages(&events[..2_000]));
    case.wait_caught_up();
    cluster.wait_for("windows come out", DEADLINE, |_| !output.kafka().drain(&case.output).is_empty());
    output.freeze();
    case.kafka.produce(&case.input, &messages(&events[2_000..]));
    // An epoch that had nothing to write may still end; the first that has cannot.
    let seen = || (highest_record(&case.store()), watch.latest());
    let last = wait::until_it_stands("the commits stand still", Duration::from_secs(2), DEADLINE, seen);
    assert!(case.kafka.lag(&case.group, &case.input) > 0, "the group passed what could not be written");
    wait::holds_for("no commit while the output is frozen", Duration::from_secs(3), || seen() == last);
    cluster.kill_all();
    output.thaw();
    launch.until_end().run_to_exit(0, DEADLINE);
    let oracle =
        Oracle { kind: WindowKind::Tumbling { size: 5_000 }, out_of_order_ms: 2_000, lateness_ms: 0 };
    checker::assert_windows(&output.kafka().drain(&case.output), &oracle.paid(&events).windows);
    case.wait_caught_up();
    watch.assert_only_rises();
}

// K6
#[test]
fn a_slow_broker_slows_the_flow_and_disturbs_no_peer() {
    let Some(proxy) = Broker::shared().proxy() else { return };
    let case = Case::new("slow-broker", 2);
    let flow = case.copy().consumer_at(&proxy.address()).producer_at(&proxy.address());
    let mut cluster = case.launch(&flow).shape(2, 1).start();
    cluster.wait_ready(DEADLINE);
    proxy.delay(Duration::from_millis(700));
    case.kafka.produce(&case.input, &numbered(0..200, 2));
    case.wait_caught_up();
    assert_eq!(cluster.exits(), vec![None, None], "a process ended");
    checker::assert_exactly(&case.kafka.drain(&case.output), 0..200);
}
