//! The command line: what was typed ([`Cli`]) and what it means ([`Config`]).
//!
//! The same commands drive a flow file (`tidegate run flow.yaml`) and a flow in Rust (`myflow run`, with its
//! settings in `--config FILE`). A flag that sets an option becomes a layer over the file, so that it is checked
//! and explained like the rest. A wrong command line ends with 64; help and version are no errors.

use crate::config::flow_file::FileKind;
use crate::config::layers::FlagSetting;
use crate::config::units;
use crate::exit;
use crate::outboxes::OutboxCommand;
use clap::builder::PossibleValuesParser;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueHint};
use clap_complete::Shell;
pub use meaning::{CheckConfig, Config, FlowConfig, OffsetsConfig, ReplayConfig, RunConfig, RunOptions};
pub use replay_to::ReplayTo;
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use tidegate_recovery::Decision;

/// What was typed.
#[derive(Debug, Parser)]
#[command(
    name = "tidegate",
    version,
    about = "Right counts, windows and loads from Kafka topics",
    long_about = "Right counts, windows and loads from Kafka topics.\n\n\
        N processes of one command form a cluster; every Kafka partition is read by one worker, keyed state \
        survives any crash, and the committed offsets move only past work that is durably done.",
    after_long_help = after_help(),
    subcommand_required = true,
    arg_required_else_help = true
)]
pub struct Cli<S: Args> {
    #[command(subcommand)]
    command: CliCommand<S>,
}

fn after_help() -> String {
    let codes: Vec<String> =
        exit::EXIT_CODES.iter().map(|(code, why)| format!("  {code:>3}  {why}")).collect();
    format!("Exit codes:\n{}", codes.join("\n"))
}

fn offsets_help(example: &str) -> String {
    format!(
        "Example:\n  {example}\n\n\
         May run beside the flow. The lag is what lies between the group's offset and the end of the log; without a \
         group offset it is unknown."
    )
}

fn replay_help(example: &str) -> String {
    format!(
        "Examples:\n  {example} --to earliest\n  \
         {example} --to timestamp:2026-01-31T12:00:00Z --dry-run\n  \
         {example} --to offset:orders.in/0=1200,orders.in/1=1180\n\n\
         The flow must be stopped: a store that is in use and a group with members are refused. The state in the store is \
         dropped, so that windows are computed anew from there; records that were handled before are handled again. \
         Output that exactly_once still owes is published first. A time after the last record means the end. Partitions that \
         offset does not name stay where they are. Without a recovery store only the group is reset, and nothing \
         shows whether the flow runs."
    )
}

#[derive(Debug, Subcommand)]
enum CliCommand<S: Args> {
    /// Run a flow
    #[command(after_help = "Examples:\n  \
        tidegate run flow.yaml\n  \
        tidegate run flow.yaml -w 4 -r ./recovery\n  \
        tidegate run flow.yaml -i 0 -a \"h0:2101;h1:2101\" -w 2 -r /mnt/recovery   # process 0 of 2\n  \
        tidegate run flow.yaml -i 1 -a \"h0:2101;h1:2101\" -w 2 -r /mnt/recovery   # process 1 of 2\n\n\
        SIGTERM and SIGINT finish the epoch, save the state, commit and exit 0; a second signal exits at once.\n\
        Every option of the file can be set as TIDEGATE__SECTION__KEY; a flag wins over that, and that over \
        the file.")]
    Run(CliRun<S>),
    /// Check a flow without running it: nothing is contacted, nothing is changed
    #[command(after_help = "Examples:\n  \
        tidegate check flow.yaml\n  \
        tidegate check flow.yaml --explain       # effective settings, and where each came from\n  \
        tidegate check flow.yaml --format json   # one problem per line, for a program\n\n\
        Exits with 0 when the flow can run, else with 78.")]
    Check(CliCheck<S>),
    /// Look where a flow stands, or let it go on somewhere else
    #[command(subcommand)]
    Offsets(CliOffsets<S>),
    /// Look into a recovery store
    #[command(subcommand)]
    Recovery(CliRecovery),
    /// Show a crash and a restore on an embedded mock of Kafka; nothing needs to be installed
    #[command(after_help = "A window over two processes with two workers each; one process is killed, the \
        cluster starts again, and the result is compared with a straight recount. Takes less than a minute.")]
    Demo {
        /// Leave the files of the demo where they are
        #[arg(long)]
        keep: bool,
    },
    /// Print a completion script for a shell
    #[command(after_help = "Example:\n  tidegate completions bash > /etc/bash_completion.d/tidegate")]
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the manual page, or write one page per command
    Man {
        /// Directory to write the pages to; it must exist
        #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
        directory: Option<PathBuf>,
    },
}

