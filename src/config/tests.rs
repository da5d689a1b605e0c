//! Flow files as a whole: the examples, the texts of their errors, and what a reader must never do.

use super::flow_file::{FileKind, Loaded, load};
use super::kafka::{DeliveryGuarantee, DeliveryReason};
use super::layers::{Environment, FlagSetting};
use super::problems::{Severity, code};
use super::yaml::{Origin, Source};
use crate::check;
use proptest::prelude::*;
use std::path::{Path, PathBuf};
use std::time::Duration;

fn flows() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/flows")
}

fn environment() -> Environment {
    [("BROKER", "localhost:9092")].into_iter().collect()
}

pub(crate) fn load_text(text: &str) -> Loaded {
    load(Source::new("flow.yaml", text), FileKind::Flow, &environment(), &[])
}

fn codes(loaded: &Loaded, severity: Severity) -> Vec<&'static str> {
    loaded
        .problems
        .iter()
        .filter(|problem| problem.severity == severity)
        .map(|problem| problem.code)
        .collect()
}

/// A flow with these lines in the section of the consumer, and these steps.
pub(crate) fn flow_with(consumer: &str, rest: &str) -> String {
    format!(
        "flow: f\nkafka:\n  consumer:\n    brokers: [b:1]\n    group_id: g\n    topics: [t]\n{consumer}\n{rest}"
    )
}

pub(crate) const SINK: &str = "steps:\n  - sink: stdout\n";
pub(crate) const AT_LEAST_ONCE: &str = "    delivery: at_least_once";

#[test]
fn every_example_is_read_without_a_problem() {
    let mut read = 0;
    for entry in std::fs::read_dir(flows()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "yaml") {
            let text = std::fs::read_to_string(&path).unwrap();
            let mut loaded = load_text(&text);
            crate::command::add_findings(&mut loaded, None);
            assert!(loaded.problems.is_empty(), "{}", check::problems_text(&loaded.source, &loaded.problems));
            let flow = loaded.flow.unwrap();
            assert!(flow.streams.iter().all(|stream| !stream.steps.is_empty()));
            read += 1;
        }
    }
    assert!(read >= 7, "only {read} examples");
}

/// Each file under `tests/flows/errors` and what `check` says about it, reviewed by a person.
/// `TIDEGATE_UPDATE_SNAPSHOTS=1` writes the texts anew.
#[test]
fn error_texts_are_as_they_were_reviewed() {
    let mut read = 0;
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(flows().join("errors")).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        if path.extension().is_none_or(|extension| extension != "yaml") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let loaded = load_text(&text);
        let report =
            format!("{}\n{}", check::report(&loaded, false, false), check::report(&loaded, false, true));
        compare(&path.with_extension("expected"), &report);
        read += 1;
    }
    assert!(read >= 5, "only {read} files");
}

