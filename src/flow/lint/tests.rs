//! Each lint has a flow that triggers it and one like it that does not.

use super::temporary;
use crate::command::add_findings;
use crate::config::flow_file::{FileKind, load};
use crate::config::layers::Environment;
use crate::config::problems::code;
use crate::config::tests::{AT_LEAST_ONCE, flow_with, load_text};
use crate::config::yaml::{Origin, Source};
use crate::flow::{Flow, IntoRecord, Json, OutOfOrder};
use crate::{Aggregate, Record, Tumbling};
use std::path::Path;
use std::sync::Arc;

const STORE: &str = "recovery: { directory: /var/lib/tidegate }\n";
const EVENT_TIME: &str = "  - event_time: { from: timestamp, out_of_order: 1s }\n";
const WINDOW: &str = "  - window: { tumbling: 1m, aggregate: { n: count() } }\n";

/// The codes of all that is found in a flow, with their lines.
fn found(consumer: &str, steps: &str, more: &str) -> Vec<(&'static str, u32)> {
    let mut loaded = load_text(&flow_with(consumer, &format!("steps:\n{steps}{more}")));
    add_findings(&mut loaded, None);
    let line = |origin: &Origin| match origin {
        Origin::File(position) => position.line,
        _ => 0,
    };
    loaded.problems.iter().map(|problem| (problem.code, line(&problem.origin))).collect()
}

fn to(topic: &str) -> String {
    format!("  - sink: {{ kafka: {{ topic: {topic} }} }}\n")
}

// A43
#[test]
fn results_per_key_that_are_written_without_it_are_warned_of() {
    let keyed = format!("{EVENT_TIME}  - key_by: value.k\n{WINDOW}");
    for (rest, expected) in [
        ("  - sink: { kafka: { topic: out, key: 'null' } }\n", vec![(code::SINK_WITHOUT_KEY, 12)]),
        ("  - sink: { kafka: { topic: out, key: '\"all\"' } }\n", vec![(code::SINK_WITHOUT_KEY, 12)]),
        (
            "  - map: { key: 'null', value: value }\n  - sink: { kafka: { topic: out } }\n",
            vec![(code::SINK_WITHOUT_KEY, 13)],
        ),
        // The sink's own key is the one that counts.
        (
            "  - map: { key: 'null', value: value }\n  - sink: { kafka: { topic: out, key: value.n } }\n",
            vec![],
        ),
        ("  - sink: { kafka: { topic: out } }\n", vec![]),
        ("  - sink: { kafka: { topic: out, key: key } }\n", vec![]),
        ("  - sink: stdout\n", vec![]),
    ] {
        assert_eq!(found(AT_LEAST_ONCE, &format!("{keyed}{rest}"), STORE), expected, "{rest}");
    }
    let plain = "  - sink: { kafka: { topic: out, key: 'null' } }\n";
    assert_eq!(found(AT_LEAST_ONCE, plain, ""), [], "without a key there is no order per key to lose");
}

#[test]
fn a_flow_that_reads_what_it_writes_is_warned_of() {
    assert_eq!(found(AT_LEAST_ONCE, &to("t"), ""), [(code::OUTPUT_IS_INPUT, 9)]);
    assert_eq!(found(AT_LEAST_ONCE, &to("other"), ""), []);
}

#[test]
fn a_filter_before_the_event_time_is_warned_of() {
    let rest = format!("  - key_by: key\n{WINDOW}{}", to("out"));
    let filter = "  - filter: value.paid\n";
    assert_eq!(
        found(AT_LEAST_ONCE, &format!("{filter}{EVENT_TIME}{rest}"), STORE),
        [(code::FILTER_BEFORE_EVENT_TIME, 9)]
    );
    assert_eq!(found(AT_LEAST_ONCE, &format!("{EVENT_TIME}{filter}{rest}"), STORE), []);
}

#[test]
fn windows_by_the_time_of_arrival_are_warned_of_where_records_are_read_again() {
    let arrival = "  - event_time: { from: arrival, out_of_order: 0s }\n";
    let window = format!("  - key_by: key\n{WINDOW}");
    let flow = format!("{arrival}{window}{}", to("out"));
    assert_eq!(found(AT_LEAST_ONCE, &flow, STORE), [(code::ARRIVAL_TIME, 9)]);
    assert_eq!(found("    delivery: at_most_once", &flow, ""), []);
    assert_eq!(found(AT_LEAST_ONCE, &format!("{arrival}{}", to("out")), ""), [], "nothing goes by it");
}

