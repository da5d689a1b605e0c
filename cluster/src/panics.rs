//! The panic hook: it ties a panic to the generation of the thread in which it happens.
//!
//! A thread says to whom it belongs ([`watch`]); timely's communication threads do so through the logging
//! hook that each of them calls when it starts. The hook runs before the thread unwinds, hence before any
//! other thread can notice, so that the first panic is recorded first. Threads that belong to nobody keep
//! the hook that was there before.

use crate::cause::{Cause, Origin};
use crate::supervisor::Supervisor;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::cell::{Cell, RefCell};
use std::panic::PanicHookInfo;
use std::sync::Once;
use std::time::{Duration, Instant};
use tidegate_recovery::{ErrorClass, ProcessIndex, WorkerIndex};

/// What a watched thread does.
#[derive(Clone, Debug)]
pub(crate) enum Watched {
    /// It runs a worker.
    Worker(WorkerIndex),
    /// It moves timely's messages from or to a peer.
    Data { peer: ProcessIndex, named: String, grace: Duration },
    /// Something else, by its name.
    Thread(String),
}

thread_local! {
    static OWNER: RefCell<Option<(Supervisor, Watched)>> = const { RefCell::new(None) };
    /// A panic of this thread was not caught yet.
    static UNWINDS: Cell<bool> = const { Cell::new(false) };
}

/// While it lives, panics of the thread that made it are causes. It cannot leave its thread.
#[must_use = "the thread is watched while the guard lives"]
pub struct ThreadWatch {
    before: Option<(Supervisor, Watched)>,
    _stays: std::marker::PhantomData<*const ()>,
}

impl Drop for ThreadWatch {
    fn drop(&mut self) {
        let before = self.before.take();
        OWNER.with(|owner| *owner.borrow_mut() = before);
    }
}

pub(crate) fn watch(supervisor: Supervisor, what: Watched) -> ThreadWatch {
    let before = OWNER.with(|owner| owner.borrow_mut().replace((supervisor, what)));
    ThreadWatch { before, _stays: std::marker::PhantomData }
}

/// Like [`watch`], until the thread ends.
pub(crate) fn watch_for_good(supervisor: Supervisor, what: Watched) {
    OWNER.with(|owner| *owner.borrow_mut() = Some((supervisor, what)));
}

/// The panic of this thread was caught; a next one is another.
pub(crate) fn caught() {
    UNWINDS.with(|unwinds| unwinds.set(false));
}

pub(crate) fn install_hook() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let owner = OWNER.try_with(|owner| owner.try_borrow().ok().and_then(|owner| owner.clone()));
            match owner {
                Ok(Some((supervisor, what))) => {
                    if UNWINDS.with(|unwinds| unwinds.replace(true)) {
                        end(&supervisor, &what, info);
                    }
                    record(&supervisor, what, info);
                }
                Ok(None) | Err(_) => before(info),
            }
        }));
    });
}

/// How long the first cause may take to be settled before the process ends without it.
const CAUSE_WITHIN: Duration = Duration::from_secs(2);

/// What is dropped because of a panic may panic in its turn (an output of timely hands on what it holds, also to a connection
/// that is lost), which aborts the process: without its cause, and with another exit code. So it ends here.
fn end(supervisor: &Supervisor, what: &Watched, info: &PanicHookInfo<'_>) -> ! {
    tracing::debug!(thread = ?what, %info, "a thread panicked while it unwound");
    let cause = supervisor.wait_for_cause(Instant::now() + CAUSE_WITHIN);
    let code = cause.as_ref().map_or_else(|| ErrorClass::Internal.exit_code(), Cause::exit_code);
    match cause {
        Some(cause) => tracing::error!(code = &*cause.code, exit = code, "{}", cause.text),
        None => tracing::error!(exit = code, "{info}"),
    }
    std::process::exit(i32::from(code));
}

/// Messages of panics by which timely passes a failure on.
const PASSED_ON: [&str; 3] =
    ["MergeQueue poisoned", "timely communication error", "MergeQueue mutex poisoned"];

fn record(supervisor: &Supervisor, what: Watched, info: &PanicHookInfo<'_>) {
    let message = if let Some(text) = info.payload().downcast_ref::<&str>() {
        text
    } else if let Some(text) = info.payload().downcast_ref::<String>() {
        text.as_str()
    } else {
        "with a value that is no text"
    };
    let place = info.location().map_or_else(String::new, |location| format!("at {location}: "));
    let backtrace = Backtrace::capture();
    if backtrace.status() == BacktraceStatus::Captured {
        tracing::debug!(thread = ?what, %message, %backtrace, "a watched thread panicked");
    } else {
        tracing::debug!(thread = ?what, %message, "a watched thread panicked");
    }
    match what {
        Watched::Data { peer, named, grace } => {
            let message = message.strip_prefix("timely communication error: ").unwrap_or(message);
            let text = format!("{named} is lost: its data connection broke ({})", one_line(message));
            supervisor.suspect_peer(peer, text, grace);
        }
        Watched::Worker(worker) => {
            let text = format!("panicked {place}{}", one_line(message));
            let origin = Origin::Worker(worker);
            if PASSED_ON.iter().any(|prefix| message.starts_with(prefix)) {
                let cause = Cause { origin, ..Cause::new(ErrorClass::Internal, crate::cause::PANIC, text) };
                supervisor.suspect(cause, Duration::from_secs(1));
            } else {
                supervisor.panicked(origin, text);
            }
        }
        Watched::Thread(name) => {
            supervisor.panicked(Origin::Here, format!("{name} panicked {place}{}", one_line(message)));
        }
    }
}

/// A cause is one line, whatever a panic says.
fn one_line(message: &str) -> String {
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}
