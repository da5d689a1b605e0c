//! `tidegate offsets replay`: a stopped flow goes on somewhere else, with store and group reset together.

use std::path::Path;
use std::process::Output;

use tidegate_harness::proxy::api;
use tidegate_harness::workload::messages;
use tidegate_harness::{Broker, Launch, Member, Message, Oracle, WindowKind, Workload, checker, wait};

use crate::case::{
    Case, DEADLINE, FlowText, files, highest_record, numbered, text_of, tidegate, window_steps,
};

/// 2026-01-01T00:00:00Z.
const NEW_YEAR_MS: i64 = 1_767_225_600_000;

fn replay(launch: &Launch, store: Option<&Path>, to: &str, more: &[&str]) -> Output {
    let file = launch.flow_file().display().to_string();
    let mut arguments = vec!["offsets", "replay", &file, "--to", to];
    let store = store.map(|store| store.display().to_string());
    if let Some(store) = &store {
        arguments.extend(["-r", store]);
    }
    arguments.extend(more);
    tidegate(&arguments)
}

#[track_caller]
fn assert_exit(output: &Output, code: i32) -> String {
    let text = text_of(output);
    assert_eq!(output.status.code(), Some(code), "{text}");
    text
}

/// One partition, in which record n is from n seconds after new year.
fn by_the_second(case: &Case) {
    let dated = |(n, message): (i64, Message)| message.at(NEW_YEAR_MS + n * 1_000);
    let records: Vec<Message> = (0..).zip(numbered(0..20, 1)).map(dated).collect();
    case.kafka.produce(&case.input, &records);
}

// A10 A40 P49
#[test]
fn each_form_begins_at_the_right_record_with_and_without_a_store() {
    for (delivery, with_store) in [("at_least_once", false), ("at_least_once", true), ("exactly_once", false)]
    {
        let case = Case::new("replay", 1);
        by_the_second(&case);
        let flow = case.copy().consumer(&format!("delivery: {delivery}"));
        let launch = case.launch(&flow).until_end();
        let store = case.store();
        let store = with_store.then_some(store.as_path());
        let launch = store.iter().fold(launch, |launch, store| launch.recovery(store));
        launch.run_to_exit(0, DEADLINE);
        let mut expected: Vec<u64> = (0..20).collect();
        let offset = format!("offset:{}/0=13", case.input);
        for (to, first) in [
            ("earliest", 0),
            (offset.as_str(), 13),
            ("timestamp:2026-01-01T00:00:07Z", 7),
            ("timestamp:1767225606001", 7),
            ("timestamp:2026-01-01T00:01:00Z", 20),
        ] {
            assert_exit(&replay(&launch, store, to, &[]), 0);
            let group = case.kafka.group_offsets(&case.group, &case.input)[&0];
            assert_eq!(u64::try_from(group), Ok(first), "{to}");
            launch.run_to_exit(0, DEADLINE);
            expected.extend(first..20);
            let ids: Vec<u64> =
                case.kafka.drain(&case.output).iter().filter_map(|row| row.json()["id"].as_u64()).collect();
            assert_eq!(sorted(ids), sorted(expected.clone()), "{to}, {delivery}, store {with_store}");
            case.wait_caught_up();
        }
    }
}

fn sorted(mut ids: Vec<u64>) -> Vec<u64> {
    ids.sort_unstable();
    ids
}

