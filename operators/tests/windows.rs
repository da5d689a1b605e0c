//! The window machine against an oracle that recomputes everything from scratch.
//!
//! A case is what stands in the partitions and how the windows are defined. It is run in many schedules:
//! other interleavings, other moments at which the step acts, slices, snapshots that come back on other
//! numbers of workers. Every schedule must give what the oracle computes from the partitions alone.

#![allow(clippy::print_stdout, reason = "what a search saw is for people")]
#![allow(clippy::type_complexity, reason = "the oracle's tables are written out where they are used")]

#[path = "windows/case.rs"]
mod case;
#[path = "windows/cluster.rs"]
mod cluster;
#[path = "windows/schedule.rs"]
mod schedule;

use case::{Case, Rec, Results, Value, cases, oracle};
use cluster::Cluster;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use schedule::{Schedule, Script};
use tidegate_operators::process::Sabotage;
use tidegate_operators::window::{
    AggregateError, Aggregator, Column, ColumnKind, Columns, count, first, last, max, mean, min, sum,
};

/// Schedules per case.
const SCHEDULES: u64 = 6;

fn config() -> ProptestConfig {
    let cases = std::env::var("TIDEGATE_WINDOW_CASES").ok().and_then(|cases| cases.parse().ok());
    ProptestConfig { cases: cases.unwrap_or(300), failure_persistence: None, ..ProptestConfig::default() }
}

fn run<A>(case: &Case, script: Script, aggregate: impl Fn() -> A, seed: u64) -> (Results<A::Out>, usize)
where
    A: Aggregator<Rec>,
    A::Out: Clone + PartialEq + std::fmt::Debug,
{
    let mut schedule = Schedule::new(case, script, aggregate, seed);
    schedule.run_to_end();
    schedule.results()
}

fn columns() -> impl Aggregator<Rec, Out = Vec<Value>> {
    let kinds = [
        ("orders", ColumnKind::Count),
        ("total", ColumnKind::Sum),
        ("exact", ColumnKind::Sum),
        ("least", ColumnKind::Min),
        ("most", ColumnKind::Max),
        ("mean", ColumnKind::Mean),
        ("first", ColumnKind::First),
        ("last", ColumnKind::Last),
    ];
    let columns: Vec<Column> =
        kinds.into_iter().map(|(name, kind)| Column { name: name.into(), kind }).collect();
    Columns::new(columns, |rec: &Rec, out: &mut Vec<Value>| -> Result<(), AggregateError> {
        let amount = rec.amount.map_or(Value::Null, Value::Int);
        out.extend([
            Value::Null,
            amount.clone(),
            Value::Double(rec.weight),
            amount.clone(),
            amount.clone(),
            amount,
            Value::Int(rec.id),
            Value::Int(rec.id),
        ]);
        Ok(())
    })
}

proptest! {
    #![proptest_config(config())]

    // L50 A28 A31: the same windows in every interleaving, on every number of workers, over restores.
    #[test]
    fn every_schedule_gives_what_the_partitions_say(case in cases(), seed in any::<u64>()) {
        let expected = oracle(&case);
        for round in 0..SCHEDULES {
            let typed = || {
                count()
                    .and(sum(|rec: &Rec| rec.amount))
                    .and(sum(|rec: &Rec| rec.weight))
                    .and(min(|rec: &Rec| rec.amount))
                    .and(max(|rec: &Rec| rec.amount))
                    .and(mean(|rec: &Rec| rec.amount))
                    .and(first(|rec: &Rec| rec.id))
                    .and(last(|rec: &Rec| rec.id))
            };
            let (results, late) = run(&case, Script::ALL, typed, seed.wrapping_add(round));
            let results: Results<Vec<Value>> = results
                .into_iter()
                .map(|(window, (((((((count, total), exact), least), most), mean), first), last))| {
                    let int = |value: Option<i64>| value.map_or(Value::Null, Value::Int);
                    let values = vec![
                        Value::Int(count),
                        Value::Int(total),
                        Value::Double(exact),
                        int(least),
                        int(most),
                        mean.map_or(Value::Null, Value::Double),
                        Value::Int(first),
                        Value::Int(last),
                    ];
                    (window, values)
                })
                .collect();
            prop_assert_eq!(&results, &expected.results, "typed, schedule {}", round);
            prop_assert_eq!(late, expected.late, "late records, schedule {}", round);

            let (results, late) = run(&case, Script::ALL, columns, seed.wrapping_add(round));
            prop_assert_eq!(&results, &expected.results, "columns, schedule {}", round);
            prop_assert_eq!(late, expected.late);
        }
    }

    // Issue 3, behaviour 14: what an end has given out comes again, whole, when a later run adds to it.
    #[test]
    fn an_end_forgets_no_window(case in cases(), seed in any::<u64>()) {
        let expected = oracle(&case);
        let (results, _) = run(&case, Script { ends: true, ..Script::ALL }, columns, seed);
        prop_assert_eq!(results, expected.results);
    }
}

