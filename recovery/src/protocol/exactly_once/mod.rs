//! Output that a `read_committed` reader sees exactly once, as pure state machines: no client, no clock, no thread.
//!
//! **The failures it survives.** Any process stops at any moment, or freezes and goes on after newer generations have taken
//! over; the answer to any request is lost, whether it had its effect, will have it later, or never; a transaction times out; the
//! number of processes changes.
//!
//! **Assumed.** Of the broker: `init_transactions` ends what the same `transactional.id` had open and fences the instance that had it;
//! a `read_committed` reader sees a transaction whole or not at all, and nothing behind an open one. Of the store: [`crate::RecoveryStore`]
//! keeps its promises.
//!
//! # With a store: outbox and markers
//!
//! Output of a commit epoch is first a file of the store. Once the commit record is durable it is published, under the
//! identity of the [`Slot`] that wrote it, in one transaction with a [`Marker`]: "this slot has published everything up to this epoch".
//! So after any crash a reader of the markers knows what is still to be published, and nothing depends on computing it again.
//!
//! 1. [`OutputStart`], on process 0, from the durable lease to the barrier: every slot that an older generation may use is
//!    fenced, the lease looked at again, the highest record chosen, the markers read, and what no marker covers
//!    published, oldest first, each under its own slot.
//! 2. The barrier of all processes.
//! 3. [`SlotPublisher`], on every process: its own slot, one epoch after the other, with the group's offsets.
//!
//! # Without state: directly
//!
//! [`PartitionPublisher`]: one transaction per commit epoch and input partition, with outputs and offset. Its identity is a
//! function of the partition, so that the next owner fences the last one, whoever it is.
//!
//! # How to drive a machine
//!
//! A machine is told an [`Event`] or an [`Answer`] and says which [`Action`]s to perform. It belongs to a thread of its own that
//! owns the transactional producers: every action may block for as long as a broker takes, and no worker waits for that thread.
//! Three rules make the driver safe:
//!
//! - **What is not known is [`Answer::Unclear`].** Any time-out, and any error of the client that does not say for certain that the
//!   instance was fenced, is unclear. The machine then has the producer dropped and a new one initialised, and looks at what had
//!   happened before it goes on. The driver never repeats a request by itself and never begins again on the same instance.
//! - **A token proves that a reader is up to date.** [`Action::ReadMarkers`] writes a token and reads until it has come back; "the end
//!   of the topic" would not do, since an open transaction of another slot hides what lies behind it.
//! - **Nothing is asked twice at a time.** A machine has at most one action outstanding that wants an answer; events may come in between.
//!
//! How long to wait before a producer is initialised again, and when to give up, is the driver's business.
//!
//! ```
//! use tidegate_recovery::exactly_once::*;
//! use tidegate_recovery::*;
//!
//! # let (store, partition) = (StoreId(5), TopicPartition::new("orders.in", 0));
//! let mut slot = SlotPublisher::new(SlotSettings {
//!     store,
//!     generation: Generation(7),
//!     slot: Slot(0),
//!     slots: vec![Slot(0)],
//!     resumed: Epoch(20),
//!     offsets: vec![(partition.clone(), NextOffset(4))],
//!     group: vec![(partition.clone(), NextOffset(4))],
//!     nonce: 1,
//! });
//! let token = Token { nonce: 1, count: 1 };
//! assert_eq!(slot.on(Event::Go), [Action::Initialise(Slot(0))]);
//! assert_eq!(slot.on(Event::Answer(Answer::Done)), [Action::LookAtLease]);
//! assert_eq!(slot.on(Event::Answer(Answer::InCharge)), [Action::ReadMarkers { slot: Slot(0), token }]);
//! assert_eq!(slot.on(Event::Answer(Answer::Markers(vec![]))), [Action::Ready]);
//!
//! // The record of epoch 30 is durable, and this process has output of it.
//! # let outbox = OutboxRef { epoch: Epoch(30), generation: Generation(7), process: ProcessIndex(0), slot: Slot(0), length: 0, checksum: 0 };
//! let offsets = vec![(partition.clone(), NextOffset(9))];
//! let durable = Event::Durable { epoch: Epoch(30), outbox: Some(outbox.clone()), offsets: offsets.clone() };
//! assert_eq!(slot.on(durable), [Action::Begin(Slot(0))]);
//! assert_eq!(slot.on(Event::Answer(Answer::Done)), [Action::SendOutbox(outbox)]);
//! let marker = Marker { generation: Generation(7), epoch: Epoch(30) };
//! assert_eq!(slot.on(Event::Answer(Answer::Done)), [Action::SendMarker { slot: Slot(0), marker }]);
//! assert_eq!(slot.on(Event::Answer(Answer::Done)), [Action::SendOffsets { slot: Slot(0), offsets }]);
//! assert_eq!(slot.on(Event::Answer(Answer::Done)), [Action::Commit(Slot(0))]);
//! assert_eq!(slot.on(Event::Answer(Answer::Done)), [Action::Announce { slot: Slot(0), epoch: Epoch(30) }]);
//! ```

