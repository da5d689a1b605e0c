//! What a flow is made of, as data: the steps, what feeds them, and what of them shapes state.
//!
//! Both front doors (Rust and YAML) fill the same plan before a broker is contacted: guards, the fingerprint
//! ([`super::shape`]), `check` and the store's step table read it, and nothing of it is said a second time.

use crate::config::Settings;
use crate::config::guards::{Blocker, GuardedStep, check_steps, shared_file};
use crate::config::problems::{Problem, code};
use crate::config::yaml::Origin;
use crate::connections::Destination;
use std::collections::{BTreeSet, HashMap, HashSet};
use tidegate_operators::record::DeadLetters;
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
    /// Where it puts records that it does not take.
    pub(crate) dead_letters: Vec<DeadLetters>,
    /// Its dead letters need the record as it was read: an earlier step has changed it.
    pub(crate) needs_original: bool,
    /// What it emits is made of several records, so that no record as it was read stands behind it.
    pub(crate) of_many: bool,
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

    /// A topic that is written; of several that say how it is made the first one counts.
    pub(super) fn add_output(&mut self, topic: &str, create: Option<(i32, i32)>) {
        match self.output_topics.iter_mut().find(|known| known.topic == topic) {
            Some(known) => known.create = known.create.or(create),
            None => self.output_topics.push(OutputTopic { topic: topic.to_owned(), create }),
        }
    }

    /// The topics for dead letters with the steps that have them, in the order of the steps. Of several steps that say
    /// how a topic is made the first one counts.
    pub(super) fn dead_letters(&self) -> Vec<(DeadLetters, Node)> {
        let mut found: Vec<(DeadLetters, Node)> = Vec::new();
        for (at, step) in self.steps.iter().enumerate() {
            for letters in &step.known.dead_letters {
                match found.iter_mut().find(|(known, _)| known.topic() == letters.topic()) {
                    Some((known, _)) if known.creation().is_none() => *known = letters.clone(),
                    Some(_) => {}
                    None => found.push((letters.clone(), Node(at))),
                }
            }
        }
        found
    }

    /// The steps behind which some step needs records as they were read.
    pub(super) fn originals(&self) -> HashSet<StepId> {
        let mut found = HashSet::new();
        for step in self.steps.iter().filter(|step| step.known.needs_original) {
            let mut before = step.inputs.clone();
            while let Some(Node(at)) = before.pop() {
                let step = &self.steps[at];
                if !step.known.of_many && found.insert(step.spec.id.clone()) {
                    before.extend(&step.inputs);
                }
            }
        }
        found
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::{AT_LEAST_ONCE, flow_with, load_text};
    use crate::flow::{Flow, described};

    fn plan(steps: &str) -> FlowPlan {
        let text = flow_with(AT_LEAST_ONCE, &format!("steps:\n{steps}recovery: {{ directory: /r }}\n"));
        let loaded = load_text(&text);
        let flow = loaded.flow.unwrap_or_else(|| panic!("{:?}", loaded.problems));
        Flow::plan(&flow.name, &[], |planned| described::describe(planned, &flow))
    }

    fn originals(steps: &str) -> Vec<String> {
        let mut found: Vec<String> = plan(steps).originals().iter().map(ToString::to_string).collect();
        found.sort_unstable();
        found
    }

    // E21: what a dead letter costs a record that does not fail.
    #[test]
    fn records_are_kept_as_they_were_read_only_up_to_the_last_step_that_may_ask_for_them() {
        let nobody: [&str; 0] = [];
        assert_eq!(originals("  - decode: json\n  - map: value.a\n  - sink: stdout\n"), nobody);
        let first = "  - filter: value != b''\n  - decode: { json: {}, on_error: { dead_letter: d } }\n";
        assert_eq!(originals(&format!("{first}  - map: value.a\n  - sink: stdout\n")), nobody);
        let copied = "  - filter: { when: 'true', on_error: { dead_letter: d } }\n  \
                      - sink: { kafka: { topic: o }, on_error: { dead_letter: d } }\n";
        assert_eq!(originals(copied), nobody, "what is written is what was read");
        let later = "  - decode: json\n  - map: { value: value.a, on_error: { dead_letter: d } }\n  \
                     - key_by: value.k\n  - window: { tumbling: 60s, aggregate: { n: count() } }\n  - sink: stdout\n";
        let later =
            later.replacen("  - map", "  - event_time: { from: timestamp, out_of_order: 1s }\n  - map", 1);
        assert_eq!(
            originals(&later),
            ["decode", "event_time", "result", "source"],
            "and not behind the key_by"
        );
        let late = later.replace("tumbling: 60s,", "tumbling: 60s, late: { dead_letter: d },");
        assert!(originals(&late).contains(&"key_by".to_owned()));
        let behind = later.replace("on_error: { dead_letter: d } }", "key: key }").replace(
            "  - sink: stdout",
            "  - filter: { when: value.n > 1, on_error: { dead_letter: d } }\n  - sink: stdout",
        );
        assert!(!originals(&behind).contains(&"source".to_owned()), "{:?}", originals(&behind));
    }

    #[test]
    fn topics_for_dead_letters_are_outputs_each_once_and_made_as_one_step_says() {
        let plan = plan(
            "  - decode: { json: {}, on_error: { dead_letter: d } }\n  \
             - filter: { when: value.a, on_error: { dead_letter: e, attempts: 7 } }\n  \
             - map: { value: value.b, on_error: { dead_letter: d, create: { partitions: 3, replication: 2 } } }\n  \
             - sink: { kafka: { topic: o } }\n",
        );
        let outputs: Vec<_> = plan.output_topics.iter().map(|o| (o.topic.as_str(), o.create)).collect();
        assert_eq!(outputs, [("o", None), ("d", Some((3, 2))), ("e", None)]);
        let sinks = plan.steps.iter().filter(|step| &*step.spec.kind == "dead_letters");
        let sinks: Vec<_> = sinks.map(|step| (step.spec.id.as_str(), step.terminal)).collect();
        assert_eq!(sinks, [("dead-letters.d", true), ("dead-letters.e", true)]);
        assert_eq!(plan.dead_letters()[1].0.attempts_max(), 7);
    }

    // A stream whose only end are its dead letters goes nowhere.
    #[test]
    fn dead_letters_are_no_end_of_a_stream() {
        let plan = plan("  - decode: { json: {}, on_error: { dead_letter: d } }\n");
        let mut problems = Vec::new();
        plan.guard_ends(&mut problems);
        assert!(!problems.is_empty());
    }
}
