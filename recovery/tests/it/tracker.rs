//! Which offsets reach the group, and when: rows L30, L31, L37 to L39, L55, L56.

use proptest::prelude::*;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tidegate_recovery::*;

const SETTINGS: TrackerSettings = TrackerSettings {
    keepalive: Duration::from_secs(1800),
    retry_min: Duration::from_millis(100),
    retry_max: Duration::from_secs(10),
};

fn p(number: i32) -> TopicPartition {
    TopicPartition::new("t", number)
}

fn begun(assignments: &[(i32, Option<i64>, Option<i64>)], now: Instant) -> CommitTracker {
    let tracker = CommitTracker::new(SETTINGS);
    tracker.begin(&assigned(assignments), now);
    tracker
}

fn assigned(assignments: &[(i32, Option<i64>, Option<i64>)]) -> Vec<Assignment> {
    let assignment = |(number, resumed, group): &(i32, Option<i64>, Option<i64>)| Assignment {
        partition: p(*number),
        resumed: resumed.map(NextOffset),
        group: group.map(NextOffset),
    };
    assignments.iter().map(assignment).collect()
}

fn next(offset: i64) -> NextOffset {
    NextOffset(offset)
}

#[test]
fn an_offset_is_due_only_when_every_epoch_up_to_its_own_is_complete() {
    let now = Instant::now();
    let tracker = begun(&[(0, None, None), (1, None, None)], now);
    let owned = [p(0), p(1)];
    tracker.mark(&p(0), Epoch(1), next(10));
    tracker.mark(&p(0), Epoch(3), next(30));
    tracker.mark(&p(1), Epoch(2), next(7));
    assert_eq!(tracker.due(&owned, now), []);
    tracker.complete(Epoch(2));
    assert_eq!(
        tracker.due(&owned, now),
        [(p(0), next(10)), (p(1), next(7))],
        "coalesced, all partitions at once"
    );
    assert_eq!(tracker.due(&owned, now), [], "one commit at a time");
    tracker.complete(Epoch(3));
    assert_eq!(tracker.due(&owned, now), [], "the first is on its way");
    tracker.committed(&[(p(0), next(10)), (p(1), next(7))], now);
    assert_eq!(tracker.due(&owned, now), [(p(0), next(30))]);
}

// L55
#[test]
fn commits_below_the_floor_are_suppressed_and_at_the_floor_nothing_is_new() {
    let now = Instant::now();
    let tracker = begun(&[(0, Some(50), Some(100))], now);
    for (epoch, offset) in [(1, 60), (2, 99), (3, 100)] {
        tracker.mark(&p(0), Epoch(epoch), next(offset));
        tracker.complete(Epoch(epoch));
        assert_eq!(tracker.due(&[p(0)], now), [], "{offset}");
    }
    assert_eq!(tracker.due_at_close(&[p(0)]), []);
    tracker.mark(&p(0), Epoch(4), next(101));
    tracker.complete(Epoch(4));
    assert_eq!(tracker.due(&[p(0)], now), [(p(0), next(101))]);
}

// L56
#[test]
fn a_resume_state_behind_the_group_is_said_once_per_partition_with_both_offsets_and_the_distance() {
    let stale = CommitTracker::new(SETTINGS).begin(
        &assigned(&[
            (0, Some(50), Some(100)),
            (1, Some(100), Some(100)),
            (2, Some(7), Some(5)),
            (3, None, Some(9)),
            (4, Some(3), None),
        ]),
        Instant::now(),
    );
    assert_eq!(stale.len(), 1);
    let text = stale[0].to_string();
    assert!(
        text.starts_with(
            "STALE_RESUME: resume state 50 is behind the committed group offset 100 for t:0 (distance 50)"
        ),
        "{text}"
    );
}

