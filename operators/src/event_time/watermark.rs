//! The watermarks of one worker's partitions, and the rule by which a record moves them.
//!
//! A partition's watermark is the highest event time seen in it less the out-of-orderness: no record with an
//! event time *below* it is still on time. It never goes back. What is stored of it is its value at the end of a
//! commit epoch, per partition, never the maximum that an end of the run might stand for.

use crate::element::PartitionId;
use crate::event_time::hand::Report;
use crate::event_time::idle::IdleClock;
use crate::record::DeadLetters;
use crate::source::InputPosition;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tidegate_recovery::{Epoch, EpochSchedule, EventTime};

/// What becomes of a record whose event time is too far ahead of the wall clock. It moves no watermark.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Ahead {
    /// It goes on.
    Keep,
    /// It is dropped and counted.
    #[default]
    Drop,
    /// It goes to a topic for dead letters.
    DeadLetter(DeadLetters),
}

/// What a flow says about event time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventTimeSettings {
    /// The topics of the stream; none names all inputs of the run.
    pub topics: Vec<Arc<str>>,
    /// How far a record may be behind the newest of its partition, in milliseconds.
    pub out_of_order_ms: i64,
    /// After this long without a record, by the wall clock, a partition that has caught up is idle. When all are, the
    /// first records of a burst move the watermark for all of them.
    pub idle: Duration,
    /// What becomes of a record too far ahead of the wall clock.
    pub ahead: Ahead,
    /// How far ahead of the wall clock a record may be, in milliseconds.
    pub max_ahead_ms: i64,
    /// The group of streams that meet in a window, a join or a merge.
    pub skew_group: u32,
}

impl EventTimeSettings {
    /// The defaults of the design, for a stream of all inputs.
    pub fn out_of_order_ms(out_of_order_ms: i64) -> EventTimeSettings {
        EventTimeSettings {
            topics: Vec::new(),
            out_of_order_ms,
            idle: Duration::from_secs(30),
            ahead: Ahead::default(),
            max_ahead_ms: 3_600_000,
            skew_group: 0,
        }
    }
}

/// What is found of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes on, with the watermark that its partition had just before it.
    Pass {
        /// That watermark.
        watermark: EventTime,
        /// Whether it is too far ahead of the wall clock, and moved nothing.
        ahead: bool,
    },
    /// It is too far ahead, and goes no further.
    RefuseAhead,
    /// Its partition is not one of this worker's: `event_time` stands behind an exchange.
    NotOurs,
}

#[derive(Clone, Debug)]
struct Partition {
    id: PartitionId,
    watermark: EventTime,
    idle: IdleClock,
    ended: bool,
    /// The watermark at the end of each commit epoch that is not closed, where it moved.
    open: VecDeque<(Epoch, EventTime)>,
}

/// The watermarks of a worker's partitions of one stream.
#[derive(Clone, Debug)]
pub struct PartitionWatermarks {
    out_of_order_ms: i64,
    max_ahead_ms: i64,
    keep_ahead: bool,
    schedule: EpochSchedule,
    partitions: Vec<Partition>,
    /// Place of the partition of the last record: batches are of one partition, mostly.
    last: usize,
}

impl PartitionWatermarks {
    /// Partitions that have not begun, at this moment.
    pub fn new(
        settings: &EventTimeSettings,
        schedule: EpochSchedule,
        partitions: impl IntoIterator<Item = PartitionId>,
        now: Duration,
    ) -> PartitionWatermarks {
        let partition = |id| Partition {
            id,
            watermark: EventTime::MIN,
            idle: IdleClock::new(settings.idle, now),
            ended: false,
            open: VecDeque::new(),
        };
        PartitionWatermarks {
            out_of_order_ms: settings.out_of_order_ms,
            max_ahead_ms: settings.max_ahead_ms,
            keep_ahead: settings.ahead == Ahead::Keep,
            schedule,
            partitions: partitions.into_iter().map(partition).collect(),
            last: 0,
        }
    }

