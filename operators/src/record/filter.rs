//! Some elements pass.

use crate::batch::ElementStream;
use crate::build::FlowBuild;
use crate::element::{Data, Element};
use crate::record::transform::retain;
use crate::record::{ErrorHandling, OnError};
use std::fmt::Display;
use tidegate_recovery::StepId;

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
    handling: impl Into<ErrorHandling<T>>,
    mut f: impl FnMut(&Element<T>) -> Result<bool, E> + 'static,
) -> ElementStream<'s, T> {
    retain(build, "filter", step, handling.into(), stream, move |element| f(element))
}