#[derive(Debug, Subcommand)]
enum CliOffsets<S: Args> {
    /// Print for each partition what the group and the store say, what the log holds, and the lag: nothing is changed
    #[command(after_help = offsets_help("tidegate offsets show flow.yaml -r ./recovery"))]
    Show(CliOffsetsShow<S>),
    /// Let a stopped flow go on somewhere else: store and group are reset together
    #[command(after_help = replay_help("tidegate offsets replay flow.yaml -r ./recovery"))]
    Replay(CliOffsetsReplay<S>),
}

#[derive(Debug, Args)]
struct CliOffsetsReplay<S: Args> {
    #[command(flatten)]
    source: S,
    /// Where to go on: earliest, timestamp:WHEN (RFC 3339 or milliseconds), or offset:TOPIC/PARTITION=OFFSET,…
    #[arg(long, value_name = "WHERE", value_parser = replay_to::parse)]
    to: ReplayTo,
    /// Directory of the recovery store, when the file does not name it
    #[arg(short = 'r', long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    recovery: Option<String>,
    /// Only show where each partition would go on
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Args)]
struct CliOffsetsShow<S: Args> {
    #[command(flatten)]
    source: S,
    /// Directory of the recovery store, when the file does not name it
    #[arg(short = 'r', long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    recovery: Option<String>,
    /// How the offsets are printed
    #[arg(long, value_name = "FORMAT", default_value = "text", value_parser = PossibleValuesParser::new(["text", "json"]))]
    format: String,
}

#[derive(Debug, Subcommand)]
enum CliRecovery {
    /// Print what a store holds: records, segments, steps, offsets
    Inspect {
        /// The store
        #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
        directory: PathBuf,
    },
    /// Read all that the newest record of a store names, and check it
    Verify {
        /// The store
        #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
        directory: PathBuf,
    },
    /// Output of exactly-once sinks that waits for its publication, and rows of it that the broker refuses for ever
    #[command(subcommand)]
    Outbox(CliOutbox),
}

#[derive(Debug, Subcommand)]
enum CliOutbox {
    /// Print which outboxes wait; nothing is changed
    List {
        /// The store
        #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
        directory: PathBuf,
    },
    /// Do not publish a row; the flow must be stopped
    #[command(after_help = "File and row stand in the error with which the flow ended.\n\n\
        Example:\n  tidegate recovery outbox skip ./recovery outbox/0000000000000120-0000000003-00000 17")]
    Skip(CliOutboxRow),
    /// Publish a row to another topic, with the diagnosis in its headers; the flow must be stopped
    DeadLetter {
        #[command(flatten)]
        row: CliOutboxRow,
        /// The topic
        #[arg(value_name = "TOPIC")]
        topic: String,
    },
}

#[derive(Debug, Args)]
struct CliOutboxRow {
    /// The store
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    directory: PathBuf,
    /// The outbox, as `list` names it
    #[arg(value_name = "FILE")]
    file: String,
    /// The row, counted from 0
    #[arg(value_name = "ROW")]
    row: u64,
}

