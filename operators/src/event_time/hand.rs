//! The event hand of one worker: what the capabilities behind `event_time` say.
//!
//! ⚑ Idleness never moves a hand to the maximum: a capability cannot come back. A worker whose partitions are all
//! idle follows the minimum of the others; when all are idle, the largest watermark seen anywhere. A worker that
//! owns no partition holds nothing and has no hand. Before a hand moves past partitions because they are idle, they
//! are looked at once more ([`Silence`]).

use super::silence::{Look, Silence};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tidegate_recovery::{Epoch, EventTime};

/// What a worker says about its partitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The smallest watermark of those that are not idle; `None` when all are.
    pub minimum: Option<EventTime>,
    /// The smallest watermark of those that are not idle and of which more is to be read: in a bounded run, a
    /// partition that has reached its end keeps no other one from being read.
    pub slowest: Option<EventTime>,
    /// The largest watermark of all.
    pub largest: EventTime,
}

impl Report {
    /// The report that a worker broadcasts: the minimum in steps, so that it changes rarely.
    pub fn in_steps(self, step_ms: i64) -> Report {
        let floor = |time| floor_to_step(time, step_ms);
        Report { minimum: self.minimum.map(floor), slowest: self.slowest.map(floor), ..self }
    }
}

/// The greatest multiple of `step_ms` that is not above `time`.
pub(super) fn floor_to_step(time: EventTime, step_ms: i64) -> EventTime {
    if time == EventTime::MIN || time == EventTime::MAX || step_ms <= 1 {
        return time;
    }
    let floored = time.0.div_euclid(step_ms).checked_mul(step_ms);
    floored.map_or(EventTime::MIN, EventTime)
}

/// The hand of one worker that owns partitions.
#[derive(Clone, Debug)]
pub struct EventHand {
    worker: u32,
    step_ms: i64,
    /// What every worker that owns partitions said last.
    reports: BTreeMap<u32, Option<Report>>,
    /// The newest look of this worker when another one was heard last.
    heard: u64,
    silence: Silence,
    hand: EventTime,
}

impl EventHand {
    /// The hand of `worker`; `owners` are all workers that own partitions of the stream.
    pub fn new(worker: u32, owners: impl IntoIterator<Item = u32>, step_ms: i64) -> EventHand {
        let reports = owners.into_iter().map(|owner| (owner, None)).collect();
        EventHand { worker, step_ms, reports, heard: 0, silence: Silence::default(), hand: EventTime::MIN }
    }

    /// A worker reports, when look `look` is the newest of this one; its own report comes before its records are
    /// forwarded, never after.
    pub fn hear(&mut self, worker: u32, report: Report, look: u64) {
        self.reports.insert(worker, Some(report));
        if worker != self.worker {
            self.heard = look;
        }
    }

    /// Where the hand stands.
    pub fn at(&self) -> EventTime {
        self.hand
    }

    /// Moves the hand as far as the reports allow and returns where it stands. It never goes back and never
    /// reaches the maximum. `idle` are the looks at the partitions that the own report leaves out; records of
    /// epochs before `open` are in the reports.
    pub fn advance(&mut self, open: Epoch, idle: impl Iterator<Item = Look> + Clone) -> EventTime {
        let Some((may, heard)) = self.allowed() else { return self.hand };
        let may = floor_to_step(may.min(EventTime(i64::MAX - 1)), self.step_ms);
        if may > self.hand
            && let Some(to) = self.silence.allows(may, heard, open, idle)
        {
            self.hand = self.hand.max(to.min(may));
        }
        self.hand
    }

    /// The slowest partition that is not idle and not at its end, anywhere; `None` when there is none, or when
    /// not all have reported.
    pub fn slowest(&self) -> Option<EventTime> {
        let mut slowest = None;
        for report in self.reports.values() {
            slowest = match (slowest, (*report)?.slowest) {
                (Some(one), Some(other)) => Some(std::cmp::min::<EventTime>(one, other)),
                (one, other) => one.or(other),
            };
        }
        slowest
    }

