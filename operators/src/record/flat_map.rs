//! One element in, any number out, a slice at a time.
//!
//! Timely has no flow control: a step that makes more than it takes hands out a slice, keeps its capability,
//! wakes itself again, and waits while the sinks of its process are over their limit. So one record that becomes
//! a million needs the memory of a slice.

use crate::batch::{Batch, ElementStream, Parcel};
use crate::build::FlowBuild;
use crate::context::{StepHandle, WorkerContext};
use crate::element::{Data, Element, Meta};
use crate::record::transform::{Refusal, again};
use crate::record::{ErrorHandling, ErrorPolicy, OnError, Place};
use crate::status::Hold;
use crate::time::Time;
use crate::wake::WakeUp;
use std::collections::VecDeque;
use std::fmt::Display;
use std::time::Duration;
use tidegate_recovery::StepId;
use timely::container::CapacityContainerBuilder;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::OutputBuilder;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::progress::operate::FrontierInterest;

/// How soon a step that waits for the sinks looks again.
const SINK_WAIT: Duration = Duration::from_millis(2);

/// Replaces every value by what `f` makes of it. Each result has the record's event time and watermark.
pub fn flat_map<'s, T: Data, U: Data, I>(
    build: &FlowBuild<'s>,
    step: &StepId,
    stream: ElementStream<'s, T>,
    mut f: impl FnMut(T) -> I + 'static,
) -> ElementStream<'s, U>
where
    I: IntoIterator<Item = U>,
    I::IntoIter: 'static,
{
    try_flat_map(build, step, stream, OnError::Fail, move |element| {
        Ok::<_, std::convert::Infallible>(f(element.value))
    })
}

/// Replaces every element by what `f` makes of it; it may fail. Under dead letters the step has a copy of each element
/// while it works on it.
pub fn try_flat_map<'s, T: Data, U: Data, I, E: Display>(
    build: &FlowBuild<'s>,
    step: &StepId,
    stream: ElementStream<'s, T>,
    handling: impl Into<ErrorHandling<T>>,
    mut f: impl FnMut(Element<T>) -> Result<I, E> + 'static,
) -> ElementStream<'s, U>
where
    I: IntoIterator<Item = U>,
    I::IntoIter: 'static,
{
    let handling = handling.into();
    let keep = handling.keeps_records();
    let mut f = move |element: Element<T>| {
        let place = Place::of(&element.meta);
        let kept = keep.then(|| element.clone());
        f(element).map_err(|reason| Refusal::at(place, kept, reason))
    };
    let handle = build.step(step);
    let context = build.context().clone();
    let mut builder = OperatorBuilder::new(format!("flat map {step}"), build.scope());
    let info = builder.operator_info();
    let mut input = builder.new_input(stream, Pipeline);
    builder.set_notify_for(0, FrontierInterest::Never);
    let (output, elements) = builder.new_output::<Batch<U>>();
    let mut output = OutputBuilder::<_, CapacityContainerBuilder<Batch<U>>>::from(output);
    let mut wake = WakeUp::new(build.scope(), info.address.clone(), &context);
    let mut state = FlatMap {
        policy: ErrorPolicy::new(build, &mut builder, &handle, handling),
        hold: context.hold(step),
        step: handle,
        context,
        waiting: VecDeque::new(),
        current: None,
    };
    builder.build(move |_capabilities| {
        move |_frontiers| {
            if state.policy.has_failed() {
                return;
            }
            input.for_each(|capability, batch| {
                let time = *capability.stamp().expect_singleton();
                let elements = std::mem::take(&mut batch.0);
                state.step.metrics.received.inc_by(elements.len() as u64);
                state.waiting.push_back(Waiting {
                    capability: capability.delayed(&time, 0),
                    letters: state.policy.retain(&capability),
                    elements: elements.into_iter(),
                });
            });
            if state.context.process().sinks.is_over() && state.is_busy() {
                wake.after(SINK_WAIT);
                return;
            }
            let slice = state.slice(&mut f);
            let mut output = output.activate();
            for (capability, results) in slice {
                state.step.metrics.emitted.inc_by(results.len() as u64);
                output.session(&capability).give_container(&mut Parcel(results));
            }
            if state.is_busy() && !state.policy.has_failed() {
                wake.now();
            }
        }
    });
    elements
}

/// Results of one time.
type Slice<U> = (Capability<Time>, Vec<Element<U>>);

/// What is left of a message that came in.
struct Waiting<T> {
    capability: Capability<Time>,
    /// For the dead letters about its elements, where there are any.
    letters: Option<Capability<Time>>,
    elements: std::vec::IntoIter<Element<T>>,
}

/// State of a flat map: what came in and is not yet taken apart.
struct FlatMap<T, I: Iterator> {
    context: WorkerContext,
    step: StepHandle,
    policy: ErrorPolicy<T>,
    hold: Hold,
    waiting: VecDeque<Waiting<T>>,
    /// The element in hand: its meta and what is left of its results.
    current: Option<(Meta, I)>,
}

impl<T: Data, I: Iterator> FlatMap<T, I> {
    fn is_busy(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The next slice of results, in the order of the records.
    fn slice<J, E>(
        &mut self,
        f: &mut impl FnMut(Element<T>) -> Result<J, Refusal<T, E>>,
    ) -> Vec<Slice<I::Item>>
    where
        J: IntoIterator<Item = I::Item, IntoIter = I>,
        E: Display,
    {
        let mut left = self.context.limits().slice_records.max(1);
        let mut out = Vec::new();
        while left > 0
            && let Some(Waiting { capability, letters, elements }) = self.waiting.front_mut()
        {
            let mut results = Vec::new();
            let mut done = false;
            while left > 0 && !done {
                if let Some((meta, rest)) = &mut self.current {
                    match rest.next() {
                        Some(value) => {
                            results.push(Element { value, meta: meta.clone() });
                            left -= 1;
                        }
                        None => self.current = None,
                    }
                    continue;
                }
                // An element that becomes nothing costs something too.
                left -= 1;
                let Some(element) = elements.next() else {
                    done = true;
                    continue;
                };
                let meta = element.meta.clone();
                let made =
                    f(element).or_else(|refusal| again(f, refusal, std::slice::from_ref(&self.policy)));
                match made {
                    Ok(made) => self.current = Some((meta, made.into_iter())),
                    Err(Refusal { place, element, reason, .. }) => {
                        if !self.policy.goes_on(place, element.as_ref(), &reason) {
                            self.policy.unfinished().keep(capability.clone());
                            out.push((capability.clone(), results));
                            return out;
                        }
                    }
                }
            }
            self.policy.send_letters_of(letters.as_ref());
            out.push((capability.clone(), results));
            if done {
                self.waiting.pop_front();
            }
        }
        match self.waiting.front() {
            Some(Waiting { capability, .. }) => {
                self.hold.set(capability.time().epoch, "results still to be handed out");
            }
            None => self.hold.clear(),
        }
        out
    }
}
