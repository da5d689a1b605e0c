//! Reading the two hands of a frontier.

use crate::time::Time;
use tidegate_recovery::{Epoch, EventTime};
use timely::progress::frontier::{AntichainRef, MutableAntichain};

/// What a frontier says, hand by hand: each is the minimum over the frontier's elements, so neither claims
/// more than the frontier does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrontierHands {
    /// The oldest epoch that is still open; `None` when the frontier is empty: nothing will come any more.
    pub epoch: Option<Epoch>,
    /// The event hand; [`EventTime::MAX`] says "no information", never "everything has arrived".
    pub event: EventTime,
}

impl FrontierHands {
    /// Reads a frontier. The first one that an operator sees after a resume is the minimum of all times, which
    /// lies before the generation's `first` epoch: it is clamped, or a downgrade to it would panic.
    pub fn of(frontier: AntichainRef<'_, Time>, first: Epoch) -> FrontierHands {
        let epoch = frontier.iter().map(|time| time.epoch.max(first)).min();
        let event = frontier.iter().map(|time| time.event).min().unwrap_or(EventTime::MAX);
        FrontierHands { epoch, event }
    }

    /// Reads the frontier of an operator's input.
    pub fn of_input(frontier: &MutableAntichain<Time>, first: Epoch) -> FrontierHands {
        FrontierHands::of(frontier.frontier(), first)
    }

    /// Whether the frontier has left `epoch`: all of it is done upstream, on every worker.
    pub fn has_left(&self, epoch: Epoch) -> bool {
        self.epoch.is_none_or(|open| open > epoch)
    }
}

/// The oldest epoch that is open behind either of two frontiers; an empty one holds nothing back.
pub fn oldest_open(one: Option<Epoch>, two: Option<Epoch>) -> Option<Epoch> {
    match (one, two) {
        (Some(one), Some(two)) => Some(one.min(two)),
        (one, two) => one.or(two),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use timely::progress::Antichain;

    #[test]
    fn hands_are_the_minimum_of_each_over_the_elements() {
        let time = |epoch, event| Time::new(Epoch(epoch), EventTime(event));
        let frontier: Antichain<Time> = [time(5, 100), time(7, 50)].into_iter().collect();
        let hands = FrontierHands::of(frontier.borrow(), Epoch(0));
        assert_eq!(hands, FrontierHands { epoch: Some(Epoch(5)), event: EventTime(50) });
        assert!(hands.has_left(Epoch(4)) && !hands.has_left(Epoch(5)));
    }

    #[test]
    fn the_first_frontier_is_clamped_and_an_empty_one_has_left_everything() {
        let start = Antichain::from_elem(<Time as timely::progress::Timestamp>::minimum());
        assert_eq!(FrontierHands::of(start.borrow(), Epoch(9)).epoch, Some(Epoch(9)));
        let empty = FrontierHands::of(Antichain::<Time>::new().borrow(), Epoch(9));
        assert_eq!(empty, FrontierHands { epoch: None, event: EventTime::MAX });
        assert!(empty.has_left(Epoch(u64::MAX)));
    }
}
