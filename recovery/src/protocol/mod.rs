//! What may be done next to the store, as pure state machines: the commit protocol without a disk.
//!
//! **The failures it survives.** Any process stops at any moment, or freezes and goes on after newer generations
//! have taken over; a host crash takes any of the entries that were not synced.
//!
//! **Assumed.** Creation is exclusive, and a listing shows what was created before it.
//!
//! **The steps.** A start creates its lease, durably; lets the slots of older generations be fenced; reads the highest commit
//! record and nothing else; makes durable what it read ([`start`]). A process writes and syncs its segment and its outbox
//! before it reports them ([`part`]). Process 0
//! writes a record under a temporary name, syncs it, links it to the next number (which fails if the number is
//! taken), syncs the folder, and lists: the record counts only if no higher one is there. Only then are effects
//! released, and only behind that does retention delete ([`publish`]).
//!
//! **Why it converges.** Numbers are dense, so that two writers that forked at record `n` both want `n + 1`: one
//! creation succeeds. A number that retention freed can be created late, but then the listing shows a higher one.
//!
//! What leaves the store for Kafka has a page of its own: [`exactly_once`].
//!
//! Each machine turns one event into one action. The shells in [`crate::store`] perform actions on a
//! [`crate::Storage`]; the search in this folder performs them on a model, explores all interleavings and crashes, and switches
//! single rules off to see that each is needed. Production code knows only [`Rules::ALL`].

pub mod exactly_once;
pub(crate) mod owed;
pub(crate) mod part;
pub(crate) mod publish;
pub(crate) mod start;

#[cfg(test)]
mod search;

use crate::names::{Folder, Name};
use crate::{Epoch, Generation, RecordNumber};

/// What the protocol needs to know of a commit record.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RecordFacts {
    pub(crate) number: RecordNumber,
    pub(crate) epoch: Epoch,
    pub(crate) generation: Generation,
    /// Every segment and outbox that it names, ascending.
    pub(crate) files: Vec<Name>,
}

/// What a machine wants done. Exactly one event answers each action, unless it is marked as the last.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    /// List a folder: [`Event::Listed`].
    List(Folder),
    /// Write the content that belongs to a name: [`Event::Done`].
    Write(Name),
    /// Make a file's bytes durable: [`Event::Done`] or [`Event::Missing`].
    Sync(Name),
    /// Make a folder's entries durable: [`Event::Done`].
    SyncFolder(Folder),
    /// Give a file a second name unless it is taken: [`Event::Done`] or [`Event::Exists`].
    Link { from: Name, to: Name },
    /// Rename over; only the search ever asks for it.
    Rename { from: Name, to: Name },
    /// Read a commit record: [`Event::Record`], [`Event::Missing`] or [`Event::Damaged`].
    Read(RecordNumber),
    /// Remove a file that may be gone already: [`Event::Done`].
    Remove(Name),
    /// May a start take the store over from the holder of this lease? [`Event::Done`] if so; the shell ends
    /// the start otherwise.
    TakeOver(Option<Generation>),
    /// The lease is durable: what older generations may still publish to Kafka can be cut off now. [`Event::Done`]
    /// goes on to the records.
    Fence,
    /// The part can be reported. Last.
    Report,
    /// The start goes on from this record. Last.
    Resume(Option<RecordFacts>),
    /// A file is missing that the highest record names. Last.
    Lost(Name),
    /// The record cannot be used. Last, unless the shell moves it aside and answers [`Event::Done`].
    Unusable(RecordNumber),
    /// The record is durable and counts: its effects may be released. [`Event::Go`] starts retention.
    Published(RecordNumber),
    /// A newer generation is in charge. Last.
    Fenced(Fence),
    /// Nothing is left to do. Last.
    Idle,
}

/// How a generation learned that it is not in charge any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Fence {
    /// The number that it wanted is taken.
    Taken(RecordNumber),
    /// There is a record with a higher number.
    Higher(RecordNumber),
    /// The record is not there, although it was created and made durable.
    Vanished(RecordNumber),
    /// There is a newer lease.
    Lease(Generation),
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Event {
    /// Begin, or go on.
    Go,
    /// The action was performed.
    Done,
    /// The names of a folder that are ours.
    Listed(Vec<Name>),
    /// The record that was read.
    Record(RecordFacts),
    /// The file is not there.
    Missing,
    /// The file is there and cannot be used.
    Damaged,
    /// The name is taken.
    Exists,
}