// A10 A26: the state of the windows goes, so that nothing counts twice; what was wrong may be changed in between.
#[test]
fn windows_are_computed_anew_after_a_replay_also_with_another_size() {
    let case = Case::new("replay-windows", 4);
    let events = Workload { seed: 5, records: 600, ..Workload::default() }.events();
    case.kafka.produce(&case.input, &messages(&events));
    let flow = |size: &str| case.flow(&window_steps("out_of_order: 2s", &format!("tumbling: {size}")));
    let launch = |flow: &FlowText| case.launch(flow).shape(2, 1).recovery(&case.store()).until_end();
    let expected = |size: i64| {
        let kind = WindowKind::Tumbling { size };
        Oracle { kind, out_of_order_ms: 2_000, lateness_ms: 0 }.paid(&events).windows
    };
    launch(&flow("10s")).run_to_exit(0, DEADLINE);
    let first = case.outputs();
    checker::assert_windows(&case.kafka.drain(&case.output), &expected(10_000));

    assert_exit(&replay(&launch(&flow("10s")), Some(&case.store()), "earliest", &[]), 0);
    launch(&flow("10s")).run_to_exit(0, DEADLINE);
    checker::assert_windows(&case.kafka.drain(&case.output), &expected(10_000));
    assert_eq!(case.outputs(), 2 * first, "every window came again");

    let before = case.outputs();
    assert_exit(&replay(&launch(&flow("20s")), Some(&case.store()), "earliest", &[]), 0);
    launch(&flow("20s")).run_to_exit(0, DEADLINE);
    let rows = case.kafka.drain(&case.output);
    let is_larger = |row: &&tidegate_harness::Received| {
        let row = row.json();
        row["window_end"]
            .as_i64()
            .zip(row["window_start"].as_i64())
            .is_some_and(|(end, start)| end - start == 20_000)
    };
    let larger: Vec<_> = rows.iter().filter(is_larger).cloned().collect();
    assert_eq!(larger.len(), rows.len() - before);
    checker::assert_windows(&larger, &expected(20_000));
}

// A10
#[test]
fn a_running_flow_is_not_replayed_and_a_group_with_members_neither() {
    let case = Case::new("replay-running", 1);
    case.kafka.produce(&case.input, &numbered(0..10, 1));
    let launch = case.launch(&case.copy()).recovery(&case.store());
    let mut cluster = launch.start();
    case.wait_caught_up();
    let record = highest_record(&case.store());
    let text = assert_exit(&replay(&launch, Some(&case.store()), "earliest", &[]), 75);
    assert!(text.contains("CLUSTER_ALREADY_RUNNING") && text.contains("stop the other one"), "{text}");
    cluster.terminate_all();
    cluster.expect_exit(0, DEADLINE);

    let member = Member::join(&case.kafka, &case.group, &case.input);
    let text = assert_exit(&replay(&launch, Some(&case.store()), "earliest", &[]), 75);
    assert!(text.contains("GROUP_HAS_MEMBERS"), "{text}");
    drop(member);
    assert_eq!(highest_record(&case.store()), record);
    assert_eq!(case.kafka.group_offsets(&case.group, &case.input)[&0], 10);
}

// A10: the store is reset first, and a start believes it.
#[test]
fn a_replay_that_ends_between_store_and_group_is_begun_by_the_next_start_and_completed_by_another_replay() {
    let Some(proxy) = Broker::shared().proxy() else { return };
    let case = Case::new("replay-halfway", 1);
    case.kafka.produce(&case.input, &numbered(0..10, 1));
    let flow = case.copy().consumer_at(&proxy.address()).cluster("startup_timeout: 6s");
    let launch = case.launch(&flow).recovery(&case.store()).until_end();
    launch.run_to_exit(0, DEADLINE);
    let to = format!("offset:{}/0=4", case.input);
    let halfway = || {
        proxy.swallow(api::OFFSET_COMMIT);
        let text = assert_exit(&replay(&launch, Some(&case.store()), &to, &[]), 69);
        assert!(text.contains("the store is reset"), "{text}");
        proxy.heal();
        assert_eq!(case.kafka.group_offsets(&case.group, &case.input)[&0], 10);
    };
    halfway();
    launch.run_to_exit(0, DEADLINE);
    let ids = |case: &Case| {
        case.kafka.drain(&case.output).iter().filter_map(|row| row.json()["id"].as_u64()).collect::<Vec<_>>()
    };
    assert_eq!(sorted(ids(&case)), sorted((0..10).chain(4..10).collect()));

    halfway();
    assert_exit(&replay(&launch, Some(&case.store()), &to, &[]), 0);
    assert_eq!(case.kafka.group_offsets(&case.group, &case.input)[&0], 4);
}

