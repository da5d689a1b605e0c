//! The order in which a keyed step works, with windows as the logic.

use super::hand_driven::HandDriven;
use super::{KeyedPolicies, Untaken, Wake};
use crate::ending::Ending;
use crate::process::Sabotage;
use crate::record::{DeadLetters, OnError, hash_of_key};
use crate::time::Time;
use crate::window::{Count, PartitionNames, Tumbling, WindowLogic, WindowSettings, WindowSpec, count};
use std::time::Duration;
use tidegate_recovery::{Epoch, EventTime};

type Windows = HandDriven<WindowLogic<i64, Count>>;

/// Windows of 10 ms with a lateness of 5 ms.
fn windows() -> Windows {
    let spec = WindowSpec::from(Tumbling::of(Duration::from_millis(10))).lateness(Duration::from_millis(5));
    let settings = WindowSettings::from(spec);
    HandDriven::new(
        move || {
            WindowLogic::new(&settings, count(), PartitionNames::default(), &Sabotage::default())
                .expect("a valid window")
        },
        OnError::Fail,
    )
}

fn time(epoch: u64, event: i64) -> Time {
    Time::new(Epoch(epoch), EventTime(event))
}

fn push(step: &mut Windows, epoch: u64, hand: i64, key: &str, event: i64) {
    push_with(step, epoch, hand, key, event, hand);
}

fn push_with(step: &mut Windows, epoch: u64, hand: i64, key: &str, event: i64, watermark: i64) {
    step.push_at(time(epoch, hand), key, 0, EventTime(event), EventTime(watermark));
}

/// (epoch, window start, count) of what came since the last call.
fn results(step: &mut Windows) -> Vec<(u64, i64, i64)> {
    let results = step.take_results().into_iter();
    results
        .map(|(time, result)| {
            assert!(result.meta.event >= time.event, "a result may not be late");
            assert_eq!(result.meta.watermark, time.event);
            assert_eq!(result.meta.event.0, result.value.value.end.0 - 1);
            (time.epoch.0, result.value.value.start.0, result.value.value.value)
        })
        .collect()
}

#[test]
fn each_epoch_is_closed_by_itself_when_the_frontier_jumps() {
    // Rule 2.3: the rows of epoch 4 must not contain what came in epoch 5.
    let mut step = windows();
    push(&mut step, 5, 0, "k", 3);
    push(&mut step, 3, 0, "k", 3);
    step.hands(20, 0);
    step.restart_after(4);
    push(&mut step, 5, 0, "k", 3);
    step.hands(9, 15);
    assert_eq!(results(&mut step), [(5, 0, 2)]);
}

#[test]
fn the_timestamp_of_a_window_that_the_end_of_the_input_closes_is_not_in_the_future() {
    let mut step = windows();
    step.wall_ms = 16;
    for event in [3, 12, 25] {
        push(&mut step, 1, 0, "k", event);
    }
    step.hands(2, 10);
    step.ending = Ending::End { last: Epoch(4) };
    step.empty();
    let stamped: Vec<(i64, Option<i64>)> =
        step.take_results().iter().map(|(_, result)| (result.meta.event.0, result.meta.timestamp)).collect();
    // Closed by the watermark; closed by the end, at 16; beginning behind it, as its records did.
    assert_eq!(stamped, [(9, Some(9)), (19, Some(16)), (29, Some(20))]);
}

#[test]
fn a_step_acts_on_what_its_buffer_still_holds() {
    // Rule 2.8
    let mut step = windows();
    push(&mut step, 2, 4, "k", 6);
    step.hands(1, 90);
    assert_eq!(step.acted_on(), EventTime(4));
    assert_eq!(step.holds().results, Some(time(1, -1)));
    step.hands(2, 90);
    assert_eq!(step.acted_on(), EventTime(90));
    assert_eq!(results(&mut step), [(2, 0, 1)]);
    assert_eq!(step.holds().results, Some(time(2, 85)));
}

#[test]
fn the_maximum_and_an_empty_frontier_are_no_watermark() {
    // Rules 2.6 and 2.7
    let mut step = windows();
    push(&mut step, 1, 0, "k", 3);
    step.hands(1, i64::MAX);
    assert_eq!(step.acted_on(), EventTime::MIN);
    step.empty();
    assert_eq!(results(&mut step), []);
    assert_eq!(step.stored_rows(), 1);
    assert_eq!(step.holds(), super::Holds { results: None, rows: None });
}

