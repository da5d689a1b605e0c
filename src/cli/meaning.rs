//! What a command line means, once it is understood.

use super::ReplayTo;
use crate::config::flow_file::FileKind;
use crate::config::layers::FlagSetting;
use crate::outboxes::OutboxCommand;
use std::path::PathBuf;

/// What the command line means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Config {
    /// Run a flow.
    Run(RunConfig),
    /// Check a flow.
    Check(CheckConfig),
    /// Print where a flow stands.
    OffsetsShow(OffsetsConfig),
    /// Let a stopped flow go on somewhere else.
    OffsetsReplay(ReplayConfig),
    /// Print what a store holds.
    RecoveryInspect(PathBuf),
    /// Check a store.
    RecoveryVerify(PathBuf),
    /// Look at output that waits, or decide about a row of it.
    RecoveryOutbox(PathBuf, OutboxCommand),
    /// Run the demo.
    Demo {
        /// Leave its files.
        keep: bool,
    },
}

/// Which file to read, and the flags over it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowConfig {
    /// The file; `None` for a flow in Rust whose settings are all in flags and the environment.
    pub file: Option<PathBuf>,
    /// What it holds.
    pub kind: FileKind,
    /// Flags that set options.
    pub flags: Vec<FlagSetting>,
}

/// Run a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunConfig {
    /// The flow.
    pub flow: FlowConfig,
    /// What only a flag can say.
    pub options: RunOptions,
}

/// What only a flag can say: it is about one start, not about the flow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunOptions {
    /// Read to the ends that the partitions have at the start, close all windows, and exit.
    pub until_end: bool,
    /// Start from an empty store although the group has offsets.
    pub allow_lost_state: bool,
    /// Drop the state of steps that are gone.
    pub allow_dropped_state: bool,
    /// Fall back to the record before a damaged one.
    pub allow_older_snapshot: bool,
    /// Input topics that begin anew if they were made again.
    pub reset_topics: Vec<String>,
}

/// Check a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckConfig {
    /// The flow.
    pub flow: FlowConfig,
    /// Print the effective settings too.
    pub explain: bool,
    /// Problems as JSON lines.
    pub json: bool,
}

/// Print where a flow stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetsConfig {
    /// The flow.
    pub flow: FlowConfig,
    /// A JSON object for each partition, one per line.
    pub json: bool,
}

/// Let a stopped flow go on somewhere else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayConfig {
    /// The flow.
    pub flow: FlowConfig,
    /// Where it goes on.
    pub to: ReplayTo,
    /// Only look.
    pub dry_run: bool,
}
