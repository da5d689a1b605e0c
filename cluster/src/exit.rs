//! The last resort against a process that does not end.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// Ends the process with an exit code unless it is dropped before a deadline. To be armed before the caller
/// starts to close clients and files, any of which may block for ever.
#[derive(Debug)]
#[must_use = "the exit is disarmed when this is dropped"]
pub struct HardExit {
    _disarm: Sender<()>,
}

impl HardExit {
    /// Arms the exit.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn arm(after: Duration, code: u8) -> std::io::Result<HardExit> {
        let (disarm, disarmed) = channel::<()>();
        std::thread::Builder::new().name("hard-exit".into()).spawn(move || {
            if disarmed.recv_timeout(after) == Err(RecvTimeoutError::Timeout) {
                tracing::error!(code, after_seconds = after.as_secs_f64(), "could not end in order, exiting");
                std::process::exit(i32::from(code));
            }
        })?;
        Ok(HardExit { _disarm: disarm })
    }
}
