//! What kind of failure an error is: it picks the exit code and the log level.

/// Class of a failure. Every error type of Tidegate names one with its `class()`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// The command line was wrong.
    Usage,
    /// A record, or a file of the store, cannot be used.
    Data,
    /// An input is missing: a topic that does not exist or was deleted.
    Missing,
    /// Kafka cannot be reached.
    Unavailable,
    /// A broken invariant or a panic: a defect of Tidegate or of the user's code.
    Internal,
    /// The store's disk failed.
    StoreIo,
    /// Somebody else is, or will be, in charge: start again later.
    TryAgain,
    /// The configuration contradicts itself or its surroundings.
    Config,
}

impl ErrorClass {
    /// The exit code of a process that ends for this reason.
    pub fn exit_code(self) -> u8 {
        match self {
            ErrorClass::Usage => 64,
            ErrorClass::Data => 65,
            ErrorClass::Missing => 66,
            ErrorClass::Unavailable => 69,
            ErrorClass::Internal => 70,
            ErrorClass::StoreIo => 74,
            ErrorClass::TryAgain => 75,
            ErrorClass::Config => 78,
        }
    }
}