impl CliOutbox {
    fn config(self) -> Config {
        let decide = |CliOutboxRow { directory, file, row }, decision| {
            Config::RecoveryOutbox(directory, OutboxCommand::Decide { file, row, decision })
        };
        match self {
            CliOutbox::List { directory } => Config::RecoveryOutbox(directory, OutboxCommand::List),
            CliOutbox::Skip(row) => decide(row, Decision::Skip),
            CliOutbox::DeadLetter { row, topic } => decide(row, Decision::DeadLetter { topic }),
        }
    }
}

/// How the flow is named on the command line.
pub trait FlowSource: Args {
    /// The file, if one is given.
    fn file(self) -> Option<PathBuf>;
}

/// The flow is a file.
#[derive(Debug, Args)]
pub struct FlowFile {
    /// The flow file (YAML)
    #[arg(value_name = "FLOW", value_hint = ValueHint::FilePath)]
    flow: PathBuf,
}

impl FlowSource for FlowFile {
    fn file(self) -> Option<PathBuf> {
        Some(self.flow)
    }
}

/// The flow is this program; a file has its settings.
#[derive(Debug, Args)]
pub struct SettingsFile {
    /// File with the settings of the flow: the same keys as in a flow file, less `steps`
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    config: Option<PathBuf>,
}

impl FlowSource for SettingsFile {
    fn file(self) -> Option<PathBuf> {
        self.config
    }
}

#[derive(Debug, Args)]
struct CliRun<S: Args> {
    #[command(flatten)]
    source: S,
    #[command(flatten)]
    cluster: CliCluster,
    #[command(flatten)]
    log: CliLog,
    /// Read each partition to the end that it has now, close all windows, and exit
    ///
    /// Windows that are still open are written as they stand, and kept: when the flow goes on they are written
    /// again, complete. The last result of a key and window is the right one.
    #[arg(long)]
    until_end: bool,
    /// Start from an empty store although the group has offsets: the lost state is accepted
    #[arg(long, help_heading = "Recovery")]
    allow_lost_state: bool,
    /// Drop the state of steps that the flow has no more
    #[arg(long, help_heading = "Recovery")]
    allow_dropped_state: bool,
    /// Fall back to the record before when the newest one is damaged
    #[arg(long, help_heading = "Recovery")]
    allow_older_snapshot: bool,
    /// Accept that this input topic was deleted and made again: it is read as if nobody had read it before
    #[arg(long, value_name = "TOPIC", help_heading = "Recovery")]
    reset_topic: Vec<String>,
}

#[derive(Debug, Args)]
struct CliCheck<S: Args> {
    #[command(flatten)]
    source: S,
    #[command(flatten)]
    cluster: CliCluster,
    /// Print the effective settings, where each came from, and what delivery they mean
    #[arg(long)]
    explain: bool,
    /// How problems are printed
    #[arg(long, value_name = "FORMAT", default_value = "text", value_parser = PossibleValuesParser::new(["text", "json"]))]
    format: String,
}

#[derive(Debug, Args)]
struct CliCluster {
    /// This process's place in the address list, from 0
    #[arg(short = 'i', long = "process", value_name = "INDEX", help_heading = "Cluster")]
    process_index: Option<u16>,
    /// Addresses of all processes, in the order of their places, such as "h0:2101;h1:2101"
    #[arg(short = 'a', long, value_name = "ADDRESSES", help_heading = "Cluster")]
    addresses: Option<String>,
    /// Worker threads of each process
    #[arg(short = 'w', long, value_name = "COUNT", help_heading = "Cluster", value_parser = clap::value_parser!(u32).range(1..=1024))]
    workers: Option<u32>,
    /// What to do when a peer is lost: exit ends the process with 75
    #[arg(long, value_name = "WHAT", help_heading = "Cluster", value_parser = PossibleValuesParser::new(["exit"]))]
    on_peer_loss: Option<String>,
    /// How long a stop may take, such as 30s
    #[arg(long, value_name = "DURATION", help_heading = "Cluster", value_parser = parse_duration)]
    shutdown_timeout: Option<String>,
    /// Directory of the recovery store, the same for all processes
    #[arg(short = 'r', long, value_name = "DIR", help_heading = "Recovery", value_hint = ValueHint::DirPath)]
    recovery: Option<String>,
    /// Serve /livez, /readyz, /metrics and /status here: a port, :port or address:port
    #[arg(long, value_name = "ADDR")]
    http: Option<String>,
}

