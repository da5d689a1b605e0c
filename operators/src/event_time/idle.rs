//! When a partition counts as idle.
//!
//! ⚑ For the idle time no record of the partition reached `event_time`, and its position is at the end of the log.
//! A partition with backlog, or one held at an open transaction, is not idle: its position is below the end.
//! Neither is one whose records are still on their way from the source to `event_time`; only for a fraction of the
//! idle time is that not looked at, or a busy partition whose records are all filtered could never be idle.

use std::collections::VecDeque;
use std::time::Duration;
use tidegate_recovery::{Epoch, NextOffset};

/// Parts of the idle time: records that were read less than one of them ago may be on their way.
const WAY_PARTS: u32 = 4;

/// What is seen of a partition at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdleSample {
    /// First offset not yet read.
    pub position: NextOffset,
    /// The end of the log.
    pub log_end: NextOffset,
    /// The epoch in which the newest record was read.
    pub last_read: Option<Epoch>,
    /// The run is bounded, and the partition has reached the end that it had at start.
    pub ended: bool,
}

/// Watches one partition.
#[derive(Clone, Debug)]
pub struct IdleClock {
    idle_time: Duration,
    last_record: Duration,
    /// In which epoch the newest record was read, as seen at these moments.
    read: VecDeque<(Duration, Option<Epoch>)>,
    idle: bool,
}

impl IdleClock {
    /// A partition that is not idle, at this moment.
    pub fn new(idle_time: Duration, now: Duration) -> IdleClock {
        IdleClock { idle_time, last_record: now, read: VecDeque::new(), idle: false }
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
        let way = self.idle_time / WAY_PARTS;
        let spacing = way / WAY_PARTS;
        let read = seen.and_then(|seen| seen.last_read);
        if self.read.back().is_none_or(|(at, _)| now.saturating_sub(*at) >= spacing) {
            self.read.push_back((now, read));
        }
        // The newest sample that is old enough stays in front.
        while self.read.get(1).is_some_and(|(at, _)| now.saturating_sub(*at) >= way) {
            self.read.pop_front();
        }
        let then = self.read.front().filter(|(at, _)| now.saturating_sub(*at) >= way);
        let has_arrived = |read: Option<Epoch>| read.is_none_or(|read| open.is_none_or(|open| read < open));
        let arrived = then.is_some_and(|(_, read)| has_arrived(*read));
        let caught_up = seen.is_some_and(|seen| seen.position >= seen.log_end || with_backlog);
        self.idle = now.saturating_sub(self.last_record) >= self.idle_time && arrived && caught_up;
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
            ended: false,
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
        // A transaction opens at second 40 and stays open.
        let mut clock = IdleClock::new(seconds(30), seconds(0));
        let look = |second| if second < 40 { seen(10, 10) } else { seen(10, 12) };
        assert_eq!(first_idle(&mut clock, 39, look), Some(30));
        assert!((40..300).all(|second| !clock.tick(seconds(second), look(second), Some(Epoch(9)), false)));
    }

    #[test]
    fn a_partition_whose_records_are_all_filtered_is_idle_whenever_it_has_caught_up() {
        let mut clock = IdleClock::new(seconds(30), seconds(0));
        // It reads in every epoch, and every other second finds it at the end.
        for second in 0..200 {
            let behind = second as i64 % 2;
            let seen = IdleSample {
                position: NextOffset(second as i64 * 10),
                log_end: NextOffset(second as i64 * 10 + behind),
                last_read: Some(Epoch(second * 10)),
                ended: false,
            };
            let idle = clock.tick(seconds(second), Some(seen), Some(Epoch(second * 10)), false);
            assert_eq!(idle, second >= 30 && behind == 0, "at second {second}");
        }
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