    /// Sets the watermark that a partition had at the resume epoch.
    pub fn restore(&mut self, id: PartitionId, watermark: EventTime) {
        if let Some(partition) = self.partitions.iter_mut().find(|partition| partition.id == id) {
            partition.watermark = watermark;
        }
    }

    /// Whether there are no partitions: this worker holds nothing.
    pub fn is_empty(&self) -> bool {
        self.partitions.is_empty()
    }

    /// The watermarks, in the order of the partitions.
    pub fn iter(&self) -> impl Iterator<Item = (PartitionId, EventTime)> {
        self.partitions.iter().map(|partition| (partition.id, partition.watermark))
    }

    /// The partitions that are idle.
    pub fn idle(&self) -> impl Iterator<Item = PartitionId> {
        self.partitions.iter().filter(|partition| partition.idle.is_idle()).map(|partition| partition.id)
    }

    /// A record of `id` with this event time was read in `epoch`; the wall clock shows `wall_ms`.
    pub fn record(
        &mut self,
        id: PartitionId,
        event: EventTime,
        epoch: Epoch,
        now: Duration,
        wall_ms: i64,
    ) -> Verdict {
        if self.partitions.get(self.last).is_none_or(|partition| partition.id != id) {
            match self.partitions.iter().position(|partition| partition.id == id) {
                Some(place) => self.last = place,
                None => return Verdict::NotOurs,
            }
        }
        let partition = &mut self.partitions[self.last];
        partition.idle.record(now);
        let watermark = partition.watermark;
        if event.0 > wall_ms.saturating_add(self.max_ahead_ms) {
            return match self.keep_ahead {
                true => Verdict::Pass { watermark, ahead: true },
                false => Verdict::RefuseAhead,
            };
        }
        let moved = event.saturating_sub(self.out_of_order_ms);
        if moved > watermark {
            partition.watermark = moved;
            let commit = self.schedule.commit_at_or_after(epoch);
            match partition.open.back_mut() {
                Some((last, at_end)) if *last == commit => *at_end = moved,
                _ => partition.open.push_back((commit, moved)),
            }
        }
        Verdict::Pass { watermark, ahead: false }
    }

    /// A commit epoch is closed: the watermarks at its end, of the partitions where they moved.
    pub fn close(&mut self, commit: Epoch) -> Vec<(PartitionId, EventTime)> {
        let mut moved = Vec::new();
        for partition in &mut self.partitions {
            let mut at_end = None;
            while let Some((epoch, watermark)) = partition.open.front()
                && *epoch <= commit
            {
                at_end = Some(*watermark);
                partition.open.pop_front();
            }
            moved.extend(at_end.map(|at_end| (partition.id, at_end)));
        }
        moved
    }

    /// Once per epoch: looks which partitions are idle.
    pub fn tick(
        &mut self,
        now: Duration,
        with_backlog: bool,
        look: impl Fn(PartitionId) -> Option<InputPosition>,
    ) {
        for partition in &mut self.partitions {
            let seen = look(partition.id);
            partition.ended = seen.is_some_and(|seen| seen.ended);
            partition.idle.tick(now, with_backlog || seen.is_some_and(|seen| seen.at_end()));
        }
    }