#[derive(Debug, Args)]
struct CliLog {
    /// How logs look; text on a terminal and json elsewhere when it is not given
    #[arg(long, value_name = "FORMAT", help_heading = "Logs", value_parser = PossibleValuesParser::new(["text", "json"]))]
    log_format: Option<String>,
    /// Which logs are written: error, warn, info, debug, trace, or a filter such as info,tidegate_cluster=debug
    #[arg(long, value_name = "LEVEL", help_heading = "Logs", value_parser = parse_level)]
    log_level: Option<String>,
}

fn parse_duration(text: &str) -> Result<String, String> {
    units::parse_duration(text)
        .map(|_| text.to_string())
        .map_err(|message| format!("{message}; write {}", units::DURATION_FORM))
}

fn parse_level(text: &str) -> Result<String, String> {
    crate::telemetry::check_level(text).map(|()| text.to_string())
}

/// What becomes of a command line.
#[derive(Debug)]
pub enum Parsed {
    /// Something to do.
    Do(Config),
    /// It is done already (help, version, completions, the manual), or it was wrong.
    Exit(ExitCode),
}

/// Reads the command line of `tidegate` itself: the flow is a file.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Parsed {
    parse_as::<FlowFile>("tidegate", None, FileKind::Flow, arguments)
}

/// Reads the command line of a flow in Rust, whose program has this name and version.
pub fn parse_for_program(name: &str, version: &str, arguments: impl IntoIterator<Item = OsString>) -> Parsed {
    parse_as::<SettingsFile>(name, Some(version), FileKind::SettingsOnly, arguments)
}

fn command<S: FlowSource>(name: &str, version: Option<&str>) -> clap::Command {
    // clap keeps names and versions for ever; there is one command line in the life of a process.
    let kept = |text: &str| -> &'static str { String::from(text).leak() };
    let mut command = Cli::<S>::command().name(kept(name)).bin_name(name);
    if let Some(version) = version {
        command = command.version(kept(version));
        // The examples name the program and its flow file.
        command = command
            .mut_subcommand("run", |run| {
                run.after_help(format!(
                    "Examples:\n  {name} run --config settings.yaml\n  \
                     {name} run -w 4 -r ./recovery\n  \
                     {name} run -i 0 -a \"h0:2101;h1:2101\" -w 2 -r /mnt/recovery   # process 0 of 2"
                ))
            })
            .mut_subcommand("check", |check| {
                check.after_help(format!("Example:\n  {name} check --config settings.yaml --explain"))
            })
            .mut_subcommand("offsets", |offsets| {
                offsets
                    .mut_subcommand("show", |show| {
                        show.after_help(offsets_help(&format!("{name} offsets show --config settings.yaml")))
                    })
                    .mut_subcommand("replay", |replay| {
                        replay
                            .after_help(replay_help(&format!("{name} offsets replay --config settings.yaml")))
                    })
            })
            .mut_subcommand("completions", |completions| {
                completions.after_help(format!("Example:\n  {name} completions bash"))
            });
    }
    command
}

