//! The broker of the search: transactional identities, one output partition, the control topic and the group's offsets.
//!
//! The output is one partition that everybody writes to: no arrangement shows more of what an open transaction hides.
//! The end of a transaction is one step in all of its partitions, except that the group may show its offsets later.

use super::disk::{Offsets, RECORDS};
use crate::protocol::exactly_once::{Marker, SeenMarker, Token};
use crate::{Slot, StoreId};
use std::collections::{BTreeMap, VecDeque};

/// Identities: two slots or partitions, of two stores.
pub(super) const IDS: usize = 4;

/// An output row: the how-manieth of its key, which is the partition that it came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Row {
    pub(super) key: u8,
    pub(super) index: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Control {
    Marker(SeenMarker),
    Token(Token),
}

/// An instance of a producer, as the broker told it when it was initialised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Producer {
    pub(super) id: u8,
    epoch: u8,
}

/// What a request came to, when its answer arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Done,
    Fenced,
    /// There is no transaction to end.
    Invalid,
}

/// What becomes of a request and of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Outcome {
    Answered,
    /// It was done, the answer was lost.
    LostDone,
    /// It never arrived.
    LostUndone,
    /// The answer does not come, and the request arrives later. Only the end of a transaction.
    LostLater,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Id {
    epoch: u8,
    open: bool,
    offsets: [Option<u8>; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Status {
    /// Part of the open transaction of an identity.
    Open(u8),
    Committed,
    Aborted,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Broker {
    ids: [Id; IDS],
    /// What lies behind the first open transaction: nobody who reads committed records can see it.
    output: Vec<(Row, Status)>,
    control: Vec<(Control, Status)>,
    /// Rows of each key that can be read.
    pub(super) visible: Offsets,
    markers: BTreeMap<(StoreId, Slot), Marker>,
    pub(super) group: Offsets,
    /// Committed, but the group does not show it yet.
    pending: VecDeque<[Option<u8>; 2]>,
    /// The end of a transaction that is still under way.
    late: Option<(Producer, bool)>,
    /// Offsets of transactions reach the group in a step of their own.
    pub(super) slow_group: bool,
    /// Who fetches the group's offsets waits for those that it does not show yet.
    pub(super) waits_for_pending: bool,
}

impl Broker {
    pub(super) fn initialise(&mut self, id: u8) -> Result<Producer, String> {
        self.end(id, false)?;
        self.ids[usize::from(id)].epoch += 1;
        Ok(Producer { id, epoch: self.ids[usize::from(id)].epoch })
    }

    /// Whether the broker takes a request of this instance; it opens the transaction.
    pub(super) fn takes(&mut self, producer: Producer) -> Reply {
        let id = &mut self.ids[usize::from(producer.id)];
        if id.epoch != producer.epoch {
            return Reply::Fenced;
        }
        id.open = true;
        Reply::Done
    }

    pub(super) fn send(&mut self, producer: Producer, row: Row) {
        self.output.push((row, Status::Open(producer.id)));
    }

    pub(super) fn send_control(&mut self, producer: Producer, control: Control) {
        self.control.push((control, Status::Open(producer.id)));
    }

    /// A record outside of any transaction, or one in a transaction of its own.
    pub(super) fn write_control(&mut self, control: Control) -> Result<(), String> {
        self.control.push((control, Status::Committed));
        self.read_on()
    }

    pub(super) fn send_offsets(&mut self, producer: Producer, offsets: &[(u8, u8)]) {
        for (partition, next) in offsets {
            self.ids[usize::from(producer.id)].offsets[usize::from(*partition)] = Some(*next);
        }
    }

    /// A plain commit, which nobody fences.
    pub(super) fn commit_offsets(&mut self, offsets: [Option<u8>; 2]) -> Result<(), String> {
        self.move_group(offsets)
    }

    pub(super) fn end_transaction(&mut self, producer: Producer, commit: bool) -> Result<Reply, String> {
        let id = self.ids[usize::from(producer.id)];
        if id.epoch != producer.epoch {
            return Ok(Reply::Fenced);
        }
        if !id.open {
            return Ok(Reply::Invalid);
        }
        self.end(producer.id, commit).map(|()| Reply::Done)
    }

    /// The request to end a transaction is under way and will arrive later.
    pub(super) fn delay(&mut self, producer: Producer, commit: bool) {
        self.late = Some((producer, commit));
    }

    pub(super) fn is_late(&self) -> bool {
        self.late.is_some()
    }

    /// The late request arrives; nobody waits for its answer.
    pub(super) fn arrive(&mut self) -> Result<(), String> {
        match self.late.take() {
            Some((producer, commit)) => self.end_transaction(producer, commit).map(|_| ()),
            None => Ok(()),
        }
    }

    pub(super) fn is_open(&self, id: u8) -> bool {
        self.ids[usize::from(id)].open
    }

    /// The transaction took too long.
    pub(super) fn expire(&mut self, id: u8) -> Result<(), String> {
        self.end(id, false)?;
        self.ids[usize::from(id)].epoch += 1;
        Ok(())
    }

    fn end(&mut self, id: u8, commit: bool) -> Result<(), String> {
        let state = &mut self.ids[usize::from(id)];
        let (open, offsets) = (state.open, state.offsets);
        (state.open, state.offsets) = (false, [None; 2]);
        if !open {
            return Ok(());
        }
        let ended = if commit { Status::Committed } else { Status::Aborted };
        for (_, status) in &mut self.output {
            if *status == Status::Open(id) {
                *status = ended;
            }
        }
        for (_, status) in &mut self.control {
            if *status == Status::Open(id) {
                *status = ended;
            }
        }
        self.read_on()?;
        match (commit, self.slow_group) {
            (false, _) => Ok(()),
            (true, false) => self.move_group(offsets),
            (true, true) => {
                self.pending.push_back(offsets);
                Ok(())
            }
        }
    }

    /// Lets readers go on to the first open transaction.
    fn read_on(&mut self) -> Result<(), String> {
        while let Some((row, status)) = self.output.first().copied()
            && !matches!(status, Status::Open(_))
        {
            self.output.remove(0);
            if status == Status::Committed {
                let next = &mut self.visible[usize::from(row.key)];
                if row.index < *next {
                    return Err(format!("row {} of key {} comes out twice", row.index, row.key));
                }
                if row.index > *next {
                    return Err(format!("row {} of key {} comes out before row {next}", row.index, row.key));
                }
                *next += 1;
            }
        }
        while let Some((control, status)) = self.control.first().copied()
            && !matches!(status, Status::Open(_))
        {
            self.control.remove(0);
            if let (Control::Marker(seen), Status::Committed) = (control, status) {
                self.markers.insert((seen.store, seen.slot), seen.marker);
            }
        }
        Ok(())
    }

    /// What a reader of the control topic has seen, as far as it can read.
    pub(super) fn markers(&self) -> Vec<SeenMarker> {
        let seen = self.markers.iter();
        seen.map(|((store, slot), marker)| SeenMarker { store: *store, slot: *slot, marker: *marker })
            .collect()
    }

    /// Whether a reader that waits for this token would see it.
    pub(super) fn can_read(&self, token: Token) -> bool {
        self.control.iter().all(|(control, _)| *control != Control::Token(token))
    }

    pub(super) fn has_pending(&self, partition: u8) -> bool {
        self.pending.iter().any(|offsets| offsets[usize::from(partition)].is_some())
    }

    pub(super) fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The group shows the offsets of the next transaction.
    pub(super) fn show_offsets(&mut self) -> Result<(), String> {
        match self.pending.pop_front() {
            Some(offsets) => self.move_group(offsets),
            None => Ok(()),
        }
    }

    fn move_group(&mut self, offsets: [Option<u8>; 2]) -> Result<(), String> {
        for (partition, next) in offsets.into_iter().enumerate() {
            let Some(next) = next else { continue };
            let group = &mut self.group[partition];
            if next < *group {
                return Err(format!(
                    "the group's offset of partition {partition} goes down from {group} to {next}"
                ));
            }
            *group = next;
        }
        Ok(())
    }

    /// No offset passes a record whose output cannot be read.
    pub(super) fn check(&self) -> Result<(), String> {
        self.no_offset_passes(self.visible, "can be read")
    }

    /// No offset passes a record whose output is not committed; an open transaction may hide it still.
    pub(super) fn check_committed(&self) -> Result<(), String> {
        let mut committed = self.visible;
        for (row, status) in &self.output {
            committed[usize::from(row.key)] += u8::from(*status == Status::Committed);
        }
        self.no_offset_passes(committed, "are committed")
    }

    fn no_offset_passes(&self, rows: Offsets, are: &str) -> Result<(), String> {
        for (partition, (group, rows)) in self.group.into_iter().zip(rows).enumerate() {
            if group > rows {
                return Err(format!(
                    "the group's offset of partition {partition} is {group}, and {rows} of its rows {are}"
                ));
            }
        }
        Ok(())
    }

    /// Everything is out: for a world in which nothing more can happen.
    pub(super) fn settled_at(&self, read: Offsets) -> Result<(), String> {
        if self.visible != read || self.group != read {
            return Err(format!(
                "at rest: {read:?} of {RECORDS} records each were read, {:?} rows can be read, the group is at {:?}",
                self.visible, self.group
            ));
        }
        Ok(())
    }
}
