//! Ends a process whose start cannot leave.
//!
//! Until the worker threads run, the main thread waits for the brokers itself, as long as `startup_timeout` allows: for an answer, or
//! for the end of a transaction that a lost peer had open. When the cluster gives up meanwhile, nothing that it waits for
//! matters any more.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};
use tidegate_cluster::{Cause, Supervisor};

enum Told {
    /// The cluster is giving up.
    Leaving,
    /// The start is over.
    Over,
}

/// Watches over a start until it is dropped.
#[must_use = "nobody watches over the start any more when this is dropped"]
pub(crate) struct StartWatch(Sender<Told>);

impl StartWatch {
    /// From now on the process ends `after` the cluster gave up, with the exit code of the first cause, which `say` writes.
    pub(crate) fn begin(supervisor: &Supervisor, after: Duration, say: fn(&Cause)) -> io::Result<StartWatch> {
        let (tell, told) = channel();
        let leaving = tell.clone();
        supervisor.on_leave(move || {
            // The start is over, then.
            let _ = leaving.send(Told::Leaving);
        });
        let supervisor = supervisor.clone();
        std::thread::Builder::new().name("start-watch".into()).spawn(move || {
            if let Some(cause) = outlived(&supervisor, &told, after) {
                say(&cause);
                signal_hook::low_level::exit(i32::from(cause.exit_code()));
            }
        })?;
        Ok(StartWatch(tell))
    }
}

impl Drop for StartWatch {
    fn drop(&mut self) {
        // A thread that has ended watches no more.
        let _ = self.0.send(Told::Over);
    }
}

/// Why the cluster gave up, when that was so long ago and the start goes on all the same.
fn outlived(supervisor: &Supervisor, told: &Receiver<Told>, after: Duration) -> Option<Cause> {
    let Ok(Told::Leaving) = told.recv() else { return None };
    let end = Instant::now() + after;
    loop {
        match told.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(Told::Leaving) => {}
            Ok(Told::Over) | Err(RecvTimeoutError::Disconnected) => return None,
            Err(RecvTimeoutError::Timeout) => return supervisor.cause(),
        }
    }
}
