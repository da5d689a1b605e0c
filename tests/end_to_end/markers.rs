//! The recovery store against the markers on the control topic: issue 4, point 8; and rows that can never be published.

use std::path::Path;

use tidegate_harness::{OffsetWatch, checker};

use crate::case::{Case, DEADLINE, FlowText, files, highest_record, numbered, text_of, tidegate};

/// A copy flow under exactly once, by way of the store.
fn copy(case: &Case) -> FlowText {
    case.copy().exactly_once()
}

/// Produces these ids and lets the flow publish them.
fn run_over(case: &Case, flow: &FlowText, ids: std::ops::Range<u64>) {
    case.kafka.produce(&case.input, &numbered(ids, 2));
    case.launch(flow).recovery(&case.store()).until_end().run_to_exit(0, DEADLINE);
}

fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder can be made");
    for entry in std::fs::read_dir(from).expect("the folder is there") {
        let entry = entry.expect("it can be listed");
        let target = to.join(entry.file_name());
        if entry.file_type().expect("it has a type").is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), &target).expect("a file can be copied");
        }
    }
}

// E12: an empty directory beside old markers would swallow new output in silence.
#[test]
fn an_empty_store_beside_the_markers_of_another_is_refused_and_accepted_when_asked() {
    let case = Case::new("markers-empty", 2);
    let flow = copy(&case);
    run_over(&case, &flow, 0..100);
    std::fs::remove_dir_all(case.store()).expect("the store can be deleted");
    case.kafka.produce(&case.input, &numbered(100..200, 2));
    let launch = case.launch(&flow).recovery(&case.store()).until_end();
    let refused = launch.run_to_exit(78, DEADLINE);
    assert!(refused.stderr(0).contains("STATE_LOST"), "{}", refused.stderr(0));
    launch.arg("--allow-lost-state").run_to_exit(0, DEADLINE);
    checker::assert_exactly(&case.kafka.drain(&case.output), 0..200);
}

// fault E3: the state goes back, the output stays.
#[test]
fn a_copy_of_the_store_from_the_day_before_is_refused() {
    let case = Case::new("markers-behind", 2);
    let flow = copy(&case);
    run_over(&case, &flow, 0..100);
    let kept = case.scratch.join("kept");
    copy_folder(&case.store(), &kept);
    run_over(&case, &flow, 100..200);
    std::fs::remove_dir_all(case.store()).expect("the store can be deleted");
    copy_folder(&kept, &case.store());
    let refused = case.launch(&flow).recovery(&case.store()).until_end().run_to_exit(65, DEADLINE);
    assert!(refused.stderr(0).contains("STORE_BEHIND_OUTPUT"), "{}", refused.stderr(0));
    checker::assert_exactly(&case.kafka.drain(&case.output), 0..200);
}

// S2: the output of the damaged record is out, so the state before it is no place to go on from.
#[test]
fn a_damaged_commit_record_whose_marker_is_out_is_refused_also_with_allow_older_snapshot() {
    let case = Case::new("markers-damaged", 2);
    let flow = copy(&case);
    run_over(&case, &flow, 0..100);
    // Killed, so that the newest record is the one of the output.
    case.kafka.produce(&case.input, &numbered(100..200, 2));
    let mut killed = case.launch(&flow).recovery(&case.store()).start();
    killed.wait_for("all is published", DEADLINE, |_| case.kafka.lag(&case.group, &case.input) == 0);
    killed.kill_all();
    let record = highest_record(&case.store()).expect("there is a record");
    let commits = case.store().join("commits");
    let name = files(&commits).into_iter().find(|name| name.parse() == Ok(record)).expect("it is there");
    let mut bytes = std::fs::read(commits.join(&name)).expect("it can be read");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0xff;
    std::fs::write(commits.join(&name), bytes).expect("it can be written");
    let launch = case.launch(&flow).recovery(&case.store()).until_end();
    let refused = launch.clone().run_to_exit(65, DEADLINE);
    assert!(refused.stderr(0).contains("STORE_DAMAGED"), "{}", refused.stderr(0));
    let refused = launch.arg("--allow-older-snapshot").run_to_exit(65, DEADLINE);
    assert!(refused.stderr(0).contains("STORE_BEHIND_OUTPUT"), "{}", refused.stderr(0));
    checker::assert_exactly(&case.kafka.drain(&case.output), 0..200);
}

