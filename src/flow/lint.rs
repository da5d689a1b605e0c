//! Advice about flows that can run and will not keep what they seem to promise.
//!
//! Each finding is a warning with a code of [`WARNINGS`](crate::config::problems::WARNINGS). A warning that is mostly
//! wrong teaches people to read none, so a lint only speaks of what can be seen in the plan and the settings: what a
//! closure or an expression does with a value is its own affair. The plan is the same for a flow in YAML and in Rust, and
//! so are the findings.

use super::plan::{FlowPlan, Keeps, KeyGiven, Node};
use crate::config::Settings;
use crate::config::kafka::{DeliveryGuarantee, Isolation, OffsetReset};
use crate::config::problems::{Problem, code};
use crate::config::units::show_duration;
use crate::config::yaml::Origin;
use crate::connections::Destination;
use std::path::Path;

/// All findings.
pub(super) fn lint(plan: &FlowPlan, settings: &Settings) -> Vec<Problem> {
    let look = Look { plan, settings };
    let lints = [
        Look::keys_of_sinks,
        Look::loops,
        Look::filters,
        Look::arrival,
        Look::first_start,
        Look::store,
        Look::transactions,
    ];
    lints.into_iter().flat_map(|lint| lint(&look)).collect()
}

/// What a lint looks at.
struct Look<'a> {
    plan: &'a FlowPlan,
    settings: &'a Settings,
}

