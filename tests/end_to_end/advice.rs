//! What `run` says about settings that only the brokers know.

use tidegate_harness::Broker;

use crate::case::{Case, DEADLINE, numbered};

// A43
#[test]
fn state_over_a_compacted_topic_is_warned_of_and_a_copy_of_it_is_not() {
    let kafka = Broker::shared().kafka();
    let case = Case::without_topics(kafka, "compacted");
    kafka.create_topic_with(&case.input, 1, &[("cleanup.policy", "compact,delete")]);
    kafka.create_topic(&case.output, 1);
    kafka.produce(&case.input, &numbered(0..3, 1));
    let counted = case
        .flow(
            "- key_by: key\n\
             - stateful_map: { initial: '0', state: state + 1 }\n\
             - sink: { kafka: { topic: OUT } }",
        )
        .top("volatile_state: allow");
    for (flow, warned) in [(counted, true), (case.copy(), false)] {
        let cluster = case.launch(&flow).until_end().run_to_exit(0, DEADLINE);
        let stderr = cluster.stderr(0);
        let lines: Vec<_> = stderr.lines().filter(|line| line.contains("COMPACTED_AS_LOG")).collect();
        assert_eq!(!lines.is_empty(), warned, "{stderr}");
        assert!(lines.iter().all(|line| line.contains(&case.input)), "{lines:?}");
    }
}
