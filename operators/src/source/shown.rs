//! What a source tells about its partitions: to `event_time`, which decides by it who is idle, and to `/status`,
//! `/metrics` and the log.

use super::desk::InputPosition;
use super::open_transaction::Say;
use super::operator::Source;
use super::reader::SourceReader;
use tidegate_recovery::{Epoch, NextOffset, TopicPartition};

impl<R: SourceReader> Source<R> {
    /// Says where the run begins: the lag of a partition counts from there until something is committed.
    pub(super) fn show_start(&self) {
        let process = self.context.process();
        let reader = self.reader.borrow();
        for input in &self.inputs {
            let start = reader.position(input.id);
            process.status.partition(&process.inputs, input.id, |partition| partition.start = Some(start));
        }
    }

    pub(super) fn look_at_positions(&self) {
        let until_end = self.context.process().until_end;
        let reader = self.reader.borrow();
        for input in &self.inputs {
            let position = InputPosition {
                position: reader.position(input.id),
                readable_end: reader.readable_end(input.id),
                log_end: reader.log_end(input.id),
                last_read: input.last_read,
                ended: until_end && reader.position(input.id) >= reader.end_at_start(input.id),
            };
            self.context.input_desk().set(input.id, position);
        }
    }

    /// Once per epoch: what `/status` and `/metrics` show.
    pub(super) fn show(&mut self, epoch: Epoch) {
        let process = self.context.process();
        let now = self.context.clock().now();
        let reader = self.reader.borrow();
        for input in &mut self.inputs {
            let position = reader.position(input.id);
            let (readable_end, log_end) = (reader.readable_end(input.id), reader.log_end(input.id));
            input.metrics.position.set(position.0);
            let lost = reader.lost(input.id);
            input.metrics.lost.inc_by(lost.saturating_sub(input.metrics.lost.get()));
            // At a limit nothing is looked at, so that nothing is known.
            let at_transaction = !input.held
                && self.bite.is_none()
                && readable_end.is_some_and(|end| position >= end)
                && log_end.is_some_and(|end| position < end);
            let said = input.waits.look(at_transaction.then_some(position), now);
            let waits = input.waits.shown(now);
            input.metrics.open_transaction_seconds.set(waits.map_or(0.0, |(_, waits)| waits.as_secs_f64()));
            let name = self.context.inputs().name(input.id);
            if let (Some(said), Some(name)) = (said, name) {
                say(said, name, position);
            }
            let held = match (input.held, waits, name) {
                (true, _, _) => Some("max_skew".to_owned()),
                (false, Some((at, _)), Some(name)) => {
                    Some(format!("waiting for an open transaction at offset {at} of {name}"))
                }
                _ => None,
            };
            process.status.partition(&process.inputs, input.id, |partition| {
                partition.position = Some(position);
                partition.readable_end = readable_end;
                partition.log_end = log_end;
                partition.held = held;
                partition.lost = lost;
                if let Some(end) = log_end {
                    let done = partition.committed.or(partition.start).unwrap_or(position);
                    input.metrics.lag.set((end.0 - done.0).max(0));
                }
            });
        }
        // Several workers may watch a topic each: the process shows the sum.
        let added = reader.partitions_added();
        process.metrics.partitions_added.inc_by((added - self.partitions_added) as i64);
        self.partitions_added = added;
        let (records, bytes) = (self.flight.records(), self.flight.bytes());
        self.worker_metrics.in_flight_records.set(records as i64);
        self.worker_metrics.in_flight_bytes.set(bytes as i64);
        self.worker_metrics.epoch.set(epoch.0 as i64);
        process.status.worker(self.context.worker().0, |worker| {
            worker.epoch = epoch;
            worker.in_flight_records = records;
            worker.in_flight_bytes = bytes;
        });
    }
}

fn say(said: Say, name: &TopicPartition, position: NextOffset) {
    let (topic, partition) = (&*name.topic, name.partition);
    match said {
        Say::Waits(waits) => tracing::warn!(
            topic,
            partition,
            offset = position.0,
            seconds = waits.as_secs(),
            "waiting for an open transaction at offset {position} of {name}: what lies behind it cannot be read before its producer ends it or the brokers abort it; `kafka-transactions.sh find-hanging` shows one that hangs"
        ),
        Say::GoesOn(waits) => tracing::info!(
            topic,
            partition,
            offset = position.0,
            seconds = waits.as_secs(),
            "the open transaction has ended, {name} is read on"
        ),
    }
}