// fault E2 fault E3: killed between the record and its publication, before anything was ever published.
#[test]
fn a_store_deleted_before_its_first_output_was_published_loses_nothing() {
    let case = Case::new("markers-first", 2);
    let flow = copy(&case);
    case.kafka.produce(&case.input, &numbered(0..100, 2));
    let launch = case.launch(&flow).recovery(&case.store());
    let at = "kill store.record 1";
    let mut killed = launch.clone().test_steps().env("TIDEGATE_TEST_AT", at).start();
    assert_eq!(killed.wait_exit(0, DEADLINE), 128 + 9);
    assert_eq!(case.outputs(), 0);
    std::fs::remove_dir_all(case.store()).expect("the store can be deleted");
    launch.until_end().run_to_exit(0, DEADLINE);
    checker::assert_exactly(&case.kafka.drain(&case.output), 0..100);
}

// fault E2 fault E3 fault E4 fault E5: killed at every step of a publication, with the store as it is.
#[test]
fn a_process_killed_at_any_step_of_a_publication_publishes_each_record_once() {
    let case = Case::new("markers-steps", 2);
    let flow = copy(&case);
    let launch = case.launch(&flow).recovery(&case.store());
    let watch = OffsetWatch::start(&case.kafka, &case.group, &case.input);
    let places =
        ["store.record", "publication.initialise", "publication.sent", "publication.ended", "store.record"];
    let mut produced = 0;
    for place in places {
        case.kafka.produce(&case.input, &numbered(produced..produced + 100, 2));
        produced += 100;
        let at = format!("kill {place} 1");
        let mut killed = launch.clone().test_steps().env("TIDEGATE_TEST_AT", &at).start();
        assert_eq!(killed.wait_exit(0, DEADLINE), 128 + 9, "at {place}");
    }
    launch.until_end().run_to_exit(0, DEADLINE);
    checker::assert_exactly(&case.kafka.drain(&case.output), 0..produced);
    case.wait_caught_up();
    watch.assert_only_rises();
}

// E21 P51: a row that was taken and that the broker refuses afterwards stops the flow and is named; a person decides.
#[test]
fn a_row_that_the_broker_refuses_for_ever_is_named_and_is_skipped_or_sent_elsewhere_by_hand() {
    let case = Case::new("markers-refused", 2);
    let letters = format!("{}.letters", case.output);
    case.kafka.create_topic(&letters, 1);
    let flow = copy(&case);
    let launch = case.launch(&flow).recovery(&case.store());
    let mut large = numbered(3..4, 2);
    for message in &mut large {
        let padding = "x".repeat(5_000);
        message.value = Some(format!("{{\"id\":3,\"padding\":{padding:?}}}").into_bytes());
    }
    case.kafka.produce(&case.input, &[numbered(0..3, 2), large, numbered(4..8, 2)].concat());
    let at = "kill store.record 1";
    let mut killed = launch.clone().test_steps().env("TIDEGATE_TEST_AT", at).start();
    assert_eq!(killed.wait_exit(0, DEADLINE), 128 + 9);
    // What was taken does not fit any more.
    case.kafka.set_topic(&case.output, &[("max.message.bytes", "1000")]);
    let until_end = launch.until_end();
    let refused = until_end.run_to_exit(65, DEADLINE);
    let said = refused.stderr(0);
    let words: Vec<&str> = said.split_whitespace().collect();
    let at = words.iter().position(|word| *word == "DIR").expect("the advice names the row");
    let (file, row) = (words[at + 1], words[at + 2].trim_matches('`'));

    let store = case.store().display().to_string();
    let listed = tidegate(&["recovery", "outbox", "list", &store]);
    assert!(text_of(&listed).contains(file), "{}", text_of(&listed));
    let absent = tidegate(&["recovery", "outbox", "skip", &store, file, "999"]);
    assert_eq!(absent.status.code(), Some(64), "{}", text_of(&absent));
    let decided = tidegate(&["recovery", "outbox", "dead-letter", &store, file, row, &letters]);
    assert_eq!(decided.status.code(), Some(0), "{}", text_of(&decided));
    assert!(text_of(&decided).contains("padding"), "it says which row it is: {}", text_of(&decided));
    until_end.run_to_exit(0, DEADLINE);
    checker::assert_exactly(&case.kafka.drain(&case.output), (0..3).chain(4..8));
    let rows = case.kafka.drain(&letters);
    checker::assert_exactly(&rows, 3..4);
    assert!(rows[0].headers.iter().any(|(name, _)| name == "tidegate-error-step"), "{:?}", rows[0].headers);
}
