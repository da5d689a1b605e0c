//! What can go wrong between a command line and a running cluster.

use crate::cause::{self, Cause};
use crate::handshake::Difference;
use std::io;
use tidegate_recovery::{ErrorClass, ProcessIndex, RunId};

/// Why a cluster did not come up, or came to its end while it did.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The shape of the cluster makes no sense.
    #[error("the cluster cannot be as described: {}", problems.join("; "))]
    Spec {
        /// Every mistake.
        problems: Vec<String>,
    },
    /// This process cannot listen at its address.
    #[error("cannot listen on {address} (process {index}): {source}{hint}")]
    Bind {
        /// The address.
        address: String,
        /// This process.
        index: ProcessIndex,
        /// What the system said.
        source: io::Error,
        /// What to do, or who is there.
        hint: String,
    },
    /// This process and another one disagree about the cluster.
    #[error("{peer} does not belong to this cluster: {}", listed(differences))]
    Mismatch {
        /// Who was met, and where.
        peer: String,
        /// All that differs.
        differences: Vec<Difference>,
    },
    /// Another process runs with this process's index.
    #[error(
        "process index {index} is taken: run {holder} holds it, according to {told_by}, and this is run {own}; \
         end the other process or give this one another index"
    )]
    IndexTaken {
        /// The index.
        index: ProcessIndex,
        /// The run that has it.
        holder: RunId,
        /// This run.
        own: RunId,
        /// Who refused.
        told_by: String,
    },
    /// A newer generation has replaced the one that this process belongs to.
    #[error("{told_by} runs a newer generation than this process knows: {text}")]
    Replaced {
        /// Who refused.
        told_by: String,
        /// Both generations.
        text: String,
    },
    /// Not all processes appeared in time.
    #[error("after {waited_seconds} s the cluster is not complete: {}", missing.join("; "))]
    PeersMissing {
        /// `startup_timeout` in seconds.
        waited_seconds: u64,
        /// Who is missing, and why as far as that is known.
        missing: Vec<String>,
    },
    /// A peer said something that does not belong to this point of the bring-up.
    #[error("{peer} broke the protocol of the bring-up: {what}")]
    Protocol {
        /// The peer.
        peer: String,
        /// What it said.
        what: String,
    },
    /// The generation ended; the cause is what the supervisor holds.
    #[error("{0}")]
    Ended(Cause),
    /// A stop was asked for before the work began. This is no failure.
    #[error("stopped before the cluster was complete")]
    Stopped,
    /// The system refused a thread, a socket or random numbers.
    #[error("cannot {what}: {source}")]
    System {
        /// What was attempted.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

fn listed(differences: &[Difference]) -> String {
    let texts: Vec<String> = differences.iter().map(ToString::to_string).collect();
    texts.join("; ")
}

impl ClusterError {
    /// Picks exit code and log level.
    pub fn class(&self) -> ErrorClass {
        match self {
            ClusterError::Spec { .. } | ClusterError::Bind { .. } | ClusterError::Mismatch { .. } => {
                ErrorClass::Config
            }
            ClusterError::IndexTaken { .. }
            | ClusterError::Replaced { .. }
            | ClusterError::PeersMissing { .. }
            | ClusterError::Stopped
            | ClusterError::System { .. } => ErrorClass::TryAgain,
            ClusterError::Protocol { .. } => ErrorClass::Internal,
            ClusterError::Ended(cause) => cause.class,
        }
    }

    /// The stable code.
    pub fn code(&self) -> &str {
        match self {
            ClusterError::Spec { .. } => "INVALID_VALUE",
            ClusterError::Bind { .. } => "BIND_FAILED",
            ClusterError::Mismatch { .. } => cause::PEER_MISMATCH,
            ClusterError::IndexTaken { .. } => cause::CLUSTER_ALREADY_RUNNING,
            ClusterError::Replaced { .. } => cause::LEASE_LOST,
            ClusterError::PeersMissing { .. } => cause::PEERS_MISSING,
            ClusterError::Protocol { .. } => "PEER_PROTOCOL",
            ClusterError::System { .. } => "SYSTEM",
            ClusterError::Stopped => "STOPPED",
            ClusterError::Ended(cause) => &cause.code,
        }
    }

    /// The exit code of a process that ends for this reason; 0 for [`ClusterError::Stopped`].
    pub fn exit_code(&self) -> u8 {
        match self {
            ClusterError::Ended(cause) => cause.exit_code(),
            ClusterError::Stopped => 0,
            other => other.class().exit_code(),
        }
    }
}

impl From<ClusterError> for Cause {
    fn from(error: ClusterError) -> Cause {
        match error {
            ClusterError::Ended(cause) => cause,
            other => Cause::new(other.class(), other.code().to_string(), other.to_string()),
        }
    }
}
