//! A request to stop: what a signal sets and a dataflow reads.
//!
//! Asking is all that happens here. Which epoch is the last is agreed on by the dataflow, on all processes.

use crate::supervisor::lock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

type Waker = Box<dyn Fn() + Send + Sync>;

/// A shared request to stop. It is set once and never taken back.
#[derive(Clone, Default)]
pub struct StopRequest {
    flag: Arc<AtomicBool>,
    wakers: Arc<Mutex<Vec<Waker>>>,
}

impl StopRequest {
    /// A request that nobody has made yet.
    pub fn new() -> StopRequest {
        StopRequest::default()
    }

    /// Asks for the stop and wakes whoever waits for it. Not for use inside a signal handler proper (it takes
    /// a lock): call it from a thread that reads signals, or register [`StopRequest::flag`].
    pub fn request(&self) {
        if !self.flag.swap(true, Ordering::AcqRel) {
            for waker in lock(&self.wakers).iter() {
                waker();
            }
        }
    }

    /// Whether a stop was asked for.
    pub fn requested(&self) -> bool {
        self.flag.load(Ordering::Acquire)
    }

    /// Calls `waker` when a stop is asked for; at once if it was already.
    pub fn on_request(&self, waker: impl Fn() + Send + Sync + 'static) {
        let mut wakers = lock(&self.wakers);
        if self.requested() {
            waker();
        } else {
            wakers.push(Box::new(waker));
        }
    }

    /// The flag itself, which a signal handler may set; nobody is woken then.
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.flag)
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