fn parse_as<S: FlowSource>(
    name: &str,
    version: Option<&str>,
    kind: FileKind,
    arguments: impl IntoIterator<Item = OsString>,
) -> Parsed {
    let matched = command::<S>(name, version).try_get_matches_from(arguments);
    let cli = match matched.and_then(|matches| Cli::<S>::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => {
            let code = if error.use_stderr() { exit::USAGE } else { exit::DONE };
            return match error.print() {
                Ok(()) => Parsed::Exit(ExitCode::from(code)),
                Err(_) => Parsed::Exit(ExitCode::from(exit::USAGE)),
            };
        }
    };
    match cli.command {
        CliCommand::Run(run) => {
            let mut flags = run.cluster.settings();
            flags.extend(run.log.settings());
            Parsed::Do(Config::Run(RunConfig {
                flow: FlowConfig { file: run.source.file(), kind, flags },
                options: RunOptions {
                    until_end: run.until_end,
                    allow_lost_state: run.allow_lost_state,
                    allow_dropped_state: run.allow_dropped_state,
                    allow_older_snapshot: run.allow_older_snapshot,
                    reset_topics: run.reset_topic,
                },
            }))
        }
        CliCommand::Check(check) => Parsed::Do(Config::Check(CheckConfig {
            flow: FlowConfig { file: check.source.file(), kind, flags: check.cluster.settings() },
            explain: check.explain,
            json: check.format == "json",
        })),
        CliCommand::Offsets(CliOffsets::Show(show)) => Parsed::Do(Config::OffsetsShow(OffsetsConfig {
            flow: FlowConfig {
                file: show.source.file(),
                kind,
                flags: settings([("-r", "recovery.directory", show.recovery)]),
            },
            json: show.format == "json",
        })),
        CliCommand::Offsets(CliOffsets::Replay(replay)) => Parsed::Do(Config::OffsetsReplay(ReplayConfig {
            flow: FlowConfig {
                file: replay.source.file(),
                kind,
                flags: settings([("-r", "recovery.directory", replay.recovery)]),
            },
            to: replay.to,
            dry_run: replay.dry_run,
        })),
        CliCommand::Recovery(CliRecovery::Inspect { directory }) => {
            Parsed::Do(Config::RecoveryInspect(directory))
        }
        CliCommand::Recovery(CliRecovery::Verify { directory }) => {
            Parsed::Do(Config::RecoveryVerify(directory))
        }
        CliCommand::Recovery(CliRecovery::Outbox(outbox)) => Parsed::Do(outbox.config()),
        CliCommand::Demo { keep } => Parsed::Do(Config::Demo { keep }),
        CliCommand::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut command::<S>(name, version), name, &mut script);
            Parsed::Exit(written(std::io::stdout().lock().write_all(&script)))
        }
        CliCommand::Man { directory } => {
            Parsed::Exit(written(manual(command::<S>(name, version), directory)))
        }
    }
}

fn manual(command: clap::Command, directory: Option<PathBuf>) -> std::io::Result<()> {
    match directory {
        Some(directory) => clap_mangen::generate_to(command, directory),
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(command).render(&mut page)?;
            std::io::stdout().lock().write_all(&page)
        }
    }
}

fn written(outcome: std::io::Result<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::from(exit::DONE),
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "error: cannot write: {error}");
            exit::code(tidegate_recovery::ErrorClass::StoreIo)
        }
    }
}

impl CliCluster {
    fn settings(self) -> Vec<FlagSetting> {
        let number = |number: Option<u32>| number.map(|number| number.to_string());
        settings([
            ("-i", "cluster.process_index", number(self.process_index.map(u32::from))),
            ("-a", "cluster.addresses", self.addresses),
            ("-w", "cluster.workers_per_process", number(self.workers)),
            ("--on-peer-loss", "cluster.on_peer_loss", self.on_peer_loss),
            ("--shutdown-timeout", "cluster.shutdown_timeout", self.shutdown_timeout),
            ("-r", "recovery.directory", self.recovery),
            ("--http", "http", self.http),
        ])
    }
}

impl CliLog {
    fn settings(self) -> Vec<FlagSetting> {
        settings([
            ("--log-format", "log.format", self.log_format),
            ("--log-level", "log.level", self.log_level),
        ])
    }
}

fn settings<const N: usize>(given: [(&'static str, &'static str, Option<String>); N]) -> Vec<FlagSetting> {
    given
        .into_iter()
        .filter_map(|(flag, path, value)| Some(FlagSetting { flag, path, value: value? }))
        .collect()
}

mod meaning;
mod replay_to;
#[cfg(test)]
mod tests;
