//! What a cluster costs that has nothing to do, and how long a start takes.

use std::time::{Duration, Instant};

use tidegate_harness::{Kafka, Scratch};

use crate::child::{self, End, Running};
use crate::error::Result;
use crate::figures::{Median, median};
use crate::flows::{self, Flow, Language};
use crate::report::{Bound, Limit, Report};
use crate::topics::Topic;
use crate::workload::Workload;

const WORKERS: u32 = 4;
/// How long an idle cluster is watched, after it has settled.
const WATCHED: Duration = Duration::from_secs(10);
const SETTLE: Duration = Duration::from_secs(3);
const DEADLINE: Duration = Duration::from_secs(60);
/// Records of the topic that a start is measured with.
const SMALL: u64 = 100;

/// Watches an idle cluster of four workers at two epoch intervals and adds its bounds to the report.
pub(crate) fn epochs(kafka: &Kafka, rounds: usize, report: &mut Report) -> Result<()> {
    let intervals = [Duration::from_millis(100), Duration::from_millis(5)];
    let mut cores: [Vec<f64>; 2] = Default::default();
    for round in 0..rounds {
        for (place, interval) in intervals.iter().enumerate() {
            let used = watch(kafka, *interval)?;
            eprintln!(
                "round {} of {rounds}: idle, epochs of {interval:?}: {:.2} % of a core",
                round + 1,
                used * 100.0
            );
            cores[place].push(used);
        }
    }
    let [slow, fast] = cores.map(|cores| median(cores.into_iter()));
    let per_second = intervals.map(|interval| 1.0 / interval.as_secs_f64());
    report.bounds.push(Bound {
        what: format!("an empty epoch, {WORKERS} workers: CPU of all together"),
        value: (fast.middle - slow.middle) / (per_second[1] - per_second[0]) * 1e3,
        unit: "ms",
        limit: Limit::AtMost(1.0),
        from: format!(
            "{:.2} % of a core at {:.0} epochs a second, {:.2} % at {:.0}: the slope, so that the clients' own rest is not in it",
            fast.middle * 100.0,
            per_second[1],
            slow.middle * 100.0,
            per_second[0]
        ),
    });
    report.bounds.push(Bound {
        what: format!("an idle cluster of {WORKERS} workers with a store: share of one core"),
        value: slow.middle * 100.0,
        unit: "%",
        limit: Limit::AtMost(5.0),
        from: format!(
            "{:.2}–{:.2} %, epochs of 100 ms, Kafka clients included",
            slow.least * 100.0,
            slow.most * 100.0
        ),
    });
    Ok(())
}

fn watch(kafka: &Kafka, interval: Duration) -> Result<f64> {
    let (from, to) = (Topic::new(kafka, "idle", 4), Topic::new(kafka, "idle-out", 4));
    let store = Scratch::new("bench-idle");
    let mut command = flows::command(Flow::Windows, Language::Yaml, kafka, from.name(), to.name())?;
    command.args(["-w", &WORKERS.to_string(), "-r"]).arg(store.path());
    command.env("TIDEGATE__EPOCH_INTERVAL", format!("{}ms", interval.as_millis()));
    let running = child::start("an idle cluster", command)?;
    // Not a wait for something: what is measured is a span of time in which nothing happens.
    std::thread::sleep(SETTLE);
    let (before, started) = (running.cpu()?, Instant::now());
    std::thread::sleep(WATCHED);
    let used = (running.cpu()? - before).as_secs_f64() / started.elapsed().as_secs_f64();
    running.finish(End::Terminated, DEADLINE)?;
    Ok(used)
}

/// Measures from the start of a process to the first record that it wrote.
pub(crate) fn start(kafka: &Kafka, rounds: usize, report: &mut Report) -> Result<()> {
    let workload = Workload { records: SMALL, keys: SMALL, partitions: 4 };
    let from = Topic::filled(kafka, &workload)?;
    let mut seconds = Vec::new();
    for round in 0..rounds {
        let to = Topic::new(kafka, "first", 4);
        let store = Scratch::new("bench-start");
        let mut command = flows::command(Flow::PassThrough, Language::Yaml, kafka, from.name(), to.name())?;
        command.arg("-r").arg(store.path());
        let first = to.first_record()?;
        let running: Running = child::start("a small flow", command)?;
        first.wait(DEADLINE)?;
        let taken = running.started().elapsed().as_secs_f64();
        running.finish(End::Terminated, DEADLINE)?;
        eprintln!("round {} of {rounds}: first record after {taken:.2} s", round + 1);
        seconds.push(taken);
    }
    let Median { middle, least, most } = median(seconds.into_iter());
    report.bounds.push(Bound {
        what: format!("from the start of the process to the first record out, {SMALL} records, with a store"),
        value: middle,
        unit: "s",
        limit: Limit::AtMost(1.5),
        from: format!("{least:.2}–{most:.2} s, seen by a consumer of the output"),
    });
    Ok(())
}
