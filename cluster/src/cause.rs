//! Why a generation ends: a [`Cause`].
//!
//! The first cause on any process of the cluster is the one that every process shows. It therefore travels:
//! a process that gives up sends its cause to its peers before it closes a connection.

use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt;
use tidegate_recovery::{ErrorClass, ProcessIndex, WorkerIndex};

/// A peer is dead, frozen or cut off.
pub const PEER_LOST: &str = "PEER_LOST";
/// A peer disagrees about the cluster.
pub const PEER_MISMATCH: &str = "PEER_MISMATCH";
/// This process's index is taken by another run.
pub const CLUSTER_ALREADY_RUNNING: &str = "CLUSTER_ALREADY_RUNNING";
/// This process stood still for longer than `peer_timeout`: its peers have given it up.
pub const STOOD_STILL: &str = "STOOD_STILL";
/// This process belongs to a generation that a newer one has replaced.
pub const LEASE_LOST: &str = "LEASE_LOST";
/// A thread panicked.
pub const PANIC: &str = "PANIC";
/// Peers did not appear within `startup_timeout`.
pub const PEERS_MISSING: &str = "PEERS_MISSING";

/// Where a cause arose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// In this process, outside a worker.
    Here,
    /// In a worker thread of this process.
    Worker(WorkerIndex),
    /// In another process, or in the connection to it.
    Peer(ProcessIndex),
}

/// Why a generation ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    /// Picks the exit code.
    pub class: ErrorClass,
    /// Stable code, such as `PEER_LOST`.
    pub code: Cow<'static, str>,
    /// One line: what, where, and what to do.
    pub text: String,
    /// Where it arose.
    pub origin: Origin,
}

impl Cause {
    /// A cause that arose in this process.
    pub fn new(class: ErrorClass, code: impl Into<Cow<'static, str>>, text: impl Into<String>) -> Cause {
        Cause { class, code: code.into(), text: text.into(), origin: Origin::Here }
    }

    /// The same cause, said of a worker.
    pub fn in_worker(self, worker: WorkerIndex) -> Cause {
        Cause { origin: Origin::Worker(worker), ..self }
    }

    /// The exit code of this process.
    ///
    /// A fault of the input or of the configuration is the same on every process of the cluster. Any other
    /// fault of a peer says only that the cluster must be started again.
    pub fn exit_code(&self) -> u8 {
        let shared = matches!(
            self.class,
            ErrorClass::Usage
                | ErrorClass::Data
                | ErrorClass::Missing
                | ErrorClass::Config
                | ErrorClass::TryAgain
        );
        match self.origin {
            Origin::Peer(_) if !shared => ErrorClass::TryAgain.exit_code(),
            _ => self.class.exit_code(),
        }
    }

    pub(crate) fn lost(peer: ProcessIndex, text: String) -> Cause {
        Cause {
            class: ErrorClass::TryAgain,
            code: Cow::Borrowed(PEER_LOST),
            text,
            origin: Origin::Peer(peer),
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.code)?;
        if let Origin::Worker(worker) = self.origin {
            write!(f, "worker {worker}: ")?;
        }
        f.write_str(&self.text)
    }
}

/// A cause as it travels between processes. The class is sent as its exit code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SentCause {
    class: u8,
    code: String,
    text: String,
}

/// Longest code and text of a cause that are sent, in bytes.
const CODE_BYTES_MAX: usize = 64;
const TEXT_BYTES_MAX: usize = 4096;

const CLASSES: [ErrorClass; 8] = [
    ErrorClass::Usage,
    ErrorClass::Data,
    ErrorClass::Missing,
    ErrorClass::Unavailable,
    ErrorClass::Internal,
    ErrorClass::StoreIo,
    ErrorClass::TryAgain,
    ErrorClass::Config,
];

impl SentCause {
    pub(crate) fn of(cause: &Cause) -> SentCause {
        let text = match cause.origin {
            Origin::Worker(worker) => format!("worker {worker}: {}", cause.text),
            Origin::Here | Origin::Peer(_) => cause.text.clone(),
        };
        SentCause {
            class: cause.class.exit_code(),
            code: shortened(cause.code.clone().into_owned(), CODE_BYTES_MAX),
            text: shortened(text, TEXT_BYTES_MAX),
        }
    }

    /// The cause as the receiver records it; `from` describes the sender.
    pub(crate) fn received(self, peer: ProcessIndex, from: &str) -> Cause {
        let class = CLASSES.into_iter().find(|class| class.exit_code() == self.class);
        Cause {
            class: class.unwrap_or(ErrorClass::TryAgain),
            code: Cow::Owned(self.code),
            text: format!("{from} gave up: {}", self.text),
            origin: Origin::Peer(peer),
        }
    }
}

fn shortened(mut text: String, bytes_max: usize) -> String {
    if text.len() > bytes_max {
        let mut end = bytes_max;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_keeps_its_class_and_code_on_the_way_to_a_peer() {
        for class in CLASSES {
            let sent = SentCause::of(&Cause::new(class, "CODE", "text").in_worker(WorkerIndex(3)));
            let received = sent.received(ProcessIndex(1), "process 1");
            assert_eq!(received.class, class);
            assert_eq!(received.to_string(), "CODE: process 1 gave up: worker 3: text");
        }
    }

    #[test]
    fn a_fault_of_a_peer_is_shared_only_when_it_is_the_flows_or_the_configurations() {
        let from_peer =
            |class| Cause { origin: Origin::Peer(ProcessIndex(0)), ..Cause::new(class, "C", "t") };
        assert_eq!(from_peer(ErrorClass::Data).exit_code(), 65);
        assert_eq!(from_peer(ErrorClass::Config).exit_code(), 78);
        assert_eq!(from_peer(ErrorClass::Internal).exit_code(), 75);
        assert_eq!(from_peer(ErrorClass::StoreIo).exit_code(), 75);
        assert_eq!(Cause::new(ErrorClass::Internal, "C", "t").exit_code(), 70);
    }

    #[test]
    fn a_long_text_is_cut_at_a_character() {
        let cut = shortened("é".repeat(10), 5);
        assert_eq!(cut, "éé");
    }
}
