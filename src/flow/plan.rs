//! What a flow is made of, as data: the steps, what feeds them, and what of them shapes state.
//!
//! Both front doors (Rust and YAML) fill the same plan before a broker is contacted: guards, the fingerprint,
//! `check` and the store's step table read it, and nothing of it is said a second time.

use crate::config::{DeliveryGuarantee, Problem};
use std::collections::BTreeMap;
use tidegate_recovery::{FlowFingerprint, StepId};

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
    /// Stable id.
    pub(crate) id: StepId,
    /// Whether the user gave the name.
    pub(crate) named: bool,
    /// The step's kind, as in a flow file.
    pub(crate) kind: &'static str,
    /// State it keeps.
    pub(crate) keeps: Keeps,
    /// Version of its state's encoding.
    pub(crate) version: u16,
    /// The parameters that shape its state: another value makes the stored state useless.
    pub(crate) shape: BTreeMap<String, String>,
    /// The steps that feed it.
    pub(crate) inputs: Vec<Node>,
    /// Whether the stream behind it has event time.
    pub(crate) event_time: bool,
    /// Whether its stream may end here: a sink, or a step whose records are meant to be dropped.
    pub(crate) terminal: bool,
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
    /// Topics that are written, with the partitions and replication to create them with.
    pub(crate) output_topics: Vec<OutputTopic>,
    /// What is wrong with the flow as such.
    pub(crate) problems: Vec<Problem>,
}

/// A topic that a sink writes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OutputTopic {
    /// Name.
    pub(crate) topic: String,
    /// Partitions and replication to create it with when it is missing; `None` refuses a missing topic.
    pub(crate) create: Option<(i32, i32)>,
}

impl FlowPlan {
    /// The hash that all processes of a cluster must agree on: every step's id, kind, version and shape, the
    /// wiring and the topics.
    pub(crate) fn fingerprint(&self) -> FlowFingerprint {
        let mut text = format!("flow {}\n", self.name);
        for topic in &self.input_topics {
            text.push_str(&format!("input {topic}\n"));
        }
        for output in &self.output_topics {
            text.push_str(&format!("output {}\n", output.topic));
        }
        for step in &self.steps {
            let inputs: Vec<_> = step.inputs.iter().map(|input| input.0).collect();
            text.push_str(&format!(
                "step {} {} {} {inputs:?} {:?}\n",
                step.id, step.kind, step.version, step.shape
            ));
        }
        FlowFingerprint(tidegate_recovery::KeyHash::of(text.as_bytes()).0)
    }

    /// The steps that keep rows in the store, sorted by id: their places are the run's step numbers.
    pub(crate) fn stateful(&self) -> Vec<&StepPlan> {
        let mut steps: Vec<_> = self.steps.iter().filter(|step| step.keeps != Keeps::Nothing).collect();
        steps.sort_by(|a, b| a.id.cmp(&b.id));
        steps
    }

    /// Guards that look at the flow as a whole; every finding at once.
    pub(crate) fn guards(&self, delivery: DeliveryGuarantee, context: GuardContext) -> Vec<Problem> {
        let mut problems = self.problems.clone();
        let mut seen: BTreeMap<&StepId, usize> = BTreeMap::new();
        for (index, step) in self.steps.iter().enumerate() {
            if step.keeps == Keeps::Nothing {
                continue;
            }
            if let Some(first) = seen.insert(&step.id, index) {
                problems.push(Problem::error(
                    "INVALID_VALUE",
                    format!("steps.{}", step.id),
                    format!(
                        "two steps that keep state are both called {} (steps {first} and {index}): give each a `name`, \
                         or their rows could not be told apart after a restart",
                        step.id
                    ),
                ));
            }
        }
        if delivery != DeliveryGuarantee::AtMostOnce && !context.store && !context.volatile_state_allowed {
            for step in self.steps.iter().filter(|step| step.keeps == Keeps::Keyed) {
                let (code, several) = if context.processes > 1 {
                    ("DELIVERY_KEYED_MULTIPROCESS", format!(" on {} processes", context.processes))
                } else {
                    ("STATE_WITHOUT_RECOVERY", String::new())
                };
                problems.push(Problem::error(
                    code,
                    format!("steps.{}", step.id),
                    format!(
                        "step {} ({}) keeps state per key{several}, and there is no recovery store: every crash would \
                         lose it; add -r DIR (or `recovery: {{ directory: DIR }}`), or accept the loss with \
                         `volatile_state: allow`",
                        step.id, step.kind
                    ),
                ));
            }
        }
        if self.input_topics.is_empty() {
            problems.push(Problem::error(
                "INVALID_VALUE",
                "kafka.consumer.topics",
                "the flow reads no topic: name at least one",
            ));
        }
        for (index, step) in self.steps.iter().enumerate() {
            let feeds_something = self.steps.iter().any(|other| other.inputs.contains(&Node(index)));
            if !step.terminal && !feeds_something {
                problems.push(Problem::error(
                    "FORK_BRANCH_NO_TERMINAL",
                    format!("steps.{}", step.id),
                    format!(
                        "the stream behind step {} ({}) goes nowhere: end it with a sink, or with `drain` if its \
                         records are meant to be dropped",
                        step.id, step.kind
                    ),
                ));
            }
        }
        problems
    }
}

/// What the guards need to know beside the plan.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GuardContext {
    /// Whether there is a recovery store.
    pub(crate) store: bool,
    /// `volatile_state: allow`.
    pub(crate) volatile_state_allowed: bool,
    /// Number of processes.
    pub(crate) processes: usize,
}