/// Compares with a reviewed text under `tests/snapshots`.
pub(crate) fn compare_snapshot(name: &str, found: &str) {
    compare(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshots").join(name), found);
}

fn compare(expected: &Path, found: &str) {
    if std::env::var_os("TIDEGATE_UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(expected, found).unwrap();
    }
    let reviewed = std::fs::read_to_string(expected).unwrap_or_default();
    assert_eq!(found, reviewed, "{}", expected.display());
}

#[test]
fn an_explanation_is_as_it_was_reviewed() {
    let text = std::fs::read_to_string(flows().join("orders-per-minute.yaml")).unwrap();
    let environment: Environment =
        [("BROKER", "localhost:9092"), ("TIDEGATE__RECOVERY__COMMIT_INTERVAL", "2s")].into_iter().collect();
    let flags = [FlagSetting { flag: "-w", path: "cluster.workers_per_process", value: "4".into() }];
    let loaded = load(Source::new("flow.yaml", text), FileKind::Flow, &environment, &flags);
    compare_snapshot("explained.txt", &check::report(&loaded, true, false));
}

// L1, L11–L15: what delivery a configuration means.
#[test]
fn delivery_follows_the_option_then_the_deprecated_one_then_the_old_default() {
    use DeliveryGuarantee::{AtLeastOnce, AtMostOnce};
    let matrix = [
        // delivery, enable_auto_commit, what it means, errors, warnings
        (None, None, AtMostOnce, vec![], vec![code::DELIVERY_UNSET]),
        (None, Some(true), AtMostOnce, vec![], vec![code::DEPRECATED_OPTION]),
        (None, Some(false), AtLeastOnce, vec![], vec![code::DEPRECATED_OPTION]),
        (Some("at_least_once"), None, AtLeastOnce, vec![], vec![]),
        (Some("at_least_once"), Some(false), AtLeastOnce, vec![], vec![code::DEPRECATED_OPTION]),
        (
            Some("at_least_once"),
            Some(true),
            AtLeastOnce,
            vec![code::DELIVERY_CONFLICT],
            vec![code::DEPRECATED_OPTION],
        ),
        (Some("at_most_once"), None, AtMostOnce, vec![], vec![]),
        (Some("at_most_once"), Some(true), AtMostOnce, vec![], vec![code::DEPRECATED_OPTION]),
        (
            Some("at_most_once"),
            Some(false),
            AtMostOnce,
            vec![code::DELIVERY_CONFLICT],
            vec![code::DEPRECATED_OPTION],
        ),
    ];
    for (delivery, auto_commit, means, errors, warnings) in matrix {
        let mut lines = String::new();
        if let Some(delivery) = delivery {
            lines += &format!("    delivery: {delivery}\n");
        }
        if let Some(auto_commit) = auto_commit {
            lines += &format!("    enable_auto_commit: {auto_commit}\n");
        }
        let loaded = load_text(&flow_with(&lines, SINK));
        let case = format!("{delivery:?} {auto_commit:?}");
        assert_eq!(codes(&loaded, Severity::Error), errors, "{case}");
        assert_eq!(codes(&loaded, Severity::Warning), warnings, "{case}");
        let consumer = loaded.settings.unwrap().consumer.unwrap();
        assert_eq!(consumer.delivery, means, "{case}");
        let reason = match (delivery, auto_commit) {
            (Some(_), _) => DeliveryReason::Chosen,
            (None, Some(auto_commit)) => DeliveryReason::AutoCommit(auto_commit),
            (None, None) => DeliveryReason::Unset,
        };
        assert_eq!(consumer.delivery_reason, reason, "{case}");
    }
}

#[test]
fn exactly_once_lists_all_that_is_in_its_way_and_unknown_deliveries_are_refused() {
    const EXACTLY_ONCE: &str = "    delivery: exactly_once";
    let errors = |steps: &str| codes(&load_text(&flow_with(EXACTLY_ONCE, steps)), Severity::Error);
    let to_kafka = "steps:\n  - filter: true\n  - sink: { kafka: { topic: t } }\n";
    assert_eq!(errors(to_kafka), [""; 0]);
    let keyed =
        "steps:\n  - key_by: key\n  - sink: { kafka: { topic: t } }\n  - sink: { name: two, stdout: {} }\n";
    assert_eq!(errors(keyed), [code::EXACTLY_ONCE_BLOCKED; 2]);
    assert_eq!(errors(&format!("recovery: {{ directory: r }}\n{keyed}")), [code::EXACTLY_ONCE_BLOCKED]);
    let unknown = load_text(&flow_with("    delivery: exactly", SINK));
    assert_eq!(codes(&unknown, Severity::Error), [code::INVALID_VALUE]);
    let problem = unknown.problems.iter().next().unwrap();
    assert!(problem.text().contains("at_most_once, at_least_once, exactly_once"), "{}", problem.text());
}

// L18, L51, L52, A20 and the guards of design 11.
#[test]
fn keyed_state_needs_a_store_unless_its_loss_is_accepted() {
    let window = "  - event_time: { from: timestamp, out_of_order: 1s }\n  - key_by: key\n  \
                  - window: { tumbling: 1m, aggregate: { n: count() } }\n";
    let stateful = "  - key_by: key\n  - stateful_map: { state: value }\n";
    let batches = "  - key_by: key\n  - collect_batch: { max_records: 3, timeout: 1s }\n";
    let two = "cluster: { addresses: [h0:1, h1:2], process_index: 0 }\n";
    let store = "recovery: { directory: /r }\n";
    let allow = "volatile_state: allow\n";
    let once = "    delivery: at_most_once";
    for (delivery, steps, more, expected) in [
        (AT_LEAST_ONCE, window, String::new(), vec![code::STATE_WITHOUT_RECOVERY]),
        (AT_LEAST_ONCE, stateful, String::new(), vec![code::STATE_WITHOUT_RECOVERY]),
        (AT_LEAST_ONCE, window, two.into(), vec![code::DELIVERY_KEYED_MULTIPROCESS]),
        (AT_LEAST_ONCE, window, format!("{two}{store}"), vec![]),
        (AT_LEAST_ONCE, window, allow.into(), vec![]),
        (AT_LEAST_ONCE, batches, String::new(), vec![]),
        (AT_LEAST_ONCE, batches, two.into(), vec![]),
        (once, window, String::new(), vec![]),
        (once, window, two.into(), vec![]),
    ] {
        let loaded = load_text(&flow_with(delivery, &format!("steps:\n{steps}  - sink: stdout\n{more}")));
        assert_eq!(codes(&loaded, Severity::Error), expected, "{delivery} {steps} {more}");
    }
}

// L59–L62: limits and deprecated options of the consumer.
#[test]
fn options_of_the_consumer_have_their_defaults_limits_and_warnings() {
    let loaded = load_text(&flow_with(AT_LEAST_ONCE, SINK));
    let consumer = loaded.settings.unwrap().consumer.unwrap();
    assert_eq!(consumer.batch_size, 500);
    assert_eq!(consumer.poll_backoff, Duration::from_millis(50));
    assert_eq!(consumer.commit_keepalive, Duration::from_millis(1_800_000));
    assert_eq!(consumer.in_flight_bytes, 128 << 20);
    for (line, errors, warnings) in [
        ("batch_size: 0", vec![code::INVALID_VALUE], vec![]),
        ("commit_keepalive_ms: 0", vec![code::INVALID_VALUE], vec![]),
        ("commit_keepalive_ms: 30m", vec![code::INVALID_VALUE], vec![]),
        ("poll_backoff_ms: 0", vec![], vec![]),
        ("poll_timeout_ms: 5", vec![], vec![code::DEPRECATED_OPTION]),
        ("in_flight_bytes: 64M", vec![code::INVALID_VALUE], vec![]),
        ("in_flight_bytes: 64MiB", vec![], vec![]),
        ("topics: ['^orders.*']", vec![code::INVALID_VALUE, code::INVALID_VALUE], vec![]),
        ("group_id: 'orders-{pod}'", vec![code::INVALID_VALUE], vec![code::GROUP_ID_UNSTABLE]),
    ] {
        // `group_id` and `topics` stand there for the second time, which is an error of its own.
        let loaded = load_text(&flow_with(&format!("{AT_LEAST_ONCE}\n    {line}"), SINK));
        if line.starts_with("topics") || line.starts_with("group_id") {
            assert!(loaded.problems.has_errors(), "{line}");
            continue;
        }
        assert_eq!(codes(&loaded, Severity::Error), errors, "{line}");
        assert_eq!(codes(&loaded, Severity::Warning), warnings, "{line}");
    }
}

// L3: a group with another name at each start knows no offsets.
#[test]
fn a_group_that_names_a_host_a_process_or_a_pod_is_warned_of() {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let pid = std::process::id();
    let mut unstable =
        vec!["orders-{pod}".to_string(), "orders-$(hostname)".into(), "orders-7d4b9c6f5-x2k8p".into()];
    if host.trim().len() >= 4 && host.trim() != "localhost" {
        unstable.push(format!("orders-{}", host.trim()));
    }
    if pid >= 100 {
        unstable.push(format!("orders-{pid}"));
    }
    for group in unstable {
        let text = flow_with(AT_LEAST_ONCE, SINK).replace("group_id: g", &format!("group_id: '{group}'"));
        let loaded = load_text(&text);
        assert_eq!(codes(&loaded, Severity::Warning), [code::GROUP_ID_UNSTABLE], "{group}");
        assert!(!loaded.problems.has_errors());
    }
    for group in ["orders-service", "team-a.orders_v2", "orders-1"] {
        let text = flow_with(AT_LEAST_ONCE, SINK).replace("group_id: g", &format!("group_id: {group}"));
        assert!(load_text(&text).problems.is_empty(), "{group}");
    }
}

#[test]
fn test_steps_are_refused_without_their_switch() {
    let steps = "steps:\n  - gate: { when: 'true', file: /tmp/open }\n  - delay: { when: 'true', for: 1s }\n  \
                 - fail_on: { when: offset == 3, how: panic }\n  - sink: stdout\n";
    let text = flow_with(AT_LEAST_ONCE, steps);
    assert_eq!(codes(&load_text(&text), Severity::Error), [code::UNKNOWN_STEP; 3]);
    let switched: Environment = [("TIDEGATE_TEST_STEPS", "1")].into_iter().collect();
    let loaded = load(Source::new("flow.yaml", text), FileKind::Flow, &switched, &[]);
    assert!(loaded.problems.is_empty(), "{}", check::problems_text(&loaded.source, &loaded.problems));
}

#[test]
fn what_later_versions_bring_is_refused_with_a_plain_word() {
    for steps in [
        "  - dedup: { key: key, ttl: 1h }\n",
        "  - join: { with: x, on: key }\n",
        "  - fork: {}\n",
        "  - encode: json\n",
        "  - decode: { avro: {} }\n",
        "  - sink: { postgres: {} }\n",
        "  - key_by: key\n  - window: { count: 5, aggregate: { n: count() } }\n",
    ] {
        let loaded = load_text(&flow_with(AT_LEAST_ONCE, &format!("steps:\n{steps}  - sink: stdout\n")));
        assert!(
            loaded.problems.iter().any(|problem| problem.text().contains("not available in this version")),
            "{steps}: {}",
            check::problems_text(&loaded.source, &loaded.problems)
        );
    }
    let loaded =
        load_text(&flow_with(AT_LEAST_ONCE, &format!("recovery: {{ directory: 's3://b/p' }}\n{SINK}")));
    assert!(loaded.problems.iter().any(|problem| problem.text().contains("not available in this version")));
}

#[test]
fn check_shows_where_each_step_puts_the_records_that_it_does_not_take() {
    let steps = "steps:\n  - decode: { json: {}, on_error: { dead_letter: orders.dlq } }\n  \
                 - event_time: { from: value.at, out_of_order: 1s, ahead: { dead_letter: orders.ahead } }\n  \
                 - key_by: value.k\n  \
                 - window: { tumbling: 60s, late: { dead_letter: orders.late }, aggregate: { n: count() }, \
                   on_error: { dead_letter: orders.dlq, attempts: 5 } }\n  - sink: stdout\n\
                 recovery: { directory: /r }\n";
    let report = check::report(&load_text(&flow_with(AT_LEAST_ONCE, steps)), true, false);
    for part in [
        "decode [failed to topic orders.dlq]",
        "event_time [ahead to topic orders.ahead]",
        "window [failed to topic orders.dlq, late to topic orders.late]",
        "steps[3].window.on_error.attempts",
    ] {
        assert!(report.contains(part), "{part} is not in\n{report}");
    }
}

#[test]
fn steps_have_ids_that_stay_and_those_with_state_need_names() {
    let ids = |steps: &str| {
        let loaded = load_text(&flow_with(AT_LEAST_ONCE, &format!("steps:\n{steps}  - sink: stdout\n")));
        let flow = loaded.flow.unwrap();
        (
            flow.steps().map(|(_, step)| step.id.to_string()).collect::<Vec<_>>().join(" "),
            loaded.problems.iter().filter(|problem| problem.severity == Severity::Error).count(),
        )
    };
    let (found, errors) =
        ids("  - filter: value.a\n  - filter: value.b\n  - filter: { name: c, when: value.c }\n");
    assert_eq!((found.as_str(), errors), ("filter filter-2 c sink", 0));
    let (_, errors) = ids("  - filter: { name: c, when: value.c }\n  - map: { name: c, value: value }\n");
    assert_eq!(errors, 1, "a name stands once");
    let batches = "  - key_by: key\n  - collect_batch: { max_records: 2, timeout: 1s }\n  \
                   - collect_batch: { max_records: 2, timeout: 1s }\n";
    assert_eq!(ids(batches).1, 1, "the second batch has no name");
}

#[test]
fn a_file_of_settings_has_no_steps() {
    let load = |text: &str| load(Source::new("s.yaml", text), FileKind::SettingsOnly, &environment(), &[]);
    let text = "kafka: { consumer: { brokers: [b:1], group_id: g, delivery: at_least_once } }\n";
    assert!(load(text).problems.is_empty());
    assert!(load(text).settings.is_some());
    assert!(load(&format!("{text}{SINK}")).problems.has_errors());
}

#[test]
fn a_place_in_an_expression_is_found_however_the_expression_is_written() {
    for (step, line, column) in [
        ("  - filter: valeu.a\n", 9, 13),
        ("  - filter: 'valeu.a'\n", 9, 14),
        ("  - filter: \"1 == valeu.a\"\n", 9, 19),
        ("  - filter: { when: true && valeu.a }\n", 9, 29),
        ("  - filter: |\n      true &&\n        valeu.a\n", 11, 9),
    ] {
        let loaded = load_text(&flow_with(AT_LEAST_ONCE, &format!("steps:\n{step}  - sink: stdout\n")));
        let problem = loaded.problems.iter().find(|problem| problem.code == code::BAD_EXPRESSION).unwrap();
        let Origin::File(position) = problem.origin else { panic!("a place in the file") };
        assert_eq!((position.line, position.column), (line, column), "{step}");
    }
}

#[test]
fn a_secret_is_shown_nowhere() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("password");
    std::fs::write(&file, "hunter2-file\n").unwrap();
    for line in ["password: hunter2".to_string(), format!("password_file: {}", file.display())] {
        let security = format!(
            "{AT_LEAST_ONCE}\n    security: {{ protocol: sasl_ssl, mechanism: PLAIN, username: u, {line} }}"
        );
        let loaded = load_text(&flow_with(&security, SINK));
        assert!(loaded.problems.is_empty(), "{}", check::problems_text(&loaded.source, &loaded.problems));
        let report = check::report(&loaded, true, false) + &check::report(&loaded, true, true);
        let settings = loaded.settings.unwrap();
        let password = settings.consumer.as_ref().unwrap().security.password.clone().unwrap();
        assert!(password.reveal().starts_with("hunter2"), "the line feed of a file is not part of it");
        assert!(!password.reveal().ends_with('\n'));
        assert!(!format!("{settings:?}{report}").contains("hunter2"));
    }
}

