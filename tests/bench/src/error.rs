//! What can go wrong in a benchmark; each of them ends it, since a figure after a failure is worth nothing.

use std::path::PathBuf;

/// Why the benchmark stopped.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// librdkafka refused or failed.
    #[error("{what}: {reason}")]
    Kafka {
        /// What was asked of it.
        what: &'static str,
        /// What it said.
        reason: String,
    },
    /// A measured program did not do its work, so its time means nothing.
    #[error("{what}: expected {expected}, got {got}")]
    WrongResult {
        /// What was counted.
        what: String,
        /// The right number.
        expected: u64,
        /// The number found.
        got: u64,
    },
    /// A measured program failed.
    #[error("{program} ended with {status}; the end of its stderr:\n{stderr}")]
    Child {
        /// Which one.
        program: String,
        /// How it ended.
        status: String,
        /// The last lines it wrote.
        stderr: String,
    },
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    File {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The system did not answer as expected.
    #[error("{what}: {reason}")]
    System {
        /// What was asked.
        what: String,
        /// What came.
        reason: String,
    },
}

/// Result of a part of the benchmark.
pub(crate) type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Wraps an error of the system or of a library.
    pub(crate) fn system(what: impl Into<String>, reason: impl std::fmt::Display) -> Error {
        Error::System { what: what.into(), reason: reason.to_string() }
    }

    /// Compares a count with the right one.
    pub(crate) fn expect(what: impl Into<String>, expected: u64, got: u64) -> Result<()> {
        if expected == got { Ok(()) } else { Err(Error::WrongResult { what: what.into(), expected, got }) }
    }
}
