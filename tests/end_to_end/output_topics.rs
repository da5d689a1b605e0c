//! What happens to output topics under a running flow: given more partitions, deleted, forbidden.

use std::time::Duration;

use tidegate_harness::{Broker, Cluster, checker, wait};

use crate::case::{Case, DEADLINE, FlowText, numbered};

/// A producer that hears soon what becomes of its topics.
const CURIOUS: &str =
    "extra: { topic.metadata.refresh.interval.ms: 500, topic.metadata.propagation.max.ms: 1000 }";

fn copy(case: &Case, exactly_once: bool) -> FlowText {
    let flow = case.copy().producer(CURIOUS);
    match exactly_once {
        false => flow,
        true => {
            case.make_control_topic();
            flow.exactly_once()
        }
    }
}

fn last_line(cluster: &Cluster) -> String {
    cluster.stderr(0).lines().last().unwrap_or_default().to_owned()
}

// fault K8 I1 I2
#[test]
fn partitions_that_are_added_to_an_output_are_told_once_and_nothing_is_lost_or_repeated() {
    for exactly_once in [false, true] {
        let case = Case::new("wider-output", 2);
        let launch = case.launch(&copy(&case, exactly_once)).shape(2, 1).recovery(&case.store());
        let mut cluster = launch.start();
        case.kafka.produce(&case.input, &numbered(0..100, 2));
        case.wait_caught_up();
        assert!(!cluster.stderr(0).contains("OUTPUT_PARTITIONS_ADDED"), "nothing was added");
        case.kafka.add_partitions(&case.output, 6);
        let told =
            format!("OUTPUT_PARTITIONS_ADDED: output topic {} has 6 partitions and had 2", case.output);
        cluster.wait_logged(0, &told, DEADLINE);
        let mut records = 100;
        wait::until("keys are written to the new partitions", DEADLINE, || {
            case.kafka.produce(&case.input, &numbered(records..records + 50, 2));
            records += 50;
            case.wait_caught_up();
            case.kafka.drain(&case.output).iter().any(|row| row.partition >= 2).then_some(())
        });
        cluster.terminate_all();
        cluster.expect_exit(0, DEADLINE);
        cluster.assert_one_line_with(0, "in no order between them");
        assert!(!cluster.stderr(1).contains("OUTPUT_PARTITIONS_ADDED"), "two processes said it");
        checker::assert_exactly(&case.kafka.drain(&case.output), 0..records);
    }
}

// fault K16 I1 I2 I4
#[test]
fn an_output_topic_that_is_deleted_ends_the_flow_with_66_and_its_name_and_the_next_start_writes_the_rest() {
    for exactly_once in [false, true] {
        let case = Case::new("deleted-output", 2);
        let launch = case.launch(&copy(&case, exactly_once)).recovery(&case.store());
        let mut cluster = launch.start();
        case.kafka.produce(&case.input, &numbered(0..50, 2));
        case.wait_caught_up();
        checker::assert_exactly(&case.kafka.drain(&case.output), 0..50);
        case.kafka.delete_topic(&case.output);
        case.kafka.produce(&case.input, &numbered(50..100, 2));
        cluster.expect_exit(66, DEADLINE);
        let told = last_line(&cluster);
        for part in [case.output.as_str(), "does not exist any more", "operation Write"] {
            assert!(told.contains(part), "{part:?} is not in {told:?}");
        }
        assert_eq!(case.kafka.lag(&case.group, &case.input), 50, "the group passed what was not written");
        launch.run_to_exit(66, DEADLINE);
        case.kafka.create_topic(&case.output, 2);
        launch.until_end().run_to_exit(0, DEADLINE);
        checker::assert_exactly(&case.kafka.drain(&case.output), 50..100);
        case.wait_caught_up();
    }
}

/// A right that a flow loses while it runs.
struct Loss {
    name: &'static str,
    exactly_once: bool,
    operation: &'static str,
    /// What it is about, as Kafka's tool takes it.
    resource: fn(&Case) -> [&str; 2],
    /// What the flow must say it needs.
    told: &'static str,
}

fn output(case: &Case) -> [&str; 2] {
    ["--topic", &case.output]
}

const LOSSES: [Loss; 6] = [
    Loss {
        name: "write",
        exactly_once: false,
        operation: "Write",
        resource: output,
        told: "(operation Write)",
    },
    // Then the topic is not even shown.
    Loss { name: "all", exactly_once: false, operation: "All", resource: output, told: "(operation Write)" },
    Loss {
        name: "write-once",
        exactly_once: true,
        operation: "Write",
        resource: output,
        told: "operation Write",
    },
    Loss {
        name: "all-once",
        exactly_once: true,
        operation: "All",
        resource: output,
        told: "operation Write",
    },
    Loss {
        name: "read",
        exactly_once: false,
        operation: "Read",
        resource: |case| ["--topic", &case.input],
        told: "(operation Read)",
    },
    Loss {
        name: "group",
        exactly_once: true,
        operation: "Read",
        resource: |case| ["--group", &case.group],
        told: "Read on the group",
    },
];

// fault K16 I1 I2 I4: waiting does not give a right back.
#[test]
fn a_right_that_is_taken_away_under_a_running_flow_ends_it_with_78_and_names_what_to_grant() {
    let broker = Broker::start(&[
        ("authorizer.class.name", "org.apache.kafka.metadata.authorizer.StandardAuthorizer"),
        ("allow.everyone.if.no.acl.found", "true"),
    ]);
    broker.kafka().allow_everything();
    let mut running = LOSSES.map(|loss| {
        let case = Case::on(broker.kafka(), loss.name, 2);
        let launch = case.launch(&copy(&case, loss.exactly_once)).recovery(&case.store());
        case.kafka.produce(&case.input, &numbered(0..50, 2));
        let cluster = launch.start();
        (cluster, loss, case, launch)
    });
    running.iter().for_each(|(.., case, _)| case.wait_caught_up());
    std::thread::scope(|scope| {
        for (_, loss, case, _) in &running {
            scope.spawn(|| case.kafka.take_right(loss.operation, (loss.resource)(case)));
        }
    });
    for (cluster, loss, case, _) in &mut running {
        let [_, name] = (loss.resource)(case);
        case.kafka.produce(&case.input, &numbered(50..100, 2));
        let begin = std::time::Instant::now();
        cluster.expect_exit(78, DEADLINE);
        assert!(begin.elapsed() < Duration::from_secs(15), "{}: it took {:?}", loss.name, begin.elapsed());
        let told = last_line(cluster);
        for part in [name, loss.told, "grant it"] {
            assert!(told.contains(part), "{}: {part:?} is not in {told:?}", loss.name);
        }
    }
    let resources: Vec<[&str; 2]> = running.iter().map(|(_, loss, case, _)| (loss.resource)(case)).collect();
    broker.kafka().give_rights_back(&resources);
    for (_, _, case, launch) in &running {
        // Offsets of a transaction that is left open are not the group's.
        let committed = case.kafka.group_offsets_now(&case.group, &case.input);
        assert_eq!(committed.values().sum::<i64>(), 50, "the group passed what was not written");
        checker::assert_exactly(&case.kafka.drain(&case.output), 0..50);
        launch.clone().until_end().run_to_exit(0, DEADLINE);
        checker::assert_exactly(&case.kafka.drain(&case.output), 0..100);
    }
}
