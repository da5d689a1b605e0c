//! Logs: `tracing` to stderr, as text on a terminal and as JSON where a program reads them.
//!
//! stdout belongs to the user: nothing of Tidegate's own is ever written there by a running flow.

use crate::config::settings::{LogFormat, LogSettings};
use std::io::IsTerminal;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tracing_subscriber::EnvFilter;

/// Checks a level, or a filter such as `info,tidegate_cluster=debug`.
///
/// # Errors
/// What is wrong with it.
pub fn check_level(level: &str) -> Result<(), String> {
    if level.trim().is_empty() {
        return Err("the level is empty".into());
    }
    // A bare word that is no level would be taken for the name of a module, and everything would be silent.
    for part in level.split(',') {
        let word = part.rsplit('=').next().unwrap_or(part).trim();
        if !["error", "warn", "info", "debug", "trace", "off"].contains(&word.to_lowercase().as_str()) {
            return Err(format!("`{part}` is no level"));
        }
    }
    EnvFilter::try_new(level).map(|_| ()).map_err(|error| format!("`{level}` is no filter: {error}"))
}

/// Sets logging up for the process; a second call has no effect.
pub fn start(settings: &LogSettings) {
    // A level was checked when it was read; whoever comes here with another one gets the default.
    let filter = EnvFilter::try_new(&settings.level).unwrap_or_else(|_| EnvFilter::new("info"));
    let json = match settings.format {
        LogFormat::Json => true,
        LogFormat::Text => false,
        LogFormat::Auto => !std::io::stderr().is_terminal(),
    };
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let started = if json {
        builder.json().flatten_event(true).with_current_span(false).with_span_list(false).try_init()
    } else {
        builder.with_ansi(std::io::stderr().is_terminal()).with_target(false).try_init()
    };
    if started.is_err() {
        tracing::debug!("logging was already set up");
    }
}

/// Lets one line through per interval and counts those that it holds back.
///
/// For errors that repeat, such as a broker that is away: the first is written at once, and the next that is
/// written says how many were like it.
#[derive(Debug)]
pub struct RateLimit {
    start: Instant,
    interval_ms: u64,
    /// Milliseconds after the start at which the next line may pass.
    next_ms: AtomicU64,
    held_back: AtomicU64,
}

impl RateLimit {
    /// One line per `interval`.
    pub fn new(interval: Duration) -> RateLimit {
        RateLimit {
            start: Instant::now(),
            interval_ms: interval.as_millis() as u64,
            next_ms: AtomicU64::new(0),
            held_back: AtomicU64::new(0),
        }
    }

    /// Whether a line may be written now; if so, how many were held back before it.
    pub fn pass(&self) -> Option<u64> {
        self.pass_at(self.start.elapsed())
    }

    fn pass_at(&self, elapsed: Duration) -> Option<u64> {
        let now = elapsed.as_millis() as u64;
        let next = self.next_ms.load(Ordering::Relaxed);
        let passes = now >= next
            && self
                .next_ms
                .compare_exchange(next, now + self.interval_ms, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if passes {
            Some(self.held_back.swap(0, Ordering::Relaxed))
        } else {
            self.held_back.fetch_add(1, Ordering::Relaxed);
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_a_word_or_a_filter() {
        for good in ["info", "WARN", "info,tidegate_cluster=debug", "off"] {
            assert_eq!(check_level(good), Ok(()), "{good}");
        }
        for bad in ["", "verbose", "info,loud", "tidegate="] {
            assert!(check_level(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn repeated_lines_are_held_back_and_counted() {
        let limit = RateLimit::new(Duration::from_secs(10));
        assert_eq!(limit.pass_at(Duration::ZERO), Some(0));
        assert_eq!(limit.pass_at(Duration::from_secs(1)), None);
        assert_eq!(limit.pass_at(Duration::from_secs(9)), None);
        assert_eq!(limit.pass_at(Duration::from_secs(10)), Some(2));
        assert_eq!(limit.pass_at(Duration::from_secs(11)), None);
    }
}
