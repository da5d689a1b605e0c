//! Closes clients on threads of their own, since a close can take as long as a broker is away.
//!
//! A worker hands a client over and goes on. Before the process ends it calls [`wait`], which names what is
//! still closing at the deadline; the process may then end anyway: everything that must be durable was
//! acknowledged before.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

static CLOSING: Mutex<Vec<(u64, String)>> = Mutex::new(Vec::new());
static CLOSED: Condvar = Condvar::new();

/// A client that is not closed yet. Whoever lets a thread own a client that may be stuck in a call has one of these, so that
/// [`wait`] names it; dropping it says that the client is closed, or that nobody needs to wait for it.
pub(crate) struct Open {
    id: u64,
    name: String,
}

impl Drop for Open {
    fn drop(&mut self) {
        CLOSING.lock().unwrap_or_else(PoisonError::into_inner).retain(|(id, _)| *id != self.id);
        CLOSED.notify_all();
    }
}

/// `name` says in the log which client it is.
pub(crate) fn open(name: String) -> Open {
    let mut closing = CLOSING.lock().unwrap_or_else(PoisonError::into_inner);
    let id = closing.last().map_or(0, |(last, _)| last + 1);
    closing.push((id, name.clone()));
    Open { id, name }
}

/// Runs `close` on a thread of its own. `name` says in the log what is being closed.
pub(crate) fn close(name: String, close: impl FnOnce() + Send + 'static) {
    close_open(open(name), close);
}

/// The same for what is known to be open.
pub(crate) fn close_open(open: Open, close: impl FnOnce() + Send + 'static) {
    let work = move || {
        let begin = Instant::now();
        close();
        tracing::debug!(client = open.name, took_ms = begin.elapsed().as_millis() as u64, "client closed");
        drop(open);
    };
    if let Err(error) = std::thread::Builder::new().name("reaper".into()).spawn(work) {
        // The closure is gone with the error, and with it the client: it was closed here, in place.
        tracing::warn!(%error, "no thread for closing a client, so it was closed in place");
    }
}

/// Waits until every client that was handed over, or is known to be open, is closed, at most `deadline`. Returns the names of those that
/// are not.
pub fn wait(deadline: Duration) -> Vec<String> {
    let closing = CLOSING.lock().unwrap_or_else(PoisonError::into_inner);
    let (closing, _) = CLOSED
        .wait_timeout_while(closing, deadline, |closing| !closing.is_empty())
        .unwrap_or_else(PoisonError::into_inner);
    closing.iter().map(|(_, name)| name.clone()).collect()
}