// L30 L31
#[test]
fn a_failed_commit_is_due_again_after_a_backoff_without_new_input() {
    let start = Instant::now();
    let tracker = begun(&[(0, None, None)], start);
    tracker.mark(&p(0), Epoch(1), next(10));
    tracker.complete(Epoch(1));
    let mut now = start;
    for wait in [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000] {
        let due = tracker.due(&[p(0)], now);
        assert_eq!(due, [(p(0), next(10))]);
        tracker.failed(&due, now);
        now += Duration::from_millis(wait - 1);
        assert_eq!(tracker.due(&[p(0)], now), [], "not before {wait} ms");
        now += Duration::from_millis(1);
    }
    assert_eq!(tracker.status()[0].failures, 9);
    let due = tracker.due(&[p(0)], now);
    tracker.committed(&due, now);
    assert_eq!(tracker.due(&[p(0)], now), []);
    assert_eq!(tracker.status()[0].committed, Some(next(10)));
}

// L39
#[test]
fn an_idle_partition_is_committed_again_every_keepalive() {
    let start = Instant::now();
    let tracker = begun(&[(0, Some(5), Some(5)), (1, None, None)], start);
    let almost = start + SETTINGS.keepalive - Duration::from_millis(1);
    assert_eq!(tracker.due(&[p(0), p(1)], almost), []);
    let due = tracker.due(&[p(0), p(1)], start + SETTINGS.keepalive);
    assert_eq!(due, [(p(0), next(5))], "a partition that the group does not know is not made up");
    tracker.committed(&due, start + SETTINGS.keepalive);
    assert_eq!(tracker.due(&[p(0)], start + SETTINGS.keepalive * 2 - Duration::from_millis(1)), []);
    assert_eq!(tracker.due(&[p(0)], start + SETTINGS.keepalive * 2), [(p(0), next(5))]);
}

// L55
#[test]
fn a_group_that_was_moved_back_is_put_right_at_once() {
    let now = Instant::now();
    let tracker = begun(&[(0, None, Some(10))], now);
    tracker.mark(&p(0), Epoch(1), next(20));
    tracker.complete(Epoch(1));
    assert!(!tracker.seen_in_group(&p(0), Some(next(10))), "we have not committed anything yet");
    let due = tracker.due(&[p(0)], now);
    tracker.committed(&due, now);
    assert!(!tracker.seen_in_group(&p(0), Some(next(20))));
    assert!(tracker.seen_in_group(&p(0), Some(next(12))));
    assert_eq!(tracker.due(&[p(0)], now), [(p(0), next(20))]);
    tracker.committed(&[(p(0), next(20))], now);
    assert!(tracker.seen_in_group(&p(0), None), "the group lost it altogether");
    assert_eq!(tracker.due_at_close(&[p(0)]), [(p(0), next(20))]);
    assert_eq!(tracker.status()[0].rewinds_seen, 2);
}

#[test]
fn the_floor_of_a_later_generation_includes_what_this_process_committed_before() {
    let now = Instant::now();
    let tracker = begun(&[(0, None, None)], now);
    tracker.mark(&p(0), Epoch(1), next(20));
    tracker.complete(Epoch(1));
    let due = tracker.due(&[p(0)], now);
    tracker.committed(&due, now);
    // A frozen client of an older generation moved the group back before it was read.
    tracker.begin(&assigned(&[(0, Some(8), Some(12))]), now);
    assert_eq!(tracker.status()[0].floor, Some(next(20)));
    tracker.mark(&p(0), Epoch(2), next(15));
    tracker.complete(Epoch(2));
    assert_eq!(tracker.due(&[p(0)], now), []);
    tracker.mark(&p(0), Epoch(3), next(21));
    tracker.complete(Epoch(3));
    assert_eq!(tracker.due(&[p(0)], now), [(p(0), next(21))]);
}

#[test]
fn a_part_says_only_what_moved_and_an_idle_partition_costs_nothing() {
    let now = Instant::now();
    let tracker = begun(&[(0, Some(5), Some(5)), (1, None, Some(3))], now);
    tracker.mark(&p(0), Epoch(1), next(5));
    tracker.mark(&p(1), Epoch(1), next(3));
    assert_eq!(tracker.offsets_at(Epoch(1)), [(p(1), next(3))], "the store did not know partition 1");
    tracker.mark(&p(0), Epoch(2), next(9));
    tracker.mark(&p(0), Epoch(3), next(12));
    assert_eq!(tracker.offsets_at(Epoch(2)), [(p(0), next(9))]);
    tracker.complete(Epoch(2));
    assert_eq!(tracker.offsets_at(Epoch(3)), [(p(0), next(12))]);
    for epoch in 4..10_000 {
        tracker.mark(&p(0), Epoch(epoch), next(12));
    }
    assert_eq!(tracker.offsets_at(Epoch(9_999)), []);
    assert!(tracker.status()[0].epochs_open <= 1, "idle epochs are not kept");
}

