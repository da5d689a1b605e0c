//! From a durable epoch to a published one, for output that goes by way of the store.
//!
//! On the first worker thread of every process [`publish_output`] tells the publication ([`OutputIo`]) which epochs are
//! durable, and everybody what it published. A second operator receives that news of all processes: the publication needs
//! it (slots go in step), and so do the sources, which stop polling when too many commit epochs are not published.
//!
//! The first operator holds its epoch until nothing of it is left to publish or to commit, so that a run does not end before.
//! News travels forward only; what goes back to the publication does so through [`OutputIo`], not through the dataflow.

use crate::batch::Parcel;
use crate::commit::committer::{Durable, DurableStream};
use crate::commit::receiver::settle;
use crate::commit::{OutputIo, PublicationNews};
use crate::context::WorkerContext;
use crate::frontier::FrontierHands;
use crate::source::CommitOutcome;
use crate::time::Time;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;
use tidegate_recovery::{Epoch, EventTime, Slot, StepId};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::channels::pact::ExchangeCore;
use timely::dataflow::operators::generic::OutputBuilder;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::{Scope, Stream};

/// "This slot has published everything up to this epoch", on its way to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SlotPublished {
    worker: u32,
    slot: Slot,
    epoch: Epoch,
}

type PublishedStream<'s> = Stream<'s, Time, Parcel<SlotPublished>>;

/// Publishes what is durable, and tells every worker.
pub fn publish_output<'s>(
    scope: Scope<'s, Time>,
    context: &WorkerContext,
    output: Arc<dyn OutputIo>,
    durable: DurableStream<'s>,
) {
    let published = announce_published(scope, context, output.clone(), durable);
    receive_published(scope, context, output, published);
}

fn is_first(context: &WorkerContext) -> bool {
    (context.worker().0 as usize).is_multiple_of(context.process().workers_per_process)
}

fn announce_published<'s>(
    scope: Scope<'s, Time>,
    context: &WorkerContext,
    io: Arc<dyn OutputIo>,
    durable: DurableStream<'s>,
) -> PublishedStream<'s> {
    let mut builder = OperatorBuilder::new("publication".to_owned(), scope);
    let info = builder.operator_info();
    let to_all = ExchangeCore::<CapacityContainerBuilder<Parcel<Durable>>, _>::new(|durable: &Durable| {
        u64::from(durable.worker)
    });
    let mut input = builder.new_input_connection(durable, to_all, []);
    let (output, published) = builder.new_output_connection::<Parcel<SlotPublished>, _>([]);
    let mut output = OutputBuilder::<_, CapacityContainerBuilder<Parcel<SlotPublished>>>::from(output);
    let leads = is_first(context);
    if leads {
        io.wake_with(scope.worker().sync_activator_for(info.address.to_vec()));
    }
    let context = context.clone();
    let first = context.schedule().first;
    let peers = context.peers() as u32;
    let hold = context.hold(&StepId::new("publication"));
    builder.build(move |mut capabilities| {
        let mut capability = capabilities.pop().filter(|_| leads);
        drop(capabilities);
        let mut is_last = false;
        let mut pending = VecDeque::new();
        move |frontiers| {
            let started = Instant::now();
            input.for_each(|_, announcements| {
                for durable in announcements.drain(..) {
                    if leads {
                        io.durable(durable.epoch);
                        pending.push_back(durable.epoch);
                    }
                }
            });
            let Some(held) = &mut capability else { return };
            let frontier = FrontierHands::of_input(&frontiers[0], first).epoch;
            let last = context.ending().last();
            if frontier.is_none() && last.is_some() && !std::mem::replace(&mut is_last, true) {
                io.last();
            }
            // Before the news is taken: what is settled afterwards has news that is still to be taken.
            let is_over = is_last && io.is_settled();
            let Some(news) = context.or_fail(io.news()) else { return };
            for news in news {
                match news {
                    PublicationNews::Published(slot, epoch) => {
                        let at = held.delayed(&Time::new(epoch.max(held.time().epoch), EventTime::MAX));
                        let mut output = output.activate();
                        let mut session = output.session(&at);
                        (0..peers).for_each(|worker| session.give(SlotPublished { worker, slot, epoch }));
                        held.downgrade(&at.time().clone());
                        while pending.front().is_some_and(|oldest| *oldest <= epoch) {
                            pending.pop_front();
                        }
                    }
                    PublicationNews::Committed(offsets) => {
                        let inputs = context.inputs();
                        let offsets = offsets
                            .iter()
                            .filter_map(|(name, next)| Some((inputs.id(name)?, *next)))
                            .collect();
                        let outcome = CommitOutcome { offsets, error: None };
                        settle(&context, &outcome, context.clock().now());
                    }
                }
            }
            match pending.front() {
                Some(oldest) => hold.set(*oldest, "the end of its transaction"),
                None => hold.clear(),
            }
            if is_over {
                capability = None;
            }
            context.process().metrics.publication_wait.observe(started.elapsed().as_secs_f64());
        }
    });
    published
}

fn receive_published<'s>(
    scope: Scope<'s, Time>,
    context: &WorkerContext,
    io: Arc<dyn OutputIo>,
    published: PublishedStream<'s>,
) {
    let mut builder = OperatorBuilder::new("published epochs".to_owned(), scope);
    let to_all = ExchangeCore::<CapacityContainerBuilder<Parcel<SlotPublished>>, _>::new(
        |published: &SlotPublished| u64::from(published.worker),
    );
    let mut input = builder.new_input(published, to_all);
    let context = context.clone();
    let leads = is_first(&context);
    let resumed = context.durable();
    let mut slots: BTreeMap<Slot, Epoch> = io.slots().into_iter().map(|slot| (slot, resumed)).collect();
    builder.build(move |_capabilities| {
        move |_frontiers| {
            let started = Instant::now();
            let mut moved = false;
            input.for_each(|_, published| {
                for SlotPublished { slot, epoch, .. } in published.drain(..) {
                    let known = slots.entry(slot).or_insert(resumed);
                    *known = (*known).max(epoch);
                    moved = true;
                    if leads && slot != io.own() {
                        io.peer_published(slot, epoch);
                    }
                    if context.worker().0 == 0 {
                        io.forget(slot, epoch);
                    }
                }
            });
            if moved && let Some(all) = slots.values().min() {
                context.set_published(*all);
                if leads {
                    context.process().metrics.published_epoch.set(all.0 as i64);
                }
                context.process().metrics.publication_wait.observe(started.elapsed().as_secs_f64());
            }
        }
    });
}
