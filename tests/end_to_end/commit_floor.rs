//! The committed position never goes back (issue 3, behaviour 5).

use tidegate_harness::{OffsetWatch, checker, wait};

use crate::case::{Case, DEADLINE, numbered};

// L54 L55 L56 I4
#[test]
fn a_resume_state_behind_the_group_replays_from_the_state_warns_and_never_rewinds_the_group() {
    let case = Case::new("floor", 1);
    let launch = case.launch(&case.copy()).recovery(&case.store());
    case.kafka.produce(&case.input, &numbered(0..50, 1));
    launch.clone().until_end().run_to_exit(0, DEADLINE);
    assert_eq!(case.kafka.group_offsets(&case.group, &case.input)[&0], 50);
    case.kafka.produce(&case.input, &numbered(50..100, 1));
    case.kafka.set_group_offsets(&case.group, &case.input, [(0, 100)]);

    let watch = OffsetWatch::start(&case.kafka, &case.group, &case.input);
    wait::until("the watch has looked", DEADLINE, || watch.latest().get(&0).copied());
    let mut cluster = launch.start();
    wait::until("records 50 to 99 came out again", DEADLINE, || (case.outputs() == 100).then_some(()));
    case.kafka.produce(&case.input, &numbered(100..110, 1));
    wait::until("the group moves on", DEADLINE, || (watch.latest().get(&0) == Some(&110)).then_some(()));
    assert_eq!(watch.lowest(0), Some(100));
    watch.assert_only_rises();
    let stderr = cluster.stderr(0);
    let warnings: Vec<&str> = stderr.lines().filter(|line| line.contains("STALE_RESUME")).collect();
    assert_eq!(warnings.len(), 1, "one line per partition");
    for number in ["50", "100", &case.input] {
        assert!(warnings[0].contains(number), "{number} is not in {}", warnings[0]);
    }
    cluster.terminate_all();
    cluster.expect_exit(0, DEADLINE);
    checker::assert_exactly(&case.kafka.drain(&case.output), 0..110);

    // Equal now: no line. Ahead of the group: no line either.
    let mut cluster = launch.start();
    cluster.wait_ready(DEADLINE);
    cluster.kill_all();
    assert!(!cluster.all_stderr().contains("STALE_RESUME"), "a warning though state and group are equal");
    case.kafka.set_group_offsets(&case.group, &case.input, [(0, 60)]);
    let mut cluster = launch.until_end().run_to_exit(0, DEADLINE);
    assert!(!cluster.all_stderr().contains("STALE_RESUME"), "a warning though the state is ahead");
    assert_eq!(cluster.exited(0), Some(0));
    checker::assert_exactly(&case.kafka.drain(&case.output), 0..110);
}
