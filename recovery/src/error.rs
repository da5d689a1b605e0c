//! What can go wrong with a recovery store, in words that a person can act on.
//!
//! Every variant carries what failed and where. [`StoreError::class`] picks the exit code, [`StoreError::code`]
//! is the stable code of the design, and [`StoreError::outcome`] says whether the attempt certainly had no
//! effect: only then may it be tried again.

use crate::exactly_once::Stop;
use crate::lease::LeaseHolder;
use crate::steps::StepDifference;
use crate::{ErrorClass, Generation};
use std::fmt;
use std::io;

/// Whether a failed attempt may have had an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It had none: it may be tried again.
    Failed,
    /// It may have happened: a blind retry is forbidden.
    Unknown,
}

/// A failure of the recovery store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The store belongs to another flow.
    #[error(
        "the recovery store {store} belongs to the flow {found:?} and this flow is {wanted:?}: give each flow a store of its own"
    )]
    Mismatch {
        /// Where the store is.
        store: String,
        /// The flow that made it.
        found: String,
        /// The flow that was started.
        wanted: String,
    },
    /// Another cluster holds the store.
    #[error(
        "the recovery store {store} is held by a running cluster ({holder}), this start is {own}: stop the other one, or wait until it has ended"
    )]
    AlreadyRunning {
        /// Where the store is.
        store: String,
        /// Who holds it.
        holder: Box<LeaseHolder>,
        /// Who asked.
        own: Box<LeaseHolder>,
    },
    /// A cluster runs on the store that was to be changed by hand.
    #[error("the recovery store {store} is in use ({}): stop the flow first", holder_of(.holder))]
    StillRunning {
        /// Where the store is.
        store: String,
        /// Who holds it, when its lease can be read.
        holder: Option<Box<LeaseHolder>>,
    },
    /// There is no such row of an outbox to decide about.
    #[error(
        "nothing can be decided about row {row} of {file}: {what}; `tidegate recovery outbox list` shows what waits"
    )]
    NoSuchRow {
        /// The outbox.
        file: String,
        /// The row.
        row: u64,
        /// Why not.
        what: String,
    },
    /// Nothing more may be published.
    #[error(transparent)]
    Stopped(#[from] Stop),
    /// A newer generation took the store over.
    #[error(
        "generation {own} lost the recovery store {store}: {found}; nothing more is released, start again"
    )]
    LeaseLost {
        /// Where the store is.
        store: String,
        /// The generation that lost.
        own: Generation,
        /// What was found.
        found: String,
    },
    /// This process does not see the directory that process 0 sees.
    #[error(
        "the recovery store {store} is not the one that process 0 uses: {what}; all processes need the same directory, on storage that all of them see"
    )]
    NotShared {
        /// Where this process looked.
        store: String,
        /// What it found instead.
        what: String,
    },
    /// A file of the store cannot be used.
    #[error("{file} is damaged at byte {offset}: {what}{hint}")]
    Damaged {
        /// The file.
        file: String,
        /// Where in it.
        offset: u64,
        /// What is wrong there.
        what: String,
        /// What can be done, starting with a colon; empty when there is nothing.
        hint: &'static str,
    },
    /// A file was written by a newer version.
    #[error(
        "{file} has format version {found}, and this build reads up to {supported}: start a build that is at least as new as the one that wrote the store"
    )]
    NewerFormat {
        /// The file.
        file: String,
        /// Its version.
        found: u32,
        /// The newest version that is understood.
        supported: u32,
    },
    /// The flow's steps do not fit the state that the store holds.
    #[error("the flow does not fit the state in {store}:{}", lines(.differences))]
    StepsChanged {
        /// Where the store is.
        store: String,
        /// Step by step, what does not fit.
        differences: Vec<StepDifference>,
    },
    /// A step's state was written by a newer version of the step.
    #[error(
        "the state of step {step} in {store} has version {found}, and this build reads up to {supported}: start a build that is at least as new"
    )]
    StateVersion {
        /// Where the store is.
        store: String,
        /// The step.
        step: String,
        /// The version in the store.
        found: u32,
        /// The newest version that is understood.
        supported: u32,
    },
    /// A step's row is above the limit.
    #[error(
        "a row of step {step} has {bytes} bytes, and at most {limit} can be kept: split the value over several keys"
    )]
    RowTooLarge {
        /// The step.
        step: String,
        /// The row's length, with its key.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// The storage failed.
    #[error("cannot {operation} {file}: {source}{}", hint_for(.source))]
    Io {
        /// What was tried.
        operation: &'static str,
        /// On which file or folder.
        file: String,
        /// Why it failed.
        source: io::Error,
    },
    /// An earlier sync failed, so that nothing can be said about what is on the disk.
    #[error(
        "the recovery store {store} is closed after a failed sync of {file}: what was written may be lost, check the disk and start again"
    )]
    Poisoned {
        /// Where the store is.
        store: String,
        /// The file or folder whose sync failed.
        file: String,
    },
    /// A broken invariant.
    #[error("{0}: this is a defect, please report it")]
    Internal(String),
}

