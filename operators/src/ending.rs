//! How a run comes to its last epoch: a stop and an end are not the same, and an empty frontier means neither.
//!
//! The last epoch, and which of the two it is, is agreed on all workers before a source lets go. From that
//! moment on each step's acted-on watermark is frozen and further changes of the event frontier are ignored:
//! workers drop their capabilities one at a time, and every drop *raises* the event frontier of the rest, long
//! before it is empty.
//!
//! The agreement, as messages between every worker's [`Member`] and the [`Coordinator`] on worker 0:
//!
//! 1. A member whose process was asked to stop says so; one whose partitions have all reached the end that they
//!    had at start says that (only with `--until-end`).
//! 2. At the first request to stop, or when every member has reached the end, the coordinator says *halt*:
//!    sources stop polling and keep their epoch hand where it is.
//! 3. Every member reports the epoch at which its sources halted.
//! 4. The largest of them, rounded up to a commit epoch, is the last one. Every member sets it in its worker's
//!    context, which freezes its steps, and acknowledges.
//! 5. When all have, the coordinator says *release*: the sources drop their last capabilities.
//!
//! The messages travel in a dataflow of their own, so their order has nothing to do with the flow's frontiers.
//! If a worker is lost on the way, the agreement never comes about; the supervisor ends the generation.

use crate::batch::Parcel;
use crate::context::WorkerContext;
use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use tidegate_recovery::{Epoch, EpochSchedule};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::channels::pact::ExchangeCore;
use timely::dataflow::operators::generic::operator::source;
use timely::dataflow::operators::{Capability, Operator};
use timely::scheduling::Activator;
use timely::worker::Worker;

/// What is agreed about the end of the run. Steps read it from the worker's context whenever they run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ending {
    /// The run goes on.
    #[default]
    None,
    /// A stop: drain, snapshot and commit up to `last`; open windows stay in the snapshot.
    Stop {
        /// The last epoch, a commit epoch.
        last: Epoch,
    },
    /// The end (`--until-end`): the same, but every window that is still open after `last` is emitted without
    /// being forgotten.
    End {
        /// The last epoch, a commit epoch.
        last: Epoch,
    },
}

impl Ending {
    /// The last epoch, once it is agreed.
    pub fn last(self) -> Option<Epoch> {
        match self {
            Ending::None => None,
            Ending::Stop { last } | Ending::End { last } => Some(last),
        }
    }

    /// Whether the acted-on watermarks are frozen: a step that reads this ignores the event frontier from now on.
    pub fn is_agreed(self) -> bool {
        self != Ending::None
    }
}

/// What a member tells the coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToCoordinator {
    /// Its process was asked to stop.
    StopAsked,
    /// All its partitions have reached the end that they had at start.
    ReachedEnd,
    /// Its sources have stopped polling; their hands stand at this epoch or before.
    Halted(Epoch),
    /// Its steps are frozen.
    Frozen,
}

/// What the coordinator tells every member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToMembers {
    /// Stop polling, keep the hands where they are, report them.
    Halt,
    /// This is the end; freeze and acknowledge.
    Agree(Ending),
    /// Let go.
    Release,
}

/// The side of the agreement that counts; on worker 0.
#[derive(Clone, Debug)]
pub struct Coordinator {
    peers: usize,
    schedule: EpochSchedule,
    reached: usize,
    halted: usize,
    frozen: usize,
    newest: Epoch,
    cause: Option<Cause>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    Stop,
    End,
}

impl Coordinator {
    /// A coordinator for this many members.
    pub fn new(peers: usize, schedule: EpochSchedule) -> Coordinator {
        Coordinator { peers, schedule, reached: 0, halted: 0, frozen: 0, newest: schedule.first, cause: None }
    }

    /// Takes a message of a member; each member sends each kind once. Returns what to tell all members.
    pub fn on(&mut self, message: ToCoordinator) -> Option<ToMembers> {
        match message {
            ToCoordinator::StopAsked => self.begin(Cause::Stop),
            ToCoordinator::ReachedEnd => {
                self.reached += 1;
                if self.reached == self.peers { self.begin(Cause::End) } else { None }
            }
            ToCoordinator::Halted(epoch) => {
                self.halted += 1;
                self.newest = self.newest.max(epoch);
                if self.halted < self.peers {
                    return None;
                }
                let last = self.schedule.commit_at_or_after(self.newest);
                Some(ToMembers::Agree(match self.cause? {
                    Cause::Stop => Ending::Stop { last },
                    Cause::End => Ending::End { last },
                }))
            }
            ToCoordinator::Frozen => {
                self.frozen += 1;
                (self.frozen == self.peers).then_some(ToMembers::Release)
            }
        }
    }

    fn begin(&mut self, cause: Cause) -> Option<ToMembers> {
        if self.cause.is_some() {
            return None;
        }
        self.cause = Some(cause);
        Some(ToMembers::Halt)
    }
}

/// What a member sees of its worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemberView {
    /// Somebody asked this process to stop.
    pub stop_asked: bool,
    /// The run is bounded, and all of this worker's partitions have reached their end.
    pub reached_end: bool,
    /// All sources of this worker have halted, at this epoch or before.
    pub halted: Option<Epoch>,
}

