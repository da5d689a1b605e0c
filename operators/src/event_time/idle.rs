//! When a partition counts as idle.
//!
//! ⚑ For the idle time no record of the partition reached `event_time`, and its position is at the end of the log.
//! A partition with backlog, or one held at an open transaction, is not idle: its position is below the end.
//! Records that are on their way from the source to `event_time` do not keep a partition awake, or one whose
//! records are all filtered could never be idle; before a hand leaves the partition behind it waits until they
//! have passed ([`super::Silence`]).

use std::time::Duration;

/// Watches one partition.
#[derive(Clone, Debug)]
pub struct IdleClock {
    idle_time: Duration,
    last_record: Duration,
    idle: bool,
}

impl IdleClock {
    /// A partition that is not idle, at this moment.
    pub fn new(idle_time: Duration, now: Duration) -> IdleClock {
        IdleClock { idle_time, last_record: now, idle: false }
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

    /// Once per epoch: whether the partition is at the end of its log. Returns whether it is idle.
    pub fn tick(&mut self, now: Duration, at_end: bool) -> bool {
        self.idle = at_end && now.saturating_sub(self.last_record) >= self.idle_time;
        self.idle
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_partition_at_its_end_is_idle_after_the_idle_time_and_wakes_at_a_record() {
        let mut clock = IdleClock::new(seconds(30), seconds(0));
        assert_eq!((0..60).find(|second| clock.tick(seconds(*second), true)), Some(30));
        clock.record(seconds(31));
        assert!(!clock.is_idle());
        assert!(!clock.tick(seconds(60), true));
        assert!(clock.tick(seconds(61), true));
    }

    #[test]
    fn a_partition_with_backlog_is_not_idle_and_one_that_has_caught_up_is() {
        // All of its records are filtered before event_time, and every other second finds it at the end.
        let mut clock = IdleClock::new(seconds(30), seconds(0));
        for second in 0..200 {
            let at_end = second % 2 == 0;
            assert_eq!(clock.tick(seconds(second), at_end), second >= 30 && at_end, "at second {second}");
        }
    }
}
