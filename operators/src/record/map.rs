//! One element in, one element out.

use crate::batch::{ElementStream, Parcel};
use crate::build::FlowBuild;
use crate::element::{Data, Element};
use crate::record::{ErrorPolicy, OnError, Place};
use crate::time::Time;
use std::fmt::Display;
use tidegate_recovery::StepId;
use timely::container::CapacityContainerBuilder;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::Operator;

/// Applies `f` to every value.
pub fn map<'s, T: Data, U: Data>(
    build: &FlowBuild<'s>,
    step: &StepId,
    stream: ElementStream<'s, T>,
    mut f: impl FnMut(T) -> U + 'static,
) -> ElementStream<'s, U> {
    let handle = build.step(step);
    stream.unary::<CapacityContainerBuilder<Parcel<Element<U>>>, _, _, _>(
        Pipeline,
        &format!("map {step}"),
        move |_, _| {
            move |input, output| {
                input.for_each(|capability, batch| {
                    handle.metrics.received.inc_by(batch.len() as u64);
                    // Where the sizes allow it, the vector is reused in place.
                    let mapped = std::mem::take(&mut batch.0)
                        .into_iter()
                        .map(|element| Element { value: f(element.value), meta: element.meta });
                    output.session(&capability).give_container(&mut Parcel(mapped.collect()));
                });
            }
        },
    )
}

/// Applies `f` to every element; it may fail, and it may change what is known of the record (its headers, say).
pub fn try_map<'s, T: Data, U: Data, E: Display>(
    build: &FlowBuild<'s>,
    step: &StepId,
    stream: ElementStream<'s, T>,
    on_error: OnError,
    mut f: impl FnMut(Element<T>) -> Result<Element<U>, E> + 'static,
) -> ElementStream<'s, U> {
    let handle = build.step(step);
    let mut policy = ErrorPolicy::new(build.context(), &handle, on_error);
    stream.unary::<CapacityContainerBuilder<Parcel<Element<U>>>, _, _, _>(
        Pipeline,
        &format!("map {step}"),
        move |_, _| {
            move |input: &mut timely::dataflow::operators::generic::InputHandleCore<Time, _, _>, output| {
                if policy.has_failed() {
                    return;
                }
                input.for_each(|capability, batch| {
                    handle.metrics.received.inc_by(batch.len() as u64);
                    let mut mapped = Vec::with_capacity(batch.len());
                    if !policy.has_failed() {
                        for element in batch.drain(..) {
                            let place = Place::of(&element.meta);
                            match f(element) {
                                Ok(element) => mapped.push(element),
                                Err(error) if policy.goes_on(place, &error) => {}
                                Err(_) => {
                                    policy.unfinished().keep_input(&capability, 0);
                                    break;
                                }
                            }
                        }
                    } else {
                        policy.unfinished().keep_input(&capability, 0);
                    }
                    output.session(&capability).give_container(&mut Parcel(mapped));
                });
            }
        },
    )
}
