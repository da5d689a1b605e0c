//! A flow file as a whole: from its text to a checked description of the flow and its settings.

use super::guards;
use super::idempotency;
use super::layers::{self, Environment, FlagSetting};
use super::problems::{Problem, Problems, code};
use super::provenance::Provenance;
use super::reader::Reader;
use super::section::Section;
use super::settings::Settings;
use super::steps::Step;
use super::topology;
use super::yaml::{self, Origin, Source};
use std::sync::Arc;

/// What a stream reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// Topics.
    Topics(Vec<String>),
    /// Another stream, by its name.
    Stream(Arc<str>),
    /// Several other streams, by their names.
    Merge(Vec<Arc<str>>),
}

/// A stream of a flow.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamDescription {
    /// Its name; that of the flow for a flow of one line.
    pub name: Arc<str>,
    /// What it reads.
    pub input: Input,
    /// Its steps.
    pub steps: Vec<Step>,
    /// Where it stands.
    pub origin: Origin,
}

/// A flow: checked, compiled, and ready to be built.
#[derive(Clone, Debug, PartialEq)]
pub struct FlowDescription {
    /// Its name.
    pub name: Arc<str>,
    /// Its streams; each stands behind those that it reads.
    pub streams: Vec<StreamDescription>,
}

impl FlowDescription {
    /// All steps with their streams.
    pub fn steps(&self) -> impl Iterator<Item = (&StreamDescription, &Step)> {
        self.streams.iter().flat_map(|stream| stream.steps.iter().map(move |step| (stream, step)))
    }

    /// All topics that the flow reads, sorted, each once.
    pub fn topics(&self) -> Vec<&str> {
        let mut topics: Vec<&str> = self
            .streams
            .iter()
            .flat_map(|stream| match &stream.input {
                Input::Topics(topics) => topics.as_slice(),
                _ => &[],
            })
            .map(String::as_str)
            .collect();
        topics.sort_unstable();
        topics.dedup();
        topics
    }
}

/// Whether the file holds the flow itself, or only the settings of a flow that is written in Rust.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// The flow and its settings.
    Flow,
    /// Settings only.
    SettingsOnly,
}

/// A flow file that was read: what it means, and what is wrong with it.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The file.
    pub source: Source,
    /// The flow's name, where the file gives one.
    pub name: Option<String>,
    /// The flow; `None` for a file of settings, or when it cannot be understood.
    pub flow: Option<FlowDescription>,
    /// The settings; `None` when the file cannot be understood.
    pub settings: Option<Settings>,
    /// What is wrong or worth a warning, by place.
    pub problems: Problems,
    /// Where each setting came from.
    pub provenance: Provenance,
}

/// Reads a flow file with the environment and the flags over it. Nothing is contacted, nothing is changed.
pub fn load(source: Source, kind: FileKind, environment: &Environment, flags: &[FlagSetting]) -> Loaded {
    let mut problems = Vec::new();
    let root = match yaml::parse(&source) {
        Ok(mut root) => {
            layers::substitute(&mut root, environment, &mut problems);
            layers::overlay(&mut root, environment, flags, &mut problems);
            root
        }
        Err(unreadable) => {
            let mut problems = Problems::default();
            problems.extend(unreadable);
            let provenance = Provenance::default();
            return Loaded { source, name: None, flow: None, settings: None, problems, provenance };
        }
    };
    let reader = Reader::default();
    problems.into_iter().for_each(|problem| reader.report_and_settle(problem));
    let section = Section::open(&reader, Some(&root), "");
    let name = read_name(&section, kind);
    let settings = Settings::read(&section, environment);
    let flow = match kind {
        FileKind::SettingsOnly => {
            for key in ["steps", "streams"] {
                if section.get(key).is_some() {
                    section.error(
                        code::INVALID_VALUE,
                        key,
                        format!("`{key}` has no place here: the steps of this flow stand in its program"),
                        "take it out",
                    );
                }
            }
            None
        }
        FileKind::Flow => {
            let name: Arc<str> = Arc::from(name.as_deref().unwrap_or("flow"));
            Some(topology::read(&section, name, &settings, environment))
        }
    };
    section.later("tables", "a table");
    section.finish();
    if let Some(flow) = &flow {
        guards::check(flow, &settings).into_iter().for_each(|problem| reader.report(problem));
        idempotency::check(flow).into_iter().for_each(|problem| reader.report(problem));
    }
    let (problems, provenance) = reader.finish();
    Loaded { source, name, flow, settings: Some(settings), problems: problems.sorted(), provenance }
}

fn read_name(section: &Section<'_, '_>, kind: FileKind) -> Option<String> {
    const LONGEST: usize = 100;
    let name = section.text("flow");
    if name.is_none() && !section.has("flow") && kind == FileKind::Flow {
        section.missing("flow", "name the flow: flow: order-totals");
    }
    let name = name?;
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > LONGEST || !name.chars().all(legal) {
        section.error(
            code::INVALID_VALUE,
            "flow",
            format!("`{name}` is no name of a flow"),
            "a name has 1 to 100 letters, digits, dashes, underscores and dots",
        );
        return None;
    }
    Some(name)
}

impl Loaded {
    /// The flow and its settings, with the warnings; or all problems when one of them stops a start.
    ///
    /// # Errors
    /// The problems with the file that they are about.
    pub fn into_flow(self) -> Result<(FlowDescription, Settings, Problems), (Source, Problems)> {
        match (self.problems.has_errors(), self.flow, self.settings) {
            (false, Some(flow), Some(settings)) => Ok((flow, settings, self.problems)),
            _ => Err((self.source, self.problems)),
        }
    }

    /// The settings of a flow in Rust, with the warnings; or all problems when one of them stops a start.
    ///
    /// # Errors
    /// The problems with the file that they are about.
    pub fn into_settings(self) -> Result<(Settings, Problems), (Source, Problems)> {
        match (self.problems.has_errors(), self.settings) {
            (false, Some(settings)) => Ok((settings, self.problems)),
            _ => Err((self.source, self.problems)),
        }
    }

    /// Adds what was found in the plan of the flow. A finding about a setting gets the place where that was set.
    pub fn report(&mut self, found: impl IntoIterator<Item = Problem>) {
        let found = found.into_iter().map(|problem| match problem.origin {
            Origin::Default => Problem { origin: self.provenance.origin(&problem.path), ..problem },
            _ => problem,
        });
        self.problems.extend(found);
        self.problems = std::mem::take(&mut self.problems).sorted();
    }
}
