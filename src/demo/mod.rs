//! `tidegate demo`: the main job on an embedded broker, with nothing to install.
//!
//! 100 000 orders go through a keyed window over two processes with two workers each. One process is killed
//! with SIGKILL after the second commit record, the cluster is started again, runs to the end, and its result
//! is compared with a straight recount of what was produced. The broker is librdkafka's mock, which lives in
//! this process; the cluster is made of real processes of this binary. A figure that is off ends the demo with
//! an error, and everything that it made is removed (`--keep` leaves the files).

mod orders;
mod processes;

use orders::{Orders, Totals};
use processes::Processes;
use rdkafka::mocking::MockCluster;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const PARTITIONS: i32 = 4;
const ORDERS: u64 = 100_000;
/// Long enough for a few commits before and after the kill, short enough for a demo.
const PRODUCE_FOR: Duration = Duration::from_secs(10);
/// The whole demo ends within a minute, whatever goes wrong.
const DEADLINE: Duration = Duration::from_secs(58);

/// Why the demo failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DemoError {
    /// A file or a process of the demo.
    #[error("{what}: {error}")]
    Io {
        /// What was tried.
        what: String,
        /// The system's answer.
        error: io::Error,
    },
    /// The embedded broker or a client of it.
    #[error("the embedded broker: {0}")]
    Kafka(#[from] rdkafka::error::KafkaError),
    /// A process of the cluster did what it must not.
    #[error("{0}")]
    Process(String),
    /// The result is not the recount.
    #[error("the result is wrong: {0}")]
    Wrong(String),
}

pub(crate) fn io_error(what: impl Into<String>) -> impl FnOnce(io::Error) -> DemoError {
    let what = what.into();
    move |error| DemoError::Io { what, error }
}

/// Runs the demo and reports on `out`. With `keep`, flow file, logs and recovery store stay.
pub(crate) fn run(keep: bool, out: &mut dyn Write) -> Result<(), DemoError> {
    let folder = tempfile::Builder::new()
        .prefix("tidegate-demo-")
        .tempdir()
        .map_err(io_error("cannot make a temporary folder"))?;
    let place = folder.path().to_path_buf();
    let result = play(&place, out);
    if keep {
        let place = folder.keep();
        say(out, format_args!("files kept in {}", place.display()))?;
    }
    result
}

fn say(out: &mut dyn Write, line: std::fmt::Arguments<'_>) -> Result<(), DemoError> {
    writeln!(out, "{line}").and_then(|()| out.flush()).map_err(io_error("cannot write to stdout"))
}

fn play(place: &Path, out: &mut dyn Write) -> Result<(), DemoError> {
    let started = Instant::now();
    let deadline = started + DEADLINE;
    let broker = MockCluster::new(1)?;
    broker.create_topic("orders", PARTITIONS, 1)?;
    broker.create_topic("totals", PARTITIONS, 1)?;
    let servers = broker.bootstrap_servers();
    let flow = place.join("flow.yaml");
    std::fs::write(&flow, include_str!("flow.yaml"))
        .map_err(io_error(format!("cannot write {}", flow.display())))?;
    let store = place.join("recovery");
    say(
        out,
        format_args!(
            "embedded broker at {servers}, {PARTITIONS} partitions; flow, logs and store in {}",
            place.display()
        ),
    )?;

    let processes = Processes::new(place, &flow, &store, &servers)?;
    let mut cluster = processes.start(&[])?;
    say(out, format_args!("started 2 processes with 2 workers each; producing {ORDERS} orders"))?;
    let mut orders = Orders::begin(&servers, PARTITIONS, ORDERS, PRODUCE_FOR)?;

    let mut shown = Instant::now();
    while newest_record(&store)?.unwrap_or(0) < 2 {
        cluster.check_running()?;
        orders.produce_due()?;
        if shown.elapsed() > Duration::from_secs(1) {
            shown = Instant::now();
            say(
                out,
                format_args!(
                    "  produced {:>7}, commit records {}",
                    orders.produced(),
                    newest_record(&store)?.unwrap_or(0)
                ),
            )?;
        }
        wait_or_fail(deadline, "the second commit record")?;
    }
    cluster.kill(1)?;
    say(
        out,
        format_args!(
            "killed process 1 with SIGKILL after commit record {}, {} orders produced",
            newest_record(&store)?.unwrap_or(0),
            orders.produced()
        ),
    )?;
    let code = cluster.wait(0, deadline, || orders.produce_due())?;
    if code != Some(75) {
        return Err(DemoError::Process(format!(
            "process 0 noticed the loss of its peer with exit code {code:?} instead of 75\n{}",
            processes.tail(0)
        )));
    }
    say(out, format_args!("process 0 noticed it and left with exit code 75; producing the rest"))?;
    while !orders.finished() {
        orders.produce_due()?;
        wait_or_fail(deadline, "the producer")?;
    }
    orders.flush()?;

    let resumed = newest_record(&store)?.unwrap_or(0);
    let mut cluster = processes.start(&["--until-end"])?;
    say(
        out,
        format_args!("restarted both processes from commit record {resumed}, up to the end of the input"),
    )?;
    for process in [0, 1] {
        let code = cluster.wait(process, deadline, || Ok(()))?;
        if code != Some(0) {
            return Err(DemoError::Process(format!(
                "process {process} ended with exit code {code:?} instead of 0\n{}",
                processes.tail(process)
            )));
        }
    }
    for line in processes.resumed_from() {
        say(out, format_args!("  {line}"))?;
    }

    let totals = Totals::read(&servers, "totals", PARTITIONS)?;
    let verdict = totals.compare(orders.recount());
    say(out, format_args!(""))?;
    say(out, format_args!("records in    {:>8}", orders.produced()))?;
    say(
        out,
        format_args!(
            "windows out   {:>8}   (expected {}, repeated after the kill {})",
            totals.windows(),
            orders.recount().len(),
            totals.repeated()
        ),
    )?;
    say(out, format_args!("lost          {:>8}", verdict.lost))?;
    say(out, format_args!("wrong         {:>8}", verdict.wrong))?;
    say(out, format_args!("took          {:>8.1} s", started.elapsed().as_secs_f64()))?;
    if verdict.lost + verdict.wrong > 0 || orders.produced() != ORDERS {
        return Err(DemoError::Wrong(format!(
            "{} windows lost, {} wrong{}",
            verdict.lost,
            verdict.wrong,
            verdict.example.map(|example| format!("; for example {example}")).unwrap_or_default()
        )));
    }
    say(out, format_args!("the result is the same as a straight recount"))
}

/// Fails when the demo has run for too long; else lets the other threads work for a moment.
fn wait_or_fail(deadline: Instant, what: &str) -> Result<(), DemoError> {
    if Instant::now() > deadline {
        return Err(DemoError::Process(format!("waited too long for {what}")));
    }
    std::thread::sleep(Duration::from_millis(5));
    Ok(())
}

/// Number of the newest commit record in the store, if there is one.
fn newest_record(store: &Path) -> Result<Option<u64>, DemoError> {
    let folder: PathBuf = store.join("commits");
    let entries = match std::fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io_error(format!("cannot list {}", folder.display()))(error)),
    };
    let mut newest = None;
    for entry in entries {
        let entry = entry.map_err(io_error(format!("cannot list {}", folder.display())))?;
        let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
        newest = newest.max(number);
    }
    Ok(newest)
}
