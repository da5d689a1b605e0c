//! Steps for tests of flows: a gate, a delay, a failure. They are compiled in and refused unless
//! `TIDEGATE_TEST_STEPS=1`.

use crate::batch::{ElementStream, Parcel};
use crate::build::FlowBuild;
use crate::context::StepHandle;
use crate::element::{Data, Element};
use crate::record::{ErrorHandling, try_filter};
use crate::status::Hold;
use crate::time::Time;
use crate::wake::WakeUp;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::Duration;
use tidegate_recovery::StepId;
use timely::container::CapacityContainerBuilder;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::{Capability, Operator};

/// How `fail_on` fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailHow {
    /// As a record's error.
    Error,
    /// With a panic on the worker's thread.
    Panic,
    /// With an abort of the process.
    Abort,
}

/// Fails on the elements for which `when` holds.
pub fn fail_on<'s, T: Data>(
    build: &FlowBuild<'s>,
    step: &StepId,
    stream: ElementStream<'s, T>,
    handling: impl Into<ErrorHandling<T>>,
    how: FailHow,
    mut when: impl FnMut(&Element<T>) -> bool + 'static,
) -> ElementStream<'s, T> {
    let id = step.clone();
    try_filter(build, step, stream, handling, move |element| {
        if !when(element) {
            return Ok(true);
        }
        let offset = element.meta.offset;
        match how {
            FailHow::Error => Err("told to fail on this record"),
            FailHow::Panic => panic!("step {id} was told to panic on the record at offset {offset}"),
            FailHow::Abort => std::process::abort(),
        }
    })
}

/// Holds the elements for which `when` holds until `file` exists; the others pass it by.
pub fn gate<'s, T: Data>(
    build: &FlowBuild<'s>,
    step: &StepId,
    stream: ElementStream<'s, T>,
    file: PathBuf,
    when: impl FnMut(&Element<T>) -> bool + 'static,
) -> ElementStream<'s, T> {
    let mut open = false;
    wait(build, step, stream, when, move |_, _| {
        open = open || file.exists();
        open
    })
}

/// Holds the elements for which `when` holds for the given time each; the others pass it by.
pub fn delay<'s, T: Data>(
    build: &FlowBuild<'s>,
    step: &StepId,
    stream: ElementStream<'s, T>,
    time: Duration,
    when: impl FnMut(&Element<T>) -> bool + 'static,
) -> ElementStream<'s, T> {
    wait(build, step, stream, when, move |since, now| now.saturating_sub(since) >= time)
}

/// How often a waiting step looks again.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Elements that wait, with the capability of their time and the moment at which they came.
struct Waiting<T> {
    step: StepHandle,
    hold: Hold,
    held: VecDeque<(Duration, Capability<Time>, Vec<Element<T>>)>,
}

fn wait<'s, T: Data>(
    build: &FlowBuild<'s>,
    step: &StepId,
    stream: ElementStream<'s, T>,
    mut when: impl FnMut(&Element<T>) -> bool + 'static,
    mut is_over: impl FnMut(Duration, Duration) -> bool + 'static,
) -> ElementStream<'s, T> {
    let context = build.context().clone();
    let scope = build.scope();
    let mut waiting = Waiting { step: build.step(step), hold: context.hold(step), held: VecDeque::new() };
    stream.unary::<CapacityContainerBuilder<Parcel<Element<T>>>, _, _, _>(
        Pipeline,
        &format!("wait {step}"),
        move |_, info| {
            let mut wake = WakeUp::new(scope, info.address.clone(), &context);
            move |input, output| {
                let now = context.clock().now();
                input.for_each(|capability, batch| {
                    waiting.step.metrics.received.inc_by(batch.len() as u64);
                    let (held, pass): (Vec<_>, Vec<_>) = batch.drain(..).partition(&mut when);
                    if !held.is_empty() {
                        let time = *capability.stamp().expect_singleton();
                        waiting.held.push_back((now, capability.delayed(&time, 0), held));
                    }
                    output.session(&capability).give_container(&mut Parcel(pass));
                });
                while let Some((since, capability, elements)) = waiting.held.front_mut()
                    && is_over(*since, now)
                {
                    output.session(&*capability).give_container(&mut Parcel(std::mem::take(elements)));
                    waiting.held.pop_front();
                }
                match waiting.held.iter().map(|(_, capability, _)| capability.time().epoch).min() {
                    Some(epoch) => {
                        waiting.hold.set(epoch, "a test step that waits");
                        wake.after(LOOK_AGAIN);
                    }
                    None => waiting.hold.clear(),
                }
            }
        },
    )
}
