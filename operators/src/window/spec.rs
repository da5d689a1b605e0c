//! What kind of windows a step has, and which of them a record belongs to.

use std::time::Duration;

/// A window definition that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WindowError {
    /// A length must be at least one millisecond.
    #[error("{what} of a window must be at least 1 ms")]
    Zero {
        /// Which length.
        what: &'static str,
    },
    /// A length is beyond what a time in milliseconds can hold.
    #[error("{what} of a window is too long: at most {WINDOW_MS_MAX} ms")]
    TooLong {
        /// Which length.
        what: &'static str,
    },
    /// Records between two windows would belong to none.
    #[error("a sliding window of {size} ms every {every} ms leaves gaps: `every` may not be above `size`")]
    Gaps {
        /// The size.
        size: i64,
        /// The distance of two starts.
        every: i64,
    },
    /// Each record would have to be added to too many windows.
    #[error(
        "a sliding window of {size} ms every {every} ms puts each record into {windows} windows, more than {WINDOWS_PER_RECORD_MAX}: take a larger `every`"
    )]
    TooMany {
        /// The size.
        size: i64,
        /// The distance of two starts.
        every: i64,
        /// How many windows a record belongs to.
        windows: i64,
    },
}

/// Longest length in a window's definition: a hundred thousand years.
const WINDOW_MS_MAX: i64 = 100_000 * 366 * 24 * 3_600_000;

/// How many sliding windows a record may belong to.
const WINDOWS_PER_RECORD_MAX: i64 = 10_000;

/// The windows of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowKind {
    /// `[n * size, (n + 1) * size)`.
    Tumbling {
        /// Milliseconds.
        size: i64,
    },
    /// `[n * every, n * every + size)`.
    Sliding {
        /// Milliseconds.
        size: i64,
        /// Milliseconds; at most the size.
        every: i64,
    },
    /// Records that are at most the gap apart; from the first to the last of them plus the gap.
    Session {
        /// Milliseconds.
        gap: i64,
    },
}

/// The windows of a step, how they are aligned, and how late a record may be.
///
/// ```
/// use std::time::Duration;
/// use tidegate_operators::window::{Sliding, Tumbling, WindowSpec};
///
/// let per_minute: WindowSpec = Tumbling::minutes(1).into();
/// let smooth = Sliding::secs(60, 10).lateness(Duration::from_secs(5));
/// assert!(per_minute.check().is_ok() && smooth.check().is_ok());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowSpec {
    /// Tumbling, sliding or session.
    pub kind: WindowKind,
    /// Milliseconds by which all borders are shifted; sessions have no borders.
    pub align: i64,
    /// Milliseconds that a window stays open beyond its end.
    pub lateness: i64,
}

/// Tumbling windows, for a flow in Rust.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tumbling {
    size: i64,
}

impl Tumbling {
    /// Windows of this size.
    pub fn of(size: Duration) -> Tumbling {
        Tumbling { size: ms(size) }
    }

    /// Windows of so many seconds.
    pub fn secs(secs: u64) -> Tumbling {
        Tumbling::of(Duration::from_secs(secs))
    }

    /// Windows of so many minutes.
    pub fn minutes(minutes: u64) -> Tumbling {
        Tumbling::secs(minutes.saturating_mul(60))
    }

    /// Windows of so many hours.
    pub fn hours(hours: u64) -> Tumbling {
        Tumbling::minutes(hours.saturating_mul(60))
    }

    /// Windows that stay open this long beyond their end.
    pub fn lateness(self, lateness: Duration) -> WindowSpec {
        WindowSpec::from(self).lateness(lateness)
    }
}

/// Sliding windows, for a flow in Rust.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sliding {
    size: i64,
    every: i64,
}

impl Sliding {
    /// Windows of this size, of which one begins `every` so often.
    pub fn of(size: Duration, every: Duration) -> Sliding {
        Sliding { size: ms(size), every: ms(every) }
    }

    /// Size and distance in seconds.
    pub fn secs(size: u64, every: u64) -> Sliding {
        Sliding::of(Duration::from_secs(size), Duration::from_secs(every))
    }

    /// Windows that stay open this long beyond their end.
    pub fn lateness(self, lateness: Duration) -> WindowSpec {
        WindowSpec::from(self).lateness(lateness)
    }
}

/// Sessions, for a flow in Rust.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    gap: i64,
}

impl Session {
    /// Records at most this far apart belong together.
    pub fn gap(gap: Duration) -> Session {
        Session { gap: ms(gap) }
    }

    /// Sessions that stay open this long beyond their end.
    pub fn lateness(self, lateness: Duration) -> WindowSpec {
        WindowSpec::from(self).lateness(lateness)
    }
}

