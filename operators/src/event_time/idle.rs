//! When a partition counts as idle.
//!
//! ⚑ For the idle time no record of the partition reached `event_time`, and its position reached the log end seen
//! at the beginning of that time. A partition with backlog, or one held at an open transaction, is not idle: its
//! position stays below a log end that is older than the idle time. Neither is one whose records are still on
//! their way from the source to `event_time`.

use std::collections::VecDeque;
use std::time::Duration;
use tidegate_recovery::{Epoch, NextOffset};

/// Samples that are kept over one idle time.
const SAMPLES: u32 = 16;

/// What was seen of a partition at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdleSample {
    /// First offset not yet read.
    pub position: NextOffset,
    /// The end of the log.
    pub log_end: NextOffset,
    /// The epoch in which the newest record was read.
    pub last_read: Option<Epoch>,
}

/// Watches one partition.
#[derive(Clone, Debug)]
pub struct IdleClock {
    idle_time: Duration,
    last_record: Duration,
    samples: VecDeque<(Duration, IdleSample)>,
    idle: bool,
}

impl IdleClock {
    /// A partition that is not idle, at this moment.
    pub fn new(idle_time: Duration, now: Duration) -> IdleClock {
        IdleClock { idle_time, last_record: now, samples: VecDeque::new(), idle: false }
    }

    /// Whether the partition is idle.
    pub fn is_idle(&self) -> bool {
        self.idle
    }

    /// Records of the partition reached `event_time`.
    pub fn record(&mut self, now: Duration) {
        self.last_record = now;
        self.idle = false;
    }

    /// Once per epoch: what is seen of the partition (`None` when the broker has not said where its log ends),
    /// and the oldest epoch of which records may still arrive at `event_time`. Returns whether it is idle.
    pub fn tick(
        &mut self,
        now: Duration,
        seen: Option<IdleSample>,
        open: Option<Epoch>,
        with_backlog: bool,
    ) -> bool {
        let Some(seen) = seen else {
            self.idle = false;
            return false;
        };
        let spacing = self.idle_time / SAMPLES;
        if self.samples.back().is_none_or(|(at, _)| now.saturating_sub(*at) >= spacing) {
            self.samples.push_back((now, seen));
        }
        let Some(begin) = now.checked_sub(self.idle_time) else { return self.idle };
        // The newest sample that is at least the idle time old; older ones are no longer needed.
        while self.samples.get(1).is_some_and(|(at, _)| *at <= begin) {
            self.samples.pop_front();
        }
        self.idle = match self.samples.front() {
            Some((at, then)) if *at <= begin => {
                let arrived = then.last_read.is_none_or(|read| open.is_none_or(|open| read < open));
                let caught_up = seen.position >= then.log_end || with_backlog;
                self.last_record <= begin && arrived && caught_up
            }
            _ => false,
        };
        self.idle
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn seen(position: i64, log_end: i64) -> Option<IdleSample> {
        Some(IdleSample {
            position: NextOffset(position),
            log_end: NextOffset(log_end),
            last_read: Some(Epoch(3)),
        })
    }

    /// Ticks once a second and returns the first second at which the partition is idle.
    fn first_idle(clock: &mut IdleClock, to: u64, look: impl Fn(u64) -> Option<IdleSample>) -> Option<u64> {
        (0..=to).find(|second| clock.tick(seconds(*second), look(*second), Some(Epoch(9)), false))
    }

    #[test]
    fn a_partition_at_its_end_is_idle_after_the_idle_time_and_wakes_at_a_record() {
        let mut clock = IdleClock::new(seconds(30), seconds(0));
        assert_eq!(first_idle(&mut clock, 60, |_| seen(10, 10)), Some(30));
        clock.record(seconds(31));
        assert!(!clock.is_idle());
        assert!(!clock.tick(seconds(60), seen(11, 11), Some(Epoch(9)), false));
        assert!(clock.tick(seconds(61), seen(11, 11), Some(Epoch(9)), false));
    }

    #[test]
    fn a_partition_with_backlog_or_at_an_open_transaction_is_not_idle() {
        let mut clock = IdleClock::new(seconds(30), seconds(0));
        assert_eq!(first_idle(&mut clock, 300, |_| seen(10, 50)), None);
        // A transaction opens at second 20 and stays open: at second 50 it is older than the idle time.
        let mut clock = IdleClock::new(seconds(30), seconds(0));
        let look = |second| if second < 20 { seen(10, 10) } else { seen(10, 12) };
        assert_eq!(first_idle(&mut clock, 49, look), Some(30));
        assert!((52..300).all(|second| !clock.tick(seconds(second), look(second), Some(Epoch(9)), false)));
    }

    #[test]
    fn a_partition_whose_records_are_all_filtered_is_idle() {
        let mut clock = IdleClock::new(seconds(30), seconds(0));
        let look = |second: u64| seen(second as i64 * 10, second as i64 * 10 + 7);
        assert!(first_idle(&mut clock, 60, look).is_some());
        assert!((62..200).all(|second| clock.tick(seconds(second), look(second), Some(Epoch(9)), false)));
    }

    #[test]
    fn records_on_their_way_to_event_time_keep_a_partition_awake() {
        let mut clock = IdleClock::new(seconds(30), seconds(0));
        assert!((0..100).all(|second| !clock.tick(seconds(second), seen(10, 10), Some(Epoch(3)), false)));
        assert!(clock.tick(seconds(100), seen(10, 10), Some(Epoch(4)), false));
    }

    #[test]
    fn nothing_is_idle_before_the_broker_said_where_the_log_ends() {
        let mut clock = IdleClock::new(seconds(30), seconds(0));
        assert_eq!(first_idle(&mut clock, 100, |_| None), None);
    }
}
