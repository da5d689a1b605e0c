//! What the sources of a worker and its `event_time` steps tell each other about the worker's partitions.

use crate::element::PartitionId;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use tidegate_recovery::{Epoch, EventTime, NextOffset, StepId};

/// Where a partition of this worker stands, as its source sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InputPosition {
    /// First offset not yet handed out.
    pub position: NextOffset,
    /// The end of what can be read, as last heard.
    pub readable_end: Option<NextOffset>,
    /// The end of the log, as last heard.
    pub log_end: Option<NextOffset>,
    /// The epoch in which the partition's newest record was handed out, if there was one.
    pub last_read: Option<Epoch>,
    /// The run is bounded, and the partition has reached the end that it had at start.
    pub ended: bool,
}

impl InputPosition {
    /// Whether nothing is left to be read; not before the broker has said where the log ends. One that is held at an
    /// open transaction has more to be read.
    pub fn at_end(&self) -> bool {
        self.log_end.is_some_and(|end| self.position >= end)
    }
}

/// A group of streams that meet in a window, a join or a merge: their partitions wait for each other.
#[derive(Debug, Default)]
pub struct SkewGroup {
    slowest: RefCell<BTreeMap<StepId, EventTime>>,
    watermarks: RefCell<BTreeMap<PartitionId, EventTime>>,
}

impl SkewGroup {
    /// An `event_time` step says the smallest watermark of its partitions that are not idle, anywhere in the
    /// cluster; `None` when all are idle.
    pub fn set_slowest(&self, step: &StepId, slowest: Option<EventTime>) {
        let mut steps = self.slowest.borrow_mut();
        match slowest {
            Some(slowest) => steps.insert(step.clone(), slowest),
            None => steps.remove(step),
        };
    }

    /// An `event_time` step says the watermark of a partition of this worker.
    pub fn set_watermark(&self, partition: PartitionId, watermark: EventTime) {
        self.watermarks.borrow_mut().insert(partition, watermark);
    }

    /// Whether the partition is further ahead of the slowest one than is allowed. A partition that has not
    /// begun holds the windows, not the readers, or a topic with one empty partition could not be read at all.
    pub fn is_too_far(&self, partition: PartitionId, max_skew_ms: i64) -> bool {
        let slowest = self.slowest.borrow().values().copied().min();
        let Some(slowest) = slowest.filter(|slowest| *slowest != EventTime::MIN) else { return false };
        let watermarks = self.watermarks.borrow();
        watermarks.get(&partition).is_some_and(|watermark| *watermark > slowest.saturating_add(max_skew_ms))
    }
}

/// The desk itself.
#[derive(Default)]
pub struct InputDesk {
    /// With the number of the look that found it.
    positions: RefCell<BTreeMap<PartitionId, (InputPosition, u64)>>,
    looks: Cell<u64>,
    groups: RefCell<BTreeMap<u32, Rc<SkewGroup>>>,
}

impl InputDesk {
    /// The source has looked where a partition stands.
    pub fn set(&self, partition: PartitionId, position: InputPosition) {
        self.looks.set(self.looks.get() + 1);
        self.positions.borrow_mut().insert(partition, (position, self.looks.get()));
    }

    /// Where a partition stands.
    pub fn get(&self, partition: PartitionId) -> Option<InputPosition> {
        self.positions.borrow().get(&partition).map(|(position, _)| *position)
    }

    /// How many looks there were.
    pub fn looks(&self) -> u64 {
        self.looks.get()
    }

    /// The number of the newest look at a partition; 0 when there was none.
    pub fn look_at(&self, partition: PartitionId) -> u64 {
        self.positions.borrow().get(&partition).map_or(0, |(_, look)| *look)
    }

    /// A group of streams.
    pub fn group(&self, group: u32) -> Rc<SkewGroup> {
        self.groups.borrow_mut().entry(group).or_default().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_transaction_and_an_unknown_end_are_not_the_end() {
        let position = |log_end: Option<i64>| InputPosition {
            position: NextOffset(10),
            readable_end: Some(NextOffset(10)),
            log_end: log_end.map(NextOffset),
            last_read: None,
            ended: false,
        };
        assert!(position(Some(10)).at_end());
        assert!(!position(Some(12)).at_end() && !position(None).at_end());
    }

    #[test]
    fn looks_are_numbered() {
        let desk = InputDesk::default();
        let position = InputPosition {
            position: NextOffset(0),
            readable_end: None,
            log_end: None,
            last_read: None,
            ended: false,
        };
        assert_eq!((desk.looks(), desk.look_at(PartitionId(3))), (0, 0));
        desk.set(PartitionId(3), position);
        desk.set(PartitionId(4), position);
        assert_eq!((desk.looks(), desk.look_at(PartitionId(3)), desk.look_at(PartitionId(4))), (2, 1, 2));
    }

    #[test]
    fn a_partition_waits_for_the_slowest_that_has_begun() {
        let group = SkewGroup::default();
        group.set_watermark(PartitionId(0), EventTime(10_000));
        assert!(!group.is_too_far(PartitionId(0), 100));
        group.set_slowest(&StepId::new("one"), Some(EventTime(9_950)));
        assert!(!group.is_too_far(PartitionId(0), 100));
        group.set_slowest(&StepId::new("two"), Some(EventTime(500)));
        assert!(group.is_too_far(PartitionId(0), 100));
        group.set_slowest(&StepId::new("two"), Some(EventTime::MIN));
        assert!(!group.is_too_far(PartitionId(0), 100));
        group.set_slowest(&StepId::new("two"), None);
        assert!(!group.is_too_far(PartitionId(0), 100));
    }
}
