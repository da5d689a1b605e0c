//! The timestamp of every message: an epoch and an event time under the product partial order.

use serde::{Deserialize, Serialize};
use tidegate_recovery::{Epoch, EventTime};
use timely::order::PartialOrder;
use timely::progress::timestamp::{PathSummary, Refines, Timestamp};

/// One clock with two hands. `a <= b` if and only if both hands are `<=`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Time {
    /// "Is everything that was read before this point done, on every worker?"
    pub epoch: Epoch,
    /// "Can an earlier event still arrive on time?"
    pub event: EventTime,
}

impl Time {
    /// The time with these hands.
    pub fn new(epoch: Epoch, event: EventTime) -> Time {
        Time { epoch, event }
    }
}

impl PartialOrder for Time {
    fn less_equal(&self, other: &Time) -> bool {
        self.epoch <= other.epoch && self.event <= other.event
    }
}

/// What a connection through an operator does to a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Hands {
    /// Both hands stay as they are.
    #[default]
    Keep,
    /// The epoch stays, the event hand goes to the maximum: behind sinks, dead letters and snapshot writers
    /// only epochs are tracked, and no operator there can hold a watermark back.
    EpochOnly,
}

impl PartialOrder for Hands {
    fn less_equal(&self, other: &Hands) -> bool {
        self <= other
    }
}

impl PathSummary<Time> for Hands {
    fn results_in(&self, time: &Time) -> Option<Time> {
        Some(match self {
            Hands::Keep => *time,
            Hands::EpochOnly => Time { epoch: time.epoch, event: EventTime::MAX },
        })
    }

    fn followed_by(&self, other: &Hands) -> Option<Hands> {
        Some(*self.max(other))
    }
}

impl Timestamp for Time {
    type Summary = Hands;

    fn minimum() -> Time {
        Time { epoch: Epoch(0), event: EventTime::MIN }
    }
}

impl Refines<()> for Time {
    fn to_inner(_: ()) -> Time {
        Time::minimum()
    }

    fn to_outer(self) {}

    fn summarize(_: Hands) {}
}
