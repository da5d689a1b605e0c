//! From a closed epoch to a published one, for output that goes without a store.
//!
//! When every source has marked where it goes on and every sink has taken what came in a commit epoch, each worker thread hands
//! in the output of its input partitions; when all threads of the process have, the publication ([`DirectIo`]) writes output and
//! offset of each partition in one transaction. The first worker thread of each process holds the epoch until that is done for
//! all of them, so that "durable" means published here, and a run does not end before.

use crate::batch::{FrontierStream, Parcel};
use crate::build::RowStream;
use crate::commit::receiver::settle;
use crate::commit::writer::PartStream;
use crate::commit::{CommitEpochs, DirectIo, DirectNews};
use crate::context::WorkerContext;
use crate::frontier::{FrontierHands, oldest_open};
use crate::source::CommitOutcome;
use crate::time::Time;
use std::sync::Arc;
use std::time::Instant;
use tidegate_recovery::{EventTime, Part, StepId};
use timely::dataflow::Scope;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;

/// Publishes the output of closed epochs. The stream that comes back says when: it carries no part.
pub fn publish_directly<'s>(
    scope: Scope<'s, Time>,
    context: &WorkerContext,
    io: Arc<dyn DirectIo>,
    rows: RowStream<'s>,
    acknowledgements: FrontierStream<'s>,
) -> PartStream<'s> {
    let mut builder = OperatorBuilder::new("direct publication".to_owned(), scope);
    let info = builder.operator_info();
    let mut marked = builder.new_input_connection(rows, Pipeline, []);
    let mut acknowledged = builder.new_input_connection(acknowledgements, Pipeline, []);
    let (_output, parts) = builder.new_output_connection::<Parcel<Part>, _>([]);
    let context = context.clone();
    let process = context.process().clone();
    let leads = (context.worker().0 as usize).is_multiple_of(process.workers_per_process);
    if leads {
        io.wake_with(scope.worker().sync_activator_for(info.address.to_vec()));
    }
    let first = process.schedule.first;
    let hold = context.hold(&StepId::new("publication"));

    builder.build(move |capabilities| {
        let [capability] = <[Capability<Time>; 1]>::try_from(capabilities).expect("one output");
        let mut capability = Some(capability);
        let mut closed = CommitEpochs::new(process.schedule);
        // The oldest commit epoch that is not published.
        let mut published = CommitEpochs::new(process.schedule);
        move |frontiers| {
            let started = Instant::now();
            marked.for_each(|_, rows| debug_assert!(rows.is_empty(), "steps emit rows only with a store"));
            acknowledged.for_each(|_, _| ());
            let Some(held) = &mut capability else { return };
            let of_sources = FrontierHands::of_input(&frontiers[0], first).epoch;
            let of_sinks = FrontierHands::of_input(&frontiers[1], first).epoch;
            let frontier = oldest_open(of_sources, of_sinks);
            let last = context.ending().last();
            while let Some(epoch) = closed.pass(frontier, last) {
                io.submit(epoch, context.outbox().take_by_partition(epoch));
            }
            if leads {
                let Some(news) = context.or_fail(io.news()) else { return };
                for news in news {
                    match news {
                        DirectNews::Committed(partition, next) => {
                            let outcome = CommitOutcome { offsets: vec![(partition, next)], error: None };
                            settle(&context, &outcome, context.clock().now());
                        }
                        DirectNews::Published(epoch) => {
                            debug_assert_eq!(epoch, published.open(), "epochs are published in order");
                            published.pass(Some(epoch.next()), None);
                        }
                    }
                }
            }
            if leads && published.open() < closed.open() {
                hold.set(published.open(), "the end of its transactions");
            } else {
                hold.clear();
            }
            // Nothing is published before every thread of the process has handed in: only one need hold.
            let oldest = if leads { published.open() } else { closed.open() };
            if frontier.is_none() && last.is_none_or(|last| oldest > last) {
                capability = None;
            } else if oldest > held.time().epoch {
                held.downgrade(&Time::new(oldest, EventTime::MAX));
            }
            process.metrics.publication_wait.observe(started.elapsed().as_secs_f64());
        }
    });
    parts
}
