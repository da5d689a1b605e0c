//! The flow in Rust: streams of typed values, from Kafka topics to sinks.
//!
//! A flow is a closure that is called with a [`Flow`]. It is called once to plan (which steps are there, what
//! they keep, what is wrong), and then on every worker thread to build the same graph of operators; so it must
//! do the same each time. The closures of its steps run on the worker threads.
//!
//! Each method that makes a step takes the step's name first. The name is the step's id in the recovery store,
//! in metrics and in messages: keep it when the code around it changes.

pub(crate) mod described;
mod idempotency;
mod keyed;
mod lint;
pub(crate) mod plan;
mod row;
mod shape;
mod stream;

pub use keyed::{KeyBytes, KeyFromBytes, KeyedStream, Window};
pub use stream::{Decode, Decoded, IntoRecord, Json, OutOfOrder, Stream};

use crate::connections::{Destination, WorkerClients};
use plan::{FlowPlan, Keeps, Known, Node, StepPlan};
use shape::Parameters;
use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;
use tidegate_operators::batch::ElementStream;
use tidegate_operators::build::FlowBuild;
use tidegate_operators::element::Record;
use tidegate_operators::inputs::InputTable;
use tidegate_operators::record::{DeadLetters, Originals, keep_original};
use tidegate_operators::sink::sink_of_dead_letters;
use tidegate_operators::source::{SourceSettings, source};
use tidegate_operators::steps::StepSpec;
use tidegate_recovery::StepId;
use timely::dataflow::operators::core::Filter;

/// A flow that is being planned or built. Clones are the same flow.
#[derive(Clone)]
pub struct Flow<'s>(Rc<Inner<'s>>);

struct Inner<'s> {
    plan: RefCell<FlowPlan>,
    /// `None` while the flow is planned.
    build: Option<Build<'s>>,
    source: RefCell<Option<(Node, Option<ElementStream<'s, Record>>)>>,
}

struct Build<'s> {
    operators: FlowBuild<'s>,
    connections: Rc<WorkerClients>,
    /// Every topic that the whole flow reads, from the plan.
    topics: Vec<String>,
    /// The steps behind which records as they were read are needed, from the plan.
    originals: HashSet<StepId>,
}

/// Name of the step that reads all topics of a flow.
const SOURCE: &str = "source";

impl<'s> Flow<'s> {
    /// Plans a flow without building it.
    pub(crate) fn plan(name: &str, topics: &[String], describe: impl FnOnce(&Flow<'_>)) -> FlowPlan {
        let flow = Flow::new(name, topics, None);
        describe(&flow);
        flow.end_dead_letters();
        flow.0.plan.take()
    }

    /// Builds the flow on one worker and returns its operators, for the commit to be put behind them.
    pub(crate) fn build(
        name: &str,
        topics: &[String],
        planned: &FlowPlan,
        operators: FlowBuild<'s>,
        connections: Rc<WorkerClients>,
        describe: impl FnOnce(&Flow<'s>),
    ) -> FlowBuild<'s> {
        let build = Build {
            operators: operators.named(name),
            connections,
            topics: planned.input_topics.clone(),
            originals: planned.originals(),
        };
        let flow = Flow::new(name, topics, Some(build));
        describe(&flow);
        flow.end_dead_letters();
        let inner =
            Rc::try_unwrap(flow.0).unwrap_or_else(|_| panic!("the flow's closure kept a stream for itself"));
        inner.build.expect("the flow was begun with its operators").operators
    }

    fn new(name: &str, topics: &[String], build: Option<Build<'s>>) -> Flow<'s> {
        let plan = FlowPlan { name: name.to_owned(), input_topics: topics.to_vec(), ..FlowPlan::default() };
        Flow(Rc::new(Inner { plan: RefCell::new(plan), build, source: RefCell::default() }))
    }

    /// Reads a topic. Offsets, group and brokers are those of `kafka.consumer` in the settings.
    pub fn kafka(&self, topic: &str) -> Stream<'s, Record> {
        self.topics(&[topic.to_owned()])
    }

    /// Reads some topics, in one stream.
    pub(crate) fn topics(&self, topics: &[String]) -> Stream<'s, Record> {
        {
            let plan = &mut *self.0.plan.borrow_mut();
            for topic in topics {
                if !plan.input_topics.contains(topic) {
                    plan.input_topics.push(topic.clone());
                }
                plan.streamed_topics.insert(topic.clone());
            }
        }
        let all = self.all_topics();
        // A part of the topics is a filter behind the one source; while planning it is not yet known whether
        // it is a part, and the filter is no step that anybody counts on.
        let Some(build) = &self.0.build else { return all };
        if build.topics.iter().all(|topic| topics.contains(topic)) {
            return all;
        }
        let inputs = self.inputs();
        let wanted = topics.to_vec();
        let Stream { flow, node, event_time, as_read, elements } = all;
        let elements = elements.map(|elements| {
            elements.filter(move |element| {
                let name = inputs.name(element.meta.partition);
                name.is_some_and(|name| wanted.iter().any(|topic| **topic == *name.topic))
            })
        });
        Stream { flow, node, event_time, as_read, elements }
    }

    /// The table of input partitions; empty while the flow is planned.
    pub(crate) fn inputs(&self) -> InputTable {
        self.building().map(|(build, _)| build.context().inputs().clone()).unwrap_or_default()
    }

