//! The recovery store by itself: commits of many changed rows against one file that is written in sequence, and
//! reading a large state back.
//!
//! Each task is a process of its own that prints the seconds of its work as one line. The rows are made before the clock
//! starts, with values that cannot be compressed; both sides write the same encoded rows.

use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use tidegate_harness::Scratch;
use tidegate_recovery::rows::{RowChange, RowRef};
use tidegate_recovery::{
    ClusterShape, Epoch, FlowFingerprint, KeyHash, LocalDirectory, OpenOptions, Opened, Part, ProcessIndex,
    ProcessOptions, ProcessStore, RecoveryStore, RowBuffer, RowRoute, RunId, Slot, StepNumber, StepShape,
    StepTable,
};

use crate::child;
use crate::error::{Error, Result};
use crate::figures::median;
use crate::report::{Bound, Limit, Report};
use crate::workload::mix;

/// Bytes of a row's value.
const VALUE_BYTES: usize = 64;
/// Different keys.
const KEYS: u64 = 1_000_000;
/// Changed rows of one commit.
const ROWS: u64 = 100_000;
/// Commits of a run.
const COMMITS: u64 = 30;
/// Commits whose parts are written and whose records are not, at most: the product's limit.
const IN_FLIGHT: usize = 4;
/// A task that takes longer is stuck.
const DEADLINE: Duration = Duration::from_secs(300);

/// What is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Task {
    /// 30 commits of 100 000 changed rows each.
    Commits,
    /// The same rows, appended to one file that is synced after each commit.
    Sequential,
    /// Writes 1 000 000 keys; what `restore` reads.
    Fill,
    /// Opens the store and reads all rows.
    Restore,
}

/// Arguments of one task.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct StoreArgs {
    task: Task,
    /// The folder that is written or read.
    #[arg(long)]
    folder: PathBuf,
}

/// Runs one task and prints its seconds.
pub(crate) fn run(args: &StoreArgs) -> Result<()> {
    let seconds = match args.task {
        Task::Commits => commits(args)?,
        Task::Sequential => sequential(args)?,
        Task::Fill => fill(args)?,
        Task::Restore => restore(args)?,
    };
    crate::print(&format!("{seconds}\n"))
}

/// Runs the tasks in turn and adds their bounds to the report.
pub(crate) fn compare(rounds: usize, report: &mut Report) -> Result<()> {
    let mut seconds: [Vec<f64>; 3] = Default::default();
    let kept = Scratch::new("bench-restore");
    timed("fill", &kept)?;
    for round in 0..rounds {
        let mut order = [("commits", 0), ("sequential", 1), ("restore", 2)];
        if round % 2 == 1 {
            order.reverse();
        }
        for (task, place) in order {
            let fresh = Scratch::new("bench-store");
            let taken = timed(task, if task == "restore" { &kept } else { &fresh })?;
            eprintln!("round {} of {rounds}: store / {task}: {taken:.2} s", round + 1);
            seconds[place].push(taken);
        }
    }
    let [commits, sequential, restore] = seconds.map(|seconds| median(seconds.into_iter()));
    report.bounds.push(Bound {
        what: format!("store: {COMMITS} commits × {ROWS} changed rows of {VALUE_BYTES} bytes ({KEYS} keys) against one sequential file"),
        value: commits.middle / sequential.middle,
        unit: "×",
        limit: Limit::AtMost(2.0),
        from: format!("{:.2} s against {:.2} s, a sync per commit each", commits.middle, sequential.middle),
    });
    report.bounds.push(Bound {
        what: format!("restore of {KEYS} keys × {VALUE_BYTES} bytes"),
        value: restore.middle,
        unit: "s",
        limit: Limit::AtMost(1.0),
        from: format!("opening the store included; {:.2}–{:.2} s", restore.least, restore.most),
    });
    Ok(())
}

fn timed(task: &str, folder: &Scratch) -> Result<f64> {
    let own = std::env::current_exe().map_err(|e| Error::system("find this binary", e))?;
    let mut command = Command::new(own);
    command.args(["store", task, "--folder"]).arg(folder.path());
    let (_, printed) = child::measure_output(task, command, DEADLINE)?;
    printed.trim().parse().map_err(|_| Error::system(format!("read the seconds of {task}"), printed))
}

/// As the product does it: one thread writes parts, another publishes records and deletes what nobody needs.
fn commits(args: &StoreArgs) -> Result<f64> {
    let changes: Vec<RowBuffer> = (0..COMMITS).map(|commit| changed(commit, |n| mix(n) % KEYS)).collect();
    let (opened, store) = open(args)?;
    let started = Instant::now();
    publish_all(opened, store, &changes)?;
    Ok(started.elapsed().as_secs_f64())
}

