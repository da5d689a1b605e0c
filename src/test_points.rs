//! Places at which a test lets a process stop itself: frozen, as one that is suspended, or dead, as one that is killed.
//!
//! A signal from outside comes at a moment that nobody chose. What must hold between two particular steps is tested with
//! `TIDEGATE_TEST_AT="freeze publication.sent 3"`: at the third time that the process is there. It means nothing without
//! `TIDEGATE_TEST_STEPS=1`.

use crate::config::TEST_STEPS_VARIABLE;
use rustix::process::{Signal, getpid, kill_process};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

const VARIABLE: &str = "TIDEGATE_TEST_AT";

struct Wanted {
    signal: Signal,
    place: String,
    /// How many times are still to go by.
    left: AtomicU64,
}

impl Wanted {
    fn read() -> Option<Wanted> {
        if std::env::var(TEST_STEPS_VARIABLE).as_deref() != Ok("1") {
            return None;
        }
        let text = std::env::var(VARIABLE).ok()?;
        let parsed = Wanted::parse(&text);
        if parsed.is_none() {
            tracing::error!(text, "{VARIABLE} is `freeze` or `kill`, a place, and a number from 1");
        }
        parsed
    }

    fn parse(text: &str) -> Option<Wanted> {
        let mut words = text.split(' ');
        let signal = match words.next()? {
            "freeze" => Signal::STOP,
            "kill" => Signal::KILL,
            _ => return None,
        };
        let place = words.next()?.to_owned();
        let left = words.next()?.parse().ok().filter(|left| *left > 0)?;
        words.next().is_none().then_some(Wanted { signal, place, left: AtomicU64::new(left) })
    }
}

/// The process is at `place`.
pub(crate) fn reach(place: &'static str) {
    static WANTED: OnceLock<Option<Wanted>> = OnceLock::new();
    let Some(wanted) = WANTED.get_or_init(Wanted::read) else { return };
    if wanted.place == place && wanted.left.fetch_sub(1, Ordering::SeqCst) == 1 {
        eprintln!("test: at {place}");
        if let Err(error) = kill_process(getpid(), wanted.signal) {
            eprintln!("test: no signal: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_named_with_what_to_do_and_when() {
        let wanted = Wanted::parse("freeze publication.sent 3").expect("it is right");
        assert_eq!((wanted.signal, wanted.place.as_str()), (Signal::STOP, "publication.sent"));
        for wrong in ["", "freeze", "stop a 1", "kill a 0", "kill a b", "kill a 1 2"] {
            assert!(Wanted::parse(wrong).is_none(), "{wrong}");
        }
    }
}
