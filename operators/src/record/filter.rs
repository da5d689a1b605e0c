//! Some elements pass.

use crate::batch::{ElementStream, Parcel};
use crate::build::FlowBuild;
use crate::element::{Data, Element};
use crate::record::{ErrorPolicy, OnError, Place};
use std::fmt::Display;
use tidegate_recovery::StepId;
use timely::container::CapacityContainerBuilder;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::Operator;

/// Keeps the elements for which `f` holds.
pub fn filter<'s, T: Data>(
    build: &FlowBuild<'s>,
    step: &StepId,
    stream: ElementStream<'s, T>,
    mut f: impl FnMut(&Element<T>) -> bool + 'static,
) -> ElementStream<'s, T> {
    try_filter(build, step, stream, OnError::Fail, move |element| {
        Ok::<_, std::convert::Infallible>(f(element))
    })
}

/// Keeps the elements for which `f` holds; it may fail.
pub fn try_filter<'s, T: Data, E: Display>(
    build: &FlowBuild<'s>,
    step: &StepId,
    stream: ElementStream<'s, T>,
    on_error: OnError,
    mut f: impl FnMut(&Element<T>) -> Result<bool, E> + 'static,
) -> ElementStream<'s, T> {
    let handle = build.step(step);
    let mut policy = ErrorPolicy::new(build.context(), &handle, on_error);
    stream.unary::<CapacityContainerBuilder<Parcel<Element<T>>>, _, _, _>(
        Pipeline,
        &format!("filter {step}"),
        move |_, _| {
            move |input, output| {
                if policy.has_failed() {
                    return;
                }
                input.for_each(|capability, batch| {
                    handle.metrics.received.inc_by(batch.len() as u64);
                    // After a failure nothing passes any more; the capability of all of it is kept.
                    let mut failed = policy.has_failed();
                    batch.retain(|element| {
                        if failed {
                            return false;
                        }
                        match f(element) {
                            Ok(keep) => keep,
                            Err(error) => {
                                failed = !policy.goes_on(Place::of(&element.meta), &error);
                                false
                            }
                        }
                    });
                    if failed {
                        policy.unfinished().keep_input(&capability, 0);
                    }
                    handle.metrics.emitted.inc_by(batch.len() as u64);
                    output.session(&capability).give_container(batch);
                });
            }
        },
    )
}
