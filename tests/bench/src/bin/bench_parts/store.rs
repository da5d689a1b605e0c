//! Tasks over a recovery store. The rows are made before the clock starts, with values that cannot be compressed; the
//! sequential file gets the same encoded rows.

use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};
use tidegate_recovery::rows::{RowChange, RowRef};
use tidegate_recovery::{
    ClusterShape, Epoch, FlowFingerprint, KeyHash, LocalDirectory, OpenOptions, Opened, Part, ProcessIndex,
    ProcessOptions, ProcessStore, RecoveryStore, RowBuffer, RowRoute, RunId, Slot, StepNumber, StepShape,
    StepTable,
};

use crate::{Result, expect};

/// Bytes of a row's value.
const VALUE_BYTES: usize = 64;
/// Changed rows of one commit.
const ROWS: u64 = 100_000;
/// Commits of a run.
const COMMITS: u64 = 30;
/// Commits whose parts are written and whose records are not, at most: the product's limit.
const IN_FLIGHT: usize = 4;

/// What is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Task {
    /// 30 commits of 100 000 changed rows each.
    Commits,
    /// The same rows, appended to one file that is synced after each commit.
    Sequential,
    /// Writes every key once; what `restore` reads.
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
    /// Different keys.
    #[arg(long)]
    keys: u64,
}

/// Runs one task and returns its seconds.
pub(crate) fn run(args: &StoreArgs) -> Result<f64> {
    match args.task {
        Task::Commits => commits(args),
        Task::Sequential => sequential(args),
        Task::Fill => fill(args),
        Task::Restore => restore(args),
    }
}

/// As the product does it: one thread writes parts, another publishes records and deletes what nobody needs.
fn commits(args: &StoreArgs) -> Result<f64> {
    let changes = changes(args);
    let (opened, store, _) = open(args)?;
    let started = Instant::now();
    publish_all(opened, store, &changes)?;
    Ok(started.elapsed().as_secs_f64())
}

fn sequential(args: &StoreArgs) -> Result<f64> {
    let changes = changes(args);
    let path = args.folder.join("rows");
    let mut file = File::create(&path)?;
    let started = Instant::now();
    for rows in &changes {
        file.write_all(rows.as_bytes())?;
        file.sync_data()?;
    }
    Ok(started.elapsed().as_secs_f64())
}

fn fill(args: &StoreArgs) -> Result<f64> {
    let changes: Vec<RowBuffer> = (0..args.keys / ROWS).map(|commit| changed(commit, |n| n)).collect();
    let (opened, store, _) = open(args)?;
    let started = Instant::now();
    publish_all(opened, store, &changes)?;
    Ok(started.elapsed().as_secs_f64())
}

fn restore(args: &StoreArgs) -> Result<f64> {
    let started = Instant::now();
    let (_, _, rows) = open(args)?;
    let seconds = started.elapsed().as_secs_f64();
    expect("rows that were restored", args.keys, rows)?;
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

/// Opens the store, reads all rows, and says how many they were.
fn open(args: &StoreArgs) -> Result<(Opened, ProcessStore, u64)> {
    let store = RecoveryStore::new(Arc::new(LocalDirectory::new(&args.folder)));
    let opened = store.open(&options(), None)?;
    let mut process = ProcessStore::new(
        store.storage().clone(),
        &opened.resume,
        ProcessIndex(0),
        ProcessOptions::default(),
    );
    let restored = process.restore(1, &|_| Some(0))?;
    Ok((opened, process, restored.rows))
}

fn publish_all(mut opened: Opened, mut store: ProcessStore, commits: &[RowBuffer]) -> Result<()> {
    let first = opened.resume.epoch.0;
    let (parts, to_publish) = sync_channel::<(Epoch, Vec<Part>)>(IN_FLIGHT);
    std::thread::scope(|scope| {
        let publisher = scope.spawn(move || -> Result<()> {
            for (epoch, parts) in to_publish {
                opened.publisher.publish(epoch, &parts)?;
                opened.publisher.retain()?;
            }
            Ok(())
        });
        for (epoch, rows) in (1..).map(|commit| Epoch(first + 10 * commit)).zip(commits) {
            let part = store.write_part(epoch, std::slice::from_ref(rows), Vec::new())?;
            if parts.send((epoch, part.into_iter().collect())).is_err() {
                break; // The publisher ended, and says below why.
            }
        }
        drop(parts);
        publisher.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// The rows of a run: any key is as likely as another, unless a commit changes as many rows as there are keys; then it changes
/// each once.
fn changes(args: &StoreArgs) -> Vec<RowBuffer> {
    let mut random = SmallRng::seed_from_u64(1);
    (0..COMMITS)
        .map(|commit| {
            changed(commit, |n| if args.keys == ROWS { n % ROWS } else { random.random_range(0..args.keys) })
        })
        .collect()
}

/// The rows of one commit; `key` says which key the n-th change is of.
fn changed(commit: u64, mut key: impl FnMut(u64) -> u64) -> RowBuffer {
    let mut rows = RowBuffer::new();
    let mut random = SmallRng::seed_from_u64(commit);
    for n in commit * ROWS..(commit + 1) * ROWS {
        let key = format!("c{:07}", key(n));
        let mut value = [0; VALUE_BYTES];
        random.fill_bytes(&mut value);
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