#[test]
fn a_secret_in_extra_is_shown_nowhere_and_other_options_are_explained() {
    let extra = "    extra: { ssl.keystore.password: hunter2, sasl.oauthbearer.client.secret: hunter2, fetch.wait.max.ms: 50 }";
    let loaded = load_text(&flow_with(&format!("{AT_LEAST_ONCE}\n{extra}"), SINK));
    assert!(loaded.problems.is_empty(), "{}", check::problems_text(&loaded.source, &loaded.problems));
    let report = check::report(&loaded, true, false) + &check::report(&loaded, true, true);
    assert!(report.contains("kafka.consumer.extra.fetch.wait.max.ms") && report.contains("50"), "{report}");
    assert!(report.contains("kafka.consumer.extra.ssl.keystore.password"), "{report}");
    assert!(!format!("{:?}{report}", loaded.settings).contains("hunter2"));
    let list =
        load_text(&flow_with(&format!("{AT_LEAST_ONCE}\n    extra: {{ ssl.key.pem: [hunter2] }}"), SINK));
    let problems = check::problems_text(&list.source, &list.problems);
    assert!(problems.contains("ssl.key.pem` needs text"), "{problems}");
}

// K18
#[test]
fn a_login_by_token_needs_one_place_where_tokens_come_from_and_shows_no_argument_of_its_command() {
    let load = |rest: &str| {
        let security =
            format!("{AT_LEAST_ONCE}\n    security: {{ protocol: sasl_ssl, mechanism: OAUTHBEARER{rest} }}");
        load_text(&flow_with(&security, SINK))
    };
    let wrong = |rest: &str| codes(&load(rest), Severity::Error);
    assert_eq!(wrong(", token_file: /t"), [""; 0]);
    assert_eq!(wrong(", token_command: [a, b]"), [""; 0]);
    for rest in
        ["", ", token_command: []", ", token_file: /t, token_command: a", ", token_file: /t, username: u"]
    {
        assert_eq!(wrong(rest), [code::INVALID_VALUE], "{rest}");
    }
    let plain =
        "    security: { protocol: sasl_ssl, mechanism: PLAIN, username: u, password: p, token_file: /t }";
    let plain = load_text(&flow_with(&format!("{AT_LEAST_ONCE}\n{plain}"), SINK));
    assert_eq!(codes(&plain, Severity::Error), [code::INVALID_VALUE]);
    for command in ["[/bin/token, --secret, hunter2]", "/bin/token --secret hunter2"] {
        let loaded = load(&format!(", token_command: {command}"));
        assert!(loaded.problems.is_empty(), "{}", check::problems_text(&loaded.source, &loaded.problems));
        let report = check::report(&loaded, true, false) + &check::report(&loaded, true, true);
        assert!(report.contains("/bin/token") && !report.contains("hunter2"), "{report}");
        let settings = loaded.settings.unwrap();
        assert!(!format!("{settings:?}").contains("hunter2"));
        let words = ["/bin/token", "--secret", "hunter2"].map(str::to_owned).to_vec();
        let token = settings.consumer.unwrap().security.token;
        assert_eq!(token, Some(super::kafka::TokenSource::Command(words)));
    }
}

