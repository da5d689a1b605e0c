//! The receiver of durable epochs on every worker: commits offsets to the group and wakes whoever waits.
//!
//! ⚑ It, and not the source, commits: a source that dropped its last capability has no inputs either, timely
//! drops it, and it never sees the last epoch.
//!
//! At most one commit is on its way per client. What fails is logged with topic, partition and offset, counted,
//! and due again after the tracker's backoff, at the next durable epoch at the latest. Before each commit the
//! process looks whether it is still in charge.

use crate::commit::committer::DurableStream;
use crate::context::{SharedReader, WorkerContext};
use crate::element::PartitionId;
use crate::fault::Fault;
use crate::source::CommitOutcome;
use crate::time::Time;
use crate::wake::WakeUp;
use std::time::Duration;
use tidegate_recovery::{Epoch, ErrorClass, NextOffset, RecordNumber};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::Scope;
use timely::dataflow::channels::pact::ExchangeCore;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;

use crate::batch::Parcel;
use crate::commit::committer::Durable;

/// How often the outcome of a commit is looked for while one is on its way.
const OUTCOME_POLL: Duration = Duration::from_millis(20);

/// Receives the announcements on a worker.
pub fn receive_durable<'s>(scope: Scope<'s, Time>, context: &WorkerContext, durable: DurableStream<'s>) {
    let mut builder = OperatorBuilder::new("durable epochs".to_owned(), scope);
    let info = builder.operator_info();
    let to_all = ExchangeCore::<CapacityContainerBuilder<Parcel<Durable>>, _>::new(|durable: &Durable| {
        u64::from(durable.worker)
    });
    let mut input = builder.new_input(durable, to_all);
    let mut wake = WakeUp::new(scope, info.address.clone(), context);
    let context = context.clone();
    let mut receiver = Receiver { context: context.clone(), waiting: Vec::new() };
    builder.build(move |_capabilities| {
        move |_frontiers| {
            input.for_each(|_, announcements| {
                for durable in announcements.drain(..) {
                    receiver.durable(durable.epoch, durable.record.map(RecordNumber));
                }
            });
            if receiver.commit_offsets() {
                wake.after(OUTCOME_POLL);
            }
        }
    });
}

struct Receiver {
    context: WorkerContext,
    /// For each reader, whether a commit of it is on its way.
    waiting: Vec<bool>,
}

impl Receiver {
    fn durable(&self, epoch: Epoch, record: Option<RecordNumber>) {
        let process = self.context.process();
        process.offsets.complete(epoch);
        process.status.durable(epoch, record);
        process.metrics.durable_epoch.set(epoch.0 as i64);
        if let Some(record) = record {
            process.metrics.record_number.set(record.0 as i64);
        }
        self.context.set_durable(epoch);
    }

    /// Commits what is due. Returns whether an outcome is waited for.
    fn commit_offsets(&mut self) -> bool {
        let process = self.context.process().clone();
        if process.faults.is_raised() {
            return false;
        }
        if self.context.sabotage().source_commits || process.commits_in_transactions() {
            return false;
        }
        let now = self.context.clock().now();
        let readers: Vec<SharedReader> = self.context.readers().clone();
        self.waiting.resize(readers.len(), false);
        for (reader, waiting) in readers.iter().zip(&mut self.waiting) {
            let mut reader = reader.borrow_mut();
            for outcome in reader.commit_outcomes() {
                *waiting = false;
                settle(&self.context, &outcome, now);
            }
            if *waiting {
                continue;
            }
            let owned = reader.partitions().to_vec();
            let due = process.offsets.due(&owned, now);
            if due.is_empty() {
                continue;
            }
            if let Err(fault) = (process.standing)() {
                let outcome = CommitOutcome { offsets: due, error: Some(fault.to_string()) };
                process.offsets.settle(&outcome, now);
                self.context.fail(fault);
                return false;
            }
            reader.commit(&due);
            *waiting = true;
        }
        self.waiting.iter().any(|waiting| *waiting)
    }
}

/// What came of a commit: into the tracker, the log, the figures.
pub(super) fn settle(context: &WorkerContext, outcome: &CommitOutcome, now: Duration) {
    let process = context.process();
    process.offsets.settle(outcome, now);
    for (id, next) in &outcome.offsets {
        let Some(name) = context.partition_name(*id) else { continue };
        let metrics = process.metrics.partition(&name);
        match &outcome.error {
            None => {
                metrics.commits.inc();
                metrics.committed.set(next.0);
            }
            Some(reason) => {
                metrics.commit_failures.inc();
                tracing::error!(
                    topic = %name.topic,
                    partition = name.partition,
                    offset = next.0,
                    worker = context.worker().0,
                    %reason,
                    "an offset commit failed; it is tried again"
                );
            }
        }
        process.status.partition(&process.inputs, *id, |partition| match outcome.error {
            None => {
                partition.committed = Some(*next);
                partition.commits += 1;
            }
            Some(_) => partition.commit_failures += 1,
        });
    }
}

/// Commits, at the end of a run and outside the dataflow, what is durable and not yet committed, and waits for
/// the broker's answer.
pub fn commit_at_close(context: &WorkerContext) -> Result<(), Fault> {
    let process = context.process();
    if context.sabotage().source_commits || process.commits_in_transactions() {
        return Ok(());
    }
    for reader in context.readers().iter() {
        let mut reader = reader.borrow_mut();
        let now = context.clock().now();
        for outcome in reader.commit_outcomes() {
            settle(context, &outcome, now);
        }
        let owned: Vec<PartitionId> = reader.partitions().to_vec();
        let due: Vec<(PartitionId, NextOffset)> = process.offsets.due_at_close(&owned);
        if due.is_empty() {
            continue;
        }
        (process.standing)()?;
        let answer = reader.commit_and_wait(&due, process.limits.commit_timeout);
        let outcome = CommitOutcome { offsets: due, error: answer.err() };
        settle(context, &outcome, context.clock().now());
        if let Some(reason) = outcome.error {
            return Err(Fault::new(
                ErrorClass::Unavailable,
                format!(
                    "the last offsets could not be committed: {reason}; the next start repeats what follows them"
                ),
            ));
        }
    }
    Ok(())
}
