//! What happens to input topics: deleted, made again, given more partitions.

use tidegate_harness::{Broker, Cluster, checker};

use crate::case::{Case, DEADLINE, numbered, text_of, tidegate};

/// Deletes the input and makes it again, with one partition that holds the ids from 1000.
fn make_again(case: &Case, records: u64) {
    case.kafka.delete_topic(&case.input);
    case.kafka.create_topic(&case.input, 1);
    case.kafka.produce(&case.input, &numbered(1_000..1_000 + records, 1));
}

/// The one line that says so has both ids, as Kafka's tools show them.
fn assert_both_ids(cluster: &Cluster) {
    cluster.assert_one_line_with(0, "TOPIC_RECREATED");
    let stderr = cluster.stderr(0);
    let ids = stderr.split_once("its id was ").and_then(|(_, rest)| rest.split_once(" and is "));
    let Some((was, rest)) = ids else { panic!("no ids in {stderr}") };
    let is: String = rest.chars().take_while(|c| *c != ')').collect();
    assert!(was.len() == 22 && is.len() == 22 && was != is, "the ids are {was} and {is}");
}

/// An input is made again with fewer and with more records than it had.
pub(crate) fn refuse_a_topic_that_was_made_again(broker: &Broker) {
    for records in [5, 40] {
        let case = Case::on(broker.kafka(), "made-again", 2);
        case.kafka.produce(&case.input, &numbered(0..20, 2));
        let launch = case.launch(&case.copy()).recovery(&case.store()).until_end();
        launch.run_to_exit(0, DEADLINE);
        make_again(&case, records);
        assert_both_ids(&launch.run_to_exit(65, DEADLINE));
        assert_eq!(case.outputs(), 20, "records of the new topic came out");

        let accepting = launch.clone().arg("--reset-topic").arg(&case.input);
        accepting.run_to_exit(0, DEADLINE);
        let expected = || (0..20).chain(1_000..1_000 + records);
        checker::assert_exactly(&case.kafka.drain(&case.output), expected());
        let committed = case.kafka.group_offsets(&case.group, &case.input);
        assert_eq!(committed.get(&0).copied(), i64::try_from(records).ok());
        let inspected = text_of(&tidegate(&["recovery", "inspect", &case.store().display().to_string()]));
        assert!(!inspected.contains(&format!("{}:1", case.input)), "a partition that is gone: {inspected}");

        // It is the known topic now: with and without the flag nothing is read again.
        let cluster = accepting.run_to_exit(0, DEADLINE);
        cluster.assert_one_line_with(0, "--reset-topic changes nothing");
        launch.run_to_exit(0, DEADLINE);
        checker::assert_exactly(&case.kafka.drain(&case.output), expected());
    }
}

// K10
#[test]
fn a_topic_that_was_made_again_is_refused_by_its_id_with_fewer_and_with_more_records_until_it_is_accepted() {
    refuse_a_topic_that_was_made_again(Broker::shared());
}

// K10: without a store nobody knows the id, but a log that ends too early shows it.
#[test]
fn without_a_store_a_topic_that_is_shorter_than_the_group_offset_is_refused_until_it_is_accepted() {
    let case = Case::new("shorter", 1);
    case.kafka.produce(&case.input, &numbered(0..5, 1));
    case.kafka.set_group_offsets(&case.group, &case.input, [(0, 20)]);
    let launch = case.launch(&case.copy()).until_end();
    let cluster = launch.run_to_exit(65, DEADLINE);
    cluster.assert_one_line_with(0, &format!("--reset-topic {}", case.input));
    assert_eq!(case.outputs(), 0);
    launch.clone().arg("--reset-topic").arg(&case.input).run_to_exit(0, DEADLINE);
    checker::assert_exactly(&case.kafka.drain(&case.output), 0..5);
    assert_eq!(case.kafka.group_offsets(&case.group, &case.input)[&0], 5);
    launch.run_to_exit(0, DEADLINE);
    assert_eq!(case.outputs(), 5);
}

#[test]
fn a_topic_to_reset_that_the_flow_does_not_read_is_a_wrong_command_line() {
    let case = Case::new("reset-unknown", 1);
    let launch = case.launch(&case.copy()).until_end().arg("--reset-topic").arg("not.mine");
    launch.run_to_exit(64, DEADLINE).assert_one_line_with(0, "not.mine");
}

// K10
#[test]
fn a_topic_that_is_made_again_under_a_running_flow_ends_it_with_65_and_both_ids() {
    let case = Case::new("made-again-live", 1);
    case.kafka.produce(&case.input, &numbered(0..20, 1));
    let mut cluster = case.launch(&case.copy()).start();
    case.wait_caught_up();
    make_again(&case, 40);
    cluster.expect_exit(65, DEADLINE);
    assert_both_ids(&cluster);
}

// K9
#[test]
fn a_topic_that_is_deleted_under_a_running_cluster_ends_it_with_66_and_its_name() {
    let case = Case::new("deleted-live", 2);
    case.kafka.produce(&case.input, &numbered(0..20, 2));
    let mut cluster = case.launch(&case.copy()).shape(2, 1).start();
    case.wait_caught_up();
    case.kafka.delete_topic(&case.input);
    cluster.expect_exit(66, DEADLINE);
    let told = format!("topic `{}` is gone: it was deleted", case.input);
    assert!(cluster.all_stderr().contains(&told), "{told} is not said");
}

// L48 K7
#[test]
fn a_keyed_flow_is_told_that_keys_moved_when_partitions_were_added_and_reads_them_from_their_start() {
    let case = Case::new("keys-moved", 2);
    case.kafka.produce(&case.input, &numbered(0..10, 2));
    let keyed = "- decode: { json: {} }\n- key_by: value.id\n- sink: { kafka: { topic: OUT } }";
    let flow = case.flow(keyed).consumer("auto_offset_reset: latest");
    case.kafka.set_group_offsets(&case.group, &case.input, [(0, 0), (1, 0)]);
    let launch = case.launch(&flow).recovery(&case.store()).until_end();
    let cluster = launch.run_to_exit(0, DEADLINE);
    assert!(!cluster.stderr(0).contains("PARTITIONS_ADDED"), "nothing was added");
    case.kafka.add_partitions(&case.input, 3);
    let added: Vec<_> = numbered(10..20, 1).into_iter().map(|record| record.to(2)).collect();
    case.kafka.produce(&case.input, &added);
    let cluster = launch.run_to_exit(0, DEADLINE);
    cluster.assert_one_line_with(0, "PARTITIONS_ADDED");
    cluster.assert_one_line_with(0, "producers put keys into other partitions now");
    let cluster = launch.run_to_exit(0, DEADLINE);
    assert!(!cluster.stderr(0).contains("PARTITIONS_ADDED"), "they are known by now");
    checker::assert_exactly(&case.kafka.drain(&case.output), 0..20);
}
