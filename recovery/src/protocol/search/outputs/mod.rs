//! The world behind the commit record: outboxes, markers, slots, a broker with transactions.
//!
//! Two input partitions of two records each; every record gives one output row, whose key is its partition and lives on the same
//! or on the other process when there are two. One or two processes, chosen anew at every start. The machines are the ones that production code
//! runs; every request to the broker, every look at the lease and every record is a step of its own. What may go wrong, within the
//! bounds: an old generation that goes on later, a process that dies, an answer that is lost (the request done, not done, or done later),
//! a transaction that times out, a host crash that takes records that are visible and not durable, a store that is emptied or
//! replaced by an older copy of itself.
//!
//! After every step: each row was read at most once by a reader of committed records, in order per key and without a gap (a row that
//! is lost is a gap, or an offset that passes it); no offset of the group passes a row that cannot be read; none goes down; the
//! newest generation is never the one that is told to stop. Where nothing more can happen, everything is out.
//!
//! The store is coarse here, since it has a search of its own: a record is created in one step and counts in a second one, behind
//! which retention works at once. News travel at once within a generation.

mod commit;
mod requests;
mod start;

use super::Explored;
use super::broker::{Broker, IDS, Outcome, Producer, Row};
use super::disk::Offsets;
use super::reads::Reads;
use crate::protocol::Rules;
use crate::protocol::exactly_once::*;
use crate::protocol::owed::Owed;
use crate::{Epoch, Generation, NextOffset, OutboxRef, Slot, TopicPartition};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::LazyLock;

static PARTITIONS: LazyLock<[TopicPartition; 2]> =
    LazyLock::new(|| [TopicPartition::new("in", 0), TopicPartition::new("in", 1)]);

/// How large the world is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) starts: usize,
    pub(super) zombies: usize,
    /// Answers that may be lost.
    pub(super) lost: usize,
    /// Answers to every request may be lost, not only to those that end a transaction or initialise a producer.
    pub(super) any_lost: bool,
    pub(super) expiries: usize,
    pub(super) crashes: usize,
    /// How often the store may be emptied or replaced by an older copy.
    pub(super) wipes: usize,
    pub(super) older_copies: usize,
    /// How often the group may be told again what it has.
    pub(super) keepalives: usize,
    /// A key lives on the other process than the partition that it comes from, when there are two.
    pub(super) keys_cross: bool,
    /// Processes that a start may choose.
    pub(super) shapes: &'static [u8],
    /// Commit epochs that a generation closes.
    pub(super) epochs: u8,
    /// Commit epochs that are closed and not durable.
    pub(super) in_flight: usize,
    /// The first start's epochs are far apart, as if nothing had changed in between.
    pub(super) leaps: bool,
    /// A start may also find the one before it dead.
    pub(super) kills: bool,
    pub(super) reads: Reads,
    pub(super) states_max: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Record {
    epoch: Epoch,
    offsets: Offsets,
    slots: Vec<Slot>,
    owed: BTreeSet<OutboxRef>,
    durable: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Store {
    /// Which store it is: emptied, it is another one.
    id: u8,
    leases: Vec<(Generation, Vec<Slot>)>,
    records: BTreeMap<u64, Record>,
    outboxes: BTreeMap<OutboxRef, Vec<Row>>,
}

/// A machine's outstanding action, and the producers that it drives.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Driven<M> {
    machine: M,
    action: Option<Action>,
    hands: Hands,
}

