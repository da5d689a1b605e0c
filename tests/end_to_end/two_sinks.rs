//! A flow written in Rust that feeds two sinks, one of them dead: the commit waits for both (issue 3, behaviour 10).

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use tidegate_harness::{Broker, Launch, checker, wait};

use crate::case::{Case, DEADLINE, numbered};

/// A flow in Rust in `tests/flows`, which cargo builds as an example beside the tests.
pub(crate) fn example(name: &str) -> PathBuf {
    let Ok(test) = std::env::current_exe() else { panic!("find the running test") };
    let Some(profile) = test.parent().and_then(|deps| deps.parent()) else { panic!("{}", test.display()) };
    let binary = profile.join("examples").join(name);
    assert!(binary.is_file(), "{} is missing: cargo test builds it", binary.display());
    binary
}

/// The ids in the lines of the file that is the first sink.
fn copied(file: &std::path::Path) -> BTreeSet<u64> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let id = |line: &str| serde_json::from_str::<serde_json::Value>(line).ok()?["id"].as_u64();
    text.lines().filter_map(id).collect()
}

// L4 L8 L33 E25 E26 I4
#[test]
fn a_rust_flow_with_two_sinks_commits_only_what_both_have_confirmed() {
    let frozen = Broker::start(&[]);
    let case = Case::new("two-sinks", 2);
    frozen.kafka().create_topic(&case.output, 2);
    // A Rust flow takes the file's settings but for the steps, which are its own.
    let flow = case.copy().producer_at(frozen.kafka().bootstrap());
    let yaml: String = flow.yaml().split("steps:").next().unwrap_or_default().to_owned();
    let config = case.scratch.write("two-sinks.yaml", &yaml);
    let copy = case.scratch.join("copy");
    let launch = Launch::new(&example("two_sinks").display().to_string(), &case.scratch, &yaml)
        .config_flag(&config)
        .recovery(&case.store())
        .env("INPUT", &case.input)
        .env("OUTPUT", &case.output)
        .env("COPY", &copy.display().to_string());
    let mut cluster = launch.start();
    case.kafka.produce(&case.input, &numbered(0..100, 2));
    case.wait_caught_up();
    frozen.freeze();
    case.kafka.produce(&case.input, &numbered(100..200, 2));
    cluster.wait_for("the file has all", DEADLINE, |_| copied(&copy).len() == 200);
    wait::holds_for("the group waits for the topic", Duration::from_secs(3), || {
        case.kafka.lag(&case.group, &case.input) == 100
    });
    cluster.kill_all();
    frozen.thaw();
    launch.until_end().run_to_exit(0, DEADLINE);
    checker::assert_no_loss(&frozen.kafka().drain(&case.output), 0..200);
    assert_eq!(copied(&copy), (0..200).collect());
    case.wait_caught_up();
}