impl StoreError {
    /// What kind of failure it is.
    pub fn class(&self) -> ErrorClass {
        match self {
            StoreError::Mismatch { .. }
            | StoreError::NotShared { .. }
            | StoreError::NewerFormat { .. }
            | StoreError::StepsChanged { .. }
            | StoreError::StateVersion { .. } => ErrorClass::Config,
            StoreError::NoSuchRow { .. } => ErrorClass::Usage,
            StoreError::Stopped(stop) => stop.class(),
            StoreError::AlreadyRunning { .. }
            | StoreError::StillRunning { .. }
            | StoreError::LeaseLost { .. } => ErrorClass::TryAgain,
            StoreError::Damaged { .. } | StoreError::RowTooLarge { .. } => ErrorClass::Data,
            StoreError::Io { .. } | StoreError::Poisoned { .. } => ErrorClass::StoreIo,
            StoreError::Internal(_) => ErrorClass::Internal,
        }
    }

    /// The stable code of the design; empty when there is none.
    pub fn code(&self) -> &'static str {
        match self {
            StoreError::Mismatch { .. } => "STORE_MISMATCH",
            StoreError::AlreadyRunning { .. } | StoreError::StillRunning { .. } => "CLUSTER_ALREADY_RUNNING",
            StoreError::Stopped(stop) => stop.code(),
            StoreError::LeaseLost { .. } => "LEASE_LOST",
            StoreError::NotShared { .. } => "STORE_NOT_SHARED",
            StoreError::Damaged { .. } => "STORE_DAMAGED",
            StoreError::NewerFormat { .. } | StoreError::StateVersion { .. } => "STATE_VERSION_UNSUPPORTED",
            StoreError::StepsChanged { .. } => "STATE_MISMATCH",
            StoreError::RowTooLarge { .. }
            | StoreError::NoSuchRow { .. }
            | StoreError::Io { .. }
            | StoreError::Poisoned { .. }
            | StoreError::Internal(_) => "",
        }
    }

    /// Whether the attempt may have had an effect.
    pub fn outcome(&self) -> Outcome {
        match self {
            StoreError::Poisoned { .. } => Outcome::Unknown,
            StoreError::Io { operation, .. } if operation.starts_with("sync") => Outcome::Unknown,
            _ => Outcome::Failed,
        }
    }

    pub(crate) fn io(
        operation: &'static str,
        file: impl fmt::Display,
    ) -> impl FnOnce(io::Error) -> StoreError {
        move |source| StoreError::Io { operation, file: file.to_string(), source }
    }

    pub(crate) fn damaged(file: impl fmt::Display, offset: usize, what: impl fmt::Display) -> StoreError {
        StoreError::Damaged {
            file: file.to_string(),
            offset: offset as u64,
            what: what.to_string(),
            hint: "",
        }
    }
}

fn lines(differences: &[StepDifference]) -> String {
    differences.iter().map(|difference| format!("\n  {difference}")).collect()
}

fn holder_of(holder: &Option<Box<LeaseHolder>>) -> String {
    holder.as_ref().map_or_else(|| "its lease is locked".to_owned(), |holder| holder.to_string())
}

fn hint_for(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => " (the process needs to read and write there)",
        io::ErrorKind::ReadOnlyFilesystem => " (the store must be writable)",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => " (make room on that disk)",
        _ => "",
    }
}
