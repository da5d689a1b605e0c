//! Real timely workers on threads of their own, each of which steps only when it is told to.
//!
//! Their clockless timers make every delayed activation an immediate one, so nothing in them depends on the
//! time that a step takes.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, Once};
use tidegate_operators::commit::commit_at_close;
use tidegate_operators::context::WorkerContext;
use tidegate_operators::drive::give_up;
use timely::communication::{WorkerGuards, initialize_from};
use timely::worker::Worker;
use timely::{CommunicationConfig, WorkerConfig};

enum Order {
    Step,
    Close,
    Leave,
}

/// What a worker answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It stepped; whether a dataflow is left.
    Stepped(bool),
    /// Its last offsets are committed, or why not.
    Closed(Result<(), String>),
    /// It panicked.
    Panicked(String),
}

struct Thread {
    orders: Sender<Order>,
    answers: Receiver<Answer>,
    live: bool,
}

/// The workers of one generation.
pub(crate) struct Workers {
    threads: Vec<Thread>,
    guards: WorkerGuards<()>,
}

/// How batches travel between the workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wire {
    /// By pointer.
    Pointer,
    /// Through the wire codec, as between processes.
    Bytes,
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without text".to_owned())
}

/// Panics of simulated workers are answers, not noise.
fn quiet_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !std::thread::current().name().is_some_and(|name| name.starts_with("timely")) {
                before(panic);
            }
        }));
    });
}

impl Workers {
    /// Starts `peers` workers; each builds its dataflows with `build`.
    pub(crate) fn start(
        peers: usize,
        wire: Wire,
        build: impl Fn(&mut Worker) -> WorkerContext + Send + Sync + 'static,
    ) -> Workers {
        quiet_panics();
        let config = match wire {
            Wire::Pointer => CommunicationConfig::Process(peers),
            Wire::Bytes => CommunicationConfig::ProcessBinary(peers),
        };
        let (builders, others) = config.try_build().expect("threads of one process need no network");
        let (mut threads, mut ends) = (Vec::new(), Vec::new());
        for _ in 0..peers {
            let (orders, inbox) = channel();
            let (outbox, answers) = channel();
            threads.push(Thread { orders, answers, live: true });
            ends.push(Some((inbox, outbox)));
        }
        let ends = Mutex::new(ends);
        let guards = initialize_from(builders, others, move |allocator| {
            let mut worker = Worker::new(WorkerConfig::default(), allocator, None);
            let end = ends.lock().expect("nobody panics with it")[worker.index()].take();
            let (inbox, outbox) = end.expect("every worker starts once");
            match catch_unwind(AssertUnwindSafe(|| build(&mut worker))) {
                Ok(context) => {
                    let whole = outbox.send(Answer::Stepped(true)).is_ok()
                        && serve(&mut worker, &context, &inbox, &outbox);
                    if whole {
                        give_up(&mut worker);
                    } else {
                        // What panicked is not taken apart: its destructors may panic again.
                        std::mem::forget((worker, context));
                    }
                }
                Err(panic) => {
                    // The test is over when nobody listens any more.
                    let _ = outbox.send(Answer::Panicked(text_of(&*panic)));
                    std::mem::forget(worker);
                }
            }
        });
        let mut workers = Workers { threads, guards: guards.expect("threads") };
        for thread in &mut workers.threads {
            // All have built their dataflows before the first steps.
            if thread.answers.recv() != Ok(Answer::Stepped(true)) {
                thread.live = false;
            }
        }
        workers
    }

    pub(crate) fn peers(&self) -> usize {
        self.threads.len()
    }

    fn ask(&mut self, worker: usize, order: Order) -> Answer {
        let thread = &self.threads[worker];
        let gone = || Answer::Panicked("the worker is gone".to_owned());
        if thread.orders.send(order).is_err() {
            return gone();
        }
        thread.answers.recv().unwrap_or_else(|_| gone())
    }

    /// One step of one worker.
    pub(crate) fn step(&mut self, worker: usize) -> Answer {
        if !self.threads[worker].live {
            return Answer::Stepped(false);
        }
        let answer = self.ask(worker, Order::Step);
        if answer == Answer::Stepped(false) {
            self.threads[worker].live = false;
        }
        answer
    }

    /// Whether a worker has dataflows left.
    pub(crate) fn any_live(&self) -> bool {
        self.threads.iter().any(|thread| thread.live)
    }

    /// What a worker does when its dataflows have ended.
    pub(crate) fn close(&mut self, worker: usize) -> Answer {
        self.ask(worker, Order::Close)
    }

    /// Drops everything as it stands.
    pub(crate) fn kill(self) {
        for thread in &self.threads {
            // A worker that panicked has left already.
            let _ = thread.orders.send(Order::Leave);
        }
        for left in self.guards.join() {
            left.expect("a worker's panic was caught before");
        }
    }
}

/// Follows orders until it is told to leave (true) or something panicked (false).
fn serve(
    worker: &mut Worker,
    context: &WorkerContext,
    inbox: &Receiver<Order>,
    outbox: &Sender<Answer>,
) -> bool {
    while let Ok(order) = inbox.recv() {
        let answer = match order {
            Order::Leave => return true,
            Order::Step => match catch_unwind(AssertUnwindSafe(|| worker.step())) {
                Ok(_) => Answer::Stepped(worker.has_dataflows()),
                Err(panic) => Answer::Panicked(text_of(&*panic)),
            },
            Order::Close => Answer::Closed(commit_at_close(context).map_err(|fault| fault.to_string())),
        };
        let panicked = matches!(answer, Answer::Panicked(_));
        let heard = outbox.send(answer).is_ok();
        if panicked {
            return false;
        }
        if !heard {
            return true;
        }
    }
    true
}
