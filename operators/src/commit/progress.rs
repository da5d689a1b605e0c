//! The processing probe: which epochs are through the flow, and what the steps without a store hold.

use crate::batch::FrontierStream;
use crate::build::RowStream;
use crate::context::{VolatileHold, WorkerContext};
use crate::frontier::FrontierHands;
use crate::time::Time;
use timely::dataflow::Scope;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;

/// Keeps [`WorkerContext::acknowledged`] and the volatile holds. Frontiers say the same on every worker, so this
/// needs no message.
pub fn watch_progress<'s>(
    scope: Scope<'s, Time>,
    context: &WorkerContext,
    acknowledgements: FrontierStream<'s>,
    volatile: Vec<(VolatileHold, RowStream<'s>)>,
) {
    let mut builder = OperatorBuilder::new("processing probe".to_owned(), scope);
    let mut acknowledged = builder.new_input(acknowledgements, Pipeline);
    let (holds, mut inputs): (Vec<_>, Vec<_>) =
        volatile.into_iter().map(|(hold, rows)| (hold, builder.new_input(rows, Pipeline))).unzip();
    let context = context.clone();
    let first = context.schedule().first;
    builder.build(move |_capabilities| {
        move |frontiers| {
            acknowledged.for_each(|_, _| ());
            inputs.iter_mut().for_each(|input| input.for_each(|_, _| ()));
            context.set_acknowledged(FrontierHands::of_input(&frontiers[0], first).epoch);
            for (hold, frontier) in holds.iter().zip(&frontiers[1..]) {
                hold.set_open(FrontierHands::of_input(frontier, first).epoch);
            }
            for hold in &holds {
                hold.wake();
            }
        }
    });
}