mod direct;
mod marker;
mod slot;
mod start;
#[cfg(test)]
mod tests;

pub use direct::{DirectAction, DirectEvent, PartitionPublisher};
pub use marker::{ControlKey, Marker, SeenMarker, Token};
pub use slot::{SlotPublisher, SlotSettings};
pub use start::{Chosen, OutputStart, OutputStartSettings};

use crate::{Epoch, ErrorClass, NextOffset, OutboxRef, Slot, StoreId, TopicPartition};
use std::fmt;

/// What [`OutputStart`] and [`SlotPublisher`] want done.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Drop the slot's producer if there is one, make a new one, and call `init_transactions`: [`Answer::Done`],
    /// [`Answer::Fenced`] or [`Answer::Unclear`].
    Initialise(Slot),
    /// List the leases *now*, behind whatever was done before: [`Answer::InCharge`] or [`Answer::Overtaken`].
    LookAtLease,
    /// Choose the highest commit record now ([`crate::Claim::choose`]): [`Answer::Chosen`].
    ChooseRecord,
    /// Write the token to the control topic in a transaction of its own, under the slot, then read the topic from its start with
    /// `read_committed` until the token is seen: [`Answer::Markers`], [`Answer::Fenced`] or [`Answer::Unclear`].
    ReadMarkers {
        /// Whose producer writes the token.
        slot: Slot,
        /// The token; never written before.
        token: Token,
    },
    /// Begin a transaction: [`Answer::Done`], [`Answer::Fenced`] or [`Answer::Unclear`].
    Begin(Slot),
    /// Produce every row of the outbox (see [`crate::RecoveryStore::read_outbox`]) under its slot; need not wait for the
    /// acknowledgements: [`Answer::Done`], [`Answer::Fenced`], [`Answer::Unclear`] or [`Answer::Refused`].
    SendOutbox(OutboxRef),
    /// Produce the marker to the control topic: as for [`Action::SendOutbox`].
    SendMarker {
        /// The slot whose marker it is.
        slot: Slot,
        /// What it says.
        marker: Marker,
    },
    /// `send_offsets_to_transaction`: [`Answer::Done`], [`Answer::Fenced`] or [`Answer::Unclear`].
    SendOffsets {
        /// The slot.
        slot: Slot,
        /// Offsets of partitions that this process reads.
        offsets: Vec<(TopicPartition, NextOffset)>,
    },
    /// Flush and commit the transaction: [`Answer::Done`] only when the broker said so, [`Answer::Fenced`],
    /// [`Answer::Unclear`], or [`Answer::Refused`] when a row was what made it fail.
    Commit(Slot),
    /// Abort on the same instance; only the search, with a rule switched off, ever asks for it.
    #[cfg(test)]
    Abort(Slot),
    /// The machine is ready. A start may pass the barrier, behind [`crate::Publisher::leftovers_published`]; a process may begin
    /// its work. No answer.
    Ready,
    /// Everything of this slot up to this epoch is published: tell every process's [`SlotPublisher`], and on process 0
    /// [`crate::Publisher::output_published`]. No answer.
    Announce {
        /// The slot.
        slot: Slot,
        /// The epoch.
        epoch: Epoch,
    },
    /// Nothing more may be published: drop the producers without ending their transactions, and leave with this. Last.
    Stop(Stop),
}

/// What became of an action.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// It was done; the broker said so.
    Done,
    /// The client says for certain that another instance took the identity over.
    Fenced,
    /// Anything else: it may have happened, or may still happen.
    Unclear,
    /// The broker will never take this row.
    Refused {
        /// Number of the row in its outbox, from 0.
        row: u64,
        /// What the broker said.
        what: String,
    },
    /// No newer generation holds the lease.
    InCharge,
    /// A newer generation holds it.
    Overtaken,
    /// The record that was chosen.
    Chosen(Chosen),
    /// Every marker on the control topic, of other stores too.
    Markers(Vec<SeenMarker>),
    /// The group's offset of the partition, read with a `read_committed` client, which waits for pending ones.
    Committed(Option<NextOffset>),
}

