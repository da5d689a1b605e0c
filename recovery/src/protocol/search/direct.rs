//! The world without a store: input partitions whose outputs and offsets travel in one transaction.
//!
//! Two input partitions of two records each, one or two processes, chosen anew at every start, old processes that go on later, lost
//! answers (the request done, not done, or done later), transactions that time out. An old process knows that it stood still
//! when it looks; it may have looked just before. The group shows the offsets of a transaction in a step of its own.
//!
//! After every step: each row was read once, in order and without a gap; no offset passes a row that is not committed; none
//! goes down. (A row that is committed may be hidden by the open transaction of another input partition: see
//! `decisions/0002`.) There is no lease here: an old owner whose request had no clear outcome, and that looked around just before
//! it froze, may take the partition back from the new one. Nothing comes out twice, and one of the two ends.

use super::Explored;
use super::broker::{Broker, IDS, Outcome, Producer, Reply, Row};
use super::disk::{Offsets, RECORDS};
use crate::protocol::exactly_once::*;
use crate::protocol::{Rule, Rules};
use crate::{Epoch, NextOffset, TopicPartition};
use std::collections::VecDeque;

/// How large the world is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) starts: usize,
    pub(super) zombies: usize,
    /// Answers that may be lost.
    pub(super) lost: usize,
    pub(super) expiries: usize,
    /// Processes that a start may choose.
    pub(super) shapes: &'static [u8],
    /// Epochs that are read and not published, per partition.
    pub(super) in_flight: usize,
    /// Input partitions that have records.
    pub(super) partitions: u8,
    pub(super) states_max: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Owner {
    partition: u8,
    id: u8,
    machine: PartitionPublisher,
    action: Option<DirectAction>,
    producer: Option<Producer>,
    /// Where it reads on, once it knows.
    read: Option<u8>,
    epoch: Epoch,
    /// Outputs that may be asked for again.
    outputs: VecDeque<(Epoch, Row)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Run {
    gone: bool,
    stood_still: bool,
    owners: Vec<Owner>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Direct {
    broker: Broker,
    runs: Vec<Run>,
    zombies: usize,
    lost: usize,
    expiries: usize,
    /// Somebody had to end.
    stopped: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Start {
        processes: u8,
        zombie: bool,
    },
    Read {
        run: usize,
        owner: usize,
    },
    Publish {
        run: usize,
        owner: usize,
        outcome: Outcome,
    },
    Expire {
        id: u8,
    },
    Arrive,
    /// The group shows the offsets of a transaction.
    Show,
}

fn outcomes(action: &DirectAction) -> &'static [Outcome] {
    match action {
        DirectAction::Commit => &[Outcome::LostDone, Outcome::LostUndone, Outcome::LostLater],
        DirectAction::Initialise => &[Outcome::LostDone, Outcome::LostUndone],
        _ => &[],
    }
}

impl Explored for Direct {
    type Step = Step;
    type Bounds = Bounds;

    fn steps(&self, bounds: &Bounds) -> Vec<Step> {
        let mut steps = Vec::new();
        let may_lose = self.lost < bounds.lost && !self.broker.is_late();
        for (index, run) in self.runs.iter().enumerate().filter(|(_, run)| !run.gone) {
            for (at, owner) in run.owners.iter().enumerate() {
                if let Some(action) = &owner.action
                    && (*action != DirectAction::FetchOffset || self.can_fetch(owner.partition))
                {
                    steps.push(Step::Publish { run: index, owner: at, outcome: Outcome::Answered });
                    let lost = outcomes(action).iter().filter(|_| may_lose);
                    steps.extend(lost.map(|outcome| Step::Publish {
                        run: index,
                        owner: at,
                        outcome: *outcome,
                    }));
                }
                let more = owner.read.is_some_and(|read| read < RECORDS);
                if more && owner.outputs.len() < bounds.in_flight && owner.partition < bounds.partitions {
                    steps.push(Step::Read { run: index, owner: at });
                }
            }
        }
        if self.runs.len() < bounds.starts {
            let current = self.runs.iter().any(|run| !run.gone);
            for &processes in bounds.shapes {
                steps.push(Step::Start { processes, zombie: false });
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
        if self.broker.is_pending() {
            steps.push(Step::Show);
        }
        steps
    }

    fn take(&mut self, step: Step, rules: Rules, bounds: &Bounds) -> Result<(), String> {
        match step {
            Step::Start { processes, zombie } => self.start(processes, zombie, rules, bounds),
            Step::Read { run, owner } => self.read(run, owner),
            Step::Publish { run, owner, outcome } => {
                self.lost += usize::from(outcome != Outcome::Answered);
                return self.publish(run, owner, outcome);
            }
            Step::Expire { id } => {
                self.expiries += 1;
                return self.broker.expire(id);
            }
            Step::Arrive => return self.broker.arrive(),
            Step::Show => return self.broker.show_offsets(),
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        self.broker.check_committed()
    }

    fn at_rest(&self) -> Result<(), String> {
        let Some(run) = self.runs.last() else { return Ok(()) };
        // It has to be started again.
        if run.gone && self.stopped {
            return Ok(());
        }
        let mut read: Offsets = self.broker.visible;
        for owner in &run.owners {
            if !owner.machine.is_settled() {
                return Err(format!("at rest: partition {} cannot go on", owner.partition));
            }
            read[usize::from(owner.partition)] = owner.read.unwrap_or_default();
        }
        self.broker.settled_at(read)
    }

    fn doing(&self, step: Step) -> String {
        match step {
            Step::Publish { run, owner, .. } => {
                let owner = &self.runs[run].owners[owner];
                format!("partition {}: {:?}", owner.partition, owner.action)
            }
            _ => String::new(),
        }
    }
}

impl Direct {
    pub(super) fn new() -> Direct {
        let mut broker = Broker::default();
        broker.slow_group = true;
        Direct { broker, runs: Vec::new(), zombies: 0, lost: 0, expiries: 0, stopped: false }
    }

    fn can_fetch(&self, partition: u8) -> bool {
        !self.broker.waits_for_pending || !self.broker.has_pending(partition)
    }

    fn start(&mut self, processes: u8, zombie: bool, rules: Rules, bounds: &Bounds) {
        self.broker.waits_for_pending = rules.has(Rule::StableFetch);
        for run in &mut self.runs {
            run.stood_still = true;
            run.gone |= !zombie;
        }
        self.zombies += usize::from(zombie);
        let mut owners = Vec::new();
        for process in 0..processes {
            let owned = (0..bounds.partitions).filter(|partition| partition % processes == process);
            for (nth, partition) in owned.enumerate() {
                // Otherwise it is the process's: its first producer, its second one.
                let id = if rules.has(Rule::IdByPartition) { partition } else { process + 2 * nth as u8 };
                let mut machine =
                    PartitionPublisher::with_rules(rules, TopicPartition::new("in", partition.into()));
                let action = machine.on(DirectEvent::Go).pop();
                let (read, producer, outputs) = (None, None, VecDeque::new());
                owners.push(Owner {
                    partition,
                    id,
                    machine,
                    action,
                    producer,
                    read,
                    epoch: Epoch(0),
                    outputs,
                });
            }
        }
        self.runs.push(Run { gone: false, stood_still: false, owners });
    }

    fn read(&mut self, run: usize, owner: usize) {
        let owner = &mut self.runs[run].owners[owner];
        let Some(read) = &mut owner.read else { return };
        let row = Row { key: owner.partition, index: *read };
        *read += 1;
        owner.epoch = owner.epoch.next();
        owner.outputs.push_back((owner.epoch, row));
        let event =
            DirectEvent::Closed { epoch: owner.epoch, output: true, next: NextOffset((*read).into()) };
        // No machine stops because an epoch was closed.
        owner.tell(event);
    }

    fn publish(&mut self, index: usize, at: usize, outcome: Outcome) -> Result<(), String> {
        let run = &mut self.runs[index];
        let in_charge = !run.stood_still;
        let owner = &mut run.owners[at];
        let Some(action) = owner.action.take() else { return Ok(()) };
        let lost = outcome != Outcome::Answered;
        let producer = || owner.producer.expect("a producer is initialised before it is used");
        let reply = match action {
            DirectAction::LookAround => {
                let answer = if in_charge { Answer::InCharge } else { Answer::Overtaken };
                return self.answer(index, at, answer);
            }
            DirectAction::FetchOffset => {
                let group = self.broker.group[usize::from(owner.partition)];
                let found = (group > 0).then_some(NextOffset(group.into()));
                return self.answer(index, at, Answer::Committed(found));
            }
            DirectAction::Initialise => {
                if outcome != Outcome::LostUndone {
                    owner.producer = Some(self.broker.initialise(owner.id)?);
                }
                Reply::Done
            }
            DirectAction::Send(epoch) => {
                let reply = self.broker.takes(producer());
                if reply == Reply::Done {
                    let rows = owner.outputs.iter().filter(|(of, _)| *of == epoch);
                    rows.for_each(|(_, row)| self.broker.send(producer(), *row));
                }
                reply
            }
            DirectAction::SendOffset(next) => {
                let reply = self.broker.takes(producer());
                if reply == Reply::Done {
                    self.broker.send_offsets(producer(), &[(owner.partition, next.0 as u8)]);
                }
                reply
            }
            DirectAction::Commit => match outcome {
                Outcome::Answered | Outcome::LostDone => self.broker.end_transaction(producer(), true)?,
                Outcome::LostUndone => Reply::Done,
                Outcome::LostLater => {
                    self.broker.delay(producer(), true);
                    Reply::Done
                }
            },
            DirectAction::Abort => match self.broker.end_transaction(producer(), false)? {
                Reply::Invalid => Reply::Done,
                reply => reply,
            },
            action => unreachable!("{action:?} is no request"),
        };
        let answer = match reply {
            _ if lost => Answer::Unclear,
            Reply::Done => Answer::Done,
            Reply::Fenced => Answer::Fenced,
            Reply::Invalid => Answer::Unclear,
        };
        self.answer(index, at, answer)
    }

    fn answer(&mut self, index: usize, at: usize, answer: Answer) -> Result<(), String> {
        let run = &mut self.runs[index];
        if run.owners[at].tell(DirectEvent::Answer(answer)) {
            // One owner that is fenced ends the whole cluster.
            run.gone = true;
            self.stopped = true;
        }
        Ok(())
    }
}

impl Owner {
    /// Whether the machine is to stop.
    fn tell(&mut self, event: DirectEvent) -> bool {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            for action in self.machine.on(event) {
                match action {
                    DirectAction::Resume(next) => self.read = Some(next.map_or(0, |next| next.0 as u8)),
                    DirectAction::Begin => events.push_back(DirectEvent::Answer(Answer::Done)),
                    DirectAction::Published(epoch) => self.outputs.retain(|(of, _)| *of > epoch),
                    DirectAction::Stop(_) => return true,
                    action => self.action = Some(action),
                }
            }
        }
        false
    }
}