#[test]
fn a_stop_fires_no_window_and_an_end_fires_all_and_forgets_none() {
    // Behaviour 14; rule 2.6: workers that let go raise the frontier of the rest.
    for end in [false, true] {
        let mut step = windows();
        push(&mut step, 1, 0, "k", 3);
        push(&mut step, 1, 0, "k", 23);
        step.hands(2, 12);
        let last = Epoch(4);
        step.ending = if end { Ending::End { last } } else { Ending::Stop { last } };
        step.hands(3, 10_000);
        assert_eq!(step.acted_on(), EventTime(12), "frozen");
        step.empty();
        let fired = results(&mut step);
        assert_eq!(fired, if end { vec![(4, 0, 1), (4, 20, 1)] } else { vec![] });
        assert_eq!(step.stored_rows(), 2);
        // A later run adds to the first window, and it comes out whole.
        step.restart_after(4);
        push(&mut step, 5, 12, "k", 4);
        step.hands(6, 30);
        assert_eq!(results(&mut step), [(5, 0, 2)]);
    }
}

#[test]
fn after_a_rescale_a_step_acts_from_its_lowest_bucket_and_each_bucket_refuses_by_its_own() {
    // Rule 2.8: worker 0 of 2 acted up to 40, worker 1 had not acted yet.
    let (mut even, mut odd) = (None, None);
    for number in 0.. {
        let key = format!("k{number}");
        let bucket = hash_of_key(Some(&key.clone().into())).bucket().0;
        (if bucket.is_multiple_of(2) { &mut even } else { &mut odd }).get_or_insert(key);
        if even.is_some() && odd.is_some() {
            break;
        }
    }
    let (even, odd) = (even.expect("half of all keys"), odd.expect("half of all keys"));
    let mut step = windows();
    step.restart_as(0, (0, 2));
    push(&mut step, 1, 0, &even, 41);
    step.hands(5, 40);
    step.restart_as(4, (0, 1));
    assert_eq!(step.acted_on(), EventTime::MIN);
    // The same event time: too late for one bucket, not for the other.
    push_with(&mut step, 5, 0, &even, 3, 0);
    push_with(&mut step, 5, 0, &odd, 3, 0);
    step.hands(6, 60);
    let mut fired = results(&mut step);
    fired.sort_unstable();
    assert_eq!(fired, [(5, 0, 1), (5, 40, 1)]);
    assert_eq!(step.counts().late, 1);
}

#[test]
fn a_million_windows_that_close_at_once_come_in_slices_while_the_sinks_have_room() {
    // Behaviour 13; rule 2.12
    let mut step = windows();
    let keys = 1_000_000;
    for key in 0..keys {
        push(&mut step, 1, 0, &key.to_string(), 3);
    }
    step.slice = 10_000;
    step.hands(2, 30);
    let mut fired = results(&mut step).len();
    assert_eq!(fired, 10_000);
    assert_eq!(step.wake, Wake::Now);
    assert_eq!(step.holds().results, Some(time(1, 9)), "held below what is still to come");
    step.crowded = true;
    step.run();
    assert_eq!((results(&mut step).len(), step.wake), (0, Wake::WhenSinksHaveRoom));
    // A commit epoch is not closed in the middle.
    step.hands(9, 30);
    assert_eq!(step.holds().rows, Some(Epoch(4)));
    step.crowded = false;
    while step.wake == Wake::Now || step.wake == Wake::WhenSinksHaveRoom {
        step.run();
        let slice = results(&mut step).len();
        assert!(slice <= 10_000, "{slice}");
        fired += slice;
    }
    assert_eq!(fired, keys);
    assert_eq!(step.holds().results, Some(time(9, 25)));
    assert_eq!(step.stored_rows(), 0);
}

#[test]
fn idle_epochs_put_no_rows_and_cost_no_visit() {
    let mut step = windows();
    step.hands(1_000_000_000_000, 50);
    assert_eq!(step.holds().results, Some(time(1_000_000_000_000, 45)));
    assert_eq!(step.stored_rows(), 0);
}

#[test]
fn a_late_record_is_given_up_under_the_time_with_which_it_came() {
    // design 2, rule 9; E21
    let spec = WindowSpec::from(Tumbling::of(Duration::from_millis(10)));
    let settings = WindowSettings::from(spec);
    let policies = KeyedPolicies { late: Some(DeadLetters::to("late")), ..KeyedPolicies::default() };
    let mut step: Windows = HandDriven::new(
        move || {
            WindowLogic::new(&settings, count(), PartitionNames::default(), &Sabotage::default())
                .expect("a valid window")
        },
        policies,
    );
    push(&mut step, 1, 0, "k", 3);
    step.hands(2, 20);
    push_with(&mut step, 2, 20, "k", 5, 20);
    push_with(&mut step, 2, 20, "k", 25, 20);
    step.hands(3, 20);
    let buried = step.take_buried();
    let [(came, record, Untaken::Late)] = buried.as_slice() else { panic!("{buried:?}") };
    assert_eq!((*came, record.meta.event), (time(2, 20), EventTime(5)));
    assert_eq!(step.counts().late, 1);
}
