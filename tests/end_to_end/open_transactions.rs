//! A transaction of somebody else that is open in the input: what lies behind it waits, nothing else does, and it is named.

use std::time::Duration;

use tidegate_harness::kafka::unique;
use tidegate_harness::{Message, Outcome, Writer, checker, wait};

use crate::case::{Case, DEADLINE, numbered};
use crate::status;

// fault E13 P16: point 7 of the issue.
#[test]
fn of_two_topics_with_the_same_partition_numbers_one_is_held_at_an_open_transaction_and_the_other_moves_on() {
    for store in [false, true] {
        let case = Case::new("held", 2);
        let free = unique("free.in");
        case.kafka.create_topic(&free, 2);
        case.kafka.produce(&case.input, &numbered(0..10, 2));
        let writer = Writer::transactional(&case.kafka, &case.name);
        writer.begin();
        writer.send(&case.input, &Message::new("k", "{\"id\":1000}").to(1));
        writer.flush();
        case.kafka.produce(&case.input, &[Message::new("k", "{\"id\":1001}").to(1)]);

        let launch = case.launch(&case.copy().also_reading(&free));
        let launch = if store { launch.recovery(&case.store()) } else { launch };
        let mut cluster = launch.start();
        for round in 1..4_u64 {
            case.kafka.produce(&free, &numbered(round * 100..round * 100 + 10, 2));
            case.kafka.wait_lag_zero(&case.group, &free, DEADLINE);
        }
        assert_eq!(
            case.kafka.group_offsets(&case.group, &case.input)[&1],
            5,
            "not past the open transaction"
        );
        let told = format!("waiting for an open transaction at offset 5 of {}:1", case.input);
        cluster.wait_logged(0, &told, DEADLINE);
        let held = status::partition(&cluster, &case.input, 1).unwrap_or_default();
        assert_eq!(held["held"], told.as_str());
        assert_eq!(
            status::partition(&cluster, &free, 1).unwrap_or_default()["held"],
            serde_json::Value::Null
        );
        let seconds = status::metric(&cluster, 0, "tidegate_open_transaction_seconds");
        assert!(seconds.is_some_and(|seconds| (5.0..60.0).contains(&seconds)), "{seconds:?}");
        wait::holds_for("nothing behind the transaction comes out", Duration::from_millis(500), || {
            case.outputs() == 10 + 30
        });

        writer.end(Outcome::Commit);
        case.wait_caught_up();
        cluster.wait_logged(0, "the open transaction has ended", DEADLINE);
        cluster.wait_for("nothing is held any more", DEADLINE, |cluster| {
            let partition = status::partition(cluster, &case.input, 1).unwrap_or_default();
            partition["held"].is_null()
                && status::metric(cluster, 0, "tidegate_open_transaction_seconds") == Some(0.0)
        });
        cluster.terminate_all();
        cluster.expect_exit(0, DEADLINE);
        let free_ids = (100..110).chain(200..210).chain(300..310);
        let expected = (0..10).chain(free_ids).chain(1_000..1_002);
        checker::assert_exactly(&case.kafka.drain(&case.output), expected);
    }
}

// fault E14
#[test]
fn a_transaction_that_hangs_in_the_output_of_an_exactly_once_flow_is_named_once_with_what_ends_it() {
    let case = Case::new("hanging", 1);
    let flow = case.copy().exactly_once();
    let flow = flow
        .top("exactly_once: { create: { replication: 1 }, transaction_timeout: 2s, request_timeout: 2s }");
    let mut cluster = case.launch(&flow).recovery(&case.store()).start();
    cluster.wait_ready(DEADLINE);
    let writer = Writer::transactional(&case.kafka, &case.name);
    writer.begin();
    writer.send(&case.output, &Message::new("k", "{\"id\":1000}").to(1));
    writer.flush();
    case.kafka.produce(&case.input, &numbered(0..10, 1));
    let told =
        format!("HANGING_TRANSACTION: a transaction that begins at offset 0 of the output {}:1", case.output);
    cluster.wait_logged(0, &told, DEADLINE);
    case.wait_caught_up();
    writer.end(Outcome::Abort);
    cluster.terminate_all();
    cluster.expect_exit(0, DEADLINE);
    cluster.assert_one_line_with(0, "HANGING_TRANSACTION");
    checker::assert_exactly(&case.kafka.drain(&case.output), 0..10);
}
