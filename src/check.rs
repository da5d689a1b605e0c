//! `tidegate check`: all problems of a flow at once, and with `--explain` what its settings mean.
//!
//! Nothing is contacted and nothing is changed. The report is the command's result and goes to stdout; the exit
//! code is 0 or 78.

use crate::cli::FlowConfig;
use crate::config::flow_file::{FlowDescription, Input, Loaded, load};
use crate::config::kafka::{DeliveryGuarantee, DeliveryReason};
use crate::config::layers::Environment;
use crate::config::problems::{Problem, Problems, code};
use crate::config::settings::Settings;
use crate::config::steps::{Ahead, LatePolicy, Operation, Sink, Step};
use crate::config::units::show_duration;
use crate::config::yaml::{FILE_BYTES_MAX, Origin, Source};
use crate::exit;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

/// Reads the file that a command names, with flags and environment over it.
///
/// A file that cannot be read is a problem like any other.
pub fn load_config(flow: &FlowConfig, environment: &Environment) -> Loaded {
    let source = match &flow.file {
        None => Ok(Source::new("no file", "")),
        Some(file) => read(file),
    };
    match source {
        Ok(source) => load(source, flow.kind, environment, &flow.flags),
        Err(problem) => {
            let name = flow.file.as_deref().unwrap_or(Path::new("")).display().to_string();
            let mut problems = Problems::default();
            problems.push(*problem);
            Loaded {
                source: Source::new(name, ""),
                name: None,
                flow: None,
                settings: None,
                problems,
                provenance: Default::default(),
            }
        }
    }
}

fn read(file: &Path) -> Result<Source, Box<Problem>> {
    let fail = |message: String| Box::new(Problem::error(code::INVALID_VALUE, "", &Origin::Default, message));
    let name = file.display().to_string();
    let size =
        std::fs::metadata(file).map_err(|error| fail(format!("the file {name} cannot be read: {error}")))?;
    if size.is_file() && size.len() > FILE_BYTES_MAX as u64 {
        return Err(fail(format!(
            "the file {name} has {} bytes, at most {FILE_BYTES_MAX} are read",
            size.len()
        )));
    }
    let bytes =
        std::fs::read(file).map_err(|error| fail(format!("the file {name} cannot be read: {error}")))?;
    let text = String::from_utf8(bytes).map_err(|_| fail(format!("the file {name} is no UTF-8 text")))?;
    Ok(Source::new(name, text))
}

/// Prints the report and gives the exit code.
pub(crate) fn finish(loaded: &Loaded, explain: bool, json: bool) -> ExitCode {
    let report = report(loaded, explain, json);
    let written = std::io::stdout().lock().write_all(report.as_bytes());
    match (written, loaded.problems.has_errors()) {
        (Err(_), _) => exit::code(tidegate_recovery::ErrorClass::StoreIo),
        (Ok(()), true) => ExitCode::from(exit::CONFIG),
        (Ok(()), false) => ExitCode::from(exit::DONE),
    }
}

/// Problems as text for a person, the way `check` and a refused `run` print them.
pub fn problems_text(source: &Source, problems: &Problems) -> String {
    let mut text = String::new();
    for problem in problems.iter() {
        let _ = writeln!(text, "{}\n", problem.human(source));
    }
    let (errors, warnings) = problems.counts();
    let count = |count: usize, word: &str| format!("{count} {word}{}", if count == 1 { "" } else { "s" });
    let _ = match (errors, warnings) {
        (0, 0) => writeln!(text, "{}: no problems", source.name()),
        (0, warnings) => writeln!(text, "{}: {}", source.name(), count(warnings, "warning")),
        (errors, 0) => writeln!(text, "{}: {}", source.name(), count(errors, "error")),
        (errors, warnings) => {
            writeln!(text, "{}: {}, {}", source.name(), count(errors, "error"), count(warnings, "warning"))
        }
    };
    text
}

/// The report of a check.
pub fn report(loaded: &Loaded, explain: bool, json: bool) -> String {
    if json {
        return json_report(loaded, explain);
    }
    let mut text = String::new();
    if explain && let Some(settings) = &loaded.settings {
        text.push_str(&explanation(loaded, settings));
        text.push('\n');
    }
    text.push_str(&problems_text(&loaded.source, &loaded.problems));
    text
}

fn json_report(loaded: &Loaded, explain: bool) -> String {
    let mut text = String::new();
    if explain {
        for setting in loaded.provenance.iter() {
            let line = serde_json::json!({
                "setting": setting.path,
                "value": setting.value,
                "from": from(&setting.origin, loaded.source.name()),
            });
            let _ = writeln!(text, "{line}");
        }
        if let Some(settings) = &loaded.settings {
            let line = serde_json::json!({
                "delivery": settings.delivery().as_str(),
                "meaning": delivery_words(loaded.flow.as_ref(), settings),
            });
            let _ = writeln!(text, "{line}");
        }
    }
    for problem in loaded.problems.iter() {
        let _ = writeln!(text, "{}", problem.json(&loaded.source));
    }
    text
}