impl Look<'_> {
    /// A warning about a step.
    fn of_step(&self, node: Node, code: &'static str, message: String, advice: &str) -> Problem {
        let (path, origin) = self.plan.place(node);
        Problem::warning(code, path, &origin, message).advise(advice)
    }

    fn nodes(&self, is: impl Fn(&super::plan::StepPlan) -> bool) -> Vec<Node> {
        let steps = self.plan.steps.iter().enumerate();
        steps.filter(|(_, step)| is(step)).map(|(at, _)| Node(at)).collect()
    }

    fn of_kind(&self, kind: &str) -> Vec<Node> {
        self.nodes(|step| *step.spec.kind == *kind)
    }

    /// The steps before this one up to the source, the nearest first; each once.
    fn before(&self, node: Node) -> Vec<Node> {
        let mut found: Vec<Node> = Vec::new();
        let mut next = self.plan.steps[node.0].inputs.clone();
        while let Some(node) = next.pop() {
            if !found.contains(&node) {
                found.push(node);
                next.extend(&self.plan.steps[node.0].inputs);
            }
        }
        // Each step stands behind all that feed it.
        found.sort_unstable_by(|a, b| b.cmp(a));
        found
    }

    fn kind(&self, node: Node) -> &str {
        &self.plan.steps[node.0].spec.kind
    }

    /// Results per key that are written without it: their order is lost, or one partition takes all.
    fn keys_of_sinks(&self) -> Vec<Problem> {
        let topic = |destination: &Option<Destination>| match destination {
            Some(Destination::Topic(topic)) => Some(topic.clone()),
            _ => None,
        };
        let mut problems = Vec::new();
        for sink in self.nodes(|step| topic(&step.known.destination).is_some()) {
            let before = self.before(sink);
            let keyed = before.iter().find(|node| self.kind(**node) == "key_by");
            let given = before.iter().find_map(|node| self.plan.steps[node.0].known.key);
            let topic = topic(&self.plan.steps[sink.0].known.destination).unwrap_or_default();
            let what = match (keyed, given) {
                (Some(_), Some(KeyGiven::Null)) => {
                    "without a key: what belongs to one key is spread over the partitions, and its order is lost"
                }
                (Some(_), Some(KeyGiven::Constant)) => {
                    "with the same key for all: one partition takes everything"
                }
                _ => continue,
            };
            problems.push(self.of_step(
                sink,
                code::SINK_WITHOUT_KEY,
                format!("the results are made per key, and written to {topic} {what}"),
                "write them with the key that they were made for: leave the key out of the sink and of a map before it",
            ));
        }
        problems
    }

    /// What the flow writes, it reads again.
    fn loops(&self) -> Vec<Problem> {
        let read = |topic: &str| self.plan.streamed_topics.contains(topic);
        let message = |topic: &str| format!("the flow reads the topic {topic}, and writes to it: a loop");
        let advice = "write to another topic; a record that goes round and round is never done";
        let mut problems = Vec::new();
        let mut seen = Vec::new();
        for sink in self.nodes(|step| step.known.destination.is_some()) {
            if let Some(Destination::Topic(topic)) = &self.plan.steps[sink.0].known.destination {
                seen.push(topic);
                if read(topic) {
                    problems.push(self.of_step(sink, code::OUTPUT_IS_INPUT, message(topic), advice));
                }
            }
        }
        // What no sink writes is where failed records go.
        for output in self.plan.output_topics.iter().filter(|output| !seen.contains(&&output.topic)) {
            if read(&output.topic) {
                let path = "kafka.consumer.topics";
                problems.push(
                    Problem::warning(code::OUTPUT_IS_INPUT, path, &Origin::Default, message(&output.topic))
                        .advise(advice),
                );
            }
        }
        problems
    }

    /// What is dropped before the event time is read moves no watermark.
    fn filters(&self) -> Vec<Problem> {
        let mut problems: Vec<Problem> = Vec::new();
        for event_time in self.of_kind("event_time") {
            let filters = self.before(event_time).into_iter().filter(|node| self.kind(*node) == "filter");
            problems.extend(filters.map(|filter| {
                self.of_step(
                    filter,
                    code::FILTER_BEFORE_EVENT_TIME,
                    "what is dropped here moves no watermark: windows may close late".to_owned(),
                    "move event_time before the filter",
                )
            }));
        }
        problems
    }

    /// Windows over the wall clock, where a crash reads records again.
    fn arrival(&self) -> Vec<Problem> {
        if self.settings.delivery() == DeliveryGuarantee::AtMostOnce {
            return Vec::new();
        }
        let windows: Vec<Vec<Node>> =
            self.of_kind("window").into_iter().map(|node| self.before(node)).collect();
        let arrivals = self.nodes(|step| step.known.arrival);
        let feeds = |node: &Node| windows.iter().any(|before| before.contains(node));
        arrivals
            .into_iter()
            .filter(feeds)
            .map(|node| {
                self.of_step(
                    node,
                    code::ARRIVAL_TIME,
                    format!(
                        "the windows go by the time at which a record is read: under {} a crash reads records again, \
                         and then they fall into other windows",
                        self.settings.delivery().as_str()
                    ),
                    "take a time that the record carries: from: timestamp, or a field",
                )
            })
            .collect()
    }

    /// State per key that begins in the middle.
    fn first_start(&self) -> Vec<Problem> {
        let latest = self
            .settings
            .consumer
            .as_ref()
            .is_some_and(|consumer| consumer.auto_offset_reset == OffsetReset::Latest);
        let Some(step) = self.plan.steps.iter().find(|step| step.keeps == Keeps::Keyed).filter(|_| latest)
        else {
            return Vec::new();
        };
        let problem = Problem::warning(
            code::LATEST_WITH_STATE,
            "kafka.consumer.auto_offset_reset",
            &Origin::Default,
            format!(
                "the first start begins at the end of the topics: the state of {} lacks all records before, and its \
                 first results are those of a part",
                step.spec.id
            ),
        );
        vec![problem.advise("write auto_offset_reset: earliest, unless a beginning in the middle is wanted")]
    }

    /// A store that a restart of the host, or a tidy one, takes away.
    fn store(&self) -> Vec<Problem> {
        let Some(directory) = &self.settings.recovery.directory else { return Vec::new() };
        let Some(place) = temporary(directory) else { return Vec::new() };
        let problem = Problem::warning(
            code::STORE_IS_TEMPORARY,
            "recovery.directory",
            &Origin::Default,
            format!(
                "the recovery store {} lies in {place}, which is emptied without asking: with it the state is gone",
                directory.display()
            ),
        );
        vec![problem.advise("name a directory that stays")]
    }

    /// Settings that take from exactly_once what it promises, or its pace.
    fn transactions(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        if self.settings.delivery() != DeliveryGuarantee::ExactlyOnce {
            return problems;
        }
        let mut warn = |code, path: &str, message: String, advice: &str| {
            problems.push(Problem::warning(code, path, &Origin::Default, message).advise(advice));
        };
        let isolation = self.settings.consumer.as_ref().map(|consumer| consumer.isolation);
        if isolation == Some(Isolation::ReadUncommitted) {
            warn(
                code::READS_UNCOMMITTED,
                "kafka.consumer.isolation",
                "records of transactions that were aborted are read too, and their results are written for good"
                    .to_owned(),
                "write isolation: read_committed",
            );
        }
        // With a store a transaction is open for as long as it takes to write what is ready; without one it is open
        // from the first record of a commit epoch to its last.
        let interval = self.settings.recovery.commit_interval;
        let timeout = self.settings.exactly_once.transaction_timeout;
        if self.settings.recovery.directory.is_none() && interval * 2 > timeout {
            warn(
                code::TRANSACTION_TIMEOUT_SHORT,
                "recovery.commit_interval",
                format!(
                    "a transaction is open for {} between two commits, and the brokers abort it after {}: a commit that is \
                     a little late ends the run",
                    show_duration(interval),
                    show_duration(timeout)
                ),
                "let exactly_once.transaction_timeout be at least twice recovery.commit_interval",
            );
        }
        problems
    }
}

/// The temporary folder that a path lies in.
fn temporary(directory: &Path) -> Option<String> {
    let whole = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
    let of_system = std::env::temp_dir();
    let folders = [Path::new("/tmp"), Path::new("/var/tmp"), Path::new("/dev/shm"), Path::new("/run")];
    folders
        .into_iter()
        .chain([of_system.as_path()])
        .find(|folder| whole.starts_with(folder))
        .map(|folder| folder.display().to_string())
}

#[cfg(test)]
mod tests;
