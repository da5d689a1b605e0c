//! How a client's thread wakes the operators that wait for it.
//!
//! A wake-up costs an allocation and a message between threads, so only the first since the operator last
//! looked is sent. No wake-up is lost: an operator calls [`Wake::rearm`] *before* it looks, so what comes
//! after it looked is behind the re-arming and rings again, for all of them.

use super::raw::Signal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use timely::scheduling::SyncActivator;

/// Wakes the operators that share a client.
#[derive(Default)]
pub(super) struct Wake {
    rung: AtomicBool,
    activators: Mutex<Vec<SyncActivator>>,
}

impl Wake {
    pub(super) fn add(&self, activator: SyncActivator) {
        self.activators.lock().unwrap_or_else(PoisonError::into_inner).push(activator);
        // Whatever came before the operator had an activator must not be waited for.
        self.rung.store(false, Ordering::SeqCst);
        self.ring();
    }

    /// To be called before looking for what came.
    pub(super) fn rearm(&self) {
        self.rung.store(false, Ordering::SeqCst);
    }

    pub(super) fn ring(&self) {
        if self.rung.swap(true, Ordering::SeqCst) {
            return;
        }
        for activator in &*self.activators.lock().unwrap_or_else(PoisonError::into_inner) {
            // The only error is that the worker is gone, and then nobody waits.
            let _ = activator.activate();
        }
    }
}

/// Says that one queue is worth looking at, and wakes its operator.
pub(super) struct Ready {
    flag: AtomicBool,
    wake: Arc<Wake>,
}

impl Ready {
    /// Set from the start, so that what came before the signal was in place is seen.
    pub(super) fn new(wake: &Arc<Wake>) -> Arc<Ready> {
        Arc::new(Ready { flag: AtomicBool::new(true), wake: wake.clone() })
    }

    /// Whether something may be there; the flag is down afterwards, so look at once.
    pub(super) fn take(&self) -> bool {
        self.flag.load(Ordering::Relaxed) && self.flag.swap(false, Ordering::SeqCst)
    }

    /// Something was left.
    pub(super) fn keep(&self) {
        self.flag.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_set(&self) -> bool {
        self.flag.load(Ordering::Relaxed)
    }
}

impl Signal for Ready {
    fn raise(&self) {
        self.flag.store(true, Ordering::SeqCst);
        self.wake.ring();
    }
}
