//! A cluster in a world that a seed decides: who steps when, what arrives, what freezes, when everything dies.
//!
//! A run is a row of generations on changing numbers of workers. Each but the last ends with a kill or a stop; the
//! last one reads to the end. Between two actions the world checks what must hold at every moment; at the end it
//! compares the output with a straight recount.

use crate::flows::Flow;
use crate::offsets::Offsets;
use crate::store::StoreModel;
use crate::workers::{Answer, Wire, Workers};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_operators::build::FlowBuild;
use tidegate_operators::clock::{Clock, EpochClock, VirtualClock};
use tidegate_operators::context::WorkerContext;
use tidegate_operators::ending::build_ending;
use tidegate_operators::fault::Faults;
use tidegate_operators::inputs::InputTable;
use tidegate_operators::limits::{Limits, SinkLoad};
use tidegate_operators::memory::{MemoryBroker, MemoryOutput};
use tidegate_operators::process::{DeliveryGuarantee, ProcessContext, Sabotage};
use tidegate_operators::status::StatusBoard;
use tidegate_operators::time::Time;
use tidegate_recovery::{
    Assignment, CommitTracker, Epoch, EpochSchedule, Generation, ProcessIndex, StopRequest, TopicPartition,
    TrackerSettings, WorkerIndex,
};

/// What a run is made of; the rest is up to the seed.
#[derive(Clone)]
pub(crate) struct Plan {
    pub(crate) flow: Flow,
    pub(crate) store: bool,
    pub(crate) delivery: DeliveryGuarantee,
    /// Generations before the last.
    pub(crate) generations: usize,
    pub(crate) partitions: i32,
    pub(crate) records: usize,
    pub(crate) sabotage: Sabotage,
    pub(crate) limits: Limits,
    /// Whether sinks, store and commits may freeze or fail for a while, and transactions stay open.
    pub(crate) trouble: bool,
    /// Whether a generation may end with a stop, or with an end.
    pub(crate) stops: bool,
    pub(crate) ends: bool,
    pub(crate) peers_max: usize,
    /// Records arrive in rounds on all partitions at once, with silence in between.
    pub(crate) rounds: bool,
    /// The first partition is far ahead of the others in event time.
    pub(crate) skewed: bool,
    /// Before the last generation, one runs until a window has fired by itself.
    pub(crate) must_fire: bool,
    /// How far apart the watermarks of two partitions may be, in milliseconds.
    pub(crate) spread_max_ms: Option<i64>,
    /// How long a partition is silent before it counts as idle.
    pub(crate) idle: Duration,
    /// Out-of-orderness of the flow's event times, in milliseconds.
    pub(crate) out_of_order_ms: i64,
}

impl Plan {
    pub(crate) fn new(flow: Flow) -> Plan {
        Plan {
            flow,
            store: true,
            delivery: DeliveryGuarantee::AtLeastOnce,
            generations: 3,
            partitions: 3,
            records: 240,
            sabotage: Sabotage::default(),
            limits: Limits { batch_records: 7, slice_records: 16, watermark_step_ms: 1, ..Limits::default() },
            trouble: true,
            stops: true,
            ends: false,
            peers_max: 4,
            rounds: false,
            skewed: false,
            must_fire: false,
            spread_max_ms: None,
            idle: Duration::from_secs(100_000),
            out_of_order_ms: 50,
        }
    }
}

/// What a run came to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) actions: usize,
    pub(crate) kills: usize,
    pub(crate) stops: usize,
    pub(crate) records: u64,
    pub(crate) late: u64,
}

pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) random: SmallRng,
    pub(crate) clock: VirtualClock,
    pub(crate) broker: MemoryBroker,
    pub(crate) output: MemoryOutput,
    pub(crate) store: StoreModel,
    pub(crate) names: Vec<TopicPartition>,
    /// What is still to be appended, by partition; ids ascend over all.
    script: Vec<std::collections::VecDeque<crate::flows::Scripted>>,
    frozen: bool,
    stuck_store: bool,
    failing_commits: bool,
    open: Vec<bool>,
    next_epoch: Epoch,
    outcome: Outcome,
    /// Highest offset that the group ever showed, by partition.
    highest: BTreeMap<TopicPartition, i64>,
}

/// One generation: its workers, and what its processes share.
struct Cluster {
    workers: Workers,
    processes: Vec<Arc<ProcessContext>>,
}

/// Actions after which a run that should be over counts as stuck.
const ACTIONS_MAX: usize = 60_000;

impl World {
    pub(crate) fn new(seed: u64, plan: &Plan) -> World {
        let mut random = SmallRng::seed_from_u64(seed);
        let names: Vec<_> = (0..plan.partitions).map(|number| TopicPartition::new("in", number)).collect();
        let script = plan.flow.script(&mut random, plan, names.len());
        World {
            clock: VirtualClock::new(1_000_000_000_000),
            broker: MemoryBroker::new(names.iter().cloned()),
            output: MemoryOutput::new(),
            store: StoreModel::default(),
            script,
            frozen: false,
            stuck_store: false,
            failing_commits: false,
            open: vec![false; names.len()],
            next_epoch: Epoch(1),
            outcome: Outcome::default(),
            highest: BTreeMap::new(),
            names,
            random,
            plan: plan.clone(),
        }
    }