    /// The records of all topics of the flow, in one stream.
    fn all_topics(&self) -> Stream<'s, Record> {
        let known = self.0.source.borrow().clone();
        let (node, elements) = known.unwrap_or_else(|| {
            let (node, id) = self.add(None, SOURCE, Keeps::Nothing, Parameters::new(), Vec::new());
            let elements = self.0.build.as_ref().map(|build| {
                let reader = build.connections.reader();
                match reader {
                    Ok(reader) => {
                        let records = source(&build.operators, &id, reader, SourceSettings::default());
                        if self.originals_behind(&id) { keep_original(records) } else { records }
                    }
                    Err(fault) => {
                        build.operators.context().fail(fault);
                        timely::dataflow::operators::generic::operator::empty(build.operators.scope())
                    }
                }
            });
            *self.0.source.borrow_mut() = Some((node, elements.clone()));
            (node, elements)
        });
        Stream { flow: self.clone(), node, event_time: false, as_read: true, elements }
    }

    /// Whether a step behind this one needs records as they were read; while the flow is planned none does.
    fn originals_behind(&self, step: &StepId) -> bool {
        self.0.build.as_ref().is_some_and(|build| build.originals.contains(step))
    }

    /// What a step that moves records between workers does with those that it keeps as they were read.
    fn originals_from(&self, step: &StepId) -> Originals {
        if self.originals_behind(step) { Originals::Travel } else { Originals::End }
    }

    /// Notes where a step puts what it does not take. `as_read`: what it gets are the records as they were read.
    fn note_dead_letters(&self, node: Node, letters: Option<&DeadLetters>, as_read: bool) {
        let Some(letters) = letters else { return };
        self.note(node, |known| {
            known.dead_letters.push(letters.clone());
            known.needs_original |= !as_read;
        });
    }

    /// Ends the dead letters of all steps, each topic in a sink.
    fn end_dead_letters(&self) {
        let all = self.0.plan.borrow().dead_letters();
        for (letters, first) in all {
            let topic = letters.topic();
            let name = format!("dead-letters.{topic}");
            // Not an input of the sink: a stream that ends in dead letters only is a stream that goes nowhere.
            let (node, id) =
                self.add(Some(&name), "dead_letters", Keeps::Nothing, Parameters::new(), Vec::new());
            self.mark_terminal(node);
            let destination = Destination::Topic(topic.to_string());
            {
                let plan = &mut *self.0.plan.borrow_mut();
                let place = plan.place(first);
                plan.places.insert(id.clone(), place);
                plan.add_output(topic, letters.creation());
                plan.steps[node.0].known.destination = Some(destination.clone());
            }
            let Some((operators, connections)) = self.building() else { continue };
            let Some(elements) = operators.take_dead_letters(topic) else { continue };
            stream::write(operators, connections, &id, elements, &destination, |id, elements, writer| {
                sink_of_dead_letters(operators, id, elements, writer);
            });
        }
    }

    /// Registers a step and gives its id. The same closure registers the same steps in the same order, so plan
    /// and build agree.
    fn add(
        &self,
        name: Option<&str>,
        kind: &'static str,
        keeps: Keeps,
        parameters: Parameters,
        inputs: Vec<Node>,
    ) -> (Node, StepId) {
        let mut plan = self.0.plan.borrow_mut();
        let taken = |id: &str| plan.steps.iter().any(|step| step.spec.id.as_str() == id);
        let base = name.unwrap_or(kind);
        let mut id = base.to_owned();
        let mut number = 1;
        while taken(&id) {
            number += 1;
            id = format!("{base}-{number}");
        }
        if number > 1 && keeps != Keeps::Nothing {
            let problem = crate::config::problems::Problem::error(
                crate::config::problems::code::INVALID_VALUE,
                format!("steps.{base}"),
                &crate::config::yaml::Origin::Default,
                format!("two steps that keep state are called {base}: their rows could not be told apart after a restart"),
            )
            .advise("give each a `name` of its own");
            plan.problems.push(problem);
        }
        let id = StepId::new(&id);
        let spec = match keeps {
            Keeps::Nothing => StepSpec::stateless(id.clone(), kind),
            Keeps::Watermarks | Keeps::Keyed | Keeps::Replayable => StepSpec::stateful(id.clone(), kind, 1),
        };
        let spec = StepSpec { parameters, ..spec };
        plan.steps.push(StepPlan { spec, keeps, inputs, terminal: false, known: Known::default() });
        (Node(plan.steps.len() - 1), id)
    }

    fn mark_terminal(&self, node: Node) {
        self.0.plan.borrow_mut().steps[node.0].terminal = true;
    }

    /// Notes what else is known of a step.
    fn note(&self, node: Node, note: impl FnOnce(&mut Known)) {
        note(&mut self.0.plan.borrow_mut().steps[node.0].known);
    }

    fn problem(&self, problem: crate::config::problems::Problem) {
        self.0.plan.borrow_mut().problems.push(problem);
    }

    /// The operators and connections, where the flow is being built.
    fn building(&self) -> Option<(&FlowBuild<'s>, &WorkerClients)> {
        self.0.build.as_ref().map(|build| (&build.operators, build.connections.as_ref()))
    }
}
