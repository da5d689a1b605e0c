//! A cluster in a world that a seed decides: who steps when, what arrives, what freezes, when everything dies.
//!
//! A run is a row of generations on changing numbers of workers. Each but the last ends with a kill or a stop; the
//! last one reads to the end. Between two actions the world checks what must hold at every moment; at the end it
//! compares the output with a straight recount.

mod generation;
mod plan;
mod trouble;

use crate::flows::Scripted;
use crate::store::StoreModel;
use crate::workers::Answer;
use generation::Cluster;
pub(crate) use plan::{Outcome, Plan};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use tidegate_operators::clock::VirtualClock;
use tidegate_operators::memory::{MemoryBroker, MemoryOutput};
use tidegate_operators::process::DeliveryGuarantee;
use tidegate_recovery::{Epoch, TopicPartition};
use trouble::Trouble;

pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) random: SmallRng,
    pub(crate) clock: VirtualClock,
    pub(crate) broker: MemoryBroker,
    pub(crate) output: MemoryOutput,
    pub(crate) store: StoreModel,
    pub(crate) names: Vec<TopicPartition>,
    /// What is still to be appended, by partition; ids ascend over all.
    script: Vec<VecDeque<Scripted>>,
    trouble: Trouble,
    next_epoch: Epoch,
    outcome: Outcome,
    /// Highest offset that the group ever showed, by partition.
    highest: BTreeMap<TopicPartition, i64>,
}

/// Actions after which a run that should be over counts as stuck.
const ACTIONS_MAX: usize = 60_000;

impl World {
    pub(crate) fn new(seed: u64, plan: &Plan) -> World {
        let mut random = SmallRng::seed_from_u64(seed);
        let names: Vec<_> = (0..plan.partitions).map(|number| TopicPartition::new("in", number)).collect();
        let script = plan.flow.script(&mut random, plan, names.len());
        let broker = MemoryBroker::new(names.iter().cloned());
        let (output, store) = (MemoryOutput::new(), StoreModel::default());
        World {
            clock: VirtualClock::new(1_000_000_000_000),
            script,
            trouble: Trouble::new(&broker, &output, &store, &names),
            next_epoch: Epoch(1),
            outcome: Outcome::default(),
            highest: BTreeMap::new(),
            names,
            broker,
            output,
            store,
            random,
            plan: plan.clone(),
        }
    }

    fn one_in(&mut self, chances: u32) -> bool {
        self.random.random_ratio(1, chances)
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
            _ if self.plan.trouble => self.trouble.change(&mut self.random),
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
                return Err(format!("stuck: {}", cluster.where_it_stands()));
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
            self.trouble.calm();
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
            self.trouble.calm();
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
        self.trouble.calm();
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
