//! Three brokers that lose a leader, records, copies or the quorum of their controllers.

use std::time::Duration;

use tidegate_harness::{BrokerCluster, Cluster, OffsetWatch, checker, wait};

use crate::case::{Case, DEADLINE, numbered};
use crate::exactly_once_brokers::IMPATIENT;
use crate::feed::Feed;

/// Node ids of brokers, by their index.
const NODES: [i32; 3] = [1, 2, 3];

/// The first broker leads, the second has a copy.
const LED_AND_COPIED: [i32; 2] = [NODES[0], NODES[1]];

/// Stops the second broker, and returns when the first is alone with these topics.
fn leave_alone(brokers: &BrokerCluster, topics: &[&str]) {
    brokers.wait_in_sync();
    brokers.broker(1).kill();
    for topic in topics {
        wait::until(&format!("one copy of {topic} is left"), DEADLINE, || {
            (brokers.kafka().in_sync(topic, 0) == [NODES[0]]).then_some(())
        });
    }
}

/// Starts a copy under each delivery guarantee, to an output topic that is made on brokers of the caller's choice.
fn start_copies(brokers: &BrokerCluster, name: &str, output: &[i32]) -> [(Cluster, Case); 2] {
    [false, true].map(|exactly_once| start_copy(brokers, name, output, exactly_once))
}

fn start_copy(brokers: &BrokerCluster, name: &str, output: &[i32], exactly_once: bool) -> (Cluster, Case) {
    let case = Case::without_topics(brokers.kafka(), name);
    case.kafka.create_topic(&case.input, 2);
    case.kafka.create_topic_on(&case.output, output, &[("min.insync.replicas", "2")]);
    let mut flow = case.copy().producer(IMPATIENT);
    if exactly_once {
        case.make_control_topic();
        flow = flow.exactly_once().top("exactly_once: { transaction_timeout: 20s }");
    }
    let cluster = case.launch(&flow).recovery(&case.store()).start();
    (cluster, case)
}

/// Nothing is lost or repeated, no process has ended, and each ends well.
fn assert_all_once(copies: &mut [(Cluster, Case)], records: u64) {
    for (cluster, case) in copies {
        case.wait_caught_up();
        assert_eq!(cluster.exited(0), None, "the process ended");
        cluster.terminate_all();
        cluster.expect_exit(0, DEADLINE);
        checker::assert_exactly(&case.kafka.drain(&case.output), 0..records);
    }
}

// fault K4: records that were read are gone with the leader that alone had them, and others may have their offsets.
#[test]
fn a_log_that_an_unclean_change_of_its_leader_cut_off_ends_the_flow_with_65_even_when_it_has_grown_again() {
    let brokers = BrokerCluster::start();
    let may_be_cut = [("min.insync.replicas", "1"), ("unclean.leader.election.enable", "true")];
    let mut copies = ["cut-off", "regrown"].map(|name| {
        let case = Case::without_topics(brokers.kafka(), name);
        case.kafka.create_topic_on(&case.input, &LED_AND_COPIED, &may_be_cut);
        case.kafka.create_topic(&case.output, 1);
        case.kafka.produce(&case.input, &numbered(0..10, 1));
        // One of them is frozen below, for longer than its peers would wait for it.
        let cluster = case.launch(&case.copy().cluster("peer_timeout: 60s")).start();
        case.wait_caught_up();
        (cluster, case)
    });
    leave_alone(&brokers, &[&copies[0].1.input, &copies[1].1.input]);
    for (_, case) in &copies {
        case.kafka.produce(&case.input, &numbered(10..20, 1));
        case.wait_caught_up();
    }
    let [_, (sleeping, regrown)] = &copies;
    sleeping.freeze_all();
    brokers.broker(0).kill();
    brokers.broker(1).resume_without_waiting();
    for (_, case) in &copies {
        wait::until("the copy that lags behind leads", DEADLINE, || {
            (case.kafka.leader(&case.input, 0) == Some(NODES[1])).then_some(())
        });
        assert_eq!(case.kafka.log_bounds(&case.input)[&0], (0, 10), "nothing was cut off");
    }
    // Before its flow looks, the log reaches past the offset at which that goes on.
    regrown.kafka.produce(&regrown.input, &numbered(100..120, 1));
    sleeping.thaw_all();
    for (cluster, case) in &mut copies {
        cluster.expect_exit(65, DEADLINE);
        cluster.assert_one_line_with(0, "OFFSET_OUT_OF_RANGE");
        cluster.assert_one_line_with(0, "goes on at offset 20");
        cluster.assert_one_line_with(0, "the log was cut off");
        checker::assert_exactly(&case.kafka.drain(&case.output), 0..20);
        assert_eq!(case.kafka.group_offsets(&case.group, &case.input)[&0], 20);
    }
}

