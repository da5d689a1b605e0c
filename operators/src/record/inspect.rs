//! Looking at what passes.

use crate::batch::{ElementStream, Parcel};
use crate::build::FlowBuild;
use crate::element::{Data, Element};
use tidegate_recovery::StepId;
use timely::container::CapacityContainerBuilder;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::Operator;

/// Shows every element to `f` and passes it on.
pub fn inspect<'s, T: Data>(
    build: &FlowBuild<'s>,
    step: &StepId,
    stream: ElementStream<'s, T>,
    mut f: impl FnMut(&Element<T>) + 'static,
) -> ElementStream<'s, T> {
    let handle = build.step(step);
    stream.unary::<CapacityContainerBuilder<Parcel<Element<T>>>, _, _, _>(
        Pipeline,
        &format!("inspect {step}"),
        move |_, _| {
            move |input, output| {
                input.for_each(|capability, batch| {
                    handle.metrics.received.inc_by(batch.len() as u64);
                    batch.iter().for_each(&mut f);
                    output.session(&capability).give_container(batch);
                });
            }
        },
    )
}