#[test]
fn a_dry_run_shows_where_the_flow_would_go_on_and_changes_nothing() {
    let case = Case::new("replay-dry", 1);
    case.kafka.produce(&case.input, &numbered(0..10, 1));
    let launch = case.launch(&case.copy()).recovery(&case.store()).until_end();
    launch.run_to_exit(0, DEADLINE);
    let before = (files(&case.store().join("commits")), files(&case.store().join("lease")));
    let text = assert_exit(&replay(&launch, Some(&case.store()), "earliest", &["--dry-run"]), 0);
    let row: Vec<&str> = text.lines().nth(1).unwrap_or_default().split_whitespace().collect();
    assert_eq!(row, [&case.input, "0", "10", "10", "0", "10", "0"], "{text}");
    assert!(text.contains("would be reset; nothing was changed"), "{text}");
    assert_eq!((files(&case.store().join("commits")), files(&case.store().join("lease"))), before);
    assert_eq!(case.kafka.group_offsets(&case.group, &case.input)[&0], 10);
}

#[test]
fn what_cannot_be_replayed_is_refused_before_anything_is_changed() {
    let case = Case::new("replay-wrong", 1);
    case.kafka.produce(&case.input, &numbered(0..10, 1));
    let launch = case.launch(&case.copy()).recovery(&case.store()).until_end();
    launch.run_to_exit(0, DEADLINE);
    let record = highest_record(&case.store());
    let wrong = format!("offset:{}/0=11,{}/1=0", case.input, case.input);
    let text = assert_exit(&replay(&launch, Some(&case.store()), &wrong, &[]), 64);
    assert!(text.contains("which holds 0 to 10") && text.contains("does not read"), "{text}");
    assert_exit(&replay(&launch, Some(&case.store()), "latest", &[]), 64);
    assert_exit(&replay(&launch, Some(&case.scratch.join("no-store")), "earliest", &[]), 78);
    let windows = case.launch(&case.flow(&window_steps("out_of_order: 2s", "tumbling: 10s")));
    let text = assert_exit(&replay(&windows, None, "earliest", &[]), 78);
    assert!(text.contains("STATE_WITHOUT_RECOVERY"), "the store of a flow with state must be named: {text}");
    assert_eq!(highest_record(&case.store()), record);
    assert_eq!(case.kafka.group_offsets(&case.group, &case.input)[&0], 10);
}

// A10 E12: what the killed run had left to publish comes before the reset, and epochs go on behind the markers.
#[test]
fn a_replay_under_exactly_once_publishes_what_is_owed_and_each_result_comes_once_more() {
    let case = Case::new("replay-once", 2);
    let events = Workload { seed: 9, records: 400, partitions: 2, ..Workload::default() }.events();
    case.kafka.produce(&case.input, &messages(&events));
    let flow = case.flow(&window_steps("out_of_order: 2s", "tumbling: 10s")).exactly_once();
    let launch = case.launch(&flow).recovery(&case.store());
    let mut cluster = launch.start();
    wait::until("a record names an outbox", DEADLINE, || {
        (!files(&case.store().join("outbox")).is_empty()).then_some(())
    });
    cluster.kill_all();
    assert_exit(&replay(&launch, Some(&case.store()), "earliest", &[]), 0);
    let published = case.outputs();
    launch.clone().until_end().run_to_exit(0, DEADLINE);
    let rows = case.kafka.drain(&case.output);
    let windows =
        Oracle { kind: WindowKind::Tumbling { size: 10_000 }, out_of_order_ms: 2_000, lateness_ms: 0 }
            .paid(&events)
            .windows;
    let repeats = checker::assert_windows(&rows, &windows);
    assert_eq!(repeats, published, "what came before the replay came again, and nothing else");
    case.wait_caught_up();
}
