//! The snapshot writer of a worker: hands the rows of a closed commit epoch to the process's [`SnapshotIo`].
//!
//! The first worker thread of each process holds its capability for a commit epoch until the process's part is
//! written and synced, and sends the part to worker 0. It cannot be written before every worker thread of the
//! process has handed in its rows, so the others need not hold anything longer.

use crate::batch::{FrontierStream, Parcel};
use crate::build::{RowStream, SnapshotRows};
use crate::commit::CommitEpochs;
use crate::context::WorkerContext;
use crate::frontier::{FrontierHands, oldest_open};
use crate::time::Time;
use std::collections::BTreeMap;
use tidegate_recovery::{Epoch, EventTime, Part, RowBuffer};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::OutputBuilder;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::{Scope, Stream};

/// The parts of a commit epoch, on their way to worker 0.
pub type PartStream<'s> = Stream<'s, Time, Parcel<Part>>;

/// Rows by commit epoch, until the epoch is closed.
#[derive(Debug, Default)]
struct OpenRows(BTreeMap<Epoch, RowBuffer>);

impl OpenRows {
    fn add(&mut self, rows: SnapshotRows) {
        match self.0.entry(rows.epoch) {
            std::collections::btree_map::Entry::Vacant(entry) => {
                entry.insert(rows.rows);
            }
            std::collections::btree_map::Entry::Occupied(mut entry) => entry.get_mut().append(&rows.rows),
        }
    }
}

/// Writes what the steps of this worker say about their state, and the output that its exactly-once sinks keep for
/// publication: a commit epoch's is complete when the sinks' acknowledgements have left it. Without a store nothing is
/// written, but the frontier of the rows is kept: steps may hold epochs there.
pub fn write_snapshots<'s>(
    scope: Scope<'s, Time>,
    context: &WorkerContext,
    rows: RowStream<'s>,
    acknowledgements: FrontierStream<'s>,
) -> PartStream<'s> {
    let mut builder = OperatorBuilder::new("snapshot writer".to_owned(), scope);
    let info = builder.operator_info();
    let mut input = builder.new_input_connection(rows, Pipeline, []);
    let mut acknowledged = builder.new_input_connection(acknowledgements, Pipeline, []);
    let (output, parts) = builder.new_output_connection::<Parcel<Part>, _>([]);
    let mut output = OutputBuilder::<_, CapacityContainerBuilder<Parcel<Part>>>::from(output);

    let context = context.clone();
    let process = context.process().clone();
    let io = process.snapshots.clone();
    let leads = (context.worker().0 as usize).is_multiple_of(process.workers_per_process);
    if let Some(io) = &io
        && leads
    {
        io.wake_for_parts(scope.worker().sync_activator_for(info.address.to_vec()));
    }
    let first = process.schedule.first;

    builder.build(move |capabilities| {
        let [capability] = <[Capability<Time>; 1]>::try_from(capabilities).expect("one output");
        let mut capability = Some(capability);
        let mut epochs = CommitEpochs::new(process.schedule);
        // The oldest commit epoch whose part is not yet sent.
        let mut sent = CommitEpochs::new(process.schedule);
        let mut open = OpenRows::default();
        move |frontiers| {
            input.for_each(|_, rows| rows.drain(..).for_each(|rows| open.add(rows)));
            let Some(held) = &mut capability else { return };
            acknowledged.for_each(|_, _| ());
            let of_rows = FrontierHands::of_input(&frontiers[0], first).epoch;
            // Other sinks need not be waited for here: the committer does.
            let of_sinks = process.output.as_ref().and(FrontierHands::of_input(&frontiers[1], first).epoch);
            let frontier = oldest_open(of_rows, of_sinks);
            let last = context.ending().last();
            while let Some(epoch) = epochs.pass(frontier, last) {
                let rows = open.0.remove(&epoch).unwrap_or_default();
                match &io {
                    Some(io) => io.submit(epoch, rows, context.outbox().take(epoch)),
                    None => debug_assert!(rows.is_empty(), "steps emit rows only where there is a store"),
                }
            }
            if let Some(io) = &io
                && leads
            {
                let Some(written) = context.or_fail(io.written()) else { return };
                for written in written {
                    debug_assert_eq!(written.epoch, sent.open(), "parts come in order");
                    if let Some(part) = written.part {
                        let at = held.delayed(&Time::new(written.epoch, EventTime::MAX));
                        output.activate().session(&at).give(part);
                    }
                    sent.pass(Some(Epoch(written.epoch.0 + 1)), None);
                }
            }
            let waits_for_io = io.is_some() && leads;
            let oldest = if waits_for_io { sent.open() } else { epochs.open() };
            let is_over = frontier.is_none() && last.is_none_or(|last| oldest > last);
            if is_over {
                capability = None;
            } else if oldest > held.time().epoch {
                held.downgrade(&Time::new(oldest, EventTime::MAX));
            }
        }
    });
    parts
}
