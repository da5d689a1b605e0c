//! Without a store: the epochs that the step holds, so that a crash replays what is not acknowledged.

use std::collections::{BTreeMap, VecDeque};
use tidegate_recovery::Epoch;

/// The epochs of what is not acknowledged.
#[derive(Default)]
pub(super) struct Held {
    records: usize,
    /// Epoch of the first record of each open batch, and how many batches have it.
    open: BTreeMap<Epoch, usize>,
    /// Of what was emitted: emitted in, held since, records.
    emitted: VecDeque<(Epoch, Epoch, usize)>,
}

impl Held {
    /// A record came.
    pub(super) fn record(&mut self) {
        self.records += 1;
    }

    /// Records that are not acknowledged.
    pub(super) fn records(&self) -> usize {
        self.records
    }

    /// A batch was begun in `epoch`.
    pub(super) fn open(&mut self, epoch: Epoch) {
        *self.open.entry(epoch).or_default() += 1;
    }

    /// A batch of so many records, begun in `since`, went out in `emitted`.
    pub(super) fn emit(&mut self, since: Epoch, emitted: Epoch, records: usize) {
        let batches = self.open.get_mut(&since).expect("an open batch holds its epoch");
        *batches -= 1;
        if *batches == 0 {
            self.open.remove(&since);
        }
        match self.emitted.back_mut() {
            Some((last, held, count)) if *last == emitted => {
                *held = since.min(*held);
                *count += records;
            }
            _ => self.emitted.push_back((emitted, since, records)),
        }
    }

    /// The oldest epoch to hold. `released` says whether all that went out in an epoch is acknowledged.
    pub(super) fn oldest(&mut self, released: &dyn Fn(Epoch) -> bool) -> Option<Epoch> {
        while let Some((emitted, _, records)) = self.emitted.front().copied()
            && released(emitted)
        {
            self.records -= records;
            self.emitted.pop_front();
        }
        let emitted = self.emitted.iter().map(|(_, since, _)| *since);
        emitted.chain(self.open.keys().next().copied()).min()
    }
}
