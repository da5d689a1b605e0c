//! The lock-step simulation: real timely workers that step when a seeded scheduler lets them, an in-memory broker,
//! destination and store, a virtual clock. A kill drops everything; the next generation resumes from what was
//! durable, on another number of workers.
//!
//! Each test runs some hundred seeds; `TIDEGATE_SIMULATION_SEEDS=5000` runs that many, and
//! `TIDEGATE_SIMULATION_SEED=17` runs one. A failure names its seeds. Workers take turns, so a long run on one core
//! (`taskset -c 0`) is twice as fast as on several.

#![allow(clippy::collapsible_match, reason = "an arm says what happens, its body says how often")]

mod flows;
mod offsets;
mod oracle;
mod store;
mod workers;
mod world;

use flows::Flow;
use oracle::Kind;
use std::time::Duration;
use tidegate_operators::limits::Limits;
use tidegate_operators::process::{DeliveryGuarantee, Sabotage};
use world::{Outcome, Plan, run};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// Runs the plan over many seeds; every one must come out right.
fn holds(seeds: u64, plan: &Plan) -> Outcome {
    match number("TIDEGATE_SIMULATION_SEED") {
        Some(seed) => holds_at([seed], plan),
        None => holds_at(0..number("TIDEGATE_SIMULATION_SEEDS").unwrap_or(seeds), plan),
    }
}

/// Runs the plan over these seeds. All that fail are named, the first with its story.
fn holds_at(seeds: impl IntoIterator<Item = u64>, plan: &Plan) -> Outcome {
    let mut sum = Outcome::default();
    let mut failed = Vec::new();
    let mut story = None;
    for seed in seeds {
        match run(seed, plan) {
            Ok(outcome) => {
                sum.actions += outcome.actions;
                sum.kills += outcome.kills;
                sum.stops += outcome.stops;
                sum.records += outcome.records;
                sum.late += outcome.late;
            }
            Err(error) => {
                failed.push(seed);
                story.get_or_insert(error);
            }
        }
    }
    if let Some(story) = story {
        panic!("{:?}: seeds {failed:?} fail; {story}", plan.flow);
    }
    eprintln!("{:?}: {sum:?}", plan.flow);
    sum
}

/// Runs a plan with a rule broken on purpose until a seed notices.
fn is_caught(seeds: u64, plan: &Plan) -> String {
    for seed in 0..seeds {
        if let Err(error) = run(seed, plan) {
            let first = error.lines().next().unwrap_or_default().to_owned();
            let all = format!("{:?}", plan.sabotage);
            let rule = all.split(['{', ',', '}']).find(|part| part.ends_with("true")).unwrap_or("nothing");
            eprintln!("{rule} ({:?}) is caught: {first}", plan.flow);
            return error;
        }
    }
    panic!("{seeds} seeds did not notice {:?}", plan.sabotage);
}

#[test]
fn records_are_written_before_they_are_committed_through_kills_stops_and_rescales() {
    // L4, L9, E2, E15, E28
    let sum = holds(60, &Plan::new(Flow::Records));
    assert!(sum.kills > 0 && sum.stops > 0 && sum.records > 0);
}

#[test]
fn the_same_holds_without_a_store() {
    // L51
    holds(40, &Plan { store: false, ..Plan::new(Flow::Records) });
}

#[test]
fn at_most_once_never_writes_a_record_twice() {
    // L12
    // A broker that is away for longer than `peer_timeout` ends an at-most-once run; here it never is.
    let limits = Limits { peer_timeout: Duration::from_secs(3600), ..Plan::new(Flow::Records).limits };
    let plan =
        Plan { delivery: DeliveryGuarantee::AtMostOnce, store: false, limits, ..Plan::new(Flow::Records) };
    holds(40, &plan);
    holds(20, &Plan { store: true, ..plan });
}

