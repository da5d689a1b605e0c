//! The committer on worker 0: decides when an epoch is durable.
//!
//! ⚑ The record of an epoch waits for **everything**: the parts of every process and the acknowledgements of
//! every sink; it is published only when their common frontier has left the epoch. Records are published one at
//! a time, in order; a commit epoch without a change publishes nothing and is durable as soon as the epochs
//! before it are.

use crate::batch::{FrontierStream, Parcel};
use crate::commit::CommitEpochs;
use crate::commit::writer::PartStream;
use crate::context::WorkerContext;
use crate::frontier::{FrontierHands, oldest_open};
use crate::time::Time;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use tidegate_recovery::{Epoch, EpochSchedule, EventTime, Part, RecordNumber};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::channels::pact::{ExchangeCore, Pipeline};
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::OutputBuilder;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::{Scope, Stream};

/// "This epoch is durable", on its way to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Durable {
    /// To whom.
    pub worker: u32,
    /// The commit epoch; everything up to it is durable.
    pub epoch: Epoch,
    /// The number of its record, if it has one.
    pub record: Option<u64>,
}

/// The announcements of durable epochs.
pub type DurableStream<'s> = Stream<'s, Time, Parcel<Durable>>;

/// What the committer does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommitAction {
    /// Publish the record of an epoch from these parts.
    Publish(Epoch, Vec<Part>),
    /// Tell everybody that the epoch is durable.
    Announce(Epoch, Option<RecordNumber>),
}

/// Which epochs are published and announced, in which order.
#[derive(Clone, Debug)]
pub struct Committer {
    epochs: CommitEpochs,
    parts: BTreeMap<Epoch, Vec<Part>>,
    closed: VecDeque<Epoch>,
    publishing: Option<Epoch>,
}

impl Committer {
    /// A committer at the beginning of a generation.
    pub fn new(schedule: EpochSchedule) -> Committer {
        Committer {
            epochs: CommitEpochs::new(schedule),
            parts: BTreeMap::new(),
            closed: VecDeque::new(),
            publishing: None,
        }
    }

    /// A process's part arrived.
    pub fn part(&mut self, part: Part) {
        self.parts.entry(part.epoch).or_default().push(part);
    }

    /// The common frontier of parts and acknowledgements stands here; `last` is the agreed last epoch, which is
    /// what an empty frontier has left.
    pub fn frontier(&mut self, open: Option<Epoch>, last: Option<Epoch>) {
        while let Some(epoch) = self.epochs.pass(open, last) {
            self.closed.push_back(epoch);
        }
    }

    /// The record that was to be published is. Returns the announcement.
    pub fn published(&mut self, epoch: Epoch, record: RecordNumber) -> CommitAction {
        assert_eq!(self.publishing.take(), Some(epoch), "the store answers what it was asked");
        CommitAction::Announce(epoch, Some(record))
    }

    /// What to do now; call it until it says nothing.
    pub fn act(&mut self) -> Option<CommitAction> {
        if self.publishing.is_some() {
            return None;
        }
        let epoch = self.closed.pop_front()?;
        match self.parts.remove(&epoch) {
            Some(mut parts) => {
                parts.sort_by_key(|part| part.process);
                self.publishing = Some(epoch);
                Some(CommitAction::Publish(epoch, parts))
            }
            None => Some(CommitAction::Announce(epoch, None)),
        }
    }

    /// The oldest commit epoch that is not yet announced.
    pub fn oldest(&self) -> Epoch {
        self.publishing.or(self.closed.front().copied()).unwrap_or(self.epochs.open())
    }
}

