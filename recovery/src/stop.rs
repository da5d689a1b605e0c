//! A request to stop: what a signal sets and a dataflow reads.
//!
//! Asking is all that happens here. Which epoch is the last is agreed on by the dataflow, on all processes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

type Waker = Box<dyn Fn() + Send + Sync>;

/// A shared request to stop; clones are the same request. It is made once and never taken back.
#[derive(Clone, Default)]
pub struct StopRequest(Arc<Inner>);

#[derive(Default)]
struct Inner {
    requested: AtomicBool,
    wakers: Mutex<Vec<Waker>>,
}

impl StopRequest {
    /// A request that nobody has made yet.
    pub fn new() -> StopRequest {
        StopRequest::default()
    }

    /// Asks for the stop and wakes whoever waits for it. Not for use inside a signal handler proper (it takes
    /// a lock): call it from a thread that reads signals.
    pub fn request(&self) {
        if !self.0.requested.swap(true, Ordering::AcqRel) {
            for waker in self.wakers().iter() {
                waker();
            }
        }
    }

    /// Whether a stop was asked for.
    pub fn requested(&self) -> bool {
        self.0.requested.load(Ordering::Acquire)
    }

    /// Calls `waker` when a stop is asked for; at once if it was already.
    pub fn on_request(&self, waker: impl Fn() + Send + Sync + 'static) {
        let mut wakers = self.wakers();
        if self.requested() {
            waker();
        } else {
            wakers.push(Box::new(waker));
        }
    }

    /// Also after a waker panicked: a stop goes on when others fail.
    fn wakers(&self) -> MutexGuard<'_, Vec<Waker>> {
        self.0.wakers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for StopRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StopRequest").field("requested", &self.requested()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test] // C9
    fn a_stop_wakes_every_waker_once_early_and_late() {
        let stop = StopRequest::new();
        let woken = Arc::new(AtomicUsize::new(0));
        let count = |woken: &Arc<AtomicUsize>| {
            let woken = Arc::clone(woken);
            move || {
                woken.fetch_add(1, Ordering::SeqCst);
            }
        };
        stop.on_request(count(&woken));
        assert!(!stop.requested());
        stop.request();
        stop.request();
        assert_eq!(woken.load(Ordering::SeqCst), 1);
        stop.on_request(count(&woken));
        assert_eq!(woken.load(Ordering::SeqCst), 2);
        assert!(stop.requested());
    }
}
