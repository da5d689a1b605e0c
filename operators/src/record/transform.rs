//! What the steps have in common that make one element of one and may fail.

use crate::batch::{Batch, ElementStream, Parcel};
use crate::build::FlowBuild;
use crate::element::{Data, Element};
use crate::record::{ErrorHandling, ErrorPolicy, Place};
use std::fmt::Display;
use tidegate_recovery::StepId;
use timely::container::CapacityContainerBuilder;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::generic::OutputBuilder;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::progress::operate::FrontierInterest;

/// An element that could not be taken.
pub(super) struct Refusal<T, E> {
    pub(super) place: Place,
    /// The element as it was, unless its policy has no use for it.
    pub(super) element: Option<Element<T>>,
    /// Which of the step's policies decides.
    policy: usize,
    pub(super) reason: E,
}

impl<T, E> Refusal<T, E> {
    /// By the step's only policy.
    pub(super) fn of(element: Element<T>, reason: E) -> Refusal<T, E> {
        Refusal::by(0, element, reason)
    }

    /// By one of its policies.
    pub(super) fn by(policy: usize, element: Element<T>, reason: E) -> Refusal<T, E> {
        Refusal { place: Place::of(&element.meta), element: Some(element), policy, reason }
    }

    /// By the only policy, which needs the element only if it was kept.
    pub(super) fn at(place: Place, kept: Option<Element<T>>, reason: E) -> Refusal<T, E> {
        Refusal { place, element: kept, policy: 0, reason }
    }
}

/// Applies `f` to every element. What it refuses follows the policies, each with the id of the step that it is of;
/// an element is tried again as often as its policy says.
pub(super) fn transform<'s, T: Data, U: Data, E: Display, const P: usize>(
    build: &FlowBuild<'s>,
    kind: &str,
    policies: [(&StepId, ErrorHandling<T>); P],
    stream: ElementStream<'s, T>,
    mut f: impl FnMut(Element<T>) -> Result<Element<U>, Refusal<T, E>> + 'static,
) -> ElementStream<'s, U> {
    let step = policies[0].0;
    let handle = build.step(step);
    let mut builder = OperatorBuilder::new(format!("{kind} {step}"), build.scope());
    let mut input = builder.new_input(stream, Pipeline);
    builder.set_notify_for(0, FrontierInterest::Never);
    let (output, elements) = builder.new_output::<Batch<U>>();
    let mut output = OutputBuilder::<_, CapacityContainerBuilder<Batch<U>>>::from(output);
    let mut policies = policies.map(|(step, handling)| {
        let handle = build.step(step);
        ErrorPolicy::new(build, &mut builder, &handle, handling)
    });
    let mut failed = false;
    builder.build(move |_capabilities| {
        move |_frontiers| {
            if failed {
                return;
            }
            let mut output = output.activate();
            input.for_each(|capability, batch| {
                handle.metrics.received.inc_by(batch.len() as u64);
                let mut made = Vec::with_capacity(batch.len());
                for element in batch.drain(..) {
                    // After a failure nothing passes any more; the capability of all of it is kept.
                    if failed {
                        break;
                    }
                    match f(element) {
                        Ok(element) => made.push(element),
                        Err(refusal) => match again(&mut f, refusal, &policies) {
                            Ok(element) => made.push(element),
                            Err(Refusal { place, element, policy, reason }) => {
                                failed = !policies[policy].goes_on(place, element.as_ref(), &reason);
                            }
                        },
                    }
                }
                if failed {
                    policies[0].unfinished().keep_input(&capability, 0);
                }
                for policy in &mut policies {
                    policy.send_letters(&capability);
                }
                output.session(&capability).give_container(&mut Parcel(made));
            });
        }
    });
    elements
}

/// The further attempts at an element that was refused.
#[cold]
pub(super) fn again<T, O, E>(
    f: &mut impl FnMut(Element<T>) -> Result<O, Refusal<T, E>>,
    mut refusal: Refusal<T, E>,
    policies: &[ErrorPolicy<T>],
) -> Result<O, Refusal<T, E>> {
    for _ in 1..policies[refusal.policy].attempts() {
        let Some(element) = refusal.element.take() else { break };
        match f(element) {
            Ok(made) => return Ok(made),
            Err(next) => refusal = next,
        }
    }
    Err(refusal)
}

/// Keeps the elements for which `f` holds, in the batch that they came in; `f` may change them. Where it fails it has
/// changed nothing.
pub(super) fn retain<'s, T: Data, E: Display>(
    build: &FlowBuild<'s>,
    kind: &str,
    step: &StepId,
    handling: ErrorHandling<T>,
    stream: ElementStream<'s, T>,
    mut f: impl FnMut(&mut Element<T>) -> Result<bool, E> + 'static,
) -> ElementStream<'s, T> {
    let handle = build.step(step);
    let mut builder = OperatorBuilder::new(format!("{kind} {step}"), build.scope());
    let mut input = builder.new_input(stream, Pipeline);
    builder.set_notify_for(0, FrontierInterest::Never);
    let (output, elements) = builder.new_output::<Batch<T>>();
    let mut output = OutputBuilder::<_, CapacityContainerBuilder<Batch<T>>>::from(output);
    let mut policy = ErrorPolicy::new(build, &mut builder, &handle, handling);
    builder.build(move |_capabilities| {
        move |_frontiers| {
            if policy.has_failed() {
                return;
            }
            let mut output = output.activate();
            input.for_each(|capability, batch| {
                handle.metrics.received.inc_by(batch.len() as u64);
                // After a failure nothing passes any more; the capability of all of it is kept.
                let mut failed = policy.has_failed();
                batch.retain_mut(|element| !failed && policy.decide(element, &mut f, &mut failed));
                if failed {
                    policy.unfinished().keep_input(&capability, 0);
                }
                policy.send_letters(&capability);
                handle.metrics.emitted.inc_by(batch.len() as u64);
                output.session(&capability).give_container(batch);
            });
        }
    });
    elements
}
