//! Stepping a worker until its run is over.

use crate::commit::commit_at_close;
use crate::context::WorkerContext;
use crate::fault::Fault;
use std::time::Duration;
use timely::worker::Worker;

/// Longest sleep of a worker that nobody wakes: how soon it notices a fault of another one.
const PARK_MAX: Duration = Duration::from_millis(100);

/// Steps the worker until its dataflows are done, then commits the last offsets; or until somebody reports a
/// fault, then gives everything up as it stands. Nothing completes after a fault: dataflows are dropped, and
/// what their operators held is never given back.
pub fn drive(worker: &mut Worker, context: &WorkerContext) -> Result<(), Fault> {
    let faults = &context.process().faults;
    while worker.has_dataflows() && !faults.is_raised() {
        worker.step_or_park(Some(PARK_MAX));
    }
    if !faults.is_raised()
        && let Err(fault) = commit_at_close(context)
    {
        context.fail(fault);
    }
    match faults.first() {
        None => Ok(()),
        Some(fault) => {
            give_up(worker);
            Err(fault)
        }
    }
}

/// Drops every dataflow of the worker as it stands. Nothing fires from that.
pub fn give_up(worker: &mut Worker) {
    for dataflow in worker.installed_dataflows() {
        worker.drop_dataflow(dataflow);
    }
}