proptest! {
    #![proptest_config(config())]

    // L50 A31 I9, behaviour 14: crashes, other numbers of workers, delays, slices, stops and ends in between
    // change no window.
    #[test]
    fn a_cluster_that_crashes_gives_every_window_once(case in cases(), seed in any::<u64>()) {
        let results = Cluster::new(&case, Sabotage::default(), columns, seed).run();
        prop_assert_eq!(results.map_err(|wrong| TestCaseError::fail(wrong.0))?, oracle(&case).results);
    }
}

/// Runs of a broken rule until one is wrong; how many that took.
fn runs_until_wrong(sabotage: Sabotage) -> Option<usize> {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    (1..=4000).find(|seed| {
        let case = cases().new_tree(&mut runner).expect("every case is allowed").current();
        let expected = oracle(&case).results;
        // A broken step may also panic: its own checks notice.
        let run = std::panic::AssertUnwindSafe(|| Cluster::new(&case, sabotage, columns, *seed as u64).run());
        !matches!(std::panic::catch_unwind(run), Ok(Ok(results)) if results == expected)
    })
}

#[test]
fn the_cluster_notices_every_rule_that_is_taken_away() {
    let rules = [
        ("2.3 close_epochs_together", Sabotage { close_epochs_together: true, ..Sabotage::default() }),
        ("2.6 do_not_freeze", Sabotage { do_not_freeze: true, ..Sabotage::default() }),
        (
            "2.6 empty_frontier_is_the_end",
            Sabotage { empty_frontier_is_the_end: true, ..Sabotage::default() },
        ),
        ("2.8 ignore_buffer_stamps", Sabotage { ignore_buffer_stamps: true, ..Sabotage::default() }),
        ("2.8 largest_watermark", Sabotage { largest_watermark: true, ..Sabotage::default() }),
        ("2.8 forget_lateness_hold", Sabotage { forget_lateness_hold: true, ..Sabotage::default() }),
        (
            "2.9 sessions_ignore_partition_watermark",
            Sabotage { sessions_ignore_partition_watermark: true, ..Sabotage::default() },
        ),
    ];
    for (rule, sabotage) in rules {
        let runs = runs_until_wrong(sabotage);
        println!("{rule}: noticed after {runs:?} runs");
        assert!(runs.is_some(), "{rule}: nobody noticed in 4000 runs");
    }
}

