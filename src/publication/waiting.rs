//! Waiting for a broker, and being called away from it.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Ends the waits of a thread that owns producers.
#[derive(Clone, Default)]
pub(crate) struct Leaving(Arc<(Mutex<bool>, Condvar)>);

impl Leaving {
    /// Nothing more is to be waited for.
    pub(super) fn leave(&self) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.0.1.notify_all();
    }

    /// Waits this long, or until it is left. Returns whether it is.
    pub(super) fn wait(&self, time: Duration) -> bool {
        let left = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        *self.0.1.wait_timeout_while(left, time, |left| !*left).unwrap_or_else(PoisonError::into_inner).0
    }
}

/// How long the next producer is not initialised: longer each time that something is unclear in a row.
#[derive(Default)]
pub(super) struct Backoff(Duration);

impl Backoff {
    const LEAST: Duration = Duration::from_millis(100);
    const MOST: Duration = Duration::from_secs(5);

    /// All is clear again.
    pub(super) fn reset(&mut self) {
        self.0 = Duration::ZERO;
    }

    /// Something was unclear once more.
    pub(super) fn lengthen(&mut self) {
        self.0 = (self.0 * 2).clamp(Backoff::LEAST, Backoff::MOST);
    }

    /// Waits. Returns whether the process is leaving.
    pub(super) fn wait(&self, leaving: &Leaving) -> bool {
        leaving.wait(self.0)
    }
}
