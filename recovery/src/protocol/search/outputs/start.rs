//! A start: from the lease to the barrier, and the publishers behind it.

use super::{Bounds, Driven, Hands, Outcome, Outputs, Run, Running, owned, slots};
use crate::protocol::exactly_once::*;
use crate::protocol::owed::Owed;
use crate::protocol::{Rule, Rules};
use crate::{Epoch, Generation, OutboxRef, Slot, StoreId};
use std::collections::{BTreeSet, VecDeque};

impl Outputs {
    pub(super) fn start(&mut self, processes: u8, zombie: bool, rules: Rules) {
        if zombie {
            self.zombies += 1;
        } else {
            self.end_all();
        }
        let generation = Generation(self.store.leases.last().map_or(0, |(generation, _)| generation.0) + 1);
        let mut fence: Vec<Slot> = Vec::new();
        if rules.has(Rule::EverySlotFenced) {
            fence.extend(self.store.leases.iter().flat_map(|(_, slots)| slots));
            fence.extend(self.store.records.last_key_value().iter().flat_map(|(_, record)| &record.slots));
        } else {
            fence.extend(slots(processes));
        }
        self.store.leases.push((generation, slots(processes)));
        let settings = OutputStartSettings {
            store: StoreId(self.store.id.into()),
            generation,
            slots: fence,
            own: Slot(0),
            allow_lost_state: false,
            nonce: self.runs.len() as u64 * 4,
        };
        let mut machine = OutputStart::with_rules(rules, settings);
        let action = Some(machine.begin());
        let start = Driven { machine, action, hands: Hands::default() };
        let store = self.store.id;
        self.runs.push(Run { store, generation, processes, gone: false, start, chosen: None, running: None });
    }

    pub(super) fn begin(
        &mut self,
        index: usize,
        outcome: Outcome,
        rules: Rules,
        bounds: &Bounds,
    ) -> Result<(), String> {
        let run = &mut self.runs[index];
        let mut hands = run.start.hands;
        let Some(action) = run.start.action.clone() else { return Ok(()) };
        let answer = match &action {
            Action::ChooseRecord => Some(Answer::Chosen(self.choose(index, rules)?)),
            _ => self.perform(index, &action, outcome, &mut hands, rules)?,
        };
        let run = &mut self.runs[index];
        run.start.hands = hands;
        let Some(answer) = answer else { return Ok(()) };
        let mut action = run.start.machine.on(answer);
        if matches!(action, Action::Begin(_)) {
            action = run.start.machine.on(Answer::Done);
            // The others begin while this one is busy with what was left over.
            if !rules.has(Rule::Barrier) && run.running.is_none() {
                self.pass_barrier(index, rules, bounds)?;
            }
        }
        let run = &mut self.runs[index];
        run.start.hands.halfway = false;
        match action {
            Action::Stop(stop) => {
                run.start.action = None;
                self.stop(index, &stop)
            }
            Action::Ready => {
                run.start.action = None;
                match &mut run.running {
                    Some(running) => {
                        running
                            .owed
                            .all_published(run.chosen.as_ref().map_or(Epoch(0), |(_, record)| record.epoch));
                        Ok(())
                    }
                    None => self.pass_barrier(index, rules, bounds),
                }
            }
            action => {
                run.start.action = Some(action);
                Ok(())
            }
        }
    }

    fn choose(&mut self, index: usize, rules: Rules) -> Result<Chosen, String> {
        let newest = self.is_newest(index);
        let all: BTreeSet<OutboxRef> =
            self.store.records.values().flat_map(|record| record.owed.iter().cloned()).collect();
        let Some((number, record)) = self.store.records.iter_mut().next_back() else {
            self.runs[index].chosen = None;
            return Ok(Chosen::default());
        };
        record.durable |= rules.has(Rule::StartSyncs);
        let (number, record) = (*number, record.clone());
        let outboxes = if rules.has(Rule::OnlyHighestRead) { record.owed.clone() } else { all };
        if let Some(gone) = record.owed.iter().find(|outbox| !self.store.outboxes.contains_key(outbox))
            && newest
        {
            return Err(format!("record {number} names the outbox of epoch {}, which is gone", gone.epoch));
        }
        let slots = record.slots.clone();
        let epoch = Some(record.epoch);
        self.runs[index].chosen = Some((number, record));
        Ok(Chosen { epoch, slots, outboxes: outboxes.into_iter().collect() })
    }

    pub(super) fn pass_barrier(&mut self, index: usize, rules: Rules, bounds: &Bounds) -> Result<(), String> {
        let group = self.broker.group;
        let run = &mut self.runs[index];
        let (number, epoch, offsets, owed) = match &run.chosen {
            Some((number, record)) => (*number, record.epoch, record.offsets, record.owed.clone()),
            // An empty store: the group says where to go on.
            None => (0, Epoch(0), group, BTreeSet::new()),
        };
        let mut owed = Owed::new(rules, owed);
        if run.start.action.is_none() || rules.has(Rule::Barrier) {
            owed.all_published(epoch);
        }
        let mut processes = Vec::new();
        for process in 0..run.processes {
            let settings = SlotSettings {
                store: StoreId(run.store.into()),
                generation: run.generation,
                slot: Slot(process.into()),
                slots: slots(run.processes),
                resumed: epoch,
                offsets: owned(run.processes, process, offsets),
                group: owned(run.processes, process, group),
                nonce: index as u64 * 4 + 1 + u64::from(process),
            };
            let machine = SlotPublisher::with_rules(rules, settings);
            processes.push(Driven { machine, action: None, hands: Hands::default() });
        }
        let running = Running {
            epoch,
            offsets,
            closed: VecDeque::new(),
            owed,
            number,
            created: false,
            epochs_left: bounds.epochs,
            processes,
        };
        run.running = Some(running);
        for process in 0..usize::from(self.runs[index].processes) {
            self.tell(index, process, Event::Go)?;
        }
        for process in 0..usize::from(self.runs[index].processes) {
            self.tell(index, process, Event::Quiet)?;
        }
        Ok(())
    }
}