impl From<Tumbling> for WindowSpec {
    fn from(tumbling: Tumbling) -> WindowSpec {
        WindowSpec::new(WindowKind::Tumbling { size: tumbling.size })
    }
}

impl From<Sliding> for WindowSpec {
    fn from(sliding: Sliding) -> WindowSpec {
        WindowSpec::new(WindowKind::Sliding { size: sliding.size, every: sliding.every })
    }
}

impl From<Session> for WindowSpec {
    fn from(session: Session) -> WindowSpec {
        WindowSpec::new(WindowKind::Session { gap: session.gap })
    }
}

impl WindowSpec {
    /// Windows of this kind: not shifted, no lateness.
    pub fn new(kind: WindowKind) -> WindowSpec {
        WindowSpec { kind, align: 0, lateness: 0 }
    }

    /// With all borders shifted by `align`.
    pub fn align(self, align: Duration) -> WindowSpec {
        WindowSpec { align: ms(align), ..self }
    }

    /// With windows that stay open for `lateness` beyond their end.
    pub fn lateness(self, lateness: Duration) -> WindowSpec {
        WindowSpec { lateness: ms(lateness), ..self }
    }

    /// Says what is wrong with it, if anything is.
    pub fn check(&self) -> Result<(), WindowError> {
        let lengths = match self.kind {
            WindowKind::Tumbling { size } => [("size", size), ("size", size)],
            WindowKind::Sliding { size, every } => [("size", size), ("every", every)],
            WindowKind::Session { gap } => [("gap", gap), ("gap", gap)],
        };
        for (what, length) in lengths {
            if length < 1 {
                return Err(WindowError::Zero { what });
            }
        }
        for (what, length) in lengths.into_iter().chain([("align", self.align), ("lateness", self.lateness)])
        {
            if !(-WINDOW_MS_MAX..=WINDOW_MS_MAX).contains(&length) {
                return Err(WindowError::TooLong { what });
            }
        }
        if let WindowKind::Sliding { size, every } = self.kind {
            if every > size {
                return Err(WindowError::Gaps { size, every });
            }
            let windows = (size - 1) / every + 1;
            if windows > WINDOWS_PER_RECORD_MAX {
                return Err(WindowError::TooMany { size, every, windows });
            }
        }
        Ok(())
    }

    /// Size and distance of windows with fixed borders; `None` for sessions.
    pub(super) fn borders(&self) -> Option<(i64, i64)> {
        match self.kind {
            WindowKind::Tumbling { size } => Some((size, size)),
            WindowKind::Sliding { size, every } => Some((size, every)),
            WindowKind::Session { .. } => None,
        }
    }
}

/// Start of the last of the windows that begin every `every` milliseconds, shifted by `align`, and contain
/// `event`; `None` where a border would be outside the range of times.
pub(super) fn last_start(event: i64, every: i64, align: i64) -> Option<i64> {
    let start = event.checked_sub(align)?.div_euclid(every).checked_mul(every)?.checked_add(align)?;
    (start <= event).then_some(start)
}

fn ms(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn borders_are_shifted_by_align_also_before_1970() {
        assert_eq!(last_start(119, 60, 0), Some(60));
        assert_eq!(last_start(-1, 60, 0), Some(-60));
        assert_eq!(last_start(-60, 60, 0), Some(-60));
        assert_eq!(last_start(4, 60, 5), Some(-55));
        assert_eq!(last_start(5, 60, 5), Some(5));
        assert_eq!(last_start(5, 60, -5), Some(-5));
        assert_eq!(last_start(i64::MIN, 60, 0), None);
    }

    #[test]
    fn windows_that_leave_gaps_or_have_no_length_are_refused() {
        assert_eq!(WindowSpec::from(Sliding::secs(10, 10)).check(), Ok(()));
        assert_eq!(
            WindowSpec::from(Sliding::secs(10, 11)).check(),
            Err(WindowError::Gaps { size: 10_000, every: 11_000 })
        );
        assert_eq!(WindowSpec::from(Tumbling::secs(0)).check(), Err(WindowError::Zero { what: "size" }));
        assert_eq!(
            WindowSpec::from(Session::gap(Duration::ZERO)).check(),
            Err(WindowError::Zero { what: "gap" })
        );
        assert_eq!(
            WindowSpec::from(Tumbling::hours(u64::MAX)).check(),
            Err(WindowError::TooLong { what: "size" })
        );
        assert!(matches!(
            WindowSpec::from(Sliding::of(Duration::from_secs(3600), Duration::from_millis(1))).check(),
            Err(WindowError::TooMany { windows: 3_600_000, .. })
        ));
    }
}
