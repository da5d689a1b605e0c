//! The lock-step simulation: real timely workers that step when a seeded scheduler lets them, an in-memory broker,
//! destination and store, a virtual clock. A kill drops everything; the next generation resumes from what was
//! durable, on another number of workers.
//!
//! Each test runs some hundred seeds; `TIDEGATE_SIMULATION_SEEDS=5000` runs that many, and
//! `TIDEGATE_SIMULATION_SEED=17` runs one. A failure names its seed.

mod flows;
mod offsets;
mod store;
mod workers;
mod world;

use flows::Flow;
use std::time::Duration;
use tidegate_operators::limits::Limits;
use tidegate_operators::process::{DeliveryGuarantee, Sabotage};
use world::{Outcome, Plan, run};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// Runs the plan over many seeds; every one must come out right.
fn holds(seeds: u64, plan: &Plan) -> Outcome {
    let seeds = match number("TIDEGATE_SIMULATION_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("TIDEGATE_SIMULATION_SEEDS").unwrap_or(seeds),
    };
    let mut sum = Outcome::default();
    for seed in seeds {
        match run(seed, plan) {
            Ok(outcome) => {
                sum.actions += outcome.actions;
                sum.kills += outcome.kills;
                sum.stops += outcome.stops;
                sum.records += outcome.records;
                sum.late += outcome.late;
            }
            Err(error) => panic!("{:?}: {error}", plan.flow),
        }
    }
    eprintln!("{:?}: {sum:?}", plan.flow);
    sum
}

/// Runs a plan with a rule broken on purpose until a seed notices.
fn is_caught(seeds: u64, plan: &Plan) -> String {
    for seed in 0..seeds {
        if let Err(error) = run(seed, plan) {
            let first = error.lines().next().unwrap_or_default().to_owned();
            eprintln!("{:?}: caught by {first}", plan.flow);
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

#[test]
fn the_smallest_limits_slow_a_flow_and_do_not_stop_it() {
    // E27
    let limits = Limits {
        in_flight_records: 1,
        in_flight_bytes: 1,
        commits_in_flight: 1,
        sink_in_flight_bytes: 1,
        slice_records: 1,
        ..Plan::new(Flow::Records).limits
    };
    holds(20, &Plan { limits, records: 80, generations: 1, ..Plan::new(Flow::Records) });
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
