//! The watermarks that the key buckets of one worker had acted on.
//!
//! What a step acts on is stored per bucket, because a bucket may come from a worker that had acted further than
//! the others: the step then acts from the lowest watermark of its buckets, and each bucket refuses records by
//! its own until the step has caught up with it.

use super::rows::StepRows;
use tidegate_recovery::{BUCKETS, Bucket, EventTime};

/// The buckets of one worker.
pub(super) struct Buckets {
    worker: usize,
    peers: usize,
    restored: Vec<EventTime>,
    /// What the store has of the watermark that all of them act on by now.
    stored: EventTime,
}

impl Buckets {
    /// Those of worker `worker` of `peers`, none of which has acted on anything.
    pub(super) fn new(worker: usize, peers: usize) -> Buckets {
        let restored = vec![EventTime::MIN; usize::from(BUCKETS)];
        Buckets { worker, peers, restored, stored: EventTime::MIN }
    }

    /// Takes back what a bucket had acted on.
    pub(super) fn restore(&mut self, bucket: Bucket, watermark: EventTime) {
        self.restored[usize::from(bucket.0)] = watermark;
    }

    /// Everything is restored: the watermark from which the step acts. `largest` breaks the rule that it is the
    /// lowest of its buckets.
    pub(super) fn start(&mut self, largest: bool) -> EventTime {
        let watermarks = self.owned().map(|bucket| self.of(bucket));
        let start = if largest { watermarks.max() } else { watermarks.min() };
        self.stored = start.unwrap_or(EventTime::MIN);
        self.stored
    }

    /// What a bucket had acted on when it was restored.
    pub(super) fn of(&self, bucket: Bucket) -> EventTime {
        self.restored[usize::from(bucket.0)]
    }

    /// Puts the rows of the buckets that now act on `acted`, if the store has another watermark.
    pub(super) fn put(&mut self, acted: EventTime, rows: &mut StepRows) {
        if acted == self.stored {
            return;
        }
        // A bucket that had acted further keeps what the store has of it.
        for bucket in self.owned().filter(|bucket| self.of(*bucket) < acted) {
            rows.put_watermark(bucket, acted.0);
        }
        self.stored = acted;
    }

    fn owned(&self) -> impl Iterator<Item = Bucket> + use<> {
        (self.worker as u16..BUCKETS).step_by(self.peers).map(Bucket)
    }
}