#[test]
fn a_sum_that_overflows_is_the_records_error_and_changes_no_window() {
    use tidegate_operators::element::PartitionId;
    use tidegate_operators::keyed::StepRows;
    use tidegate_operators::window::{Order, PartitionNames, Sliding, WindowRecord, WindowSpec, WindowState};
    use tidegate_recovery::{EventTime, KeyHash};

    // The earliest of three windows is one addition from its limit, the other two are not.
    let spec = WindowSpec::from(Sliding::secs(3, 1));
    let aggregate = count().and(sum(|amount: &i64| *amount));
    let mut windows = WindowState::new(spec, aggregate, PartitionNames::default()).expect("a valid window");
    let mut rows = StepRows::volatile();
    let mut apply = |windows: &mut WindowState<_, _>, event, amount| {
        let order = Order { event: EventTime(event), partition: PartitionId(0), offset: event };
        let (key, hash) = (Some(&b"k"[..]), KeyHash::of(b"k"));
        windows.apply(WindowRecord { key, hash, order, watermark: EventTime::MIN, value: &amount }, &mut rows)
    };
    apply(&mut windows, 0, i64::MAX).expect("fits");
    assert_eq!(apply(&mut windows, 2_000, 1), Err(AggregateError::Overflow));
    apply(&mut windows, 4_000, 7).expect("no window with the first");
    let mut fired = Vec::new();
    windows.close(EventTime(100_000), usize::MAX, &mut StepRows::volatile(), &mut fired);
    let results: Vec<_> = fired.iter().map(|f| (f.windowed.start.0, f.windowed.value)).collect();
    let big = (1, i64::MAX);
    let small = (1, 7);
    assert_eq!(
        results,
        [(-2_000, big), (-1_000, big), (0, big), (2_000, small), (3_000, small), (4_000, small)]
    );
}

/// Prints what a record of a tumbling count costs; `TIDEGATE_WINDOW_RECORDS=3000000` measures more of them.
#[test]
fn a_count_of_100_000_keys_costs_little_per_record() {
    use tidegate_operators::element::PartitionId;
    use tidegate_operators::keyed::StepRows;
    use tidegate_operators::window::{Order, PartitionNames, Tumbling, WindowRecord, WindowState};
    use tidegate_recovery::{EventTime, KeyHash, StepNumber};

    let records = std::env::var("TIDEGATE_WINDOW_RECORDS").ok().and_then(|records| records.parse().ok());
    let records: usize = records.unwrap_or(300_000);
    let keys: Vec<Vec<u8>> = (0..100_000).map(|key| format!("customer-{key}").into_bytes()).collect();
    let keys: Vec<(&[u8], KeyHash)> = keys.iter().map(|key| (&key[..], KeyHash::of(key))).collect();
    let mut windows = WindowState::new(Tumbling::minutes(1).into(), count(), PartitionNames::default())
        .expect("a valid window");
    let mut rows = StepRows::new(StepNumber(0), 1);
    let (mut fired, mut counted, mut commits) = (Vec::new(), 0, 0);
    let mut count_fired = |fired: &mut Vec<tidegate_operators::window::Fired<i64>>| {
        counted += fired.drain(..).map(|fired| fired.windowed.value).sum::<i64>();
    };
    let start = std::time::Instant::now();
    let mut place = 1_usize;
    for number in 0..records {
        // Every key now and then, in no order.
        place = place.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (key, hash) = keys[(place >> 33) % keys.len()];
        let event = number as i64 / 10;
        let order = Order { event: EventTime(event), partition: PartitionId(0), offset: number as i64 };
        let watermark = EventTime(event - 5_000);
        windows
            .apply(WindowRecord { key: Some(key), hash, order, watermark, value: &() }, &mut rows)
            .expect("a count takes everything");
        if number % 1024 == 0 {
            windows.close(watermark, usize::MAX, &mut rows, &mut fired);
            count_fired(&mut fired);
        }
        if number % 500_000 == 499_999 {
            windows.snapshot(&mut rows);
            commits += usize::from(!rows.take().is_empty());
        }
    }
    let spent = start.elapsed();
    windows.close(EventTime::MAX, usize::MAX, &mut rows, &mut fired);
    count_fired(&mut fired);
    assert_eq!(counted, records as i64);
    println!("{:.0} ns per record, {commits} snapshots", spent.as_nanos() as f64 / records as f64);
}