/// The side of the agreement that every worker has.
#[derive(Clone, Debug, Default)]
pub struct Member {
    said_stop: bool,
    said_end: bool,
    said_halted: bool,
    said_frozen: bool,
    halt: bool,
    agreed: bool,
}

impl Member {
    /// What to tell the coordinator, given what the worker looks like.
    pub fn observe(&mut self, view: MemberView) -> Vec<ToCoordinator> {
        let mut messages = Vec::new();
        if !self.halt {
            if view.stop_asked && !self.said_stop {
                self.said_stop = true;
                messages.push(ToCoordinator::StopAsked);
            }
            if view.reached_end && !self.said_end {
                self.said_end = true;
                messages.push(ToCoordinator::ReachedEnd);
            }
        } else if !self.said_halted
            && let Some(epoch) = view.halted
        {
            self.said_halted = true;
            messages.push(ToCoordinator::Halted(epoch));
        }
        if self.agreed && !self.said_frozen {
            self.said_frozen = true;
            messages.push(ToCoordinator::Frozen);
        }
        messages
    }

    /// Takes a message of the coordinator.
    pub fn on(&mut self, message: ToMembers) {
        match message {
            ToMembers::Halt => self.halt = true,
            ToMembers::Agree(_) => self.agreed = true,
            ToMembers::Release => {}
        }
    }

    /// Whether the member has nothing more to say.
    pub fn is_silent(&self) -> bool {
        self.said_frozen
    }
}

/// A source's part of the agreement: what it is told, and what it says.
#[derive(Debug, Default)]
pub(crate) struct SourceEnding {
    /// All partitions of the source have reached the end that they had at start.
    pub(crate) reached_end: Cell<bool>,
    /// The source does not poll any more; its hand stands here.
    pub(crate) halted: Cell<Option<Epoch>>,
}

/// What the sources of a worker and its member share.
#[derive(Default)]
pub(crate) struct EndingDesk {
    /// Sources stop polling and keep their hands.
    pub(crate) halt: Cell<bool>,
    /// Sources let go.
    pub(crate) release: Cell<bool>,
    sources: RefCell<Vec<Rc<SourceEnding>>>,
    member: RefCell<Option<Activator>>,
}

impl EndingDesk {
    /// A source of this worker takes part.
    pub(crate) fn add_source(&self) -> Rc<SourceEnding> {
        let source = Rc::new(SourceEnding::default());
        self.sources.borrow_mut().push(source.clone());
        source
    }

    /// Something changed that the member wants to see.
    pub(crate) fn wake_member(&self) {
        if let Some(activator) = self.member.borrow().as_ref() {
            activator.activate();
        }
    }

    fn reached_end(&self) -> bool {
        self.sources.borrow().iter().all(|source| source.reached_end.get())
    }

    fn halted(&self, first: Epoch) -> Option<Epoch> {
        self.sources.borrow().iter().try_fold(first, |newest, source| Some(newest.max(source.halted.get()?)))
    }
}

