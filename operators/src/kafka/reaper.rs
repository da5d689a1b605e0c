//! Closes clients on threads of their own, since a close can take as long as a broker is away.
//!
//! A worker hands a client over and goes on. Before the process ends it calls [`wait`], which names what is
//! still closing at the deadline; the process may then end anyway: everything that must be durable was
//! acknowledged before.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

static CLOSING: Mutex<Vec<(u64, String)>> = Mutex::new(Vec::new());
static CLOSED: Condvar = Condvar::new();

/// Runs `close` on a thread of its own. `name` says in the log what is being closed.
pub(crate) fn close(name: String, close: impl FnOnce() + Send + 'static) {
    let id = {
        let mut closing = CLOSING.lock().unwrap_or_else(PoisonError::into_inner);
        let id = closing.last().map_or(0, |(last, _)| last + 1);
        closing.push((id, name.clone()));
        id
    };
    /// Takes the entry away also when `close` panics.
    struct Done(u64);
    impl Drop for Done {
        fn drop(&mut self) {
            CLOSING.lock().unwrap_or_else(PoisonError::into_inner).retain(|(id, _)| *id != self.0);
            CLOSED.notify_all();
        }
    }
    let done = Done(id);
    let work = move || {
        let _done = done;
        let begin = Instant::now();
        close();
        tracing::debug!(client = name, took_ms = begin.elapsed().as_millis() as u64, "client closed");
    };
    if let Err(error) = std::thread::Builder::new().name("reaper".into()).spawn(work) {
        // The closure is gone with the error, and with it the client: it was closed here, in place.
        tracing::warn!(%error, "no thread for closing a client, so it was closed in place");
    }
}

/// Waits until every client that was handed over is closed, at most `deadline`. Returns the names of those that
/// are not.
pub fn wait(deadline: Duration) -> Vec<String> {
    let closing = CLOSING.lock().unwrap_or_else(PoisonError::into_inner);
    let (closing, _) = CLOSED
        .wait_timeout_while(closing, deadline, |closing| !closing.is_empty())
        .unwrap_or_else(PoisonError::into_inner);
    closing.iter().map(|(_, name)| name.clone()).collect()
}