/// What a [`SlotPublisher`] is told.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// The barrier was passed.
    Go,
    /// The action that was outstanding was answered.
    Answer(Answer),
    /// A commit epoch is durable. Every process is told of every one, in order, also where nothing changed.
    Durable {
        /// The epoch.
        epoch: Epoch,
        /// This process's outbox of it.
        outbox: Option<OutboxRef>,
        /// Where the partitions that this process reads go on after it, where that moved.
        offsets: Vec<(TopicPartition, NextOffset)>,
    },
    /// Another slot has published everything up to this epoch.
    PeerPublished {
        /// The slot.
        slot: Slot,
        /// The epoch.
        epoch: Epoch,
    },
    /// No further commit epoch is on its way: until the next one, offsets may travel alone.
    Quiet,
    /// The group's offsets would expire: they travel once more when there is nothing else to do.
    KeepAlive,
}

/// Whose producer it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Identity {
    /// Output of a slot, by way of the store.
    Slot {
        /// The store.
        store: StoreId,
        /// The slot.
        slot: Slot,
    },
    /// Output of an input partition, directly.
    Partition(TopicPartition),
}

impl Identity {
    /// The `transactional.id`.
    pub fn transactional_id(&self, flow: &str) -> String {
        format!("tidegate.{flow}.{self}")
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Identity::Slot { store, slot } => write!(f, "{store}.{slot}"),
            Identity::Partition(TopicPartition { topic, partition }) => write!(f, "{topic}.{partition}"),
        }
    }
}

/// Why nothing more may be published.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Stop {
    /// A newer generation, or another owner of the partition, is in charge.
    #[error(
        "another producer took over the transactions of {identity}: a newer start is in charge, nothing more is published, start again"
    )]
    ProducerFenced {
        /// Whose transactions.
        identity: Identity,
    },
    /// The store went back in time.
    #[error(
        "the recovery store is behind its own output: slot {slot} has published epoch {} (generation {}), and {}: bring the newest copy of the store back", marker.epoch, marker.generation, newest(.record)
    )]
    StoreBehindOutput {
        /// The slot.
        slot: Slot,
        /// What it has published.
        marker: Marker,
        /// The epoch of the newest commit record.
        record: Option<Epoch>,
    },
    /// The store is empty, and output of another one is there.
    #[error(
        "the recovery store is empty, but slot {slot} has published epoch {} from the store {store}: bring that store back, or accept the loss of its state with --allow-lost-state", marker.epoch
    )]
    StateLost {
        /// The other store.
        store: StoreId,
        /// The slot.
        slot: Slot,
        /// What it has published.
        marker: Marker,
    },
    /// The broker will never take a row.
    #[error(
        "row {row} of {file} can never be published: {what}; remove the cause, or decide about the row: `tidegate recovery outbox skip DIR {file} {row}` or `… dead-letter DIR {file} {row} TOPIC`"
    )]
    RowRefused {
        /// The outbox.
        file: String,
        /// Number of the row in it, from 0.
        row: u64,
        /// What the broker said.
        what: String,
    },
}

fn newest(record: &Option<Epoch>) -> String {
    match record {
        Some(epoch) => format!("the newest commit record is of epoch {epoch}"),
        None => "there is no commit record".to_owned(),
    }
}

impl Stop {
    /// What kind of failure it is.
    pub fn class(&self) -> ErrorClass {
        match self {
            Stop::ProducerFenced { .. } => ErrorClass::TryAgain,
            Stop::StoreBehindOutput { .. } | Stop::RowRefused { .. } => ErrorClass::Data,
            Stop::StateLost { .. } => ErrorClass::Config,
        }
    }

    /// The stable code of the design; empty when there is none.
    pub fn code(&self) -> &'static str {
        match self {
            Stop::ProducerFenced { .. } => "PRODUCER_FENCED",
            Stop::StoreBehindOutput { .. } => "STORE_BEHIND_OUTPUT",
            Stop::StateLost { .. } => "STATE_LOST",
            Stop::RowRefused { .. } => "",
        }
    }
}
