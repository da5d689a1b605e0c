//! A start while somebody else is in the consumer group.

use tidegate_harness::{Broker, ConsoleConsumer, Member, checker, wait, witness};

use crate::case::{Case, DEADLINE, numbered};

/// Nothing was written and nothing committed; the last line names the member.
fn refused(case: &Case, client: &str) {
    let cluster = case.launch(&case.copy()).recovery(&case.store()).until_end().run_to_exit(75, DEADLINE);
    let stderr = cluster.stderr(0);
    let last = stderr.lines().last().unwrap_or_default();
    for part in ["GROUP_HAS_MEMBERS", &case.group, client, "127.0.0.1"] {
        assert!(last.contains(part), "{part} is not in the last line: {stderr}");
    }
    assert_eq!(case.outputs(), 0, "something was written");
}

/// A start beside a member is refused; when that has left, a start reads from the beginning.
pub(crate) fn start_beside_a_member(broker: &Broker) {
    let case = Case::on(broker.kafka(), "beside", 1);
    case.kafka.produce(&case.input, &numbered(0..20, 1));
    let member = Member::join(&case.kafka, &case.group, &case.input);
    refused(&case, "client `rdkafka`");
    drop(member);
    wait::until("the member has left", DEADLINE, || {
        witness::group_members(&case.kafka, &case.group).is_empty().then_some(())
    });
    case.launch(&case.copy()).recovery(&case.store()).until_end().run_to_exit(0, DEADLINE);
    checker::assert_exactly(&case.kafka.drain(&case.output), 0..20);
    assert_eq!(witness::group_members(&case.kafka, &case.group), Vec::<String>::new());
}

// L42 L46
#[test]
fn a_start_beside_a_live_member_of_the_group_is_refused_before_anything_is_written_and_names_it() {
    start_beside_a_member(Broker::shared());
}

// L42 L46
#[test]
fn a_start_beside_a_consumer_of_the_jvm_is_refused_and_its_offsets_are_taken_over_when_it_has_left() {
    let case = Case::new("beside-jvm", 1);
    case.kafka.produce(&case.input, &numbered(0..20, 1));
    let consumer = ConsoleConsumer::start(&case.kafka, &case.group, &case.input);
    wait::until("the console consumer is in the group", DEADLINE, || {
        (!witness::group_members(&case.kafka, &case.group).is_empty()).then_some(())
    });
    refused(&case, "console-consumer");
    case.kafka.wait_lag_zero(&case.group, &case.input, DEADLINE);
    consumer.stop();
    case.kafka.produce(&case.input, &numbered(20..30, 1));
    case.launch(&case.copy()).recovery(&case.store()).until_end().run_to_exit(0, DEADLINE);
    checker::assert_exactly(&case.kafka.drain(&case.output), 20..30);
}
