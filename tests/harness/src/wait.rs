//! Waiting for a condition, with a deadline and a name.

use std::time::{Duration, Instant};

/// How long a poll rests before it looks again.
const POLL: Duration = Duration::from_millis(20);

/// Looks every 20 ms until `look` gives a value, and returns it.
///
/// Panics with `what` when `deadline` passes first.
#[track_caller]
pub fn until<T>(what: &str, deadline: Duration, look: impl FnMut() -> Option<T>) -> T {
    match until_or_none(deadline, look) {
        Some(value) => value,
        None => panic!("waited {deadline:?} in vain: {what}"),
    }
}

/// Looks every 20 ms until `look` gives a value; `None` when `deadline` passes first.
pub fn until_or_none<T>(deadline: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let start = Instant::now();
    loop {
        if let Some(value) = look() {
            return Some(value);
        }
        if start.elapsed() >= deadline {
            return None;
        }
        std::thread::sleep(POLL);
    }
}

/// Looks every 20 ms until what `look` gives has been the same for longer than `span`, and returns it.
///
/// Panics with `what` when `deadline` passes first.
#[track_caller]
pub fn until_it_stands<T: PartialEq>(
    what: &str,
    span: Duration,
    deadline: Duration,
    mut look: impl FnMut() -> T,
) -> T {
    let mut last = look();
    let mut since = Instant::now();
    until(&format!("{what} for {span:?}"), deadline, || {
        let now = look();
        if now != last {
            last = now;
            since = Instant::now();
        }
        (since.elapsed() > span).then_some(())
    });
    last
}

/// Looks every 20 ms for the whole of `span` and panics as soon as `holds` is false: for what must *not* happen.
#[track_caller]
pub fn holds_for(what: &str, span: Duration, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while start.elapsed() < span {
        assert!(holds(), "did not hold for {span:?} (ended after {:?}): {what}", start.elapsed());
        std::thread::sleep(POLL);
    }
}
