//! One element in, one element out.

use crate::batch::{ElementStream, Parcel};
use crate::build::FlowBuild;
use crate::element::{Data, Element};
use crate::record::transform::{Refusal, retain, transform};
use crate::record::{ErrorHandling, Place};
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
/// Under dead letters the step has a copy of each element while it works on it.
pub fn try_map<'s, T: Data, U: Data, E: Display>(
    build: &FlowBuild<'s>,
    step: &StepId,
    stream: ElementStream<'s, T>,
    handling: impl Into<ErrorHandling<T>>,
    mut f: impl FnMut(Element<T>) -> Result<Element<U>, E> + 'static,
) -> ElementStream<'s, U> {
    let handling = handling.into();
    let keep = handling.keeps_records();
    transform(build, "map", [(step, handling)], stream, move |element| {
        let place = Place::of(&element.meta);
        let kept = keep.then(|| element.clone());
        f(element).map_err(|reason| Refusal::at(place, kept, reason))
    })
}

/// Makes another value of each; it may fail.
pub fn try_map_ref<'s, T: Data, U: Data, E: Display>(
    build: &FlowBuild<'s>,
    step: &StepId,
    stream: ElementStream<'s, T>,
    handling: impl Into<ErrorHandling<T>>,
    mut f: impl FnMut(&Element<T>) -> Result<U, E> + 'static,
) -> ElementStream<'s, U> {
    transform(build, "map", [(step, handling.into())], stream, move |element| match f(&element) {
        Ok(value) => Ok(Element { value, meta: element.meta }),
        Err(reason) => Err(Refusal::of(element, reason)),
    })
}

/// Changes every element in its place; it may fail, and then it has changed nothing.
pub fn try_update<'s, T: Data, E: Display>(
    build: &FlowBuild<'s>,
    step: &StepId,
    stream: ElementStream<'s, T>,
    handling: impl Into<ErrorHandling<T>>,
    mut f: impl FnMut(&mut Element<T>) -> Result<(), E> + 'static,
) -> ElementStream<'s, T> {
    retain(build, "map", step, handling.into(), stream, move |element| f(element).map(|()| true))
}