/// Which rules hold. Production code knows only [`Rules::ALL`]; the search takes one away at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Rules(u64);

/// A rule of the commit protocol; `counterexamples` in the search says what breaks without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Rule {
    /// A record is created if absent, never renamed over.
    CreateIfAbsent,
    /// Segment names carry the generation.
    #[cfg(test)]
    GenerationInNames,
    /// An epoch without a change takes no record number.
    #[cfg(test)]
    DenseNumbers,
    /// A record counts only if no higher number is listed after its creation.
    CountsOnlyIfHighest,
    /// A start reads the highest record and begins anew when a file of it is missing; it never goes back.
    OnlyHighestRead,
    /// A start deletes nothing.
    StartDeletesNothing,
    /// Retention spares its own segments of epochs above its newest record.
    RetentionSparesAbove,
    /// Retention spares segments of newer generations.
    RetentionSparesNewer,
    /// A segment's bytes are synced before it is reported.
    SegmentSynced,
    /// A segment's name is synced before it is reported.
    SegmentNameSynced,
    /// A start syncs the record and the files that it acts on.
    StartSyncs,
    /// A record's bytes are synced before it gets its name.
    RecordSynced,
    /// The folder of records is synced before effects are released.
    RecordDurableFirst,
    /// A start creates its lease exclusively, and durably before it goes on.
    LeaseDurable,
    /// A record names every outbox whose publication is not known, also of earlier epochs.
    OwedNamed,
    /// A start fences the slots of every listed lease and of the highest record, not only its own.
    EverySlotFenced,
    /// Slots are fenced before the record is chosen and the markers are read.
    FencedFirst,
    /// The lease is looked at after every `init_transactions`.
    LeaseAfterInit,
    /// The slot's marker is read after every `init_transactions`.
    MarkerAfterInit,
    /// Markers are read until a token that was just written is seen, not as far as they can be read.
    #[cfg(test)]
    UntilToken,
    /// A producer whose request has no clear outcome is never used again.
    ProducerRebuilt,
    /// A marker is part of the transaction whose rows it speaks of.
    #[cfg(test)]
    MarkerInTransaction,
    /// No process begins before everything that was left over is published.
    #[cfg(test)]
    Barrier,
    /// What is left over is published oldest epoch first.
    LeftoversAscending,
    /// A slot begins an epoch only when all slots have published the one before.
    SlotsInStep,
    /// A transaction carries the offsets of the newest epoch that all slots have published, not of the slot's own.
    OffsetsOfAll,
    /// Offsets are part of a transaction, not plain commits.
    #[cfg(test)]
    OffsetsInTransaction,
    /// A marker ahead of the highest record is refused.
    BehindOutputRefused,
    /// Markers of another store beside an empty one are refused.
    LostStateRefused,
    /// Without a store, the transactional identity is a function of the input partition.
    #[cfg(test)]
    IdByPartition,
    /// Without a store, the group's offset is fetched after `init_transactions`.
    FetchAfterInit,
    /// The group's offset is fetched by a client that waits for pending ones.
    #[cfg(test)]
    StableFetch,
}

impl Rules {
    /// Every rule holds.
    pub(crate) const ALL: Rules = Rules(u64::MAX);

    /// All rules but one.
    #[cfg(test)]
    pub(crate) fn without(rule: Rule) -> Rules {
        Rules(!(1 << rule as u64))
    }

    pub(crate) fn has(self, rule: Rule) -> bool {
        self.0 & (1 << rule as u64) != 0
    }
}

/// The highest commit record among some names.
pub(crate) fn highest_record(names: &[Name]) -> Option<RecordNumber> {
    let numbers = names.iter().filter_map(|name| match name {
        Name::Record(number) => Some(*number),
        _ => None,
    });
    numbers.max()
}

/// The highest lease among some names.
pub(crate) fn highest_lease(names: &[Name]) -> Option<Generation> {
    let numbers = names.iter().filter_map(|name| match name {
        Name::Lease(generation) => Some(*generation),
        _ => None,
    });
    numbers.max()
}
