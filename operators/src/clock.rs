//! Time as an argument: what the operators read instead of the system's clock.
//!
//! The simulation gives a clock that moves when the scheduler says so; nothing else in this crate may look at
//! the wall.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tidegate_recovery::{Epoch, EpochSchedule};

/// A source of time.
pub trait Clock: Send + Sync + 'static {
    /// Time since some fixed moment of this process; it never goes back.
    fn now(&self) -> Duration;

    /// Milliseconds since the Unix epoch, as the host believes; it may jump.
    fn wall_ms(&self) -> i64;
}

/// The host's clock.
#[derive(Debug)]
pub struct SystemClock(Instant);

impl SystemClock {
    /// A clock whose monotonic part begins now.
    pub fn start() -> SystemClock {
        SystemClock(Instant::now())
    }

    /// A clock whose monotonic part began at `origin`.
    pub fn since(origin: Instant) -> SystemClock {
        SystemClock(origin)
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn wall_ms(&self) -> i64 {
        wall_ms()
    }
}

/// The system's wall clock, in milliseconds since the Unix epoch, for what must not be simulated: limits and lifetimes that others
/// measure by it.
pub fn wall_ms() -> i64 {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => since.as_millis() as i64,
        Err(before) => -(before.duration().as_millis() as i64),
    }
}

/// A clock that stands still until it is moved; clones share their hand.
#[derive(Clone, Debug)]
pub struct VirtualClock {
    now_us: Arc<AtomicU64>,
    wall_start_ms: i64,
}

impl VirtualClock {
    /// A clock that stands at zero, at this wall time.
    pub fn new(wall_start_ms: i64) -> VirtualClock {
        VirtualClock { now_us: Arc::default(), wall_start_ms }
    }

    /// Moves the clock on.
    pub fn advance(&self, by: Duration) {
        self.now_us.fetch_add(by.as_micros() as u64, Ordering::SeqCst);
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Duration {
        Duration::from_micros(self.now_us.load(Ordering::SeqCst))
    }

    fn wall_ms(&self) -> i64 {
        self.wall_start_ms + self.now().as_millis() as i64
    }
}

/// The epoch hand's clock, on which all processes agreed in the handshake.
///
/// Skew between the processes costs a little buffering, never correctness: an epoch is over when every worker
/// has left it, whatever the clocks say.
#[derive(Clone)]
pub struct EpochClock {
    clock: Arc<dyn Clock>,
    origin: Duration,
    interval: Duration,
    first: Epoch,
}

impl EpochClock {
    /// Epoch `schedule.first` begins when `clock.now()` is `origin`, and each epoch lasts `interval`.
    pub fn new(
        clock: Arc<dyn Clock>,
        schedule: &EpochSchedule,
        origin: Duration,
        interval: Duration,
    ) -> EpochClock {
        EpochClock { clock, origin, interval: interval.max(Duration::from_micros(1)), first: schedule.first }
    }

    /// The epoch that it is now.
    pub fn epoch(&self) -> Epoch {
        let passed = self.clock.now().saturating_sub(self.origin);
        Epoch(self.first.0 + (passed.as_nanos() / self.interval.as_nanos()) as u64)
    }

    /// How long the present epoch still lasts.
    pub fn until_next(&self) -> Duration {
        let now = self.clock.now();
        match now.checked_sub(self.origin) {
            None => self.origin - now + self.interval,
            Some(passed) => {
                let into = passed.as_nanos() % self.interval.as_nanos();
                self.interval - Duration::from_nanos(into as u64)
            }
        }
    }

    /// The clock behind.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test] // fault P8: and a moment before the origin is in the first epoch
    fn epochs_follow_the_clock_from_the_schedules_first() {
        let clock = VirtualClock::new(0);
        let schedule = EpochSchedule { first: Epoch(41), commit_every: 10 };
        let epochs = EpochClock::new(
            Arc::new(clock.clone()),
            &schedule,
            Duration::from_millis(5),
            Duration::from_millis(100),
        );
        assert_eq!(epochs.epoch(), Epoch(41));
        assert_eq!(epochs.until_next(), Duration::from_millis(105));
        clock.advance(Duration::from_millis(104));
        assert_eq!(epochs.epoch(), Epoch(41));
        clock.advance(Duration::from_millis(1));
        assert_eq!(epochs.epoch(), Epoch(42));
        assert_eq!(epochs.until_next(), Duration::from_millis(100));
    }
}
