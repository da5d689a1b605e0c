//! How long a cluster waits for what.

use std::time::Duration;

/// The deadlines of a cluster. The defaults are those of the documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Until all processes must be there.
    pub startup: Duration,
    /// Until a silent peer is lost, and a standstill of this process is fatal.
    pub peer: Duration,
    /// Until worker threads must have left after the first cause.
    pub unwind: Duration,
    /// Until whoever connects must have finished its handshake.
    pub stranger: Duration,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts {
            startup: Duration::from_secs(60),
            peer: Duration::from_secs(10),
            unwind: Duration::from_secs(10),
            stranger: Duration::from_secs(5),
        }
    }
}
