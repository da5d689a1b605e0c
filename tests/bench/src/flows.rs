//! The measured flows: the same file or program that a user would run, with topics and group from the environment.

use std::path::{Path, PathBuf};
use std::process::Command;

use tidegate_harness::Kafka;
use tidegate_harness::kafka::unique;

use crate::error::{Error, Result};
use crate::suite::Run;

/// Which flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// Every record as it is.
    PassThrough,
    /// A count per key and minute.
    Windows,
}

/// How it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Language {
    /// A file for `tidegate run`.
    Yaml,
    /// A program of its own.
    Rust,
}

/// The command that runs a flow from one topic to another.
pub(crate) fn command(
    flow: Flow,
    language: Language,
    kafka: &Kafka,
    from: &str,
    to: &str,
) -> Result<Command> {
    let (file, program) = match flow {
        Flow::PassThrough => ("pass-through.yaml", "bench-pass-through"),
        Flow::Windows => ("windows.yaml", "bench-windows"),
    };
    let mut command = match language {
        Language::Yaml => {
            let mut command = Command::new(beside("tidegate")?);
            command.arg("run").arg(flow_file(file));
            command
        }
        Language::Rust => {
            let mut command = Command::new(beside(program)?);
            command.args(["run", "--config"]).arg(flow_file("settings.yaml"));
            command
        }
    };
    command
        .env("BENCH_BROKERS", kafka.bootstrap())
        .env("BENCH_GROUP", unique("bench-group"))
        .env("BENCH_FROM", from)
        .env("BENCH_TO", to);
    Ok(command)
}

/// The pass-through flow to the end of the topic.
pub(crate) fn pass_through(run: &Run<'_>, language: Language) -> Result<Command> {
    let mut command =
        command(Flow::PassThrough, language, &run.sitting.kafka, run.sitting.from.name(), run.to)?;
    command.arg("--until-end");
    Ok(command)
}

/// The same exactly once, with a transaction every `commit`; without a store, since it keeps no state.
pub(crate) fn pass_through_exactly_once(run: &Run<'_>, commit: &str) -> Result<Command> {
    let mut command = pass_through(run, Language::Rust)?;
    exactly_once(&mut command);
    command.env("TIDEGATE__RECOVERY__COMMIT_INTERVAL", commit);
    Ok(command)
}

/// The windows exactly once, with a store and a transaction every second.
pub(crate) fn windows_exactly_once(run: &Run<'_>) -> Result<Command> {
    let mut command = windows(run, Language::Rust)?;
    exactly_once(&mut command);
    Ok(command)
}

/// Every run has a store of its own, so it has a control topic of its own too.
fn exactly_once(command: &mut Command) {
    command
        .env("TIDEGATE__KAFKA__CONSUMER__DELIVERY", "exactly_once")
        .env("TIDEGATE__EXACTLY_ONCE__CONTROL_TOPIC", unique("bench-control"))
        .env("TIDEGATE__EXACTLY_ONCE__CREATE__REPLICATION", "1");
}

/// The windows to the end of the topic, with a store.
pub(crate) fn windows(run: &Run<'_>, language: Language) -> Result<Command> {
    let mut command = command(Flow::Windows, language, &run.sitting.kafka, run.sitting.from.name(), run.to)?;
    command.arg("--until-end").arg("-r").arg(run.scratch.join("store"));
    Ok(command)
}

/// The same without a store: nothing is saved.
pub(crate) fn windows_unsaved(run: &Run<'_>) -> Result<Command> {
    let mut command =
        command(Flow::Windows, Language::Rust, &run.sitting.kafka, run.sitting.from.name(), run.to)?;
    command.arg("--until-end").env("TIDEGATE__VOLATILE_STATE", "allow");
    Ok(command)
}

fn flow_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("flows").join(name)
}

/// A program of the workspace: it lies beside this one.
pub(crate) fn beside(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().map_err(|e| Error::system("find this binary", e))?;
    let path = own.with_file_name(name);
    if path.is_file() {
        Ok(path)
    } else {
        let reason = format!("{} is missing: build the whole workspace first", path.display());
        Err(Error::system("find a measured program", reason))
    }
}