// P33 P53: what the runtime owns is refused on both sides, each with its reason.
#[test]
fn options_that_the_runtime_owns_are_refused_in_extra_with_a_reason() {
    let owned = [
        "group.protocol",
        "group.instance.id",
        "group.remote.assignor",
        "partition.assignment.strategy",
        "session.timeout.ms",
        "max.poll.interval.ms",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "auto.commit.interval.ms",
        "auto.offset.reset",
        "isolation.level",
        "enable.partition.eof",
        "check.crcs",
        "enable.idempotence",
        "enable.gapless.guarantee",
        "acks",
        "request.required.acks",
        "message.timeout.ms",
        "delivery.timeout.ms",
        "delivery.report.only.error",
        "message.send.max.retries",
        "retries",
        "max.in.flight",
        "max.in.flight.requests.per.connection",
        "transactional.id",
        "partitioner",
        "linger.ms",
        "compression.type",
        "sasl.password",
        "sasl.oauthbearer.config",
        "enable.sasl.oauthbearer.unsecure.jwt",
        "allow.auto.create.topics",
        "plugin.library.paths",
        "log.queue",
    ];
    let extra: String = owned.iter().map(|name| format!("        {name}: x\n")).collect();
    for side in ["consumer", "producer"] {
        let text = match side {
            "consumer" => flow_with(&format!("{AT_LEAST_ONCE}\n    extra:\n{extra}"), SINK),
            _ => flow_with(AT_LEAST_ONCE, &format!("  producer:\n    extra:\n{extra}{SINK}")),
        };
        let loaded = load_text(&text);
        assert_eq!(codes(&loaded, Severity::Error).len(), owned.len(), "{side}");
        for (problem, name) in loaded.problems.iter().zip(owned) {
            assert_eq!(problem.path, format!("kafka.{side}.extra.{name}"));
            assert!(problem.message.contains(name) && problem.advice.len() > 10, "{}", problem.text());
        }
    }
}

