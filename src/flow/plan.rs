//! What a flow is made of, as data: the steps, what feeds them, and what of them shapes state.
//!
//! Both front doors (Rust and YAML) fill the same plan before a broker is contacted: guards, the fingerprint
//! ([`super::shape`]), `check` and the store's step table read it, and nothing of it is said a second time.

use crate::config::Settings;
use crate::config::guards::{GuardedStep, check_steps};
use crate::config::problems::{Problem, code};
use crate::config::yaml::Origin;
use std::collections::BTreeSet;
use tidegate_operators::steps::{FlowSteps, StepSpec};
use tidegate_recovery::StepId;

/// Place of a step in the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Node(pub(crate) usize);

/// What a step does with state, as far as delivery is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keeps {
    /// Nothing.
    Nothing,
    /// Watermarks of the partitions that it sees; rebuilt from the records where there is no store.
    Watermarks,
    /// State per key that a crash would lose without a store.
    Keyed,
    /// Batches that are replayed from the source where there is no store (`collect_batch`).
    Replayable,
}

/// One step of the plan.
#[derive(Clone, Debug)]
pub(crate) struct StepPlan {
    /// Id, kind, version and the parameters that shape its state.
    pub(crate) spec: StepSpec,
    /// State it keeps.
    pub(crate) keeps: Keeps,
    /// The steps that feed it.
    pub(crate) inputs: Vec<Node>,
    /// Whether the stream behind it may end here: a sink, or a step whose records are meant to be dropped.
    pub(crate) terminal: bool,
}

impl StepPlan {
    /// Its path in messages: a flow in Rust has no lines to point at.
    fn path(&self) -> String {
        format!("steps.{}", self.spec.id)
    }
}

/// A topic that a sink writes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OutputTopic {
    /// Name.
    pub(crate) topic: String,
    /// Partitions and replication to create it with when it is missing; `None` refuses a missing topic.
    pub(crate) create: Option<(i32, i32)>,
}

/// The whole flow.
#[derive(Clone, Debug, Default)]
pub(crate) struct FlowPlan {
    /// Name of the flow.
    pub(crate) name: String,
    /// The steps, each behind all that feed it.
    pub(crate) steps: Vec<StepPlan>,
    /// Topics that are read.
    pub(crate) input_topics: Vec<String>,
    /// The topics among them that a stream reads.
    pub(crate) streamed_topics: BTreeSet<String>,
    /// Topics that are written.
    pub(crate) output_topics: Vec<OutputTopic>,
    /// What else stands in the steps, for a flow that is data; the steps of a flow in Rust are code.
    pub(crate) expressions: String,
    /// What is wrong with the flow as such.
    pub(crate) problems: Vec<Problem>,
}

impl FlowPlan {
    /// The steps as the operators and the store number them; an error names a step that is there twice.
    pub(crate) fn table(&self) -> Result<FlowSteps, StepId> {
        FlowSteps::new(self.steps.iter().map(|step| step.spec.clone())).map_err(|duplicate| duplicate.0)
    }

    /// Whether a step needs the store to keep what it promises.
    pub(crate) fn needs_store(&self) -> bool {
        self.steps.iter().any(|step| step.keeps == Keeps::Keyed)
    }

    /// Guards that look at the flow as a whole; every finding at once.
    pub(crate) fn guards(&self, settings: &Settings) -> Vec<Problem> {
        let mut problems = self.problems.clone();
        let paths: Vec<String> = self.steps.iter().map(StepPlan::path).collect();
        let steps: Vec<GuardedStep<'_>> = self
            .steps
            .iter()
            .zip(&paths)
            .map(|(step, path)| GuardedStep {
                id: step.spec.id.as_str(),
                loses_state: step.keeps == Keeps::Keyed,
                path,
                origin: &Origin::Default,
            })
            .collect();
        problems.extend(check_steps(&steps, settings));
        self.guard_ends(&mut problems);
        if self.input_topics.is_empty() {
            problems.push(
                Problem::error(
                    code::INVALID_VALUE,
                    "kafka.consumer.topics",
                    &Origin::Default,
                    "the flow reads no topic",
                )
                .advise("name at least one"),
            );
        }
        for topic in self.input_topics.iter().filter(|topic| !self.streamed_topics.contains(*topic)) {
            problems.push(
                Problem::error(
                    code::INVALID_VALUE,
                    "kafka.consumer.topics",
                    &Origin::Default,
                    format!("no stream of the flow reads the topic {topic}: its records would be committed and lost"),
                )
                .advise("take it out of the list, or read it"),
            );
        }
        problems
    }

    fn guard_ends(&self, problems: &mut Vec<Problem>) {
        for (index, step) in self.steps.iter().enumerate() {
            let feeds_something = self.steps.iter().any(|other| other.inputs.contains(&Node(index)));
            if !step.terminal && !feeds_something {
                problems.push(
                    Problem::error(
                        "FORK_BRANCH_NO_TERMINAL",
                        step.path(),
                        &Origin::Default,
                        format!("the stream behind step {} ({}) goes nowhere", step.spec.id, step.spec.kind),
                    )
                    .advise("end it with a sink, or with `drain` if its records are meant to be dropped"),
                );
            }
        }
    }
}
