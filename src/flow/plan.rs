//! What a flow is made of, as data: the steps, what feeds them, and what of them shapes state.
//!
//! Both front doors (Rust and YAML) fill the same plan before a broker is contacted: guards, the fingerprint
//! ([`super::shape`]), `check` and the store's step table read it, and nothing of it is said a second time.

use crate::config::Settings;
use crate::config::guards::{Blocker, GuardedStep, check_steps, shared_file};
use crate::config::problems::{Problem, code};
use crate::config::yaml::Origin;
use crate::connections::Destination;
use std::collections::{BTreeSet, HashMap};
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

/// Which key a step gives to its records, as far as that can be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyGiven {
    /// None to all of them.
    Null,
    /// The same to all of them.
    Constant,
    /// One that depends on the record.
    OfRecord,
}

/// What else is known of a step, for the advice about the flow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Known {
    /// The key that it gives to its records, where it gives one.
    pub(crate) key: Option<KeyGiven>,
    /// Whether it takes the time at which a record is read for its event time.
    pub(crate) arrival: bool,
    /// Where it writes.
    pub(crate) destination: Option<Destination>,
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
    /// What else is known of it.
    pub(crate) known: Known,
}

impl StepPlan {
    /// What keeps it from exactly once, where something does.
    fn blocker(&self) -> Option<Blocker> {
        match &self.known.destination {
            Some(Destination::File(_)) => Some(Blocker::NoTransactions("a file")),
            Some(Destination::Stdout) => Some(Blocker::NoTransactions("stdout")),
            Some(Destination::Topic(_)) | None => Blocker::of_kind(&self.spec.kind),
        }
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
    /// Path and place of each step in the flow file; a flow in Rust has no lines to point at.
    pub(crate) places: HashMap<StepId, (String, Origin)>,
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

    /// Whether records are brought together by key.
    pub(crate) fn is_keyed(&self) -> bool {
        self.steps.iter().any(|step| &*step.spec.kind == "key_by")
    }

    /// Path and place of a step, for messages.
    pub(super) fn place(&self, node: Node) -> (String, Origin) {
        let id = &self.steps[node.0].spec.id;
        self.places.get(id).cloned().unwrap_or_else(|| (format!("steps.{id}"), Origin::Default))
    }

    /// Guards that look at the flow as a whole, and advice about it; every finding at once.
    pub(crate) fn guards(&self, settings: &Settings) -> Vec<Problem> {
        let mut problems = self.problems.clone();
        let places: Vec<(String, Origin)> = (0..self.steps.len()).map(|at| self.place(Node(at))).collect();
        let steps: Vec<GuardedStep<'_>> = self
            .steps
            .iter()
            .zip(&places)
            .map(|(step, (path, origin))| GuardedStep {
                id: step.spec.id.as_str(),
                loses_state: step.keeps == Keeps::Keyed,
                blocker: step.blocker(),
                path,
                origin,
            })
            .collect();
        problems.extend(check_steps(&steps, settings));
        for (step, (path, origin)) in self.steps.iter().zip(&places) {
            if let Some(Destination::File(file)) = &step.known.destination {
                problems.extend(shared_file(file, path, origin, settings));
            }
        }
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
        problems.extend(super::lint::lint(self, settings));
        problems
    }

    fn guard_ends(&self, problems: &mut Vec<Problem>) {
        for (index, step) in self.steps.iter().enumerate() {
            let feeds_something = self.steps.iter().any(|other| other.inputs.contains(&Node(index)));
            if !step.terminal && !feeds_something {
                let (path, origin) = self.place(Node(index));
                problems.push(
                    Problem::error(
                        "FORK_BRANCH_NO_TERMINAL",
                        path,
                        &origin,
                        format!("the stream behind step {} ({}) goes nowhere", step.spec.id, step.spec.kind),
                    )
                    .advise("end it with a sink, or with `drain` if its records are meant to be dropped"),
                );
            }
        }
    }
}
