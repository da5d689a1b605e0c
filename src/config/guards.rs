//! Guards over the whole: promises that a flow cannot keep as it is configured. They hold for flows in YAML and
//! in Rust alike, which is why they look at summaries of steps.

use super::flow_file::FlowDescription;
use super::kafka::DeliveryGuarantee;
use super::problems::{Problem, code};
use super::settings::Settings;
use super::steps::{Operation, Sink};
use super::yaml::Origin;
use tidegate_operators::sink::file::PROCESS;

/// What a guard looks at in a step.
#[derive(Clone, Debug)]
pub struct GuardedStep<'f> {
    /// The step's id.
    pub id: &'f str,
    /// Whether a crash without a store loses what the step knows.
    pub loses_state: bool,
    /// What keeps it from exactly once, where something does.
    pub blocker: Option<Blocker>,
    /// Path of its key; in a flow in Rust, `steps` and its id.
    pub path: &'f str,
    /// Where it stands.
    pub origin: &'f Origin,
}

/// What keeps a step from being exactly once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocker {
    /// It writes somewhere that knows no transactions: this place.
    NoTransactions(&'static str),
    /// What it makes of a record may leave the worker that read it: without a store, output and offset cannot share
    /// a transaction.
    NeedsStore,
}

impl Blocker {
    /// Of a step of this kind that writes to no other place than Kafka.
    pub(crate) fn of_kind(kind: &str) -> Option<Blocker> {
        let keyed = ["key_by", "window", "stateful_map", "collect_batch"];
        keyed.contains(&kind).then_some(Blocker::NeedsStore)
    }

    fn of(operation: &Operation) -> Option<Blocker> {
        match operation {
            Operation::Sink(Sink::Stdout) => Some(Blocker::NoTransactions("stdout")),
            Operation::Sink(Sink::File { .. }) => Some(Blocker::NoTransactions("a file")),
            other => Blocker::of_kind(other.kind()),
        }
    }
}

/// All guards over a flow in YAML.
pub fn check(flow: &FlowDescription, settings: &Settings) -> Vec<Problem> {
    let steps: Vec<GuardedStep<'_>> = flow
        .steps()
        .map(|(_, step)| GuardedStep {
            id: step.id.as_str(),
            loses_state: step.operation.loses_state(),
            blocker: Blocker::of(&step.operation),
            path: &step.path,
            origin: &step.origin,
        })
        .collect();
    check_steps(&steps, settings)
}

/// All guards over the steps of a flow.
pub fn check_steps(steps: &[GuardedStep<'_>], settings: &Settings) -> Vec<Problem> {
    let mut problems = Vec::new();
    let stateless_start = settings.recovery.directory.is_some() || settings.volatile_state;
    if settings.delivery() > DeliveryGuarantee::AtMostOnce && !stateless_start {
        let processes = settings.cluster.processes();
        for step in steps.iter().filter(|step| step.loses_state) {
            let problem = if processes > 1 {
                Problem::error(
                    code::DELIVERY_KEYED_MULTIPROCESS,
                    step.path,
                    step.origin,
                    format!(
                        "the step `{}` keeps state per key over {processes} processes, and there is no recovery \
                         store: a crash of one would lose its share while offsets of the others move on",
                        step.id
                    ),
                )
            } else {
                Problem::error(
                    code::STATE_WITHOUT_RECOVERY,
                    step.path,
                    step.origin,
                    format!(
                        "the step `{}` keeps state per key, and there is no recovery store: every crash would \
                         lose it",
                        step.id
                    ),
                )
            };
            problems.push(problem.advise(
                "add -r DIR (or recovery: { directory: DIR }); volatile_state: allow accepts the loss",
            ));
        }
    }
    if settings.delivery() == DeliveryGuarantee::ExactlyOnce {
        problems.extend(steps.iter().filter_map(|step| blocked(step, settings)));
    }
    problems
}

/// A file that several processes would write to.
pub fn shared_file(file: &str, path: &str, origin: &Origin, settings: &Settings) -> Option<Problem> {
    let shared = settings.cluster.processes() > 1 && !file.contains(PROCESS);
    shared.then(|| {
        Problem::error(code::INVALID_VALUE, path, origin, "several processes would write to one file")
            .advise(format!("put {PROCESS} into the path: it becomes the process index"))
    })
}

/// `EXACTLY_ONCE_BLOCKED`, one for each step that is in the way.
fn blocked(step: &GuardedStep<'_>, settings: &Settings) -> Option<Problem> {
    let has_store = settings.recovery.directory.is_some();
    let (what, advice) = match step.blocker? {
        Blocker::NoTransactions(place) => (
            format!(
                "exactly_once cannot be kept: the sink `{}` writes to {place}, which knows no transactions",
                step.id
            ),
            "write to a Kafka topic, or use at_least_once",
        ),
        Blocker::NeedsStore if has_store => return None,
        Blocker::NeedsStore => (
            format!(
                "exactly_once cannot be kept: behind the step `{}` a record may be on another worker than the one that read \
                 it, and there is no recovery store through which its output could be published",
                step.id
            ),
            "add -r DIR (or recovery: { directory: DIR })",
        ),
    };
    Some(Problem::error(code::EXACTLY_ONCE_BLOCKED, step.path, step.origin, what).advise(advice))
}