// fault K4 K2 I1 I2 I4: under exactly once `exactly_once_brokers` moves the coordinators as well.
#[test]
fn a_leader_that_dies_while_records_flow_is_followed_to_the_next_one_and_nothing_is_lost_or_repeated() {
    let brokers = BrokerCluster::start();
    let mut copies = [start_copy(&brokers, "moved-leader", &NODES, false)];
    let watches =
        copies.each_ref().map(|(_, case)| OffsetWatch::start(&case.kafka, &case.group, &case.input));
    let mut records = 0;
    for whom in ["input", "output"] {
        brokers.wait_in_sync();
        let part = records..records + 1_000;
        let feeds = copies.each_ref().map(|(_, case)| {
            let part = numbered(part.clone(), 2);
            Feed::start(&case.kafka, &case.input, part, 50, Duration::from_millis(50))
        });
        records = part.end;
        let [(_, case)] = &copies;
        wait::until("records flow", DEADLINE, || {
            let ends = case.kafka.log_bounds(&case.input);
            (ends.values().map(|(_, end)| end).sum::<i64>() > part.start as i64).then_some(())
        });
        let topic = if whom == "input" { &case.input } else { &case.output };
        let victim = brokers.leader(topic, 0);
        brokers.broker(victim).kill();
        // While it is away: another one has to lead.
        feeds.into_iter().for_each(Feed::finish);
        copies.iter().for_each(|(_, case)| case.wait_caught_up());
        assert_ne!(brokers.leader(topic, 0), victim);
        brokers.broker(victim).resume();
    }
    assert_all_once(&mut copies, records);
    watches.iter().for_each(OffsetWatch::assert_only_rises);
}

// fault K16 I1 I2 I4: what a broker does not take for lack of copies is held back, not dropped.
#[test]
fn an_output_with_too_few_copies_in_step_holds_the_flow_up_until_they_are_back_and_gets_every_record_once() {
    let brokers = BrokerCluster::start();
    let mut copies = start_copies(&brokers, "few-copies", &LED_AND_COPIED);
    for (_, case) in &copies {
        case.kafka.produce(&case.input, &numbered(0..100, 2));
        case.wait_caught_up();
    }
    leave_alone(&brokers, &[&copies[0].1.output, &copies[1].1.output]);
    for (_, case) in &copies {
        case.kafka.produce(&case.input, &numbered(100..400, 2));
    }
    let [(writing, _), _] = &mut copies;
    writing.wait_for("the status says what is waited for", DEADLINE, |cluster| {
        let status = cluster.status(0).map(|status| status.to_string()).unwrap_or_default();
        status.contains("an acknowledgement of the destination")
    });
    wait::holds_for("nothing is committed that is not written", Duration::from_secs(4), || {
        copies.iter_mut().all(|(cluster, case)| {
            case.kafka.lag(&case.group, &case.input) == 300 && cluster.exited(0).is_none()
        })
    });
    brokers.broker(1).resume();
    assert_all_once(&mut copies, 400);
}

// fault K20 I1 I2 I4 I8
#[test]
fn without_a_quorum_of_controllers_the_flow_waits_and_with_one_it_goes_on_and_nothing_is_committed_twice() {
    let brokers = BrokerCluster::start();
    let mut copies = start_copies(&brokers, "no-quorum", &NODES);
    let watches =
        copies.each_ref().map(|(_, case)| OffsetWatch::start(&case.kafka, &case.group, &case.input));
    let feeds = copies.each_ref().map(|(_, case)| {
        Feed::start(&case.kafka, &case.input, numbered(0..2_000, 2), 100, Duration::from_millis(50))
    });
    for (cluster, case) in &mut copies {
        cluster.wait_for("records come out", DEADLINE, |_| case.outputs() > 0);
    }
    brokers.broker(0).freeze();
    brokers.broker(1).freeze();
    // No leader can move and no copy can be given up, so the third broker takes nothing either.
    let latest = || watches.each_ref().map(OffsetWatch::latest);
    let last = wait::until_it_stands("the commits stand still", Duration::from_secs(2), DEADLINE, latest);
    wait::holds_for("the flows wait", Duration::from_secs(6), || {
        latest() == last && copies.iter_mut().all(|(cluster, _)| cluster.exited(0).is_none())
    });
    brokers.broker(0).thaw();
    brokers.broker(1).thaw();
    feeds.into_iter().for_each(Feed::finish);
    for (_, case) in &copies {
        case.wait_caught_up();
        case.kafka.wait_nothing_open(&case.output, DEADLINE);
    }
    assert_all_once(&mut copies, 2_000);
    watches.iter().for_each(OffsetWatch::assert_only_rises);
}