    fn one_in(&mut self, chances: u32) -> bool {
        self.random.random_ratio(1, chances)
    }

    /// Starts a generation from what is durable.
    fn start(&mut self, peers: usize, until_end: bool) -> Cluster {
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
                    let ends = crate::flows::Ends {
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

    /// One action: mostly a step of some worker. Returns an error when something is wrong.
    fn act(&mut self, cluster: &mut Cluster, slow: Option<usize>) -> Result<(), String> {
        self.outcome.actions += 1;
        match self.random.random_range(0..100) {
            0..72 => {
                let worker = self.random.random_range(0..cluster.workers.peers());
                if slow == Some(worker) && !self.one_in(10) {
                    return Ok(());
                }
                match cluster.workers.step(worker) {
                    Answer::Stepped(_) => {}
                    Answer::Panicked(text) => return Err(format!("worker {worker} panicked: {text}")),
                    Answer::Closed(_) => unreachable!("it was told to step"),
                }
            }
            72..90 => {
                let by = if self.one_in(30) { 700 } else { self.random.random_range(1..30) };
                self.clock.advance(Duration::from_millis(by));
                self.output.wake();
                self.store.wake();
            }
            90..98 if self.plan.rounds => {
                if self.one_in(40) {
                    self.append_round();
                }
            }
            90..98 => {
                let partition = self.random.random_range(0..self.names.len());
                let count = self.random.random_range(1..8);
                self.append(partition, count);
            }
            _ if self.plan.trouble => self.trouble(),
            _ => {}
        }
        Ok(())
    }

    fn append(&mut self, partition: usize, count: usize) {
        for _ in 0..count {
            let Some(next) = self.script[partition].pop_front() else { return };
            let name = &self.names[partition];
            match next.record {
                Some(record) => self.broker.append(name, record, Some(next.event)),
                None => self.broker.append_nothing(name),
            }
        }
    }

    /// The next round arrives on every partition at one moment.
    fn append_round(&mut self) {
        let Some(round) = self.script.iter().filter_map(|queue| Some(queue.front()?.round)).min() else {
            return;
        };
        for partition in 0..self.names.len() {
            while self.script[partition].front().is_some_and(|next| next.round == round) {
                self.append(partition, 1);
            }
        }
    }

    fn trouble(&mut self) {
        match self.random.random_range(0..8) {
            0 | 1 => {
                self.frozen = !self.frozen;
                self.output.freeze(self.frozen);
            }
            2 | 3 => {
                self.stuck_store = !self.stuck_store;
                self.store.freeze(self.stuck_store);
            }
            4 | 5 => {
                self.failing_commits = !self.failing_commits;
                self.broker.fail_commits(self.failing_commits.then_some("the coordinator is away"));
            }
            _ => {
                let partition = self.random.random_range(0..self.names.len());
                self.open[partition] = !self.open[partition];
                if self.open[partition] {
                    self.broker.open_transaction(&self.names[partition]);
                } else {
                    self.broker.close_transaction(&self.names[partition]);
                }
            }
        }
    }

    fn calm(&mut self) {
        self.frozen = false;
        self.stuck_store = false;
        self.failing_commits = false;
        self.output.freeze(false);
        self.store.freeze(false);
        self.broker.fail_commits(None);
        for (open, name) in self.open.iter_mut().zip(&self.names) {
            if std::mem::take(open) {
                self.broker.close_transaction(name);
            }
        }
    }

    /// What must hold at every moment.
    fn check(&mut self, cluster: &Cluster) -> Result<(), String> {
        for process in &cluster.processes {
            if let Some(fault) = process.faults.first() {
                return Err(format!("a fault: {fault}"));
            }
        }
        for name in &self.names {
            let committed = self.broker.committed(name).map_or(0, |next| next.0);
            let highest = self.highest.entry(name.clone()).or_default();
            if committed < *highest {
                return Err(format!("the group went back from {highest} to {committed} on {name}"));
            }
            *highest = committed;
            if committed > self.broker.log_end(name).0 {
                return Err(format!("the group is beyond the end of {name}"));
            }
        }
        if let Some(max) = self.plan.spread_max_ms {
            let partitions =
                cluster.processes.iter().flat_map(|process| process.status.snapshot().partitions);
            let watermarks: Vec<i64> =
                partitions.filter_map(|partition| Some(partition.watermark?.0)).collect();
            if let (Some(low), Some(high)) = (watermarks.iter().min(), watermarks.iter().max())
                && watermarks.len() == self.names.len()
                && high - low > max
            {
                return Err(format!("watermarks are {} ms apart", high - low));
            }
        }
        self.plan.flow.check_commits(self)
    }

    /// A generation that has all records and no end: some window fires by itself.
    fn fires(&mut self) -> Result<(), String> {
        let peers = self.random.random_range(1..=self.plan.peers_max);
        let mut cluster = self.start(peers, false);
        let before = self.output.len();
        let mut actions = 0;
        while self.output.len() == before {
            self.act(&mut cluster, None)?;
            if actions % 64 == 0 {
                self.check(&cluster)?;
            }
            actions += 1;
            if actions > 20_000 {
                return Err("no window fires by itself".to_owned());
            }
        }
        self.kill(cluster);
        Ok(())
    }

    /// One line about a cluster that does not move.
    fn where_it_stands(&self, cluster: &Cluster) -> String {
        let mut text = String::new();
        for process in &cluster.processes {
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

    fn count_late(&mut self, cluster: &Cluster) {
        for process in &cluster.processes {
            for step in process.status.snapshot().steps.values() {
                self.outcome.late += step.late;
            }
        }
    }

    fn kill(&mut self, cluster: Cluster) {
        self.count_late(&cluster);
        cluster.workers.kill();
        self.outcome.kills += 1;
        let arrived = self.random.random_bool(0.5);
        self.store.crash(arrived);
        let mut random = SmallRng::seed_from_u64(self.random.random());
        self.output.lose_writers(|| random.random_bool(0.5));
        self.next_epoch = Epoch(self.next_epoch.0 + 1000);
    }

    /// Steps until the cluster has ended.
    fn run_to_the_end(&mut self, mut cluster: Cluster) -> Result<(), String> {
        let mut actions = 0;
        while cluster.workers.any_live() {
            let slow = None;
            self.act(&mut cluster, slow)?;
            if actions % 16 == 0 {
                self.check(&cluster)?;
            }
            actions += 1;
            if actions > ACTIONS_MAX {
                return Err(format!("stuck: {}", self.where_it_stands(&cluster)));
            }
        }
        for worker in 0..cluster.workers.peers() {
            match cluster.workers.close(worker) {
                Answer::Closed(Ok(())) => {}
                other => return Err(format!("worker {worker} did not close: {other:?}")),
            }
        }
        self.check(&cluster)?;
        self.count_late(&cluster);
        cluster.workers.kill();
        self.store.crash(false);
        self.output.lose_writers(|| true);
        self.next_epoch = Epoch(self.next_epoch.0 + 1000);
        Ok(())
    }

    /// A generation that does not read to the end.
    fn generation(&mut self) -> Result<(), String> {
        let peers = self.random.random_range(1..=self.plan.peers_max);
        let ends = self.plan.ends && self.one_in(3);
        let mut cluster = self.start(peers, ends);
        if ends {
            self.calm();
            self.plan.trouble = false;
            let ended = self.run_to_the_end(cluster);
            self.plan.trouble = true;
            return ended;
        }
        let slow = self.one_in(3).then(|| self.random.random_range(0..peers));
        for action in 0..self.random.random_range(50..1500) {
            self.act(&mut cluster, slow)?;
            if action % 16 == 0 {
                self.check(&cluster)?;
            }
        }
        if self.plan.stops && self.one_in(3) {
            self.calm();
            self.outcome.stops += 1;
            let process = self.random.random_range(0..cluster.processes.len());
            cluster.processes[process].stop.request();
            let trouble = std::mem::take(&mut self.plan.trouble);
            let stopped = self.run_to_the_end(cluster);
            self.plan.trouble = trouble;
            return stopped;
        }
        self.kill(cluster);
        Ok(())
    }

    /// The whole run.
    pub(crate) fn run(mut self) -> Result<Outcome, String> {
        for _ in 0..self.plan.generations {
            self.generation()?;
        }
        self.calm();
        self.plan.trouble = false;
        if !self.plan.must_fire || !self.plan.rounds {
            for partition in 0..self.names.len() {
                self.append(partition, usize::MAX);
            }
        }
        if self.plan.must_fire {
            self.fires()?;
        }
        let peers = self.random.random_range(1..=self.plan.peers_max);
        let cluster = self.start(peers, true);
        self.run_to_the_end(cluster)?;
        if self.plan.delivery != DeliveryGuarantee::ExactlyOnce {
            for name in &self.names {
                let (committed, end) = (self.broker.committed(name), self.broker.log_end(name));
                if committed != Some(end) && end.0 > 0 {
                    return Err(format!("{name} ends at {end} and the group stands at {committed:?}"));
                }
            }
        }
        self.plan.flow.check_output(&self)?;
        self.outcome.records = self.store.records();
        Ok(self.outcome)
    }
}

/// Runs one seed.
pub(crate) fn run(seed: u64, plan: &Plan) -> Result<Outcome, String> {
    World::new(seed, plan).run().map_err(|error| format!("seed {seed}: {error}"))
}