/// Commits epochs on worker 0 and announces them to every worker.
pub fn commit_epochs<'s>(
    scope: Scope<'s, Time>,
    context: &WorkerContext,
    parts: PartStream<'s>,
    acknowledgements: FrontierStream<'s>,
) -> DurableStream<'s> {
    let mut builder = OperatorBuilder::new("committer".to_owned(), scope);
    let info = builder.operator_info();
    let to_first = ExchangeCore::<CapacityContainerBuilder<Parcel<Part>>, _>::new(|_: &Part| 0);
    let mut parts = builder.new_input_connection(parts, to_first, []);
    let mut acknowledged = builder.new_input_connection(acknowledgements, Pipeline, []);
    let (output, durable) = builder.new_output_connection::<Parcel<Durable>, _>([]);
    let mut output = OutputBuilder::<_, CapacityContainerBuilder<Parcel<Durable>>>::from(output);

    let context = context.clone();
    let process = context.process().clone();
    let commits = context.worker().0 == 0;
    let io = process.snapshots.clone().filter(|_| commits);
    if let Some(io) = &io {
        io.wake_for_records(scope.worker().sync_activator_for(info.address.to_vec()));
    }
    let first = process.schedule.first;
    let peers = context.peers() as u32;

    builder.build(move |mut capabilities| {
        let mut capability = capabilities.pop().filter(|_| commits);
        drop(capabilities);
        let mut committer = Committer::new(process.schedule);
        move |frontiers| {
            parts.for_each(|_, parts| parts.drain(..).for_each(|part| committer.part(part)));
            acknowledged.for_each(|_, _| ());
            let Some(held) = &mut capability else { return };
            let of_parts = FrontierHands::of_input(&frontiers[0], first).epoch;
            let of_acknowledgements = FrontierHands::of_input(&frontiers[1], first).epoch;
            let open = if context.sabotage().ignore_acknowledgements {
                of_parts
            } else {
                oldest_open(of_parts, of_acknowledgements)
            };
            let last = context.ending().last();
            committer.frontier(open, last);
            let mut announce = |held: &Capability<Time>, epoch: Epoch, record: Option<RecordNumber>| {
                let at = held.delayed(&Time::new(epoch, EventTime::MAX));
                let mut output = output.activate();
                let mut session = output.session(&at);
                for worker in 0..peers {
                    session.give(Durable { worker, epoch, record: record.map(|record| record.0) });
                }
            };
            if let Some(io) = &io {
                let Some(published) = context.or_fail(io.published()) else { return };
                for published in published {
                    if let CommitAction::Announce(epoch, record) =
                        committer.published(published.epoch, published.record)
                    {
                        announce(held, epoch, record);
                    }
                }
            }
            while let Some(action) = committer.act() {
                match (action, &io) {
                    (CommitAction::Announce(epoch, record), _) => announce(held, epoch, record),
                    (CommitAction::Publish(epoch, parts), Some(io)) => io.publish(epoch, parts),
                    (CommitAction::Publish(..), None) => unreachable!("parts come only from a store"),
                }
            }
            if open.is_none() && last.is_none_or(|last| committer.oldest() > last) {
                capability = None;
            } else if committer.oldest() > held.time().epoch {
                held.downgrade(&Time::new(committer.oldest(), EventTime::MAX));
            }
        }
    });
    durable
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_recovery::ProcessIndex;

    fn part(epoch: u64, process: u32) -> Part {
        Part {
            epoch: Epoch(epoch),
            process: ProcessIndex(process),
            segment: None,
            outbox: None,
            needs: Vec::new(),
            offsets: Vec::new(),
        }
    }

    #[test]
    fn records_are_published_one_at_a_time_and_empty_epochs_wait_their_turn() {
        let mut committer = Committer::new(EpochSchedule { first: Epoch(1), commit_every: 10 });
        committer.part(part(10, 1));
        committer.part(part(30, 0));
        committer.part(part(10, 0));
        assert_eq!(committer.act(), None);
        committer.frontier(Some(Epoch(35)), None);
        let parts = vec![part(10, 0), part(10, 1)];
        assert_eq!(committer.act(), Some(CommitAction::Publish(Epoch(10), parts)));
        assert_eq!(committer.act(), None);
        assert_eq!(committer.oldest(), Epoch(10));
        let announced = committer.published(Epoch(10), RecordNumber(4));
        assert_eq!(announced, CommitAction::Announce(Epoch(10), Some(RecordNumber(4))));
        assert_eq!(committer.act(), Some(CommitAction::Announce(Epoch(20), None)));
        assert_eq!(committer.act(), Some(CommitAction::Publish(Epoch(30), vec![part(30, 0)])));
        assert_eq!(committer.oldest(), Epoch(30));
    }

    #[test]
    fn an_empty_frontier_without_an_agreed_end_commits_nothing() {
        let mut committer = Committer::new(EpochSchedule { first: Epoch(1), commit_every: 10 });
        committer.frontier(None, None);
        assert_eq!(committer.act(), None);
        committer.frontier(None, Some(Epoch(10)));
        assert_eq!(committer.act(), Some(CommitAction::Announce(Epoch(10), None)));
        assert_eq!(committer.act(), None);
    }
}
