//! A full or failing disk is tried again, with backoff, for `store_timeout`.

use crate::StoreError;
use crate::error::Outcome;
use std::time::{Duration, Instant};

/// Longest wait between two attempts.
const WAIT_MAX: Duration = Duration::from_secs(2);
/// First wait.
const WAIT_MIN: Duration = Duration::from_millis(20);

/// The attempts at one operation.
#[derive(Debug)]
pub(crate) struct Retry {
    until: Instant,
    wait: Duration,
    attempts: u32,
}

impl Retry {
    pub(crate) fn new(timeout: Duration) -> Retry {
        Retry { until: Instant::now() + timeout, wait: WAIT_MIN, attempts: 0 }
    }

    /// Waits before the next attempt after `error`, or gives it back when there is to be none.
    pub(crate) fn after(&mut self, error: StoreError, what: &str) -> Result<(), StoreError> {
        let hopeless = !matches!(error, StoreError::Io { .. }) || error.outcome() == Outcome::Unknown;
        let now = Instant::now();
        if hopeless || now >= self.until {
            return Err(error);
        }
        // The first failure and then every doubling: a disk that stays full does not fill the log too.
        self.attempts += 1;
        if self.attempts.is_power_of_two() {
            tracing::warn!(%error, attempts = self.attempts, "cannot {what}, trying again");
        }
        std::thread::sleep(self.wait.min(self.until - now));
        self.wait = (self.wait * 2).min(WAIT_MAX);
        Ok(())
    }
}
