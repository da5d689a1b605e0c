//! A store and the flow that uses it must fit each other, and a store that is damaged or cannot be used is named.

use std::os::unix::fs::PermissionsExt as _;

use tidegate_harness::workload::messages;
use tidegate_harness::{Workload, checker};

use crate::case::{
    Case, DEADLINE, FlowText, files, highest_record, numbered, text_of, tidegate, window_steps,
};

/// A store with open windows in it.
fn filled(case: &Case) -> FlowText {
    // All of it lies within one window, far from its borders.
    let start_ms = Workload::default().start_ms + 600_000;
    let events = Workload { partitions: 2, records: 300, start_ms, ..Workload::default() }.events();
    case.kafka.produce(&case.input, &messages(&events));
    let flow = case.flow(&window_steps("out_of_order: 2s", "tumbling: 1h"));
    let mut cluster = case.launch(&flow).recovery(&case.store()).start();
    case.wait_caught_up();
    cluster.terminate_all();
    cluster.expect_exit(0, DEADLINE);
    flow
}

// S12 L57
#[test]
fn the_store_of_another_flow_and_changed_windows_and_removed_steps_are_refused_with_the_difference() {
    let case = Case::new("mismatch", 2);
    let flow = filled(&case);
    let refused = |flow: FlowText, parts: &[&str]| {
        let mut cluster = case.launch(&flow).recovery(&case.store()).until_end().run_to_exit(78, DEADLINE);
        let stderr = cluster.all_stderr();
        for part in parts {
            assert!(stderr.contains(part), "{part} is not in {stderr}");
        }
        assert_eq!(cluster.exited(0), Some(78));
    };
    refused(flow.clone().named("quite-another"), &["STORE_MISMATCH", "quite-another", &case.name]);
    let other = case.flow(&window_steps("out_of_order: 2s", "tumbling: 2h"));
    refused(other, &["totals"]);
    refused(case.copy(), &["totals", "--allow-dropped-state"]);
    let mut cluster =
        case.launch(&case.copy()).recovery(&case.store()).arg("--allow-dropped-state").until_end().start();
    cluster.expect_exit(0, DEADLINE);
}

// S12: steps without state are free to change.
#[test]
fn a_step_without_state_may_change_between_two_runs() {
    let case = Case::new("free-change", 2);
    let flow = filled(&case);
    let changed = flow.steps.replace("filter: value.paid", "filter: value.paid && value.amount > -1000");
    let launch = case.launch(&flow.steps(&changed)).recovery(&case.store());
    launch.until_end().run_to_exit(0, DEADLINE);
    let counted: i64 =
        case.kafka.drain(&case.output).iter().filter_map(|row| row.json()["count"].as_i64()).sum();
    assert_eq!(counted, 300);
}

// S4
#[test]
fn a_store_path_that_is_a_file_ends_with_the_path_named() {
    let case = Case::new("path", 1);
    let file = case.scratch.write("a-file", "not a directory");
    let mut cluster = case.launch(&case.copy()).recovery(&file).until_end().start();
    let code = cluster.wait_exit(0, DEADLINE);
    assert!([74, 78].contains(&code), "exit code {code}");
    assert!(cluster.all_stderr().contains(&file.display().to_string()), "the path is not named");
    assert_eq!(case.outputs(), 0);
}

// S4
#[test]
fn a_missing_segment_is_damage_and_is_named_with_its_file() {
    let case = Case::new("missing-segment", 2);
    let flow = filled(&case);
    let segments = case.store().join("segments");
    let names = files(&segments);
    assert!(!names.is_empty(), "no segments to take away");
    for name in &names {
        assert!(std::fs::remove_file(segments.join(name)).is_ok());
    }
    let mut cluster = case.launch(&flow).recovery(&case.store()).until_end().start();
    cluster.expect_exit(65, DEADLINE);
    let stderr = cluster.all_stderr();
    assert!(stderr.contains("STORE_DAMAGED"), "{stderr}");
    assert!(names.iter().any(|name| stderr.contains(name.as_str())), "no file is named: {stderr}");
    let verified = tidegate(&["recovery", "verify", &case.store().display().to_string()]);
    assert_eq!(verified.status.code(), Some(65), "{}", text_of(&verified));
}

