//! Guards over the whole: promises that a flow cannot keep as it is configured. They hold for flows in YAML and
//! in Rust alike, which is why they look at summaries of steps.

use super::flow_file::FlowDescription;
use super::kafka::DeliveryGuarantee;
use super::problems::{Problem, code};
use super::settings::Settings;
use super::yaml::Origin;
use tidegate_operators::sink::file::PROCESS;

/// What a guard looks at in a step.
#[derive(Clone, Debug)]
pub struct GuardedStep<'f> {
    /// The step's id.
    pub id: &'f str,
    /// Whether a crash without a store loses what the step knows.
    pub loses_state: bool,
    /// Path of its key; in a flow in Rust, `steps` and its id.
    pub path: &'f str,
    /// Where it stands.
    pub origin: &'f Origin,
}

/// All guards over a flow in YAML.
pub fn check(flow: &FlowDescription, settings: &Settings) -> Vec<Problem> {
    let steps: Vec<GuardedStep<'_>> = flow
        .steps()
        .map(|(_, step)| GuardedStep {
            id: step.id.as_str(),
            loses_state: step.operation.loses_state(),
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