/// The plan with every limit at its smallest, and fewer records: each of them takes long.
fn at_the_smallest_limits(records: usize, plan: Plan) -> Plan {
    let limits = Limits {
        in_flight_records: 1,
        in_flight_bytes: 1,
        commits_in_flight: 1,
        sink_in_flight_bytes: 1,
        slice_records: 1,
        ..plan.limits
    };
    Plan { limits, records, generations: 1, ..plan }
}

#[test]
fn the_smallest_limits_slow_a_flow_and_do_not_stop_it() {
    // E27
    holds(20, &at_the_smallest_limits(80, Plan::new(Flow::Records)));
}

fn windows(kind: Kind) -> Plan {
    Plan::new(Flow::Windows(kind))
}

const TUMBLING: Kind = Kind::Tumbling { size: 100 };
const SLIDING: Kind = Kind::Sliding { size: 150, every: 50 };
const SESSION: Kind = Kind::Session { gap: 70 };

#[test]
fn windows_are_the_recounted_ones_through_kills_stops_and_rescales() {
    // L9, L38, E39
    let sum = holds(40, &windows(TUMBLING));
    assert!(sum.late > 0, "some records are late, and refused");
    holds(25, &windows(SLIDING));
}

#[test]
fn sessions_are_the_recounted_ones_through_kills_stops_and_rescales() {
    holds(40, &windows(SESSION));
}

#[test]
fn two_stateful_steps_in_a_row_agree_with_the_recount() {
    holds(40, &Plan::new(Flow::Chain));
}

#[test]
fn running_totals_count_every_record_once() {
    // L52
    holds(30, &Plan::new(Flow::Totals));
}

#[test]
fn batches_without_a_store_lose_no_record() {
    // L18, design 2.4
    holds(40, &Plan { store: false, ..Plan::new(Flow::Batches) });
    let limits = Limits { in_flight_records: 5, ..Plan::new(Flow::Batches).limits };
    holds(15, &Plan { store: false, limits, ..Plan::new(Flow::Batches) });
}

#[test]
fn batches_with_a_store_lose_no_record() {
    holds(20, &Plan::new(Flow::Batches));
}

#[test]
fn windows_after_an_end_come_out_whole_in_the_next_run() {
    let plan = Plan { ends: true, ..windows(TUMBLING) };
    holds(40, &plan);
}

fn rounds(kind: Kind) -> Plan {
    let limits = Limits { max_skew_ms: i64::MAX / 4, ..windows(kind).limits };
    Plan { rounds: true, idle: Duration::from_millis(1000), trouble: false, limits, ..windows(kind) }
}

#[test]
fn silence_on_every_partition_fires_what_is_over_and_makes_nothing_late() {
    // design 2.7, 2.10
    holds(30, &rounds(TUMBLING));
    holds(15, &Plan { partitions: 4, peers_max: 6, ..rounds(SESSION) });
}

#[test]
fn a_worker_that_wakes_late_loses_no_record_that_is_on_time() {
    // design 2.7, 2.10. All partitions were idle when a round arrived on every one of them. A worker that read its
    // part first raised its watermark; one that was slow still held its own partitions for idle, followed the
    // watermark of the other, and then read records of which the windows were closed.
    holds_at([30, 39, 43, 110, 169, 216, 280, 302, 334], &rounds(TUMBLING));
}

#[test]
fn a_partition_far_ahead_waits_for_the_slowest() {
    // design 2.10
    let limits = Limits { max_skew_ms: 500, ..windows(TUMBLING).limits };
    // One poll of seven records in steps of at most 400 ms may pass the limit.
    let plan = Plan { skewed: true, limits, spread_max_ms: Some(500 + 7 * 400 * 8), ..windows(TUMBLING) };
    holds(30, &plan);
}

#[test]
fn the_smallest_limits_do_not_stop_a_window() {
    holds(10, &at_the_smallest_limits(60, windows(SESSION)));
}