#[test]
fn state_that_begins_at_the_end_of_the_topics_is_warned_of() {
    let latest = format!("{AT_LEAST_ONCE}\n    auto_offset_reset: latest");
    let keyed = format!("{EVENT_TIME}  - key_by: key\n{WINDOW}{}", to("out"));
    assert_eq!(found(&latest, &keyed, STORE), [(code::LATEST_WITH_STATE, 8)]);
    assert_eq!(found(&latest, &to("out"), ""), []);
    let earliest = format!("{AT_LEAST_ONCE}\n    auto_offset_reset: earliest");
    assert_eq!(found(&earliest, &keyed, STORE), []);
}

// S14
#[test]
fn a_store_in_a_folder_for_temporary_files_is_warned_of() {
    let store = |directory| format!("recovery: {{ directory: {directory} }}\n");
    let codes = |directory| found(AT_LEAST_ONCE, &to("out"), &store(directory));
    for directory in ["/tmp/tidegate", "/var/tmp/x", "/dev/shm/x", "/run/x"] {
        assert_eq!(codes(directory), [(code::STORE_IS_TEMPORARY, 10)], "{directory}");
    }
    assert_eq!(codes("/var/lib/tidegate"), []);
    assert_eq!(temporary(Path::new("/tmpfiles")), None, "a name is a whole name");
}

// E10
#[test]
fn what_takes_from_exactly_once_is_warned_of() {
    let exactly = "    delivery: exactly_once";
    let uncommitted = format!("{exactly}\n    isolation: read_uncommitted");
    assert_eq!(found(&uncommitted, &to("out"), ""), [(code::READS_UNCOMMITTED, 8)]);
    assert_eq!(found(exactly, &to("out"), ""), []);
    let times = |interval, more| {
        let text = format!(
            "exactly_once: {{ transaction_timeout: 40s }}\nrecovery: {{ commit_interval: {interval}{more} }}\n"
        );
        found(exactly, &to("out"), &text)
    };
    assert_eq!(times("21s", ""), [(code::TRANSACTION_TIMEOUT_SHORT, 11)]);
    assert_eq!(times("20s", ""), []);
    assert_eq!(times("21s", ", directory: /var/lib/tidegate"), [], "a store publishes what is ready");
}

#[test]
fn a_file_that_several_processes_would_write_is_refused() {
    let two = "cluster: { addresses: [h0:1, h1:2], process_index: 0 }\n";
    let sink = |path| format!("  - sink: {{ file: {{ path: {path} }} }}\n");
    assert_eq!(found(AT_LEAST_ONCE, &sink("/o"), two), [(code::INVALID_VALUE, 9)]);
    assert_eq!(found(AT_LEAST_ONCE, &sink("'/o-{process}'"), two), []);
    assert_eq!(found(AT_LEAST_ONCE, &sink("/o"), ""), []);
}

#[test]
fn a_flow_in_rust_gets_the_same_advice() {
    let text = "kafka: { consumer: { brokers: [b:1], group_id: g, delivery: at_least_once,\n  \
                auto_offset_reset: latest } }\n\
                cluster: { addresses: [h0:1, h1:2], process_index: 0 }\nrecovery: { directory: /tmp/r }\n";
    let mut loaded = load(Source::new("s.yaml", text), FileKind::SettingsOnly, &Environment::default(), &[]);
    let flow = |flow: &Flow<'_>| {
        let counts = flow
            .kafka("t")
            .decode(Json::<i64>::new())
            .or_drop()
            .filter("positive", |n| *n > 0)
            .event_time("at", |n| *n, OutOfOrder::secs(1))
            .key_by(|n| *n)
            .window("per-minute", Tumbling::minutes(1), Aggregate::count())
            .map("to-record", |w| Record::json(w.key, &w));
        counts.clone().file_sink("/o");
        counts.kafka_sink("t");
    };
    add_findings(&mut loaded, Some(("program".into(), Arc::new(flow))));
    let found: Vec<(&str, &str)> =
        loaded.problems.iter().map(|problem| (problem.code, problem.path.as_str())).collect();
    assert_eq!(
        found,
        [
            (code::LATEST_WITH_STATE, "kafka.consumer.auto_offset_reset"),
            (code::STORE_IS_TEMPORARY, "recovery.directory"),
            (code::INVALID_VALUE, "steps.sink"),
            (code::OUTPUT_IS_INPUT, "steps.sink-2"),
            (code::FILTER_BEFORE_EVENT_TIME, "steps.positive"),
        ]
    );
}