/// What a driver keeps between two requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Hands {
    /// By slot.
    producers: [Option<Producer>; 2],
    /// The first half of the outstanding action is done.
    halfway: bool,
    /// Only with a rule switched off: offsets that are committed plainly behind the transaction.
    plain: [Option<u8>; 2],
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Run {
    store: u8,
    generation: Generation,
    processes: u8,
    gone: bool,
    start: Driven<OutputStart>,
    /// The number of the record that the start chose, and the record.
    chosen: Option<(u64, Record)>,
    running: Option<Running>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Running {
    epoch: Epoch,
    offsets: Offsets,
    closed: VecDeque<Closed>,
    owed: Owed,
    /// The number of the newest record, and whether the next one is created but does not count yet.
    number: u64,
    created: bool,
    epochs_left: u8,
    processes: Vec<Driven<SlotPublisher>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Closed {
    epoch: Epoch,
    offsets: Offsets,
    outboxes: Vec<OutboxRef>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Outputs {
    broker: Broker,
    store: Store,
    runs: Vec<Run>,
    zombies: usize,
    lost: usize,
    expiries: usize,
    crashes: usize,
    wipes: usize,
    older_copies: usize,
    keepalives: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Start {
        processes: u8,
        zombie: bool,
    },
    /// The start of a run, up to the barrier.
    Begin {
        run: usize,
        outcome: Outcome,
    },
    Close {
        run: usize,
        read: Offsets,
    },
    Record {
        run: usize,
    },
    Publish {
        run: usize,
        process: usize,
        outcome: Outcome,
    },
    KeepAlive {
        run: usize,
        process: usize,
    },
    Expire {
        id: u8,
    },
    Arrive,
    Crash,
    Wipe,
    OlderCopy,
}

/// The offsets of the partitions that a process reads.
fn owned(processes: u8, process: u8, offsets: Offsets) -> Vec<(TopicPartition, NextOffset)> {
    let owned = (0..2_u8).filter(|partition| partition % processes == process);
    owned
        .map(|partition| {
            let next = NextOffset(offsets[usize::from(partition)].into());
            (PARTITIONS[usize::from(partition)].clone(), next)
        })
        .collect()
}

fn slots(processes: u8) -> Vec<Slot> {
    (0..processes).map(|process| Slot(process.into())).collect()
}

impl Explored for Outputs {
    type Step = Step;
    type Bounds = Bounds;

    fn steps(&self, bounds: &Bounds) -> Vec<Step> {
        let mut steps = Vec::new();
        let may_lose = self.lost < bounds.lost && !self.broker.is_late();
        for (index, run) in self.runs.iter().enumerate().filter(|(_, run)| !run.gone) {
            if let Some(action) = &run.start.action
                && self.can(&run.start)
            {
                steps.push(Step::Begin { run: index, outcome: Outcome::Answered });
                if may_lose {
                    let lost = requests::outcomes(action, bounds.any_lost).iter();
                    steps.extend(lost.map(|outcome| Step::Begin { run: index, outcome: *outcome }));
                }
            }
            let Some(running) = &run.running else { continue };
            for (process, driven) in running.processes.iter().enumerate() {
                if let Some(action) = &driven.action
                    && self.can(driven)
                {
                    steps.push(Step::Publish { run: index, process, outcome: Outcome::Answered });
                    if may_lose {
                        let lost = requests::outcomes(action, bounds.any_lost).iter();
                        steps.extend(lost.map(|outcome| Step::Publish {
                            run: index,
                            process,
                            outcome: *outcome,
                        }));
                    }
                }
            }
            if self.keepalives < bounds.keepalives {
                let all = 0..running.processes.len();
                steps.extend(all.map(|process| Step::KeepAlive { run: index, process }));
            }
            if !running.closed.is_empty() {
                steps.push(Step::Record { run: index });
            }
            if running.closed.len() < bounds.in_flight && running.epochs_left > 0 {
                let reads = bounds.reads.choices(index == 0, running.offsets);
                steps.extend(reads.into_iter().map(|read| Step::Close { run: index, read }));
            }
        }
        if self.runs.len() < bounds.starts {
            let current = self.runs.iter().any(|run| !run.gone);
            for &processes in bounds.shapes {
                if bounds.kills || !current {
                    steps.push(Step::Start { processes, zombie: false });
                }
                if current && self.zombies < bounds.zombies {
                    steps.push(Step::Start { processes, zombie: true });
                }
            }
        }
        if self.expiries < bounds.expiries {
            let open = (0..IDS as u8).filter(|id| self.broker.is_open(*id));
            steps.extend(open.map(|id| Step::Expire { id }));
        }
        if self.broker.is_late() {
            steps.push(Step::Arrive);
        }
        if self.crashes < bounds.crashes && self.store.records.values().any(|record| !record.durable) {
            steps.push(Step::Crash);
        }
        if self.wipes < bounds.wipes && !self.store.records.is_empty() {
            steps.push(Step::Wipe);
        }
        if self.older_copies < bounds.older_copies && self.store.records.len() > 1 {
            steps.push(Step::OlderCopy);
        }
        steps
    }

    fn take(&mut self, step: Step, rules: Rules, bounds: &Bounds) -> Result<(), String> {
        match step {
            Step::Start { processes, zombie } => self.start(processes, zombie, rules),
            Step::Begin { run, outcome } => {
                self.lost += usize::from(outcome != Outcome::Answered);
                return self.begin(run, outcome, rules, bounds);
            }
            Step::Close { run, read } => self.close(run, read, bounds),
            Step::Record { run } => return self.record(run, rules),
            Step::Publish { run, process, outcome } => {
                self.lost += usize::from(outcome != Outcome::Answered);
                return self.publish(run, process, outcome, rules);
            }
            Step::KeepAlive { run, process } => {
                self.keepalives += 1;
                return self.tell(run, process, Event::KeepAlive);
            }
            Step::Expire { id } => {
                self.expiries += 1;
                return self.broker.expire(id);
            }
            Step::Arrive => return self.broker.arrive(),
            Step::Crash => {
                self.crashes += 1;
                self.end_all();
                self.store.records.retain(|_, record| record.durable);
            }
            Step::Wipe => {
                self.wipes += 1;
                self.end_all();
                self.store = Store { id: self.store.id + 1, ..Store::default() };
            }
            Step::OlderCopy => {
                self.older_copies += 1;
                self.end_all();
                self.store.records.pop_last();
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        // What a store that is gone had open hides rows until it times out.
        if self.wipes > 0 { self.broker.check_committed() } else { self.broker.check() }
    }

    fn at_rest(&self) -> Result<(), String> {
        let Some(run) = self.runs.last() else { return Ok(()) };
        // It has to be started again: it was refused, or another generation took the number of its record. And what a store
        // that is gone had open, nobody fences: it ends when it times out.
        if run.gone || self.wipes > 0 {
            return Ok(());
        }
        match &run.running {
            Some(running) if running.processes.iter().all(|driven| driven.machine.is_settled()) => {
                self.broker.settled_at(running.offsets)
            }
            _ => Err("at rest: the newest generation cannot go on".to_owned()),
        }
    }

    fn doing(&self, step: Step) -> String {
        let action = match step {
            Step::Begin { run, .. } => self.runs[run].start.action.as_ref(),
            Step::Publish { run, process, .. } => {
                let running = self.runs[run].running.as_ref();
                running.and_then(|running| running.processes[process].action.as_ref())
            }
            _ => None,
        };
        action.map_or_else(String::new, |action| format!("{action:?}"))
    }
}

impl Outputs {
    pub(super) fn new() -> Outputs {
        Outputs {
            broker: Broker::default(),
            store: Store::default(),
            runs: Vec::new(),
            zombies: 0,
            lost: 0,
            expiries: 0,
            crashes: 0,
            wipes: 0,
            older_copies: 0,
            keepalives: 0,
        }
    }

    fn end_all(&mut self) {
        self.runs.iter_mut().for_each(Run::end);
    }

    /// Whether the outstanding action can be performed: a reader that waits for its token can go on only when it is there.
    fn can<M>(&self, driven: &Driven<M>) -> bool {
        match &driven.action {
            Some(Action::ReadMarkers { token, .. }) => !driven.hands.halfway || self.broker.can_read(*token),
            Some(_) => true,
            None => false,
        }
    }

    fn is_newest(&self, run: usize) -> bool {
        self.store.id == self.runs[run].store
            && self.store.leases.last().map(|(generation, _)| *generation) == Some(self.runs[run].generation)
    }

    /// The newest generation is never the one that has to stop, unless its store lost something.
    fn stop(&mut self, run: usize, stop: &Stop) -> Result<(), String> {
        let lost = self.wipes + self.older_copies > 0;
        let fenced = matches!(stop, Stop::ProducerFenced { .. });
        if self.is_newest(run) && (fenced || !lost) {
            return Err(format!("the newest generation was told to stop: {stop}"));
        }
        self.runs[run].end();
        Ok(())
    }

    /// Tells a process's machine something, and performs what needs no broker.
    fn tell(&mut self, index: usize, process: usize, event: Event) -> Result<(), String> {
        let mut events = VecDeque::from([(process, event)]);
        while let Some((process, event)) = events.pop_front() {
            let Some(running) = &mut self.runs[index].running else { return Ok(()) };
            let driven = &mut running.processes[process];
            if matches!(event, Event::Answer(_)) {
                driven.action = None;
                driven.hands.halfway = false;
            }
            for action in driven.machine.on(event) {
                match action {
                    Action::Ready => {}
                    Action::Begin(_) => events.push_front((process, Event::Answer(Answer::Done))),
                    Action::Announce { slot, epoch } => {
                        running.owed.published(slot, epoch);
                        let others = (0..running.processes.len()).filter(|other| *other != process);
                        events.extend(others.map(|other| (other, Event::PeerPublished { slot, epoch })));
                    }
                    Action::Stop(stop) => return self.stop(index, &stop),
                    action => running.processes[process].action = Some(action),
                }
            }
        }
        Ok(())
    }
}

impl Run {
    fn end(&mut self) {
        self.gone = true;
        self.start.action = None;
        // What it had in hand can make no difference any more.
        self.running = None;
        self.chosen = None;
    }
}
