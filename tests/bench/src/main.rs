//! Tidegate's benchmark: the same work as a loop straight on librdkafka and as a flow, on one broker, in one sitting.
//!
//! `tidegate-bench run` starts a broker (or takes the one that `TIDEGATE_TEST_BROKERS` names), fills a topic, runs every program
//! several times in turn, each as a process of its own, checks what each wrote, prints a table with the
//! ratios and the bounds that they must meet, and writes it to a file. The other subcommands are the measured programs.
//!
//! Any failure ends the benchmark with a message: a figure beside a wrong result would be worth nothing.

mod broker;
mod child;
mod error;
mod figures;
mod flows;
mod idle;
mod librdkafka;
mod loops;
mod machine;
mod programs;
mod report;
mod scaling;
mod store;
mod suite;
mod topics;
mod waits;
mod workload;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use error::{Error, Result};
use report::Report;
use suite::Sitting;
use workload::Workload;

/// Measures Tidegate against loops written straight on librdkafka.
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Subcommands,
}

#[derive(Subcommand)]
enum Subcommands {
    /// Runs the benchmark and writes the table.
    Run(RunArgs),
    /// Runs one raw loop over a topic: what `run` starts.
    Loop(loops::LoopArgs),
    /// Starts a broker with a filled topic and an empty one, prints how to reach them, and ends with its stdin: for
    /// trying and profiling one program.
    Hold(WorkloadArgs),
}

#[derive(clap::Args)]
struct WorkloadArgs {
    /// Records in the topic.
    #[arg(long, default_value_t = 3_000_000)]
    records: u64,
    /// Different keys.
    #[arg(long, default_value_t = 100_000)]
    keys: u64,
    /// Partitions.
    #[arg(long, default_value_t = 4)]
    partitions: i32,
}

#[derive(clap::Args)]
struct RunArgs {
    #[command(flatten)]
    workload: WorkloadArgs,
    /// How often each program runs.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// A short form: 300 000 records, 2 rounds; it shows that everything works, its figures mislead.
    #[arg(long)]
    quick: bool,
    /// Only these parts; the table has gaps then.
    #[arg(long, value_delimiter = ',')]
    only: Vec<Part>,
    /// Where the table goes.
    #[arg(long, default_value = "tests/bench/RESULTS.md")]
    out: PathBuf,
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Subcommands::Run(args) => run(&args),
        Subcommands::Loop(args) => loops::run(&args),
        Subcommands::Hold(args) => hold(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tidegate-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What is measured; each part by itself with `--only`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    /// Programs over one topic.
    Programs,
    /// How long a worker thread is with the publication of exactly-once output.
    Waits,
    /// The recovery store by itself.
    Store,
    /// One worker and two.
    Scaling,
    /// A cluster with nothing to do.
    Idle,
    /// From the start to the first record.
    Start,
}

const COMMAND: &str = "cargo build --release --workspace --bins && target/release/tidegate-bench run";

fn run(args: &RunArgs) -> Result<()> {
    let (records, rounds) = if args.quick { (300_000, 2) } else { (args.workload.records, args.rounds) };
    let workload = Workload { records, keys: args.workload.keys, partitions: args.workload.partitions };
    let wanted = |part: Part| args.only.is_empty() || args.only.contains(&part);
    let mut report = Report::default();
    let bench_broker = broker::BenchBroker::start(records)?;
    let kafka = bench_broker.broker().kafka();
    if wanted(Part::Programs) || wanted(Part::Waits) {
        eprintln!("filling a topic with {records} records");
        let sitting = Sitting {
            kafka: kafka.clone(),
            workload,
            from: topics::Topic::filled(kafka, &workload)?,
            windows: workload.window_totals(),
            own: std::env::current_exe().map_err(|e| Error::system("find this binary", e))?,
        };
        if wanted(Part::Programs) {
            sitting.compare(&programs::all(), rounds, &mut report)?;
            programs::add_bounds(&mut report);
        }
        if wanted(Part::Waits) {
            waits::look(&sitting, &mut report)?;
        }
    }
    if wanted(Part::Scaling) {
        scaling::compare(&workload, rounds, &mut report)?;
    }
    if wanted(Part::Store) {
        store::compare(rounds, &mut report)?;
    }
    if wanted(Part::Idle) {
        idle::epochs(kafka, rounds.min(3), &mut report)?;
    }
    if wanted(Part::Start) {
        idle::start(kafka, rounds, &mut report)?;
    }
    let machine = machine::Machine::look(bench_broker.description());
    let page = report.page(&workload, rounds, &machine, COMMAND);
    std::fs::write(&args.out, &page).map_err(|source| Error::File { path: args.out.clone(), source })?;
    print(&page)
}

fn hold(args: &WorkloadArgs) -> Result<()> {
    let workload = Workload { records: args.records, keys: args.keys, partitions: args.partitions };
    // Any number of programs may write to it, so its log is not in memory.
    let bench_broker = broker::BenchBroker::on_disk();
    let kafka = bench_broker.broker().kafka();
    let from = topics::Topic::filled(kafka, &workload)?;
    let to = topics::Topic::passing(kafka, "out", workload.partitions);
    print(&format!("--brokers {} --from {} --to {}\n", kafka.bootstrap(), from.name(), to.name()))?;
    let mut ignored = Vec::new();
    std::io::Read::read_to_end(&mut std::io::stdin(), &mut ignored)
        .map_err(|e| Error::system("read stdin", e))?;
    Ok(())
}

/// The table goes to stdout; a closed pipe is no failure of the benchmark.
fn print(page: &str) -> Result<()> {
    use std::io::Write as _;
    match std::io::stdout().write_all(page.as_bytes()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => Err(Error::system("print the table", e)),
        _ => Ok(()),
    }
}
