//! Store and group that do not say the same: one of them was lost, or is older than the other.

use std::path::Path;

use tidegate_harness::workload::messages;
use tidegate_harness::{Cluster, Workload, checker};

use crate::case::{Case, DEADLINE, files, highest_record, numbered, window_steps};

fn copy_folder(from: &Path, to: &Path) {
    assert!(std::fs::create_dir_all(to).is_ok(), "{}", to.display());
    for name in files(from) {
        let (from, to) = (from.join(&name), to.join(&name));
        if from.is_dir() {
            copy_folder(&from, &to);
        } else {
            assert!(std::fs::copy(&from, &to).is_ok(), "{}", from.display());
        }
    }
}

fn stale_lines(cluster: &Cluster) -> Vec<String> {
    cluster.stderr(0).lines().filter(|line| line.contains("STALE_RESUME")).map(str::to_owned).collect()
}

// L54: whatever the policy for unknown offsets says.
#[test]
fn a_group_that_the_brokers_forgot_is_told_again_from_the_store_and_nothing_is_skipped_or_repeated() {
    let case = Case::new("forgotten", 2);
    case.kafka.produce(&case.input, &numbered(0..20, 2));
    let launch = |policy: &str| {
        let flow = case.copy().consumer(&format!("auto_offset_reset: {policy}"));
        case.launch(&flow).recovery(&case.store()).until_end()
    };
    launch("earliest").run_to_exit(0, DEADLINE);
    for (round, policy) in [(2, "latest"), (3, "error"), (4, "earliest")] {
        case.kafka.forget_group(&case.group);
        assert!(case.kafka.group_offsets(&case.group, &case.input).is_empty());
        // Also when nothing new has come.
        let cluster = launch(policy).run_to_exit(0, DEADLINE);
        assert_eq!(stale_lines(&cluster), Vec::<String>::new());
        case.wait_caught_up();
        case.kafka.produce(&case.input, &numbered((round - 1) * 20..round * 20, 2));
        launch(policy).run_to_exit(0, DEADLINE);
        case.wait_caught_up();
    }
    checker::assert_exactly(&case.kafka.drain(&case.output), 0..80);
}

// L54 L55 L56
#[test]
fn a_store_of_yesterday_says_how_far_it_lies_behind_each_partition_and_the_group_is_not_moved_back() {
    let case = Case::new("yesterday", 2);
    let launch = case.launch(&case.copy()).recovery(&case.store()).until_end();
    case.kafka.produce(&case.input, &numbered(0..20, 2));
    launch.run_to_exit(0, DEADLINE);
    let yesterday = case.scratch.join("yesterday");
    copy_folder(&case.store(), &yesterday);
    case.kafka.produce(&case.input, &numbered(20..60, 2));
    launch.run_to_exit(0, DEADLINE);

    let old = case.launch(&case.copy()).recovery(&yesterday).until_end();
    let cluster = old.run_to_exit(0, DEADLINE);
    let lines = stale_lines(&cluster);
    assert_eq!(lines.len(), 2, "one line for each partition: {lines:?}");
    for (partition, line) in lines.iter().enumerate() {
        let told = format!(
            "resume state 10 is behind the committed group offset 30 for {}:{partition} (distance 20)",
            case.input
        );
        assert!(line.contains(&told), "{told} is not in {line}");
    }
    let offsets = case.kafka.group_offsets(&case.group, &case.input);
    assert_eq!((offsets[&0], offsets[&1]), (30, 30));
    assert_eq!(checker::assert_no_loss(&case.kafka.drain(&case.output), 0..60), 40, "these came again");
}

// STATE_LOST
#[test]
fn a_store_without_its_commit_records_is_an_empty_one() {
    let case = Case::new("no-records", 1);
    let events = Workload { records: 20, partitions: 1, ..Workload::default() }.events();
    case.kafka.produce(&case.input, &messages(&events));
    let flow = case.flow(&window_steps("out_of_order: 2s", "tumbling: 10s"));
    let launch = case.launch(&flow).recovery(&case.store()).until_end();
    launch.run_to_exit(0, DEADLINE);
    let records = case.store().join("commits");
    for name in files(&records) {
        assert!(std::fs::remove_file(records.join(name)).is_ok());
    }
    let cluster = launch.run_to_exit(78, DEADLINE);
    cluster.assert_one_line_with(0, "STATE_LOST");
    cluster.assert_one_line_with(0, &format!("{}:0 at 20", case.input));
    assert_eq!(highest_record(&case.store()), None, "the refusal left the store as it was");
}

// L54: what is left is a store of an earlier moment.
#[test]
fn a_store_without_its_newest_record_goes_on_from_the_one_before_and_says_what_is_done_again() {
    let case = Case::new("newest-gone", 1);
    let launch = case.launch(&case.copy()).recovery(&case.store()).until_end();
    for round in 0..2_u64 {
        case.kafka.produce(&case.input, &numbered(round * 10..round * 10 + 10, 1));
        launch.run_to_exit(0, DEADLINE);
    }
    let mut back = 0;
    loop {
        let Some(newest) = highest_record(&case.store()) else { panic!("no record is left") };
        assert!(std::fs::remove_file(case.store().join(format!("commits/{newest:020}"))).is_ok());
        back += 1;
        assert!(back < 3, "the newest two records are kept");
        let cluster = launch.run_to_exit(0, DEADLINE);
        if let [line] = stale_lines(&cluster).as_slice() {
            assert!(line.contains("is behind the committed group offset 20"), "{line}");
            break;
        }
    }
    checker::assert_no_loss(&case.kafka.drain(&case.output), 0..20);
    assert_eq!(case.kafka.group_offsets(&case.group, &case.input)[&0], 20);
}
