//! A count per key over an in-memory source, which hands out what a Kafka reader would: the records of a poll are copied
//! into one arena. No broker takes part, so both worker threads have a core each.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};
use tidegate_operators::build::FlowBuild;
use tidegate_operators::clock::{Clock, SystemClock};
use tidegate_operators::commit::NoOffsets;
use tidegate_operators::context::WorkerContext;
use tidegate_operators::element::{Element, Headers, Meta, PartitionId, Record};
use tidegate_operators::ending::build_ending;
use tidegate_operators::fault::Fault;
use tidegate_operators::inputs::InputTable;
use tidegate_operators::process::ProcessContext;
use tidegate_operators::record::OnError;
use tidegate_operators::record::key_by;
use tidegate_operators::source::{
    CommitOutcome, PollBudget, SourceBatch, SourceReader, SourceSettings, source,
};
use tidegate_operators::stateful_map::{STATEFUL_MAP_STATE_VERSION, stateful_map};
use tidegate_operators::steps::{FlowSteps, StepSpec};
use tidegate_operators::time::Time;
use tidegate_recovery::{Epoch, EpochSchedule, EventTime, NextOffset, StepId, TopicPartition, WorkerIndex};

use crate::{Result, expect};

/// Different values.
const VALUES: usize = 500;
/// Length of every key.
const KEY_BYTES: usize = 8;
/// Length of every value.
const VALUE_BYTES: usize = 200;
const PARTITIONS: i32 = 4;

/// Arguments of one run.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ScalingArgs {
    /// Worker threads.
    #[arg(long)]
    workers: usize,
    /// Records that go through.
    #[arg(long)]
    records: u64,
    /// Different keys.
    #[arg(long)]
    keys: u64,
}

/// Runs the flow and returns its seconds.
pub(crate) fn run(args: &ScalingArgs) -> Result<f64> {
    let partitions = (0..PARTITIONS).map(|partition| TopicPartition::new("memory", partition));
    let inputs = InputTable::deal(partitions, args.workers);
    let [read, group, count] = ["read", "group", "count"].map(StepId::new);
    let steps = FlowSteps::new([
        StepSpec::stateless(read.clone(), "source"),
        StepSpec::stateless(group.clone(), "key_by"),
        StepSpec::stateful(count.clone(), "stateful_map", u16::from(STATEFUL_MAP_STATE_VERSION)),
    ])
    .map_err(|e| format!("list the steps: {e:?}"))?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::start());
    let schedule = EpochSchedule { first: Epoch(1), commit_every: 1 };
    let mut process = ProcessContext::alone(
        clock,
        schedule,
        Duration::from_millis(100),
        inputs,
        steps,
        Arc::new(NoOffsets),
    );
    process.workers_per_process = args.workers;
    process.peers = args.workers;
    process.until_end = true;
    let process = Arc::new(process);
    let (keys, per_partition) = (args.keys, args.records / PARTITIONS.unsigned_abs() as u64);
    let counted = Arc::new(AtomicU64::new(0));

    let (context_of, total) = (Arc::clone(&process), Arc::clone(&counted));
    let started = Instant::now();
    let guards = timely::execute(timely::Config::process(args.workers), move |worker| {
        let index = WorkerIndex(u32::try_from(worker.index()).unwrap_or(u32::MAX));
        let context = WorkerContext::new(Arc::clone(&context_of), index, HashMap::new());
        let reader = MemoryReader::new(context.inputs().owned_by(index), keys, per_partition);
        worker.dataflow::<Time, _, _>(|scope| {
            let build = FlowBuild::new(scope, context.clone());
            let records = source(&build, &read, reader, SourceSettings::default());
            let keyed =
                key_by(&build, &group, records, |element: &Element<Record>| element.value.key.clone());
            let mut seen = Seen { here: 0, total: Arc::clone(&total) };
            let counts =
                stateful_map(&build, &count, keyed, OnError::Fail, move |count: &mut Option<u64>, _| {
                    *count = Some(count.unwrap_or(0) + 1);
                    seen.add_one();
                    Ok::<_, String>(None::<u64>)
                });
            build.drain(counts);
            build.finish();
        });
        build_ending(worker, &context);
        while worker.has_dataflows() && !context.process().faults.is_raised() {
            worker.step_or_park(Some(context.epochs().until_next()));
        }
    })
    .map_err(|e| format!("start the workers: {e}"))?;
    for joined in guards.join() {
        joined.map_err(|e| format!("run a worker: {e}"))?;
    }
    let seconds = started.elapsed().as_secs_f64();
    if let Some(fault) = process.faults.first() {
        return Err(fault.to_string().into());
    }
    expect(
        "records that were counted",
        per_partition * PARTITIONS.unsigned_abs() as u64,
        counted.load(Ordering::Relaxed),
    )?;
    Ok(seconds)
}

