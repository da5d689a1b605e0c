//! Walking through the commit epochs, one at a time, however far a frontier jumps.

use tidegate_recovery::{Epoch, EpochSchedule};

/// The commit epochs of a generation, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitEpochs {
    next: Epoch,
    every: u64,
}

impl CommitEpochs {
    /// The commit epochs from the generation's first epoch on.
    pub fn new(schedule: EpochSchedule) -> CommitEpochs {
        CommitEpochs { next: schedule.commit_at_or_after(schedule.first), every: schedule.commit_every }
    }

    /// The oldest one that is not yet closed.
    pub fn open(&self) -> Epoch {
        self.next
    }

    /// The next commit epoch that a frontier standing at `frontier` has left, if any; `None` as a frontier is an
    /// empty one, which has left every epoch up to `last`.
    pub fn pass(&mut self, frontier: Option<Epoch>, last: Option<Epoch>) -> Option<Epoch> {
        let passed = match frontier {
            Some(open) => self.next < open,
            None => last.is_some_and(|last| self.next <= last),
        };
        passed.then(|| {
            let epoch = self.next;
            self.next = Epoch(epoch.0 + self.every);
            epoch
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frontier_that_jumps_passes_every_commit_epoch_in_between() {
        let mut epochs = CommitEpochs::new(EpochSchedule { first: Epoch(7), commit_every: 10 });
        assert_eq!(epochs.pass(Some(Epoch(10)), None), None);
        assert_eq!(epochs.pass(Some(Epoch(31)), None), Some(Epoch(10)));
        assert_eq!(epochs.pass(Some(Epoch(31)), None), Some(Epoch(20)));
        assert_eq!(epochs.pass(Some(Epoch(31)), None), Some(Epoch(30)));
        assert_eq!(epochs.pass(Some(Epoch(31)), None), None);
    }

    #[test]
    fn an_empty_frontier_passes_only_what_was_agreed_as_the_last() {
        let mut epochs = CommitEpochs::new(EpochSchedule { first: Epoch(1), commit_every: 5 });
        assert_eq!(epochs.pass(None, None), None);
        assert_eq!(epochs.pass(None, Some(Epoch(5))), Some(Epoch(5)));
        assert_eq!(epochs.pass(None, Some(Epoch(5))), None);
    }
}
