//! Clocks: the epochs' common clock, and the clock that notices a standstill.
//!
//! All processes agree in the bring-up on the moment at which the first epoch began. Each maps it onto its
//! own monotonic clock, so wall clocks do not matter. They are apart by the time a message travels, which
//! costs a little buffering and never correctness.

use std::time::{Duration, Instant};
use tidegate_recovery::Epoch;

/// Which epoch it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochClock {
    base: Instant,
    first: Epoch,
    interval: Duration,
}

impl EpochClock {
    /// A clock by which epoch `first` began at `base` and each epoch lasts `interval`.
    ///
    /// # Panics
    /// When `interval` is zero.
    pub fn new(base: Instant, first: Epoch, interval: Duration) -> EpochClock {
        assert!(!interval.is_zero(), "an epoch lasts longer than nothing");
        EpochClock { base, first, interval }
    }

    /// The epoch that runs now.
    pub fn now(&self) -> Epoch {
        self.at(Instant::now())
    }

    /// The epoch that runs at `instant`; the first one for every moment before it.
    pub fn at(&self, instant: Instant) -> Epoch {
        let elapsed = instant.saturating_duration_since(self.base).as_nanos();
        let epochs = u64::try_from(elapsed / self.interval.as_nanos()).unwrap_or(u64::MAX);
        Epoch(self.first.0.saturating_add(epochs))
    }

    /// The time from `instant` until epoch `epoch` begins; zero if it has begun.
    pub fn until(&self, epoch: Epoch, instant: Instant) -> Duration {
        let epochs = epoch.0.saturating_sub(self.first.0);
        let nanos = u128::from(epochs) * self.interval.as_nanos();
        let begins = Duration::new(
            u64::try_from(nanos / 1_000_000_000).unwrap_or(u64::MAX),
            (nanos % 1_000_000_000) as u32,
        );
        begins.saturating_sub(instant.saturating_duration_since(self.base))
    }

    /// Length of an epoch.
    pub fn interval(&self) -> Duration {
        self.interval
    }
}

/// Time since the machine started, the time that it was suspended included.
///
/// [`Instant`] stands still while a laptop or a virtual machine sleeps; the peers do not.
pub(crate) fn since_boot() -> Duration {
    #[cfg(target_os = "linux")]
    {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
    }
    #[cfg(not(target_os = "linux"))]
    {
        use std::sync::LazyLock;
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        START.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_count_from_the_common_base() {
        let base = Instant::now();
        let clock = EpochClock::new(base, Epoch(41), Duration::from_millis(100));
        assert_eq!(clock.at(base), Epoch(41));
        assert_eq!(clock.at(base + Duration::from_millis(99)), Epoch(41));
        assert_eq!(clock.at(base + Duration::from_millis(100)), Epoch(42));
        assert_eq!(clock.until(Epoch(43), base + Duration::from_millis(150)), Duration::from_millis(50));
        assert_eq!(clock.until(Epoch(40), base), Duration::ZERO);
        assert_eq!(clock.until(Epoch(42), base + Duration::from_millis(101)), Duration::ZERO);
    }

    #[test] // P8
    fn a_moment_before_the_base_is_the_first_epoch() {
        let base = Instant::now() + Duration::from_secs(5);
        assert_eq!(EpochClock::new(base, Epoch(7), Duration::from_millis(1)).now(), Epoch(7));
    }

    #[test]
    fn the_clock_of_the_machine_moves_on() {
        let before = since_boot();
        let start = Instant::now();
        while since_boot() <= before {
            assert!(start.elapsed() < Duration::from_secs(5), "the clock stands still");
        }
    }
}
