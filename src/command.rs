//! From a command line to its end: what each command does.

use crate::check;
use crate::cli::{self, Config, FlowConfig, Parsed, RunConfig, RunOptions};
use crate::config::flow_file::{FileKind, Loaded};
use crate::config::layers::Environment;
use crate::config::settings::LogSettings;
use crate::config::{FlowDescription, Problems, Settings};
use crate::flow::{Flow, described};
use crate::run::{Describe, Job};
use crate::{demo, outboxes, replay, run, standing, telemetry};
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use tidegate_recovery::storage::LocalDirectory;
use tidegate_recovery::{ErrorClass, RecoveryStore, StoreError};

/// The `tidegate` command: the flow is a file.
pub fn tidegate() -> ExitCode {
    match cli::parse(std::env::args_os()) {
        Parsed::Exit(code) => code,
        Parsed::Do(config) => perform(config, None),
    }
}

/// A flow in Rust: call it from `main`. The program gets every command and flag that `tidegate` has; its settings
/// stand in `--config FILE`, in the environment (`TIDEGATE__SECTION__KEY`) and in flags.
///
/// `flow` describes the flow. It is called once to plan it and once on every worker thread, and must do the same
/// each time. The flow's name is the `flow` key of the settings, or else the name of the program.
pub fn main(flow: impl Fn(&Flow<'_>) + Send + Sync + 'static) -> ExitCode {
    let program = std::env::current_exe().ok();
    let stem = program.as_deref().and_then(Path::file_stem).and_then(std::ffi::OsStr::to_str);
    let name = stem.unwrap_or("flow").to_owned();
    match cli::parse_for_program(&name, env!("CARGO_PKG_VERSION"), std::env::args_os()) {
        Parsed::Exit(code) => code,
        Parsed::Do(config) => perform(config, Some((name, Arc::new(flow)))),
    }
}

fn perform(config: Config, program: Option<(String, Describe)>) -> ExitCode {
    let environment = Environment::of_process();
    match config {
        Config::Run(config) => start(&config, &environment, program),
        Config::Check(config) => check(&config, &environment, program),
        Config::OffsetsShow(config) => show_offsets(&config, &environment, program),
        Config::OffsetsReplay(config) => replay_flow(&config, &environment, program),
        Config::RecoveryInspect(directory) => {
            look(&directory, |store| store.inspect().map(|found| (found.to_string(), true)))
        }
        Config::RecoveryVerify(directory) => {
            look(&directory, |store| store.verify().map(|found| (found.to_string(), found.damage.is_empty())))
        }
        Config::RecoveryOutbox(directory, command) => {
            look(&directory, |store| outboxes::perform(store, &command).map(|said| (said, true)))
        }
        Config::Demo { keep } => {
            telemetry::start(&LogSettings { level: "warn".into(), ..LogSettings::default() });
            match demo::run(keep, &mut std::io::stdout().lock()) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    eprintln!("tidegate demo: {error}");
                    ExitCode::from(ErrorClass::Internal.exit_code())
                }
            }
        }
    }
}

fn start(config: &RunConfig, environment: &Environment, program: Option<(String, Describe)>) -> ExitCode {
    let (job, warnings) = match load_job(&config.flow, config.options.clone(), environment, program) {
        Ok(loaded) => loaded,
        Err(code) => return code,
    };
    telemetry::start(&job.settings.log);
    warn(&warnings);
    ExitCode::from(run::run(job))
}

/// What a file or a program says, checked; problems are printed.
fn load_job(
    flow: &FlowConfig,
    options: RunOptions,
    environment: &Environment,
    program: Option<(String, Describe)>,
) -> Result<(Job, Problems), ExitCode> {
    let loaded = check::load_config(flow, environment);
    let in_common = loaded.in_common();
    let job = |name: String, describe: Describe, settings: Settings| Job {
        name,
        describe,
        settings,
        in_common,
        until_end: options.until_end,
        allow_lost_state: options.allow_lost_state,
        allow_dropped_state: options.allow_dropped_state,
        allow_older_snapshot: options.allow_older_snapshot,
        reset_topics: options.reset_topics,
    };
    debug_assert_eq!(program.is_some(), flow.kind == FileKind::SettingsOnly);
    let refused = |(source, problems)| refused(&check::problems_text(&source, &problems));
    match program {
        None => {
            let (description, settings, warnings) = loaded.into_flow().map_err(refused)?;
            Ok((job(description.name.to_string(), of_file(description), settings), warnings))
        }
        Some((name, describe)) => {
            let name = loaded.name.clone().unwrap_or(name);
            let (settings, warnings) = loaded.into_settings().map_err(refused)?;
            Ok((job(name, describe, settings), warnings))
        }
    }
}