// S2
#[test]
fn a_flipped_bit_in_a_segment_is_found_by_verify_and_refused_by_run() {
    let case = Case::new("bit", 2);
    let flow = filled(&case);
    let intact = tidegate(&["recovery", "verify", &case.store().display().to_string()]);
    assert_eq!(intact.status.code(), Some(0), "{}", text_of(&intact));
    let segments = case.store().join("segments");
    for name in files(&segments) {
        let path = segments.join(name);
        let Ok(mut bytes) = std::fs::read(&path) else { panic!("read {}", path.display()) };
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        assert!(std::fs::write(&path, bytes).is_ok());
    }
    let verified = tidegate(&["recovery", "verify", &case.store().display().to_string()]);
    assert_eq!(verified.status.code(), Some(65), "{}", text_of(&verified));
    case.launch(&flow).recovery(&case.store()).until_end().run_to_exit(65, DEADLINE);
    assert_eq!(case.outputs(), 0, "a window came out of a damaged store");
}

// S8
#[test]
fn foreign_files_are_ignored_and_stay() {
    let case = Case::new("foreign", 1);
    let launch = case.launch(&case.copy()).recovery(&case.store()).until_end();
    launch.run_to_exit(0, DEADLINE);
    let foreign = ["commits/.DS_Store", "segments/backup.tar", "lost+found", "lease/notes.txt"];
    for name in foreign {
        assert!(std::fs::write(case.store().join(name), "mine").is_ok());
    }
    for round in 0..4_u64 {
        case.kafka.produce(&case.input, &numbered(round * 10..round * 10 + 10, 1));
        launch.run_to_exit(0, DEADLINE);
    }
    for name in foreign {
        assert!(case.store().join(name).is_file(), "{name} is gone");
    }
    checker::assert_exactly(&case.kafka.drain(&case.output), 0..40);
}

// L53
#[test]
fn inspect_shows_the_next_offset_of_each_partition() {
    let case = Case::new("inspect", 2);
    case.kafka.produce(&case.input, &numbered(0..20, 2));
    case.launch(&case.copy()).recovery(&case.store()).until_end().run_to_exit(0, DEADLINE);
    assert!(highest_record(&case.store()).is_some());
    let output = tidegate(&["recovery", "inspect", &case.store().display().to_string()]);
    let text = text_of(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains(&case.input) && text.contains("10"), "{text}");
    assert!(text.contains(&case.name), "{text}");
}

// STATE_LOST
#[test]
fn an_empty_store_beside_a_group_with_offsets_is_refused_unless_it_is_allowed() {
    let case = Case::new("state-lost", 2);
    let flow = filled(&case);
    let empty = case.scratch.join("another");
    let launch = case.launch(&flow).recovery(&empty).until_end();
    let mut cluster = launch.run_to_exit(78, DEADLINE);
    assert!(cluster.all_stderr().contains("STATE_LOST"), "no code");
    assert_eq!(cluster.exited(0), Some(78));
    launch.arg("--allow-lost-state").run_to_exit(0, DEADLINE);
}

// S4: a directory that cannot be written; root writes everywhere, so it is only shown without it.
#[test]
fn a_store_without_write_permission_ends_with_the_path_named() {
    let case = Case::new("permission", 1);
    let folder = case.scratch.join("closed");
    assert!(std::fs::create_dir(&folder).is_ok());
    assert!(std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o500)).is_ok());
    if std::fs::write(folder.join("probe"), "").is_ok() {
        eprintln!("skipped: this user writes everywhere");
        return;
    }
    let mut cluster = case.launch(&case.copy()).recovery(&folder).until_end().start();
    let code = cluster.wait_exit(0, DEADLINE);
    assert!([74, 78].contains(&code), "exit code {code}");
    assert!(cluster.all_stderr().contains(&folder.display().to_string()), "the path is not named");
}
