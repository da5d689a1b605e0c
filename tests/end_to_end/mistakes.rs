//! What a flow file gets wrong is said at once, all of it, before a broker is contacted: issue 3, behaviour 9.

use std::net::TcpListener;
use std::process::Command;

use tidegate_harness::{Scratch, process};

use crate::case::{Case, FlowText, text_of, tidegate};

/// A flow with one mistake of each kind, whose "broker" is a socket that must not be contacted.
fn wrong(case: &Case, brokers: &str) -> FlowText {
    let steps = "- decode: { json: {} }\n\
                 - event_time: { from: value.at_ms, out_of_order: 5 }\n\
                 - filtre: value.paid\n\
                 - filter: value.paid &&& true\n\
                 - key_by: value.customer\n\
                 - window: { name: w, tumbling: 60s, agregate: { n: count() } }\n\
                 - sink: { kafka: { topic: OUT } }";
    case.flow(steps)
        .consumer_at(brokers)
        .producer_at(brokers)
        .consumer("batch_sise: 10")
        .consumer("poll_backoff_ms: soon")
}

// L1 L2 L50
#[test]
fn all_mistakes_are_reported_at_once_with_path_position_and_near_match_by_check_and_by_run() {
    let case = Case::new("mistakes", 1);
    let Ok(listener) = TcpListener::bind("127.0.0.1:0") else { panic!("no port to listen on") };
    assert!(listener.set_nonblocking(true).is_ok());
    let address = listener.local_addr().map(|address| address.to_string()).unwrap_or_default();
    let file = case.launch(&wrong(&case, &address)).flow_file().display().to_string();
    let before = crate::case::files(case.scratch.path());
    for arguments in [vec!["check", &file], vec!["run", &file]] {
        let output = tidegate(&arguments);
        let text = text_of(&output);
        assert_eq!(output.status.code(), Some(78), "{arguments:?}: {text}");
        for part in [
            "UNKNOWN_OPTION",
            "kafka.consumer.batch_sise",
            "batch_size",
            "INVALID_VALUE",
            "kafka.consumer.poll_backoff_ms",
            "out_of_order",
            "UNKNOWN_STEP",
            "filtre",
            "BAD_EXPRESSION",
            "steps[3]",
            "agregate",
            "aggregate",
        ] {
            assert!(text.contains(part), "{arguments:?}: {part} is not in {text}");
        }
        if arguments[0] == "run" {
            assert!(output.stdout.is_empty(), "I12 stdout belongs to the user: {text}");
        }
    }
    assert!(listener.accept().is_err(), "a broker was contacted");
    assert_eq!(crate::case::files(case.scratch.path()), before, "a check left a file");
}

fn check(case: &Case, flow: &FlowText) -> (Option<i32>, String) {
    let launch = case.launch(flow);
    let output = tidegate(&["check", &launch.flow_file().display().to_string()]);
    (output.status.code(), text_of(&output))
}

// L2
#[test]
fn the_position_in_an_expression_is_given() {
    let case = Case::new("position", 1);
    let (code, text) =
        check(&case, &case.flow("- filter: \"value.paid && (1 +\"\n- sink: { kafka: { topic: OUT } }"));
    assert_eq!(code, Some(78), "{text}");
    assert!(text.contains("BAD_EXPRESSION") && text.contains("steps[0]"), "{text}");
    // The line of the file, and a caret below the place.
    let caret = text.lines().find(|line| line.trim_start_matches([' ', '|']) == "^");
    assert!(caret.is_some(), "no position: {text}");
}

// NO_EVENT_TIME
#[test]
fn a_window_without_event_time_and_an_event_time_after_a_key_are_refused() {
    let case = Case::new("no-event-time", 1);
    let window =
        "- window: { name: w, tumbling: 60s, aggregate: { n: count() } }\n- sink: { kafka: { topic: OUT } }";
    let (code, text) =
        check(&case, &case.flow(&format!("- decode: {{ json: {{}} }}\n- key_by: value.k\n{window}")));
    assert_eq!(code, Some(78), "{text}");
    assert!(text.contains("NO_EVENT_TIME"), "{text}");
    let after = format!(
        "- decode: {{ json: {{}} }}\n- key_by: value.k\n- event_time: {{ from: value.at_ms, out_of_order: 5s }}\n{window}"
    );
    let (code, text) = check(&case, &case.flow(&after));
    assert_eq!(code, Some(78), "{text}");
    assert!(text.contains("event_time"), "{text}");
}

