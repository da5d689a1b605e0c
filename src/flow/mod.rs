//! The flow in Rust: streams of typed values, from Kafka topics to sinks.
//!
//! A flow is a closure that is called with a [`Flow`]. It is called once to plan (which steps are there, what
//! they keep, what is wrong), and then on every worker thread to build the same graph of operators; so it must
//! do the same each time. The closures of its steps run on the worker threads.
//!
//! Each method that makes a step takes the step's name first. The name is the step's id in the recovery store,
//! in metrics and in messages: keep it when the code around it changes.

mod keyed;
pub(crate) mod plan;
mod stream;

pub use keyed::{KeyBytes, KeyedStream, Window};
pub use stream::{Decode, Json, OutOfOrder, Stream};

use crate::connections::Connections;
use plan::{FlowPlan, Keeps, Node, StepPlan};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use tidegate_operators::batch::ElementStream;
use tidegate_operators::build::FlowBuild;
use tidegate_operators::element::Record;
use tidegate_operators::fault::Fault;
use tidegate_operators::source::{SourceSettings, source};
use tidegate_operators::steps::StepSpec;
use tidegate_recovery::{ErrorClass, StepId};

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
    connections: Rc<Connections>,
    /// Every topic that the whole flow reads, from the plan.
    topics: Vec<String>,
}

/// Name of the step that reads all topics of a flow.
const SOURCE: &str = "source";

impl<'s> Flow<'s> {
    /// Plans a flow without building it.
    pub(crate) fn plan(name: &str, topics: &[String], describe: impl FnOnce(&Flow<'_>)) -> FlowPlan {
        let flow = Flow::new(name, topics, None);
        describe(&flow);
        flow.0.plan.take()
    }

    /// Builds the flow on one worker and returns its operators, for the commit to be put behind them.
    pub(crate) fn build(
        name: &str,
        topics: &[String],
        planned: &FlowPlan,
        operators: FlowBuild<'s>,
        connections: Rc<Connections>,
        describe: impl FnOnce(&Flow<'s>),
    ) -> FlowBuild<'s> {
        let build = Build { operators, connections, topics: planned.input_topics.clone() };
        let flow = Flow::new(name, topics, Some(build));
        describe(&flow);
        let inner = Rc::try_unwrap(flow.0).unwrap_or_else(|_| panic!("the flow's closure kept a stream for itself"));
        inner.build.expect("the flow was begun with its operators").operators
    }

    fn new(name: &str, topics: &[String], build: Option<Build<'s>>) -> Flow<'s> {
        let plan = FlowPlan { name: name.to_owned(), input_topics: topics.to_vec(), ..FlowPlan::default() };
        Flow(Rc::new(Inner { plan: RefCell::new(plan), build, source: RefCell::default() }))
    }

    /// Reads a topic. Offsets, group and brokers are those of `kafka.consumer` in the settings.
    pub fn kafka(&self, topic: &str) -> Stream<'s, Record> {
        {
            let mut plan = self.0.plan.borrow_mut();
            if !plan.input_topics.iter().any(|known| known == topic) {
                plan.input_topics.push(topic.to_owned());
            }
        }
        let all = self.all_topics();
        let Some(build) = &self.0.build else { return all };
        if build.topics.len() == 1 {
            return all;
        }
        let inputs = build.operators.context().process().inputs.clone();
        let wanted = topic.to_owned();
        all.filter_elements(&format!("topic {topic}"), move |element| {
            inputs.name(element.meta.partition).is_some_and(|name| *name.topic == *wanted)
        })
    }

    /// The records of all topics of the flow, in one stream.
    pub(crate) fn all_topics(&self) -> Stream<'s, Record> {
        let known = self.0.source.borrow().clone();
        let (node, elements) = known.unwrap_or_else(|| {
            let (node, id) = self.add(None, SOURCE, Keeps::Nothing, BTreeMap::new(), Vec::new());
            let elements = self.0.build.as_ref().map(|build| {
                let reader = build.connections.reader(build.operators.context().worker());
                match reader {
                    Ok(reader) => source(&build.operators, &id, reader, SourceSettings::default()),
                    Err(fault) => {
                        build.operators.context().fail(fault);
                        timely::dataflow::operators::generic::operator::empty(build.operators.scope())
                    }
                }
            });
            *self.0.source.borrow_mut() = Some((node, elements.clone()));
            (node, elements)
        });
        Stream { flow: self.clone(), node, event_time: false, elements }
    }

    /// Registers a step and gives its id. The same closure registers the same steps in the same order, so plan
    /// and build agree.
    fn add(
        &self,
        name: Option<&str>,
        kind: &'static str,
        keeps: Keeps,
        parameters: BTreeMap<String, String>,
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
        plan.steps.push(StepPlan { spec: StepSpec { parameters, ..spec }, keeps, inputs, terminal: false });
        (Node(plan.steps.len() - 1), id)
    }

    fn mark_terminal(&self, node: Node) {
        self.0.plan.borrow_mut().steps[node.0].terminal = true;
    }

    fn problem(&self, problem: crate::config::problems::Problem) {
        self.0.plan.borrow_mut().problems.push(problem);
    }

    /// The operators and connections, where the flow is being built.
    fn building(&self) -> Option<(&FlowBuild<'s>, &Connections)> {
        self.0.build.as_ref().map(|build| (&build.operators, build.connections.as_ref()))
    }
}

/// A fault of a record: the flow's code refused it.
fn refused(reason: impl std::fmt::Display) -> Fault {
    Fault::new(ErrorClass::Data, reason.to_string())
}