/// Builds the agreement's dataflow on a worker. Every worker builds it, after the flow's own dataflow.
pub fn build_ending(worker: &mut Worker, context: &WorkerContext) {
    let member = Rc::new(RefCell::new(Member::default()));
    let peers = context.peers();
    worker.dataflow_named::<u64, _, _>("ending", |scope| {
        let requests = {
            let context = context.clone();
            let member = member.clone();
            source::<_, CapacityContainerBuilder<Parcel<ToCoordinator>>, _, _>(
                scope,
                "member",
                |capability, info| {
                    let activator = scope.worker().activator_for(info.address.clone());
                    let woken = scope.worker().sync_activator_for(info.address.to_vec());
                    context.process().stop.on_request(move || {
                        // A worker that is gone needs no waking.
                        let _ = woken.activate();
                    });
                    *context.ending_desk().member.borrow_mut() = Some(activator);
                    let mut capability: Option<Capability<u64>> = Some(capability);
                    move |output| {
                        let Some(held) = &capability else { return };
                        let desk = context.ending_desk();
                        let process = context.process();
                        let view = MemberView {
                            stop_asked: process.stop.requested(),
                            reached_end: process.until_end && desk.reached_end(),
                            halted: desk.halted(process.schedule.first),
                        };
                        let mut member = member.borrow_mut();
                        for message in member.observe(view) {
                            tracing::debug!(worker = context.worker().0, ?message, "ending");
                            output.session(held).give(message);
                        }
                        if member.is_silent() {
                            capability = None;
                        }
                    }
                },
            )
        };
        let orders = {
            let mut coordinator = Coordinator::new(peers, context.schedule());
            let to_first = ExchangeCore::<CapacityContainerBuilder<Parcel<ToCoordinator>>, _>::new(|_: &_| 0);
            requests.unary::<CapacityContainerBuilder<Parcel<(u64, ToMembers)>>, _, _, _>(
                to_first,
                "coordinator",
                |_, _| {
                    move |input, output| {
                        input.for_each(|capability, messages| {
                            for message in messages.drain(..) {
                                let Some(order) = coordinator.on(message) else { continue };
                                tracing::info!(?order, "ending the run");
                                let mut session = output.session(&capability);
                                for worker in 0..peers as u64 {
                                    session.give((worker, order));
                                }
                            }
                        });
                    }
                },
            )
        };
        let context = context.clone();
        let to_all = ExchangeCore::<CapacityContainerBuilder<Parcel<(u64, ToMembers)>>, _>::new(
            |order: &(u64, ToMembers)| order.0,
        );
        orders.sink(to_all, "orders", move |(input, _frontier)| {
            input.for_each(|_capability, orders| {
                for (_, order) in orders.drain(..) {
                    member.borrow_mut().on(order);
                    let desk = context.ending_desk();
                    match order {
                        ToMembers::Halt => desk.halt.set(true),
                        ToMembers::Agree(ending) => context.set_ending(ending),
                        ToMembers::Release => desk.release.set(true),
                    }
                    desk.wake_member();
                }
            });
        });
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn schedule() -> EpochSchedule {
        EpochSchedule { first: Epoch(1), commit_every: 10 }
    }

    #[test]
    fn the_last_epoch_is_the_newest_halt_rounded_up_to_a_commit_epoch() {
        let mut coordinator = Coordinator::new(2, schedule());
        assert_eq!(coordinator.on(ToCoordinator::StopAsked), Some(ToMembers::Halt));
        assert_eq!(coordinator.on(ToCoordinator::StopAsked), None);
        assert_eq!(coordinator.on(ToCoordinator::Halted(Epoch(17))), None);
        let agreed = coordinator.on(ToCoordinator::Halted(Epoch(12)));
        assert_eq!(agreed, Some(ToMembers::Agree(Ending::Stop { last: Epoch(20) })));
        assert_eq!(coordinator.on(ToCoordinator::Frozen), None);
        assert_eq!(coordinator.on(ToCoordinator::Frozen), Some(ToMembers::Release));
    }

    #[test]
    fn the_end_needs_every_worker_and_a_stop_needs_one() {
        let mut coordinator = Coordinator::new(3, schedule());
        assert_eq!(coordinator.on(ToCoordinator::ReachedEnd), None);
        assert_eq!(coordinator.on(ToCoordinator::ReachedEnd), None);
        assert_eq!(coordinator.clone().on(ToCoordinator::StopAsked), Some(ToMembers::Halt));
        assert_eq!(coordinator.on(ToCoordinator::ReachedEnd), Some(ToMembers::Halt));
        // A stop that comes after it changes nothing any more.
        assert_eq!(coordinator.on(ToCoordinator::StopAsked), None);
        for _ in 0..2 {
            assert_eq!(coordinator.on(ToCoordinator::Halted(Epoch(5))), None);
        }
        let agreed = coordinator.on(ToCoordinator::Halted(Epoch(5)));
        assert_eq!(agreed, Some(ToMembers::Agree(Ending::End { last: Epoch(10) })));
    }

    proptest! {
        /// Whatever the order in which messages arrive: nobody lets go before everybody is frozen, all agree on
        /// one last epoch, and no source had passed it.
        #[test]
        fn nobody_lets_go_before_all_are_frozen(
            hands in prop::collection::vec(1_u64..100, 1..6),
            asked in any::<prop::sample::Index>(),
            order in prop::collection::vec(any::<prop::sample::Index>(), 200),
        ) {
            let peers = hands.len();
            let asked = asked.index(peers);
            let mut coordinator = Coordinator::new(peers, schedule());
            let mut members = vec![Member::default(); peers];
            let mut up: Vec<std::collections::VecDeque<ToCoordinator>> = vec![Default::default(); peers];
            let mut down: Vec<std::collections::VecDeque<ToMembers>> = vec![Default::default(); peers];
            let mut endings = vec![Ending::None; peers];
            let mut released = 0;
            for pick in order {
                let at = pick.index(3 * peers);
                let (kind, at) = (at / peers, at % peers);
                match kind {
                    0 => {
                        let view = MemberView {
                            stop_asked: at == asked,
                            reached_end: false,
                            halted: members[at].halt.then_some(Epoch(hands[at])),
                        };
                        up[at].extend(members[at].observe(view));
                    }
                    1 => if let Some(message) = up[at].pop_front()
                        && let Some(order) = coordinator.on(message) {
                            down.iter_mut().for_each(|queue| queue.push_back(order));
                        },
                    _ => if let Some(order) = down[at].pop_front() {
                        members[at].on(order);
                        match order {
                            ToMembers::Agree(ending) => endings[at] = ending,
                            ToMembers::Release => {
                                released += 1;
                                prop_assert!(endings.iter().all(|ending| ending.is_agreed()));
                            }
                            ToMembers::Halt => {}
                        }
                    },
                }
            }
            let newest = hands.iter().copied().max().expect("at least one");
            for last in endings.iter().filter_map(|ending| ending.last()) {
                prop_assert_eq!(last, schedule().commit_at_or_after(Epoch(newest)));
            }
            prop_assert!(released <= peers);
        }
    }
}