    /// How far the reports allow the hand to go, and the newest look when that was heard of.
    fn allowed(&self) -> Option<(EventTime, u64)> {
        let own = self.reports.get(&self.worker).copied().flatten()?;
        if let Some(minimum) = own.minimum {
            // The source looks at all of its partitions whenever it has read of one: after these records too.
            return Some((minimum, 0));
        }
        // An owner that has not spoken yet may be far behind: an idle worker waits for it.
        let all: Option<Vec<Report>> = self.reports.values().copied().collect();
        let all = all?;
        let minimum = all.iter().filter_map(|report| report.minimum).min();
        let largest = || all.iter().map(|report| report.largest).max();
        Some((minimum.or_else(largest)?, self.heard))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn report(minimum: Option<i64>, largest: i64) -> Report {
        let minimum = minimum.map(EventTime);
        Report { minimum, slowest: minimum, largest: EventTime(largest) }
    }

    #[test]
    fn a_worker_whose_partitions_are_idle_follows_the_others_and_never_the_maximum() {
        let mut hand = EventHand::new(0, [0, 1], 1);
        let mut looks = 0;
        let mut next = |worker, report| {
            hand.hear(worker, report, looks);
            looks += 1;
            let silent = Look { number: looks, at_end: true, last_read: None };
            hand.advance(Epoch(1), [silent].into_iter()).0
        };
        assert_eq!(next(0, report(Some(50), 50)), 50);
        // Worker 1 has not spoken yet.
        assert_eq!(next(0, report(None, 50)), 50);
        assert_eq!(next(1, report(Some(70), 90)), 70);
        assert_eq!(next(1, report(None, 120)), 120);
        // It comes back late: the hand cannot go back, and is never at the maximum.
        assert_eq!(next(0, report(Some(60), 60)), 120);
    }

    #[test]
    fn a_worker_that_finds_records_after_it_heard_of_a_watermark_does_not_follow_it() {
        // Simulation, seed 30 of 400: both partitions get records at one moment, and worker 1 reads its own first.
        let mut hand = EventHand::new(0, [0, 1], 1);
        let look = |number, at_end, last_read| {
            [Look { number, at_end, last_read: Some(Epoch(last_read)) }].into_iter()
        };
        hand.hear(0, report(None, 50), 4);
        hand.hear(1, report(Some(900), 900), 4);
        assert_eq!(hand.advance(Epoch(20), look(4, true, 3)), EventTime::MIN, "it was idle before");
        assert_eq!(hand.advance(Epoch(20), look(5, false, 20)), EventTime::MIN, "there is more");
        assert_eq!(hand.advance(Epoch(20), look(6, true, 20)), EventTime::MIN, "on the way to event_time");
        hand.hear(0, report(Some(800), 800), 6);
        assert_eq!(hand.advance(Epoch(20), [].into_iter()), EventTime(800));
    }

    #[test]
    fn steps_are_floors_also_below_zero() {
        assert_eq!(floor_to_step(EventTime(199), 100), EventTime(100));
        assert_eq!(floor_to_step(EventTime(-1), 100), EventTime(-100));
        assert_eq!(floor_to_step(EventTime::MIN, 100), EventTime::MIN);
        assert_eq!(floor_to_step(EventTime(i64::MIN + 1), 100), EventTime::MIN);
    }

    proptest! {
        /// While a partition is awake, the hand of its worker is never above the partition's watermark at the
        /// time at which the hand moved.
        #[test]
        fn the_hand_never_passes_an_awake_partition_of_its_own(
            reports in prop::collection::vec((0_u32..3, prop::option::of(-500_i64..500), -500_i64..500), 1..80),
        ) {
            let mut hand = EventHand::new(0, [0, 1, 2], 10);
            let mut own = None;
            let mut before = hand.at();
            for (worker, minimum, largest) in reports {
                let said = report(minimum, largest.max(minimum.unwrap_or(-500)));
                hand.hear(worker, said, 0);
                if worker == 0 {
                    own = Some(said);
                }
                let now = hand.advance(Epoch(1), [].into_iter());
                prop_assert!(now >= before && now < EventTime::MAX);
                if now > before && let Some(Report { minimum: Some(minimum), .. }) = own {
                    prop_assert!(now <= minimum);
                }
                before = now;
            }
        }
    }
}