    /// What this worker says about its partitions.
    pub fn report(&self) -> Report {
        let awake = || self.partitions.iter().filter(|partition| !partition.idle.is_idle());
        Report {
            minimum: awake().map(|partition| partition.watermark).min(),
            slowest: awake().filter(|partition| !partition.ended).map(|partition| partition.watermark).min(),
            largest: self
                .partitions
                .iter()
                .map(|partition| partition.watermark)
                .max()
                .unwrap_or(EventTime::MIN),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn settings() -> EventTimeSettings {
        EventTimeSettings::out_of_order_ms(100)
    }

    fn watermarks(partitions: u32) -> PartitionWatermarks {
        let schedule = EpochSchedule { first: Epoch(1), commit_every: 10 };
        PartitionWatermarks::new(&settings(), schedule, (0..partitions).map(PartitionId), Duration::ZERO)
    }

    #[test]
    fn a_record_carries_the_watermark_that_its_partition_had_just_before_it() {
        let mut marks = watermarks(2);
        let mut record =
            |id, event| marks.record(PartitionId(id), EventTime(event), Epoch(1), Duration::ZERO, 0);
        let pass = |watermark| Verdict::Pass { watermark, ahead: false };
        assert_eq!(record(0, 1000), pass(EventTime::MIN));
        assert_eq!(record(0, 700), pass(EventTime(900)));
        assert_eq!(record(1, 50), pass(EventTime::MIN));
        assert_eq!(record(0, 1200), pass(EventTime(900)));
        assert_eq!(record(0, 0), pass(EventTime(1100)));
        assert_eq!(record(7, 0), Verdict::NotOurs);
        assert_eq!(
            marks.report(),
            Report { minimum: Some(EventTime(-50)), slowest: Some(EventTime(-50)), largest: EventTime(1100) }
        );
    }

    #[test]
    fn a_record_too_far_ahead_moves_nothing() {
        let mut marks = watermarks(1);
        let far = EventTime(3_600_001);
        assert_eq!(marks.record(PartitionId(0), far, Epoch(1), Duration::ZERO, 0), Verdict::RefuseAhead);
        assert_eq!(marks.report().largest, EventTime::MIN);
        marks.keep_ahead = true;
        let kept = Verdict::Pass { watermark: EventTime::MIN, ahead: true };
        assert_eq!(marks.record(PartitionId(0), far, Epoch(1), Duration::ZERO, 0), kept);
        assert_eq!(marks.report().largest, EventTime::MIN);
    }

    proptest! {
        /// What is stored for a commit epoch is what a straight run up to its end would have, whatever came after
        /// it before it was closed.
        #[test]
        fn the_stored_watermark_is_that_of_the_end_of_the_epoch(
            records in prop::collection::vec((0_u32..3, -1000_i64..1000, 0_u64..3), 0..60),
            lag in 0_usize..20,
        ) {
            let mut marks = watermarks(3);
            let mut epochs = [1_u64; 3];
            let mut stored = std::collections::BTreeMap::new();
            let mut commits = 1..;
            let mut pending = std::collections::VecDeque::new();
            for (id, event, step) in records {
                epochs[id as usize] += step;
                let epoch = Epoch(epochs[id as usize]);
                marks.record(PartitionId(id), EventTime(event), epoch, Duration::ZERO, 0);
                pending.push_back((id, event, epoch));
                // Commit epochs close late, and only when every partition has left them.
                let open = epochs.iter().min().copied().expect("three");
                while pending.len() > lag && commits.start * 10 < open {
                    let commit = Epoch(commits.next().expect("endless") * 10);
                    stored.extend(marks.close(commit));
                    for id in 0..3 {
                        let highest = pending
                            .iter()
                            .filter(|(of, _, epoch)| *of == id && *epoch <= commit)
                            .map(|(_, event, _)| event - 100)
                            .max();
                        prop_assert_eq!(stored.get(&PartitionId(id)).copied(), highest.map(EventTime));
                    }
                }
            }
        }

        /// The watermark is the highest event time less the out-of-orderness, and never goes back.
        #[test]
        fn a_watermark_is_the_highest_less_the_out_of_orderness(events in prop::collection::vec(any::<i32>(), 1..50)) {
            let mut marks = watermarks(1);
            let mut highest = None;
            for event in events {
                let event = i64::from(event);
                let verdict = marks.record(PartitionId(0), EventTime(event), Epoch(1), Duration::ZERO, i64::MAX);
                let before = highest.map_or(EventTime::MIN, |highest: i64| EventTime(highest - 100));
                prop_assert_eq!(verdict, Verdict::Pass { watermark: before, ahead: false });
                highest = highest.max(Some(event));
            }
        }
    }
}
