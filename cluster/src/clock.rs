//! The clock that notices a standstill.

use std::time::Duration;
#[cfg(any(test, not(target_os = "linux")))]
use std::time::Instant;

/// Time since the machine started, the time that it was suspended included.
///
/// [`std::time::Instant`] stands still while a laptop or a virtual machine sleeps; the peers do not.
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
    fn the_clock_of_the_machine_moves_on() {
        let before = since_boot();
        let start = Instant::now();
        while since_boot() <= before {
            assert!(start.elapsed() < Duration::from_secs(5), "the clock stands still");
        }
    }
}