fn from(origin: &Origin, file: &str) -> String {
    match origin {
        Origin::Default => "default".into(),
        other => other.describe(file),
    }
}

fn explanation(loaded: &Loaded, settings: &Settings) -> String {
    let mut text = String::new();
    if let Some(flow) = &loaded.flow {
        let _ = writeln!(text, "flow {}", flow.name);
        for stream in &flow.streams {
            let input = match &stream.input {
                Input::Topics(topics) => format!("topics {}", topics.join(", ")),
                Input::Stream(name) => format!("stream {name}"),
                Input::Merge(names) => format!("streams {}", names.join(" + ")),
            };
            let steps: Vec<String> = stream
                .steps
                .iter()
                .map(|step| match (step.id.as_str(), &step.operation) {
                    (_, Operation::Sink(Sink::Kafka(sink))) => format!("sink (topic {})", sink.topic),
                    (_, Operation::Sink(Sink::Stdout)) => "sink (stdout)".into(),
                    (_, Operation::Sink(Sink::File { path })) => format!("sink (file {path})"),
                    (id, operation) if id == operation.kind() => id.to_string(),
                    (id, operation) => format!("{} ({id})", operation.kind()),
                })
                .zip(&stream.steps)
                .map(|(shown, step)| shown + &dead_letters(step))
                .collect();
            let _ = writeln!(text, "  {}: {input} → {}", stream.name, steps.join(" → "));
        }
        text.push('\n');
    }
    let reason = match settings.consumer.as_ref().map(|consumer| consumer.delivery_reason) {
        Some(DeliveryReason::Chosen) => {
            from(&loaded.provenance.origin("kafka.consumer.delivery"), loaded.source.name())
        }
        Some(DeliveryReason::AutoCommit(value)) => format!("because of enable_auto_commit: {value}"),
        Some(DeliveryReason::Unset) => "because nothing says otherwise".into(),
        None => "nothing is read from Kafka".into(),
    };
    let _ = writeln!(text, "delivery {} ({reason})", settings.delivery().as_str());
    for line in delivery_words(loaded.flow.as_ref(), settings) {
        let _ = writeln!(text, "  {line}");
    }
    if settings.http.is_none() {
        text.push_str("\nno lag, no metrics and no state of health are served: --http ADDR serves them\n");
    }
    text.push_str("\nsettings\n");
    let width = |of: fn(&crate::config::provenance::Effective) -> &str| {
        const WIDEST: usize = 48;
        loaded.provenance.iter().map(|setting| of(setting).chars().count()).max().unwrap_or(0).min(WIDEST)
    };
    let (paths, values) = (width(|setting| &setting.path), width(|setting| &setting.value));
    for setting in loaded.provenance.iter() {
        let from = from(&setting.origin, loaded.source.name());
        let _ = writeln!(text, "  {:paths$}  {:values$}  {from}", setting.path, setting.value);
    }
    text
}

/// Where a step puts the records that it does not take.
fn dead_letters(step: &Step) -> String {
    let late = match &step.operation {
        Operation::Window(window) => match &window.late {
            LatePolicy::DeadLetter(letters) => Some(("late", letters)),
            LatePolicy::Drop => None,
        },
        Operation::EventTime(event_time) => match &event_time.ahead {
            Ahead::DeadLetter(letters) => Some(("ahead", letters)),
            Ahead::Drop | Ahead::Keep | Ahead::Fail => None,
        },
        _ => None,
    };
    let failed = step.on_error.dead_letters().map(|letters| ("failed", letters));
    let shown: Vec<String> = failed
        .into_iter()
        .chain(late)
        .map(|(which, letters)| format!("{which} to topic {}", letters.topic()))
        .collect();
    if shown.is_empty() { String::new() } else { format!(" [{}]", shown.join(", ")) }
}

/// What the delivery means, in plain words.
fn delivery_words(flow: Option<&FlowDescription>, settings: &Settings) -> Vec<String> {
    let interval = show_duration(settings.recovery.commit_interval);
    let keyed = flow.is_none_or(|flow| flow.steps().any(|(_, step)| step.operation.loses_state()));
    let mut words = Vec::new();
    match settings.delivery() {
        DeliveryGuarantee::AtMostOnce => {
            words.push("offsets are committed before records are handed on".to_string());
            words.push("a crash loses what was read and not yet written; nothing is written twice".into());
        }
        DeliveryGuarantee::AtLeastOnce | DeliveryGuarantee::ExactlyOnce => {
            words.push("no record is lost: an offset is committed when all that was made of its records is acknowledged".into());
            words.push(match &settings.recovery.directory {
                Some(directory) => {
                    format!("and the state is durable in {}; that is every {interval}", directory.display())
                }
                None => format!("by its sinks; that is every {interval}"),
            });
            words.push("after a crash the records since then are read again, and what they led to may be written again".into());
        }
    }
    match (&settings.recovery.directory, keyed) {
        (Some(directory), true) => {
            words.push(format!("state per key survives every crash, in {}", directory.display()));
        }
        (None, true) => {
            words.push(
                "state per key is lost at every crash and every stop: there is no recovery store".into(),
            );
        }
        (_, false) => {}
    }
    words
}
