//! Commit epochs up to the durable record, and retention behind it.

use super::{Bounds, Closed, Outputs, Record, Row, owned, slots};
use crate::protocol::exactly_once::Event;
use crate::protocol::search::disk::Offsets;
use crate::protocol::{Rule, Rules};
use crate::{Epoch, OutboxRef, ProcessIndex, Slot};

/// The output rows of each process that has any, when the partitions were read on from `before` to `after`.
fn output(processes: u8, keys_cross: bool, before: Offsets, after: Offsets) -> Vec<(u8, Vec<Row>)> {
    let mut parts = Vec::new();
    for process in 0..processes {
        let mut rows = Vec::new();
        for key in (0..2).filter(|key| (key + u8::from(keys_cross)) % processes == process) {
            let indices = before[usize::from(key)]..after[usize::from(key)];
            rows.extend(indices.map(|index| Row { key, index }));
        }
        if !rows.is_empty() {
            parts.push((process, rows));
        }
    }
    parts
}

impl Outputs {
    pub(super) fn close(&mut self, index: usize, read: Offsets, bounds: &Bounds) {
        let run = &mut self.runs[index];
        let Some(running) = &mut run.running else { return };
        running.epochs_left -= 1;
        running.epoch = Epoch(running.epoch.0 + if index == 0 && bounds.leaps { 10 } else { 1 });
        let mut outboxes = Vec::new();
        for (process, rows) in output(run.processes, bounds.keys_cross, running.offsets, read) {
            let outbox = OutboxRef {
                epoch: running.epoch,
                generation: run.generation,
                process: ProcessIndex(process.into()),
                slot: Slot(process.into()),
                length: 0,
                checksum: 0,
            };
            // What is written to a store that is gone is gone.
            if self.store.id == run.store {
                self.store.outboxes.insert(outbox.clone(), rows);
            }
            outboxes.push(outbox);
        }
        running.offsets = read;
        running.closed.push_back(Closed { epoch: running.epoch, offsets: read, outboxes });
    }

    /// The next record is created, or counts from now on.
    pub(super) fn record(&mut self, index: usize, rules: Rules) -> Result<(), String> {
        let run = &mut self.runs[index];
        let Some(running) = &mut run.running else { return Ok(()) };
        let Some(closed) = running.closed.front().cloned() else { return Ok(()) };
        let number = running.number + 1;
        if !running.created {
            if self.store.records.contains_key(&number) {
                run.end();
                return Ok(());
            }
            running.created = true;
            let record = Record {
                epoch: closed.epoch,
                offsets: closed.offsets,
                slots: slots(run.processes),
                owed: running.owed.with(closed.epoch, closed.outboxes.iter().cloned()).outboxes().clone(),
                durable: false,
            };
            self.store.records.insert(number, record);
            return if rules.has(Rule::RecordDurableFirst) { Ok(()) } else { self.durable(index, &closed) };
        }
        if self.store.records.last_key_value().map(|(number, _)| *number) != Some(number) {
            run.end();
            return Ok(());
        }
        running.created = false;
        running.number = number;
        running.closed.pop_front();
        if let Some(record) = self.store.records.get_mut(&number) {
            record.durable = true;
        }
        self.retain(index, closed.epoch);
        if rules.has(Rule::RecordDurableFirst) { self.durable(index, &closed) } else { Ok(()) }
    }

    fn durable(&mut self, index: usize, closed: &Closed) -> Result<(), String> {
        let run = &mut self.runs[index];
        let Some(running) = &mut run.running else { return Ok(()) };
        running.owed = running.owed.with(closed.epoch, closed.outboxes.iter().cloned());
        let quiet = running.closed.is_empty();
        let processes = run.processes;
        for process in 0..processes {
            let outbox = closed.outboxes.iter().find(|outbox| outbox.process.0 == u32::from(process));
            let offsets = owned(processes, process, closed.offsets);
            let event = Event::Durable { epoch: closed.epoch, outbox: outbox.cloned(), offsets };
            self.tell(index, process.into(), event)?;
        }
        for process in (0..processes).filter(|_| quiet) {
            self.tell(index, process.into(), Event::Quiet)?;
        }
        Ok(())
    }

    /// Keeps two records and what they name.
    fn retain(&mut self, index: usize, newest: Epoch) {
        let own = self.runs[index].generation;
        while self.store.records.len() > 2 {
            self.store.records.pop_first();
        }
        let records = &self.store.records;
        self.store.outboxes.retain(|outbox, _| {
            let ours = outbox.generation == own && outbox.epoch <= newest;
            let older = outbox.generation < own;
            !(ours || older) || records.values().any(|record| record.owed.contains(outbox))
        });
    }
}
