//! A place at which a test makes a process stand still.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A place at which a process stands still: see [`crate::FaultyStorage::freeze_at`].
#[derive(Clone, Debug)]
pub struct FreezePoint {
    state: Arc<(Mutex<Freeze>, Condvar)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Freeze {
    Armed,
    Frozen,
    Thawed,
}

impl FreezePoint {
    pub(super) fn armed() -> FreezePoint {
        FreezePoint { state: Arc::new((Mutex::new(Freeze::Armed), Condvar::new())) }
    }

    /// Waits until the process stands still there; `false` when it does not within `deadline`.
    pub fn reached(&self, deadline: Duration) -> bool {
        let until = Instant::now() + deadline;
        let mut state = locked(&self.state.0);
        while *state == Freeze::Armed {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self.state.1.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Lets the process go on, and never stops it again.
    pub fn thaw(&self) {
        *locked(&self.state.0) = Freeze::Thawed;
        self.state.1.notify_all();
    }

    pub(super) fn stand_still(&self) {
        let mut state = locked(&self.state.0);
        if *state == Freeze::Armed {
            *state = Freeze::Frozen;
            self.state.1.notify_all();
        }
        while *state == Freeze::Frozen {
            state = self.state.1.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn locked(state: &Mutex<Freeze>) -> MutexGuard<'_, Freeze> {
    // A test that panicked elsewhere shall not hide its own message behind a second one.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