// L3
#[test]
fn a_group_id_that_names_the_host_is_warned_about() {
    let case = Case::new("unstable", 1);
    let explained = |group: &str| {
        let mut flow = case.copy();
        flow.group = group.to_owned();
        let launch = case.launch(&flow);
        let mut command = Command::new(crate::case::BINARY);
        command.arg("check").arg(launch.flow_file()).env("HOSTNAME", "orders-node-17").env("NO_COLOR", "1");
        let output = process::run(&mut command);
        assert_eq!(output.status.code(), Some(0), "{}", text_of(&output));
        text_of(&output)
    };
    for unstable in ["billing-orders-node-17", "billing-6d4cf56db6-x2x5k"] {
        assert!(explained(unstable).contains("GROUP_ID_UNSTABLE"), "{unstable}");
    }
    assert!(!explained("billing").contains("GROUP_ID_UNSTABLE"));
}

// L59 L61 L62
#[test]
fn limits_of_the_source_are_checked_and_the_deprecated_timeout_is_ignored_with_a_warning() {
    let case = Case::new("source-limits", 1);
    for line in ["batch_size: 0", "commit_keepalive_ms: 0"] {
        let (code, text) = check(&case, &case.copy().consumer(line));
        assert_eq!(code, Some(78), "{line}: {text}");
        assert!(text.contains("INVALID_VALUE"), "{line}: {text}");
    }
    let (code, text) = check(&case, &case.copy().consumer("poll_timeout_ms: 5"));
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("DEPRECATED_OPTION") && text.contains("poll_timeout_ms"), "{text}");
    let launch = case.launch(&case.copy());
    let output = tidegate(&["check", "--explain", &launch.flow_file().display().to_string()]);
    let text = text_of(&output);
    for (key, value) in [("batch_size", "500"), ("poll_backoff_ms", "50"), ("commit_keepalive_ms", "1800000")]
    {
        let line = text.lines().find(|line| line.contains(key));
        assert!(line.is_some_and(|line| line.replace(['_', ' '], "").contains(value)), "{key}: {text}");
    }
}

// The order of settings: flag, environment, file, default.
#[test]
fn explain_says_where_a_setting_came_from() {
    let case = Case::new("explain", 1);
    let launch = case.launch(&case.copy().consumer("batch_size: 7"));
    let file = launch.flow_file().display().to_string();
    let explain = |environment: &[(&str, &str)]| {
        let mut command = Command::new(crate::case::BINARY);
        command.args(["check", "--explain", &file]).envs(environment.iter().copied()).env("NO_COLOR", "1");
        text_of(&process::run(&mut command))
    };
    let from_file = explain(&[]);
    let line =
        |text: &str| text.lines().find(|line| line.contains("batch_size")).unwrap_or_default().to_owned();
    assert!(line(&from_file).contains('7') && line(&from_file).contains(".yaml:"), "{from_file}");
    let from_environment = explain(&[("TIDEGATE__KAFKA__CONSUMER__BATCH_SIZE", "9")]);
    let found = line(&from_environment);
    assert!(found.contains('9') && found.to_lowercase().contains("env"), "{from_environment}");
}

// exit code 64
#[test]
fn wrong_usage_is_64_and_a_missing_flow_file_says_which() {
    let output = tidegate(&["run", "--no-such-flag"]);
    assert_eq!(output.status.code(), Some(64), "{}", text_of(&output));
    let output = tidegate(&["check", "/nowhere/flow.yaml"]);
    let text = text_of(&output);
    assert!(output.status.code().is_some_and(|code| code != 0), "{text}");
    assert!(text.contains("/nowhere/flow.yaml"), "{text}");
}

// The test steps are refused in production.
#[test]
fn test_steps_are_refused_unless_they_are_allowed() {
    let case = Case::new("test-steps", 1);
    let flow = case.flow("- delay: { when: \"true\", for: 1ms }\n- sink: { kafka: { topic: OUT } }");
    let (code, text) = check(&case, &flow);
    assert_eq!(code, Some(78), "{text}");
    assert!(text.contains("TIDEGATE_TEST_STEPS"), "{text}");
}

#[test]
fn a_topic_of_the_settings_that_no_stream_of_a_program_reads_is_refused() {
    let scratch = Scratch::new("stray-topic");
    let settings = "kafka:\n  consumer:\n    brokers: [\"localhost:1\"]\n    group_id: g\n    topics: [\"orders.in\", \"orders.old\"]\n    delivery: at_least_once\n  producer: { brokers: [\"localhost:1\"] }\nrecovery: { directory: ./recovery }\n";
    let config = scratch.write("settings.yaml", settings);
    let mut command = Command::new(crate::two_sinks::example("orders_per_minute"));
    let output = process::run(command.args(["check", "--config"]).arg(config).env("NO_COLOR", "1"));
    let text = text_of(&output);
    assert_eq!(output.status.code(), Some(78), "{text}");
    assert!(text.contains("no stream of the flow reads the topic orders.old"), "{text}");
    assert!(!text.contains("reads the topic orders.in"), "{text}");
}
