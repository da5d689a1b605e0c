//! [`LineWriter`]: a thread that writes lines, so that no worker ever waits for a disk or a pipe.
//!
//! The worker hands whole batches over; the thread writes them in their order and then makes them durable, one
//! effort for all that has come. A ticket is acknowledged after that, never before. What was handed over and not
//! acknowledged is bounded. The first error that stays ends the thread: it becomes the sink's fault.

use crate::element::{Element, Record};
use crate::fault::Fault;
use crate::sink::{Refused, SinkWriter, Ticket};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tidegate_recovery::ErrorClass;
use timely::scheduling::SyncActivator;

/// Where lines go.
pub(super) trait LineTarget: Send + 'static {
    /// Writes whole lines, all or (after an error that stays) none that count.
    fn write(&mut self, lines: &[u8]) -> io::Result<()>;

    /// Makes everything written so far durable.
    fn sync(&mut self) -> io::Result<()>;

    /// Its name in messages.
    fn name(&self) -> String;
}

/// Bytes that were handed over and are not durable, at most; one batch is always allowed.
const IN_FLIGHT_BYTES_MAX: usize = 16 << 20;
/// Lines are made durable when this much has come …
const SYNC_BYTES: usize = 4 << 20;
/// … or at the end of an epoch, or when nothing has come for this long.
const SYNC_AFTER: Duration = Duration::from_millis(20);

enum Job {
    /// Lines of a ticket, whether it is the last part of it, and the bytes it is counted with.
    Lines {
        ticket: Ticket,
        lines: Vec<u8>,
        last: bool,
    },
    Flush,
}

#[derive(Default)]
struct Shared {
    answers: Mutex<Answers>,
    in_flight_bytes: AtomicUsize,
}

#[derive(Default)]
struct Answers {
    done: Vec<Ticket>,
    fault: Option<Fault>,
    activator: Option<SyncActivator>,
}

impl Shared {
    fn answer(&self, change: impl FnOnce(&mut Answers)) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut answers);
        if let Some(activator) = &answers.activator {
            // The only error is that the worker is gone, and then nobody waits.
            let _ = activator.activate();
        }
    }
}

/// The worker's side: a sink's writer of one line per value; an absent value is no line.
pub struct LineWriter {
    jobs: Sender<Job>,
    shared: Arc<Shared>,
}

impl LineWriter {
    /// Starts the thread.
    pub(super) fn start(target: impl LineTarget) -> Result<LineWriter, Fault> {
        let (jobs, received) = crossbeam_channel::unbounded();
        let shared = Arc::new(Shared::default());
        let theirs = shared.clone();
        std::thread::Builder::new()
            .name("sink-lines".into())
            .spawn(move || write_all(target, &received, &theirs))
            .map_err(|error| {
                Fault::new(ErrorClass::StoreIo, format!("no thread for a sink could be started: {error}"))
            })?;
        Ok(LineWriter { jobs, shared })
    }

    fn hand_over(&self, job: Job) -> Result<(), Fault> {
        match self.jobs.send(job) {
            Ok(()) => Ok(()),
            // The thread is gone: it left its fault.
            Err(_) => self.fault().and(Err(Fault::new(ErrorClass::Internal, "a sink's thread is gone"))),
        }
    }

    fn fault(&self) -> Result<(), Fault> {
        match &self.shared.answers.lock().unwrap_or_else(PoisonError::into_inner).fault {
            Some(fault) => Err(fault.clone()),
            None => Ok(()),
        }
    }
}

impl SinkWriter for LineWriter {
    fn wake_with(&mut self, activator: SyncActivator) {
        self.shared.answers.lock().unwrap_or_else(PoisonError::into_inner).activator = Some(activator);
    }

    fn submit(&mut self, ticket: Ticket, elements: &[Element<Record>], more: bool) -> Result<usize, Fault> {
        self.fault()?;
        let room = IN_FLIGHT_BYTES_MAX.saturating_sub(self.in_flight_bytes());
        if room == 0 {
            return Ok(0);
        }
        let mut lines = Vec::new();
        let mut taken = 0;
        for element in elements {
            let value = element.value.value.as_deref();
            if taken > 0 && lines.len() + value.map_or(0, <[u8]>::len) > room {
                break;
            }
            // An absent value is no line.
            if let Some(value) = value {
                lines.extend_from_slice(value);
                lines.push(b'\n');
            }
            taken += 1;
        }
        let last = !more && taken == elements.len();
        self.shared.in_flight_bytes.fetch_add(lines.len(), Ordering::SeqCst);
        self.hand_over(Job::Lines { ticket, lines, last })?;
        Ok(taken)
    }

    fn acknowledged(&mut self, tickets: &mut Vec<Ticket>, _: &mut Vec<Refused>) -> Result<(), Fault> {
        let mut answers = self.shared.answers.lock().unwrap_or_else(PoisonError::into_inner);
        tickets.append(&mut answers.done);
        match &answers.fault {
            Some(fault) => Err(fault.clone()),
            None => Ok(()),
        }
    }

    fn flush(&mut self) {
        // A thread that is gone has left its fault, which the next call brings.
        let _ = self.jobs.send(Job::Flush);
    }

    fn in_flight_bytes(&self) -> usize {
        self.shared.in_flight_bytes.load(Ordering::SeqCst)
    }
}

/// The thread: ends when the worker's side is gone, or with a fault.
fn write_all(mut target: impl LineTarget, jobs: &Receiver<Job>, shared: &Shared) {
    let fault = |target: &dyn LineTarget, error: io::Error| {
        Fault::new(ErrorClass::StoreIo, format!("{} cannot be written: {error}", target.name()))
    };
    let mut written = Vec::new();
    let mut unsynced = 0;
    loop {
        let job = if written.is_empty() && unsynced == 0 {
            jobs.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            jobs.recv_timeout(SYNC_AFTER)
        };
        let must_sync = match job {
            Ok(Job::Lines { ticket, lines, last }) => {
                if let Err(error) = target.write(&lines) {
                    let fault = fault(&target, error);
                    return shared.answer(|answers| answers.fault = Some(fault));
                }
                unsynced += lines.len();
                if last {
                    written.push(ticket);
                }
                unsynced >= SYNC_BYTES
            }
            Ok(Job::Flush) | Err(RecvTimeoutError::Timeout) => true,
            // Nobody waits for an acknowledgement any more; what was written may stay.
            Err(RecvTimeoutError::Disconnected) => return,
        };
        if must_sync && (unsynced > 0 || !written.is_empty()) {
            if let Err(error) = target.sync() {
                let fault = fault(&target, error);
                return shared.answer(|answers| answers.fault = Some(fault));
            }
            shared.in_flight_bytes.fetch_sub(unsynced, Ordering::SeqCst);
            unsynced = 0;
            shared.answer(|answers| answers.done.append(&mut written));
        }
    }
}