fn with(plan: Plan, change: impl FnOnce(&mut Sabotage)) -> Plan {
    let mut plan = plan;
    change(&mut plan.sabotage);
    plan
}

#[test]
fn epochs_that_are_not_closed_one_by_one_are_caught() {
    // design 2.3
    is_caught(400, &with(Plan::new(Flow::Totals), |rules| rules.close_epochs_together = true));
}

#[test]
fn an_empty_frontier_that_is_read_as_the_end_is_caught() {
    // design 2.6
    is_caught(200, &with(windows(TUMBLING), |rules| rules.empty_frontier_is_the_end = true));
}

#[test]
fn watermarks_that_go_on_after_the_agreement_are_caught() {
    // design 2.6
    is_caught(400, &with(windows(TUMBLING), |rules| rules.do_not_freeze = true));
}

#[test]
fn an_event_time_that_is_connected_is_caught() {
    // design 2.7
    is_caught(
        10,
        &with(Plan { must_fire: true, generations: 0, ..windows(TUMBLING) }, |rules| {
            rules.connect_event_time = true
        }),
    );
    holds(5, &Plan { must_fire: true, generations: 0, ..windows(TUMBLING) });
}

#[test]
fn idleness_that_moves_a_hand_to_the_maximum_is_caught() {
    // design 2.7
    is_caught(100, &with(rounds(TUMBLING), |rules| rules.idle_to_the_maximum = true));
}

#[test]
fn a_partition_that_is_idle_with_backlog_is_caught() {
    // design 2.10
    is_caught(400, &with(rounds(TUMBLING), |rules| rules.idle_with_backlog = true));
}

#[test]
fn a_worker_that_follows_the_others_without_another_look_is_caught() {
    // design 2.7, 2.10
    is_caught(400, &with(rounds(TUMBLING), |rules| rules.trust_old_looks = true));
}

#[test]
fn a_step_that_ignores_the_stamps_of_its_buffer_is_caught() {
    // design 2.8
    is_caught(400, &with(windows(TUMBLING), |rules| rules.ignore_buffer_stamps = true));
}

#[test]
fn a_restart_at_the_largest_watermark_is_caught() {
    // design 2.8
    is_caught(1000, &with(windows(TUMBLING), |rules| rules.largest_watermark = true));
}

#[test]
fn sessions_that_refuse_by_the_acted_on_watermark_alone_are_caught() {
    // design 2.9
    is_caught(400, &with(windows(SESSION), |rules| rules.sessions_ignore_partition_watermark = true));
}

#[test]
fn a_step_that_holds_nothing_for_windows_that_may_appear_is_caught() {
    // design 2.8
    is_caught(1000, &with(Plan::new(Flow::Chain), |rules| rules.forget_lateness_hold = true));
}

fn broken(change: impl FnOnce(&mut Sabotage)) -> Plan {
    let mut plan = Plan::new(Flow::Records);
    change(&mut plan.sabotage);
    plan
}

#[test]
fn a_committer_that_does_not_wait_for_acknowledgements_is_caught() {
    // design 2.2
    is_caught(100, &broken(|rules| rules.ignore_acknowledgements = true));
}

#[test]
fn a_sink_that_forgets_its_capability_is_caught() {
    // design 2.1
    is_caught(100, &broken(|rules| rules.forget_sink_capability = true));
}

#[test]
fn a_source_that_commits_offsets_itself_is_caught() {
    // design 2.2
    is_caught(100, &broken(|rules| rules.source_commits = true));
}

#[test]
fn a_source_whose_hand_stops_at_a_limit_is_caught() {
    // design 2.5
    let limits = Limits { in_flight_records: 5, ..Plan::new(Flow::Records).limits };
    let plan = Plan { limits, generations: 0, ..broken(|rules| rules.limits_stop_hands = true) };
    let error = is_caught(20, &plan);
    assert!(error.contains("stuck"), "{error}");
}
