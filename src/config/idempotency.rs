//! Where a sink may give each record a name (`idempotency_key: header`).
//!
//! The name is made of what the result was made of: topic, partition and offset of a record, or step, key and start of a
//! window. It is only of use if no other result has it, and if the same result has it again: so on the way from there to the
//! sink nothing may make several records of one, or one of several, and no topic may come on two ways.

use super::flow_file::{FlowDescription, Input, StreamDescription};
use super::problems::{Problem, code};
use super::steps::{Operation, Sink, Step};

/// Problems of all sinks that name their records.
pub(super) fn check(flow: &FlowDescription) -> Vec<Problem> {
    let mut problems = Vec::new();
    for stream in &flow.streams {
        for (at, step) in stream.steps.iter().enumerate() {
            let Operation::Sink(Sink::Kafka(sink)) = &step.operation else { continue };
            if !sink.idempotency_key {
                continue;
            }
            let mut origins = Vec::new();
            let found = blocker(flow, stream, at, &mut origins).or_else(|| twice(&mut origins));
            problems.extend(found.map(|what| {
                Problem::error(
                    code::INVALID_VALUE,
                    format!("{}.kafka.idempotency_key", step.path),
                    &step.origin,
                    what,
                )
                .advise("take idempotency_key out, and let consumers go by the content")
            }));
        }
    }
    problems
}

/// What is in the way between the last window, or the topics, and this place. `origins` gets what the records come from.
fn blocker(
    flow: &FlowDescription,
    stream: &StreamDescription,
    at: usize,
    origins: &mut Vec<String>,
) -> Option<String> {
    for step in stream.steps[..at].iter().rev() {
        match &step.operation {
            Operation::Window(_) => {
                origins.push(format!("the window {}", step.id));
                return None;
            }
            Operation::FlatMap(_) => return Some(several(step, "makes several records of one")),
            Operation::CollectBatch(_) => {
                return Some(several(step, "may cut other batches after a crash"));
            }
            _ => {}
        }
    }
    match &stream.input {
        Input::Topics(topics) => {
            origins.extend(topics.iter().map(|topic| format!("the topic {topic}")));
            None
        }
        Input::Stream(_) | Input::Merge(_) => stream.reads().iter().find_map(|name| {
            let before = flow.streams.iter().find(|other| other.name == *name)?;
            blocker(flow, before, before.steps.len(), origins)
        }),
    }
}

fn several(step: &Step, what: &str) -> String {
    format!("the step `{}` before it {what}: two results would have one name, or one result two", step.id)
}

fn twice(origins: &mut [String]) -> Option<String> {
    origins.sort_unstable();
    let pair = origins.windows(2).find(|pair| pair[0] == pair[1])?;
    Some(format!("{} reaches it on two ways: two results would have one name", pair[0]))
}

#[cfg(test)]
mod tests {
    use super::super::Severity;
    use crate::config::tests::{AT_LEAST_ONCE, flow_with, load_text};

    fn refused(steps: &str) -> Vec<String> {
        let text = flow_with(
            AT_LEAST_ONCE,
            &format!(
                "steps:\n{steps}  - sink: {{ kafka: {{ topic: out, idempotency_key: header }} }}\n\
                 recovery: {{ directory: /r }}\n"
            ),
        );
        let loaded = load_text(&text);
        let errors = loaded.problems.iter().filter(|problem| problem.severity == Severity::Error);
        errors.map(|problem| format!("{} {}", problem.path, problem.message)).collect()
    }

    // A44
    #[test]
    fn a_name_that_could_stand_for_two_results_is_refused() {
        let window = "  - event_time: { from: timestamp, out_of_order: 1s }\n  - key_by: key\n  \
                      - window: { tumbling: 1m, aggregate: { n: count() } }\n";
        let batches = "  - key_by: key\n  - collect_batch: { max_records: 3, timeout: 1s }\n";
        for (steps, why) in [
            ("  - flat_map: value.all\n".to_owned(), Some("makes several records of one")),
            (batches.into(), Some("may cut other batches")),
            (format!("{window}  - flat_map: '[value]'\n"), Some("makes several records of one")),
            (format!("  - flat_map: value.all\n{window}"), None),
            ("  - filter: value.paid\n  - map: value.a\n".into(), None),
            ("  - key_by: key\n  - stateful_map: { state: value }\n".into(), None),
        ] {
            let found = refused(&steps);
            assert_eq!(found.len(), usize::from(why.is_some()), "{steps}: {found:?}");
            assert!(found.iter().all(|found| found.contains(why.unwrap_or_default())), "{found:?}");
            assert!(found.iter().all(|found| found.contains(".kafka.idempotency_key")), "{found:?}");
        }
    }

    // A44
    #[test]
    fn a_topic_that_reaches_a_sink_on_two_ways_cannot_name_its_results() {
        let flow = |second: &str| {
            format!(
                "flow: f\nkafka: {{ consumer: {{ brokers: [b:1], group_id: g, delivery: at_least_once }} }}\n\
                 streams:\n  one: {{ from: {{ kafka: t }}, steps: [ {{ map: value }} ] }}\n  \
                 two: {{ from: {{ kafka: {second} }}, steps: [ {{ map: {{ name: m, value: value }} }} ] }}\n  \
                 both: {{ merge: [one, two], steps: [ {{ sink: {{ kafka: {{ topic: o, idempotency_key: header }} }} }} ] }}\n"
            )
        };
        let errors = |text: &str| {
            let loaded = load_text(text);
            loaded.problems.iter().map(|problem| problem.message.clone()).collect::<Vec<_>>()
        };
        assert_eq!(errors(&flow("u")), Vec::<String>::new());
        let found = errors(&flow("t"));
        assert!(found.len() == 1 && found[0].contains("the topic t reaches it on two ways"), "{found:?}");
    }
}