fn sequential(args: &StoreArgs) -> Result<f64> {
    let changes: Vec<RowBuffer> = (0..COMMITS).map(|commit| changed(commit, |n| mix(n) % KEYS)).collect();
    let path = args.folder.join("rows");
    let error = |source| Error::File { path: path.clone(), source };
    let mut file = File::create(&path).map_err(error)?;
    let started = Instant::now();
    for rows in &changes {
        file.write_all(rows.as_bytes()).map_err(error)?;
        file.sync_data().map_err(error)?;
    }
    Ok(started.elapsed().as_secs_f64())
}

fn fill(args: &StoreArgs) -> Result<f64> {
    let changes: Vec<RowBuffer> = (0..KEYS / ROWS).map(|commit| changed(commit, |n| n)).collect();
    let (opened, store) = open(args)?;
    let started = Instant::now();
    publish_all(opened, store, &changes)?;
    Ok(started.elapsed().as_secs_f64())
}

fn restore(args: &StoreArgs) -> Result<f64> {
    let started = Instant::now();
    let store = RecoveryStore::new(Arc::new(LocalDirectory::new(&args.folder)));
    let opened = store.open(&options(), None).map_err(|e| Error::system("open the store", e))?;
    let mut process = ProcessStore::new(
        store.storage().clone(),
        &opened.resume,
        ProcessIndex(0),
        ProcessOptions::default(),
    );
    let restored = process.restore(1, &|_| Some(0)).map_err(|e| Error::system("restore", e))?;
    let seconds = started.elapsed().as_secs_f64();
    Error::expect("rows that were restored", KEYS, restored.rows)?;
    Ok(seconds)
}

fn options() -> OpenOptions {
    let steps = StepTable::new(vec![StepShape::new("count", "stateful_map")]).unwrap_or_default();
    OpenOptions {
        flow: "bench".into(),
        fingerprint: FlowFingerprint(1),
        steps,
        run: RunId(u128::from(std::process::id())),
        host: "bench".into(),
        build: "bench".into(),
        shape: ClusterShape { processes: 1, workers_per_process: 1 },
        slots: vec![Slot(0)],
        peer_timeout: Duration::from_secs(10),
        store_timeout: Duration::from_secs(60),
        allow_dropped_state: false,
        allow_older_snapshot: false,
    }
}

fn open(args: &StoreArgs) -> Result<(Opened, ProcessStore)> {
    let store = RecoveryStore::new(Arc::new(LocalDirectory::new(&args.folder)));
    let opened = store.open(&options(), None).map_err(|e| Error::system("open the store", e))?;
    let mut process = ProcessStore::new(
        store.storage().clone(),
        &opened.resume,
        ProcessIndex(0),
        ProcessOptions::default(),
    );
    process.restore(1, &|_| Some(0)).map_err(|e| Error::system("restore an empty store", e))?;
    Ok((opened, process))
}

fn publish_all(mut opened: Opened, mut store: ProcessStore, commits: &[RowBuffer]) -> Result<()> {
    let first = opened.resume.epoch.0;
    let (parts, to_publish) = sync_channel::<(Epoch, Vec<Part>)>(IN_FLIGHT);
    std::thread::scope(|scope| {
        let publisher = scope.spawn(move || -> Result<()> {
            for (epoch, parts) in to_publish {
                opened.publisher.publish(epoch, &parts).map_err(|e| Error::system("publish a commit", e))?;
                opened.publisher.retain().map_err(|e| Error::system("delete what nobody needs", e))?;
            }
            Ok(())
        });
        for (epoch, rows) in (1..).map(|commit| Epoch(first + 10 * commit)).zip(commits) {
            let part = store
                .write_part(epoch, std::slice::from_ref(rows), Vec::new())
                .map_err(|e| Error::system("write a part", e))?;
            if parts.send((epoch, part.into_iter().collect())).is_err() {
                break; // The publisher ended, and says below why.
            }
        }
        drop(parts);
        publisher.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// The rows of one commit; `key` says which key the n-th change is of.
fn changed(commit: u64, key: impl Fn(u64) -> u64) -> RowBuffer {
    let mut rows = RowBuffer::new();
    for n in commit * ROWS..(commit + 1) * ROWS {
        let key = format!("c{:07}", key(n));
        let mut value = [0; VALUE_BYTES];
        let mut random = n ^ 0xabcd_ef01;
        for word in value.chunks_exact_mut(8) {
            random = mix(random);
            word.copy_from_slice(&random.to_le_bytes());
        }
        rows.push(RowRef {
            step: StepNumber(0),
            route: RowRoute::Bucket(KeyHash::of(key.as_bytes()).bucket()),
            key: key.as_bytes(),
            sub: &[],
            change: RowChange::Put(&value),
        });
    }
    rows
}
