//! One generation of a simulated cluster: how it starts, and where it stands.

use super::World;
use crate::flows::Ends;
use crate::offsets::Offsets;
use crate::workers::{Wire, Workers};
use rand::Rng;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_operators::build::FlowBuild;
use tidegate_operators::clock::{Clock, EpochClock};
use tidegate_operators::context::WorkerContext;
use tidegate_operators::ending::build_ending;
use tidegate_operators::fault::Faults;
use tidegate_operators::inputs::InputTable;
use tidegate_operators::limits::SinkLoad;
use tidegate_operators::process::{DeliveryGuarantee, ProcessContext};
use tidegate_operators::status::StatusBoard;
use tidegate_operators::time::Time;
use tidegate_recovery::{
    Assignment, CommitTracker, Epoch, EpochSchedule, Generation, ProcessIndex, StopRequest, TrackerSettings,
    WorkerIndex,
};

/// One generation: its workers, and what its processes share.
pub(super) struct Cluster {
    pub(super) workers: Workers,
    pub(super) processes: Vec<Arc<ProcessContext>>,
}

impl Cluster {
    /// One line about a cluster that does not move.
    pub(super) fn where_it_stands(&self) -> String {
        let mut text = String::new();
        for process in &self.processes {
            let status = process.status.snapshot();
            text += &format!(
                "durable {} record {:?} sinks {}; ",
                status.durable_epoch, status.record, status.sink_bytes
            );
            for (worker, at) in &status.workers {
                text += &format!(
                    "worker {worker}: epoch {} in flight {} limit {:?} waiting {:?} ending {:?}; ",
                    at.epoch, at.in_flight_records, at.limit, at.waiting, at.ending
                );
            }
            for (step, at) in &status.steps {
                text += &format!("{step}: {}/{}; ", at.received, at.emitted);
            }
            for at in &status.partitions {
                text += &format!(
                    "{}: at {:?} committed {:?} end {:?} watermark {:?} held {:?}; ",
                    at.partition, at.position, at.committed, at.log_end, at.watermark, at.held
                );
            }
        }
        text
    }
}

impl World {
    /// Starts a generation from what is durable.
    pub(super) fn start(&mut self, peers: usize, until_end: bool) -> Cluster {
        // Processes of one size: any divisor of the number of workers.
        let divisors: Vec<usize> = (1..=peers).filter(|threads| peers.is_multiple_of(*threads)).collect();
        let threads = divisors[self.random.random_range(0..divisors.len())];
        let inputs = InputTable::deal(self.names.iter().cloned(), peers);
        let steps = self.plan.flow.steps();
        let durable = self.store.durable();
        let first = durable.epoch.map_or(self.next_epoch, Epoch::next);
        let commit_every = self.random.random_range(1..8);
        let schedule = EpochSchedule { first, commit_every };
        let origin = Instant::now();
        let interval = Duration::from_millis(self.random.random_range(5..60));
        self.store.latency(Duration::from_millis(self.random.random_range(0..120)));
        let sink_latency = Duration::from_millis(self.random.random_range(0..150));
        let capacity = self.random.random_range(1..60);
        let mut start = BTreeMap::new();
        for name in &self.names {
            let resumed = self.plan.store.then(|| durable.offsets.get(name).copied()).flatten();
            let group = self.broker.committed(name);
            let from = match self.plan.delivery {
                DeliveryGuarantee::AtMostOnce => resumed.max(group),
                _ => resumed.or(group),
            };
            start.extend(from.map(|from| (name.clone(), from)));
        }
        let clock: Arc<dyn Clock> = Arc::new(self.clock.clone());
        let processes: Vec<Arc<ProcessContext>> = (0..peers / threads)
            .map(|process| {
                let tracker = Arc::new(CommitTracker::new(TrackerSettings {
                    retry_min: Duration::from_millis(20),
                    ..TrackerSettings::default()
                }));
                let of_process = |id: &WorkerIndex| id.0 as usize / threads == process;
                let assignments: Vec<Assignment> = inputs
                    .iter()
                    .filter(|(_, input)| of_process(&input.owner))
                    .map(|(_, input)| Assignment {
                        partition: input.name.clone(),
                        resumed: self.plan.store.then(|| durable.offsets.get(&input.name).copied()).flatten(),
                        group: self.broker.committed(&input.name),
                    })
                    .collect();
                tracker.begin(&assignments, origin + self.clock.now());
                let offsets = Offsets { tracker: tracker.clone(), inputs: inputs.clone(), origin };
                let mut context = ProcessContext::alone(
                    clock.clone(),
                    schedule,
                    interval,
                    inputs.clone(),
                    steps.clone(),
                    Arc::new(offsets),
                );
                context.process = ProcessIndex(process as u32);
                context.workers_per_process = threads;
                context.peers = peers;
                context.delivery = self.plan.delivery;
                context.limits = self.plan.limits.clone();
                context.sinks = SinkLoad::new(context.limits.sink_in_flight_bytes);
                // The processes' clocks differ a little.
                let skew = Duration::from_millis(self.random.random_range(0..40));
                let began = self.clock.now().saturating_sub(skew);
                context.epochs = EpochClock::new(clock.clone(), &schedule, began, interval);
                context.until_end = until_end;
                context.stop = StopRequest::new();
                context.faults = Faults::new();
                context.status = StatusBoard::new(Generation(1));
                context.sabotage = self.plan.sabotage;
                if self.plan.store {
                    let io = self.store.process(self.clock.clone(), context.process, threads, tracker);
                    context.snapshots = Some(Arc::new(io));
                }
                Arc::new(context)
            })
            .collect();
        let restored =
            if self.plan.store { durable.restore(&inputs, peers) } else { vec![BTreeMap::new(); peers] };
        let restored = std::sync::Mutex::new(restored);
        let wire = if self.one_in(4) { Wire::Bytes } else { Wire::Pointer };
        let build = {
            let processes = processes.clone();
            let plan = self.plan.clone();
            let (broker, output, clock) = (self.broker.clone(), self.output.clone(), clock.clone());
            move |worker: &mut timely::worker::Worker| {
                let index = worker.index();
                let mine = std::mem::take(&mut restored.lock().expect("no worker panics here")[index]);
                let mine: HashMap<_, _> = mine.into_iter().collect();
                let process = processes[index / threads].clone();
                let context = WorkerContext::new(process, WorkerIndex(index as u32), mine);
                worker.dataflow::<Time, _, _>(|scope| {
                    let build = FlowBuild::new(scope, context.clone());
                    let ends = Ends {
                        broker: &broker,
                        output: &output,
                        clock: clock.clone(),
                        start: &start,
                        sink_latency,
                        capacity,
                    };
                    plan.flow.build(&build, &plan, &ends);
                    build.finish();
                });
                build_ending(worker, &context);
                context
            }
        };
        Cluster { workers: Workers::start(peers, wire, build), processes }
    }
}