fn mutated_flow() -> impl Strategy<Value = String> {
    let original = std::fs::read_to_string(flows().join("session.yaml")).unwrap();
    let pieces = prop_oneof![
        Just("{".to_string()),
        Just("}".into()),
        Just("[".into()),
        Just("]".into()),
        Just(": ".into()),
        Just("- ".into()),
        Just("\n".into()),
        Just("\n  ".into()),
        Just("&a ".into()),
        Just("*a".into()),
        Just("${".into()),
        Just("'".into()),
        Just("\"".into()),
        Just("|".into()),
        Just("---\n".into()),
        Just("!!int ".into()),
        Just("\t".into()),
        Just("ü".into()),
        Just("0".into()),
        ".{0,3}",
    ];
    prop::collection::vec((any::<prop::sample::Index>(), 0_usize..12, pieces), 1..6).prop_map(move |edits| {
        let mut letters: Vec<char> = original.chars().collect();
        for (at, cut, piece) in edits {
            let at = at.index(letters.len() + 1);
            let end = (at + cut).min(letters.len());
            letters.splice(at..end, piece.chars());
        }
        letters.into_iter().collect()
    })
}

fn check_reading(text: &str) -> Result<(), TestCaseError> {
    let loaded = load_text(text);
    let lines = text.lines().count() as u32 + 1;
    for problem in loaded.problems.iter() {
        if let Origin::File(position) = problem.origin {
            prop_assert!(position.line >= 1 && position.line <= lines && position.column >= 1, "{problem:?}");
        }
        prop_assert!(!problem.message.is_empty());
    }
    let _ = check::report(&loaded, true, false);
    let _ = check::report(&loaded, true, true);
    prop_assert_eq!(
        loaded.clone().into_flow().is_ok(),
        !loaded.problems.has_errors() && loaded.flow.is_some()
    );
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: std::env::var("TIDEGATE_YAML_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(400),
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_damaged_flow_gives_problems_with_places_and_never_a_panic(text in mutated_flow()) {
        check_reading(&text)?;
    }

    #[test]
    fn arbitrary_text_gives_problems_and_never_a_panic(text in "[-a-z0-9:{}\\[\\]&*!|>'\"%#@,\n \u{e9}]{0,60}") {
        check_reading(&text)?;
    }
}

#[test]
fn a_small_file_cannot_grow_without_bound() {
    let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for level in 1..12 {
        let below = vec![format!("*a{}", level - 1); 10].join(", ");
        bomb += &format!("a{level}: &a{level} [{below}]\n");
    }
    let loaded = load_text(&bomb);
    assert!(loaded.problems.has_errors());
    let deep = format!("a: {}", "[".repeat(5_000));
    assert!(load_text(&deep).problems.has_errors());
    let mut chain = String::from("a0: &a0 [[[[[[[[[[[[[[[[[[[[x]]]]]]]]]]]]]]]]]]]]\n");
    for level in 1..2_000 {
        chain += &format!("a{level}: &a{level} [[[[[[[[*a{}]]]]]]]]\n", level - 1);
    }
    assert!(load_text(&chain).problems.has_errors());
}
