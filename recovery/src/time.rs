//! The two hands of the clock: [`Epoch`] and [`EventTime`], and which epochs are commit epochs.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Unit of progress. All work read in an epoch is done when the epoch frontier has left it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Epoch(pub u64);

impl Epoch {
    /// The epoch after this one.
    pub fn next(self) -> Epoch {
        Epoch(self.0 + 1)
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Milliseconds since the Unix epoch in event time; negative values are times before 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct EventTime(pub i64);

impl EventTime {
    /// Before any event.
    pub const MIN: EventTime = EventTime(i64::MIN);
    /// After any event. As a frontier it says "no information", never "everything has arrived".
    pub const MAX: EventTime = EventTime(i64::MAX);

    /// This time plus `ms`, kept inside the range of the type.
    pub fn saturating_add(self, ms: i64) -> EventTime {
        EventTime(self.0.saturating_add(ms))
    }

    /// This time less `ms`, kept inside the range of the type.
    pub fn saturating_sub(self, ms: i64) -> EventTime {
        EventTime(self.0.saturating_sub(ms))
    }
}

impl fmt::Display for EventTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Which epochs are commit epochs, and where this generation's numbering begins.
///
/// An epoch is a commit epoch when `epoch % commit_every == 0`; the numbering goes on from the resumed
/// epoch, so the same holds with and without a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpochSchedule {
    /// The first epoch of this generation: one more than the epoch of the record it resumed from.
    pub first: Epoch,
    /// Epochs per commit epoch (`commit_interval / epoch_interval`), at least 1.
    pub commit_every: u64,
}

impl EpochSchedule {
    /// Whether state is snapshotted, and offsets are committed, at the end of `epoch`.
    pub fn is_commit(&self, epoch: Epoch) -> bool {
        epoch.0.is_multiple_of(self.commit_every)
    }

    /// The first commit epoch that is not before `epoch`.
    pub fn commit_at_or_after(&self, epoch: Epoch) -> Epoch {
        Epoch(epoch.0.div_ceil(self.commit_every) * self.commit_every)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commit_epochs_are_the_multiples() {
        let schedule = EpochSchedule { first: Epoch(7), commit_every: 10 };
        assert!(!schedule.is_commit(Epoch(11)));
        assert!(schedule.is_commit(Epoch(20)));
        assert_eq!(schedule.commit_at_or_after(Epoch(11)), Epoch(20));
        assert_eq!(schedule.commit_at_or_after(Epoch(20)), Epoch(20));
    }
}
