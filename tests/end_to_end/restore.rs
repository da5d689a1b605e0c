//! Killed at random, restored, and right: issue 3, behaviour 2.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use tidegate_harness::workload::messages;
use tidegate_harness::{Broker, Cluster, Launch, OffsetWatch, Oracle, WindowKind, Workload, checker};

use crate::case::{Case, DEADLINE, FlowText, long, seed, window_steps};
use crate::feed::Feed;

/// Kills one process or all at a random moment, `kills` times, while the input grows; then runs to the end.
fn kill_at_random(name: &str, shapes: &[(usize, usize)], kills: usize) {
    let repeats = kill_at_random_under(Broker::shared(), |flow| flow, name, shapes, kills);
    eprintln!("{name}: {repeats} repeats");
}

/// The same under settings of the caller's; returns how many windows came out again.
pub(crate) fn kill_at_random_under(
    broker: &Broker,
    settings: impl Fn(FlowText) -> FlowText,
    name: &str,
    shapes: &[(usize, usize)],
    kills: usize,
) -> usize {
    let seed = seed(name);
    let mut random = SmallRng::seed_from_u64(seed);
    let case = Case::on(broker.kafka(), name, 4);
    let workload = Workload {
        seed,
        records: 400 * kills * shapes.len(),
        keys: 200,
        late_per_mille: 20,
        repeats_per_mille: 10,
        unpaid_per_mille: 100,
        ..Workload::default()
    };
    let events = workload.events();
    let flow = settings(case.flow(&window_steps("out_of_order: 2s", "tumbling: 10s, lateness: 5s")));
    let launch = case.launch(&flow).recovery(&case.store());
    let watch = OffsetWatch::start(&case.kafka, &case.group, &case.input);
    let rounds = kills * shapes.len();
    let feed =
        Feed::start(&case.kafka, &case.input, messages(&events), rounds * 4, Duration::from_millis(250));
    for (processes, workers) in shapes {
        for _ in 0..kills {
            kill_once(&launch.clone().shape(*processes, *workers), &mut random);
        }
    }
    feed.finish();
    let (processes, workers) = shapes.last().copied().unwrap_or((1, 1));
    launch.shape(processes, workers).until_end().run_to_exit(0, DEADLINE);
    let oracle =
        Oracle { kind: WindowKind::Tumbling { size: 10_000 }, out_of_order_ms: 2_000, lateness_ms: 5_000 };
    let verdict = oracle.paid(&events);
    let rows = case.kafka.drain(&case.output);
    let repeats = checker::assert_windows(&rows, &verdict.windows);
    eprintln!("{name}: {rounds} kills, {} windows, {} late", rows.len(), verdict.late);
    case.wait_caught_up();
    watch.assert_only_rises();
    repeats
}

/// Starts a cluster, and kills one of its processes or all at a random moment.
pub(crate) fn kill_once(launch: &Launch, random: &mut SmallRng) {
    kill_running(launch.start(), random);
}

/// The same to a cluster that runs already.
pub(crate) fn kill_running(mut cluster: Cluster, random: &mut SmallRng) {
    let moment = Duration::from_millis(random.random_range(0..2_500));
    let victim = random.random_range(0..cluster.len());
    // The moment is random on purpose: there is no condition to wait for, but an early end is a failure.
    tidegate_harness::wait::holds_for("the cluster runs until it is killed", moment, || {
        cluster.exits().iter().all(Option::is_none)
    });
    // A process that has never met the victim goes on waiting for it, as long as a start may take.
    let have_met = (0..cluster.len()).all(|n| cluster.stderr(n).contains("all processes are connected"));
    cluster.kill(victim);
    if random.random_bool(0.5) && have_met {
        // The others must notice by themselves.
        for n in (0..cluster.len()).filter(|n| *n != victim) {
            let code = cluster.wait_exit(n, Duration::from_secs(20));
            assert_eq!(code, 75, "I10 diagnosis: a process that lost its peer");
        }
    } else {
        cluster.kill_all();
    }
}

pub(crate) fn kills() -> usize {
    if long() { 30 } else { 4 }
}

// E1 A32 L9 L19 L52 L53 L55 A9 A28 A30 fault E1 S9 I1 I2 I4 I7
#[test]
fn one_worker_killed_at_random_gives_the_oracles_windows() {
    kill_at_random("restore-1x1", &[(1, 1)], kills());
}

// L19
#[test]
fn four_workers_killed_at_random_give_the_oracles_windows() {
    kill_at_random("restore-1x4", &[(1, 4)], kills());
}

// L9 C1
#[test]
fn two_processes_of_two_workers_killed_at_random_give_the_oracles_windows() {
    kill_at_random("restore-2x2", &[(2, 2)], kills());
}

// S10
#[test]
fn the_same_store_killed_at_random_from_2x2_to_1x3_to_3x1_gives_the_oracles_windows() {
    kill_at_random("restore-reshape", &[(2, 2), (1, 3), (3, 1)], kills().min(10));
}
