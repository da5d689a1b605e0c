//! A partition that waits for the end of somebody else's transaction: what is said about it, and when.
//!
//! Under `read_committed` nothing behind an open transaction may be read, so a producer that hangs holds the partition
//! for as long as the brokers let it. Short waits are normal where producers use transactions.

use std::time::Duration;
use tidegate_recovery::NextOffset;

/// A wait of this length is shown.
const SHOWN_AFTER: Duration = Duration::from_secs(1);
/// A wait of this length is logged …
const SAID_AFTER: Duration = Duration::from_secs(5);
/// … and again this often.
const SAID_AGAIN_EVERY: Duration = Duration::from_secs(60);

/// The wait of one partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TransactionWait {
    /// Where it waits, and since when.
    at: Option<(NextOffset, Duration)>,
    said: Option<Duration>,
}

/// What is to be logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Say {
    /// It waits, for so long by now.
    Waits(Duration),
    /// It goes on, after so long.
    GoesOn(Duration),
}

impl TransactionWait {
    /// A look at the partition: `at` is its position while an open transaction begins there. Returns what is to be
    /// logged.
    pub(super) fn look(&mut self, at: Option<NextOffset>, now: Duration) -> Option<Say> {
        match (self.at, at) {
            (Some((before, since)), Some(at)) if before == at => {
                let waits = now.saturating_sub(since);
                let is_due = self.said.is_none_or(|said| now.saturating_sub(said) >= SAID_AGAIN_EVERY);
                if waits < SAID_AFTER || !is_due {
                    return None;
                }
                self.said = Some(now);
                Some(Say::Waits(waits))
            }
            (before, at) => {
                self.at = at.map(|at| (at, now));
                let said = self.said.take();
                before.filter(|_| said.is_some()).map(|(_, since)| Say::GoesOn(now.saturating_sub(since)))
            }
        }
    }

    /// The offset that it waits at and for how long, once that is worth showing.
    pub(super) fn shown(&self, now: Duration) -> Option<(NextOffset, Duration)> {
        let (at, since) = self.at?;
        let waits = now.saturating_sub(since);
        (waits >= SHOWN_AFTER).then_some((at, waits))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_shown_soon_logged_later_and_its_end_only_if_it_was_logged() {
        // E13
        let mut wait = TransactionWait::default();
        let at = |milliseconds| Duration::from_millis(milliseconds);
        let here = Some(NextOffset(7));
        assert_eq!(wait.look(here, at(0)), None);
        assert_eq!((wait.look(here, at(900)), wait.shown(at(900))), (None, None));
        assert_eq!(wait.shown(at(1_000)), Some((NextOffset(7), at(1_000))));
        assert_eq!(wait.look(None, at(4_000)), None, "nobody was told");
        assert_eq!(wait.shown(at(9_000)), None);

        assert_eq!(wait.look(here, at(10_000)), None);
        assert_eq!(wait.look(here, at(15_000)), Some(Say::Waits(at(5_000))));
        assert_eq!(wait.look(here, at(74_000)), None);
        assert_eq!(wait.look(here, at(75_000)), Some(Say::Waits(at(65_000))));
        // Another transaction, further on.
        assert_eq!(wait.look(Some(NextOffset(9)), at(76_000)), Some(Say::GoesOn(at(66_000))));
        assert_eq!(wait.look(Some(NextOffset(9)), at(77_000)), None);
        assert_eq!(wait.shown(at(77_000)), Some((NextOffset(9), at(1_000))));
    }
}