#[derive(Clone, Debug)]
enum Op {
    Mark { partition: i32, by: i64 },
    NextEpoch,
    Complete { behind: u64 },
    Due,
    Answer { ok: bool },
    Pass { ms: u64 },
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    // L32: the model is a plain list of what was marked.
    #[test]
    fn commits_rise_never_pass_what_is_complete_and_catch_up(ops in prop::collection::vec(prop_oneof![
        (0..3_i32, 0..5_i64).prop_map(|(partition, by)| Op::Mark { partition, by }),
        Just(Op::NextEpoch),
        (0..4_u64).prop_map(|behind| Op::Complete { behind }),
        Just(Op::Due),
        any::<bool>().prop_map(|ok| Op::Answer { ok }),
        (0..300_u64).prop_map(|ms| Op::Pass { ms }),
    ], 0..200), floors in prop::array::uniform3(prop::option::of(0..30_i64))) {
        let mut now = Instant::now();
        let assignments: Vec<_> = (0..3).map(|n| (n, None, floors[n as usize])).collect();
        let tracker = begun(&assignments, now);
        let owned = [p(0), p(1), p(2)];
        let (mut epoch, mut done) = (1_u64, 0_u64);
        let mut marks: Vec<(i32, u64, i64)> = Vec::new();
        let mut at = [0_i64; 3];
        let mut group: BTreeMap<i32, i64> = floors.iter().enumerate().filter_map(|(n, floor)| Some((n as i32, (*floor)?))).collect();
        let mut flying: Vec<(TopicPartition, NextOffset)> = Vec::new();
        let complete = |marks: &[(i32, u64, i64)], n: i32, done: u64| marks.iter().filter(|(m, e, _)| *m == n && *e <= done).map(|(_, _, o)| *o).max();
        for op in ops {
            match op {
                Op::Mark { partition, by } => {
                    at[partition as usize] += by;
                    let offset = at[partition as usize];
                    marks.push((partition, epoch, offset));
                    tracker.mark(&p(partition), Epoch(epoch), next(offset));
                }
                Op::NextEpoch => epoch += 1,
                Op::Complete { behind } => {
                    done = done.max(epoch.saturating_sub(1 + behind));
                    tracker.complete(Epoch(done));
                }
                Op::Due => {
                    for (partition, offset) in tracker.due(&owned, now) {
                        let n = partition.partition;
                        prop_assert!(!flying.iter().any(|(other, _)| *other == partition));
                        prop_assert!(Some(offset.0) <= complete(&marks, n, done), "nothing above what is complete");
                        prop_assert!(group.get(&n).is_none_or(|group| *group <= offset.0), "the group never goes back");
                        flying.push((partition, offset));
                    }
                }
                Op::Answer { ok } => {
                    let answered = std::mem::take(&mut flying);
                    if ok {
                        group.extend(answered.iter().map(|(partition, offset)| (partition.partition, offset.0)));
                        tracker.committed(&answered, now);
                    } else {
                        tracker.failed(&answered, now);
                    }
                }
                Op::Pass { ms } => now += Duration::from_millis(ms),
            }
        }
        tracker.committed(&std::mem::take(&mut flying).into_iter().inspect(|(partition, offset)| { group.insert(partition.partition, offset.0); }).collect::<Vec<_>>(), now);
        tracker.complete(Epoch(epoch));
        for (partition, offset) in tracker.due_at_close(&owned) {
            group.insert(partition.partition, offset.0);
        }
        for n in 0..3 {
            let reached = complete(&marks, n, epoch);
            prop_assert_eq!(group.get(&n).copied(), floors[n as usize].max(reached.filter(|reached| floors[n as usize].is_none_or(|floor| floor <= *reached))), "partition {}", n);
        }
    }
}
