//! How a process ends: its exit code.

use std::process::ExitCode;
use tidegate_recovery::ErrorClass;

/// All was done.
pub const DONE: u8 = 0;
/// The command line was wrong.
pub const USAGE: u8 = 64;
/// The configuration was wrong.
pub const CONFIG: u8 = 78;
/// A second SIGINT.
pub const INTERRUPTED: u8 = 130;
/// A second SIGTERM.
pub const TERMINATED: u8 = 143;

/// Exit codes and what they are for, for help texts.
pub const EXIT_CODES: &[(u8, &str)] = &[
    (0, "done"),
    (64, "usage: the command line was wrong"),
    (65, "data: a record failed under on_error: fail, or the store is damaged"),
    (66, "a topic is missing or was deleted"),
    (69, "Kafka cannot be reached"),
    (70, "internal: a panic"),
    (74, "the store's disk failed, or stdout was closed"),
    (75, "try again: a peer was lost, or somebody else is in charge"),
    (78, "configuration: see `tidegate check`"),
    (130, "ended by a second SIGINT"),
    (143, "ended by a second SIGTERM"),
];

/// The exit code of a class.
pub fn code(class: ErrorClass) -> ExitCode {
    ExitCode::from(class.exit_code())
}