/// The job of a command that prints an answer: its log shows warnings only.
fn load_quietly(
    flow: &FlowConfig,
    environment: &Environment,
    program: Option<(String, Describe)>,
) -> Result<Job, ExitCode> {
    let (job, _) = load_job(flow, RunOptions::default(), environment, program)?;
    telemetry::start(&LogSettings { level: "warn".into(), ..job.settings.log.clone() });
    Ok(job)
}

/// Prints where the flow stands in each partition.
fn show_offsets(
    config: &cli::OffsetsConfig,
    environment: &Environment,
    program: Option<(String, Describe)>,
) -> ExitCode {
    let job = match load_quietly(&config.flow, environment, program) {
        Ok(job) => job,
        Err(code) => return code,
    };
    match standing::find(&job) {
        Ok(found) => {
            let text = if config.json { found.json() } else { found.to_string() };
            print(&text).map_or_else(|code| code, |()| ExitCode::SUCCESS)
        }
        Err(fault) => {
            eprintln!("{fault}");
            ExitCode::from(fault.class.exit_code())
        }
    }
}

/// Resets where the flow goes on, and prints it.
fn replay_flow(
    config: &cli::ReplayConfig,
    environment: &Environment,
    program: Option<(String, Describe)>,
) -> ExitCode {
    let job = match load_quietly(&config.flow, environment, program) {
        Ok(job) => job,
        Err(code) => return code,
    };
    match replay::replay(&job, &config.to, config.dry_run) {
        Ok(done) => print(&done.to_string()).map_or_else(|code| code, |()| ExitCode::SUCCESS),
        Err(cause) => {
            let code = if cause.code.is_empty() { String::new() } else { format!("{}: ", cause.code) };
            eprintln!("{code}{}", cause.text);
            ExitCode::from(cause.exit_code())
        }
    }
}

/// The steps of a flow file, for the builder.
fn of_file(description: FlowDescription) -> Describe {
    Arc::new(move |flow: &Flow<'_>| described::describe(flow, &description))
}

fn warn(problems: &Problems) {
    for problem in problems.warnings() {
        tracing::warn!(code = problem.code, path = problem.path, "{}", problem.text());
    }
}

fn refused(text: &str) -> ExitCode {
    eprint!("{text}");
    ExitCode::from(ErrorClass::Config.exit_code())
}

/// Checks a flow: its file or its settings, then the plan of its steps.
fn check(
    config: &cli::CheckConfig,
    environment: &Environment,
    program: Option<(String, Describe)>,
) -> ExitCode {
    let mut loaded = check::load_config(&config.flow, environment);
    add_findings(&mut loaded, program);
    check::finish(&loaded, config.explain, config.json)
}

/// Plans the flow and adds what is found in the plan. A flow file with errors cannot be planned.
pub(crate) fn add_findings(loaded: &mut Loaded, program: Option<(String, Describe)>) {
    let flow = match (program, &loaded.flow) {
        (Some((name, describe)), _) => Some((loaded.name.clone().unwrap_or(name), describe)),
        (None, Some(flow)) if !loaded.problems.has_errors() => {
            Some((flow.name.to_string(), of_file(flow.clone())))
        }
        (None, _) => None,
    };
    if let (Some((name, describe)), Some(settings)) = (flow, &loaded.settings) {
        let (_, problems) = run::plan(&name, &describe, settings);
        loaded.report(problems);
    }
}

/// Looks into a store and prints what `show` says; false means that it is not sound.
fn look(
    directory: &Path,
    show: impl FnOnce(&RecoveryStore) -> Result<(String, bool), StoreError>,
) -> ExitCode {
    match show(&RecoveryStore::new(Arc::new(LocalDirectory::new(directory)))) {
        Ok((text, sound)) => match print(&text) {
            Ok(()) if sound => ExitCode::SUCCESS,
            Ok(()) => ExitCode::from(ErrorClass::Data.exit_code()),
            Err(code) => code,
        },
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(error.class().exit_code())
        }
    }
}

fn print(text: &str) -> Result<(), ExitCode> {
    writeln!(std::io::stdout(), "{text}").map_err(|error| {
        eprintln!("cannot write to stdout: {error}");
        ExitCode::from(ErrorClass::StoreIo.exit_code())
    })
}