/// What one worker counted; the workers' sums meet when their dataflows are gone.
struct Seen {
    here: u64,
    total: Arc<AtomicU64>,
}

impl Seen {
    /// A method, so that a closure takes the whole of it: a closure that names the field takes only that.
    fn add_one(&mut self) {
        self.here += 1;
    }
}

impl Drop for Seen {
    fn drop(&mut self) {
        self.total.fetch_add(self.here, Ordering::Relaxed);
    }
}

/// Hands out records with any key and one of a few values until each partition has given its share.
struct MemoryReader {
    partitions: Vec<PartitionId>,
    positions: Vec<i64>,
    held: Vec<bool>,
    end: i64,
    keys: u64,
    random: SmallRng,
    /// Few enough to stay in the processor's cache: what is measured is the flow.
    values: Vec<[u8; VALUE_BYTES]>,
}

impl MemoryReader {
    fn new(partitions: Vec<PartitionId>, keys: u64, per_partition: u64) -> MemoryReader {
        let mut random = SmallRng::seed_from_u64(1);
        let values = (0..VALUES)
            .map(|_| {
                let mut value = [0; VALUE_BYTES];
                random.fill_bytes(&mut value);
                value
            })
            .collect();
        let count = partitions.len();
        let end = i64::try_from(per_partition).unwrap_or(i64::MAX);
        MemoryReader {
            partitions,
            positions: vec![0; count],
            held: vec![false; count],
            end,
            keys,
            random,
            values,
        }
    }

    /// A key of 8 bytes.
    fn key(&mut self) -> [u8; KEY_BYTES] {
        let mut rest = self.random.random_range(0..self.keys);
        let mut key = *b"c0000000";
        for digit in key[1..].iter_mut().rev() {
            *digit += (rest % 10) as u8;
            rest /= 10;
        }
        key
    }

    fn place(&self, partition: PartitionId) -> Option<usize> {
        self.partitions.iter().position(|&other| other == partition)
    }
}

impl SourceReader for MemoryReader {
    fn partitions(&self) -> &[PartitionId] {
        &self.partitions
    }

    fn poll(&mut self, budget: PollBudget, batches: &mut Vec<SourceBatch>) -> std::result::Result<(), Fault> {
        let share = budget.records.div_ceil(self.partitions.len().max(1));
        for place in 0..self.partitions.len() {
            let partition = self.partitions[place];
            let from = self.positions[place];
            let to = self.end.min(from + i64::try_from(share).unwrap_or(i64::MAX));
            if self.held[place] || from == to {
                continue;
            }
            let bytes = usize::try_from(to - from).unwrap_or(0) * (KEY_BYTES + VALUE_BYTES);
            let mut arena = BytesMut::with_capacity(bytes);
            for offset in from..to {
                let key = self.key();
                arena.extend_from_slice(&key);
                arena.extend_from_slice(&self.values[usize::try_from(offset).unwrap_or(0) % VALUES]);
            }
            let mut arena: Bytes = arena.freeze();
            let elements = (from..to)
                .map(|offset| {
                    let value = Record {
                        key: Some(arena.split_to(KEY_BYTES)),
                        value: Some(arena.split_to(VALUE_BYTES)),
                    };
                    let meta = Meta {
                        partition,
                        offset,
                        timestamp: None,
                        event: EventTime::MIN,
                        watermark: EventTime::MIN,
                        headers: Headers::default(),
                        original: None,
                    };
                    Element { value, meta }
                })
                .collect();
            batches.push(SourceBatch { partition, elements, bytes });
            self.positions[place] = to;
        }
        Ok(())
    }

    fn position(&self, partition: PartitionId) -> NextOffset {
        NextOffset(self.place(partition).map_or(0, |place| self.positions[place]))
    }

    fn readable_end(&self, _: PartitionId) -> Option<NextOffset> {
        Some(NextOffset(self.end))
    }

    fn log_end(&self, _: PartitionId) -> Option<NextOffset> {
        Some(NextOffset(self.end))
    }

    fn end_at_start(&self, _: PartitionId) -> NextOffset {
        NextOffset(self.end)
    }

    fn hold(&mut self, partition: PartitionId, held: bool) {
        if let Some(place) = self.place(partition) {
            self.held[place] = held;
        }
    }

    fn commit(&mut self, _: &[(PartitionId, NextOffset)]) {}

    fn commit_outcomes(&mut self) -> Vec<CommitOutcome> {
        Vec::new()
    }

    fn commit_and_wait(
        &mut self,
        _: &[(PartitionId, NextOffset)],
        _: Duration,
    ) -> std::result::Result<(), String> {
        Ok(())
    }
}
