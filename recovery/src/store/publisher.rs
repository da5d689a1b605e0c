//! Process 0's side of a commit epoch: the record that makes it durable for everybody.
//!
//! The order of things is [`crate::protocol::publish`]'s. Nothing of an epoch may be released before
//! [`Publisher::publish`] returned for it.

use super::ResumeState;
use super::drive::perform;
use super::retry::Retry;
use crate::format::record::CommitRecord;
use crate::lease::{self, Lease};
use crate::names::Name;
use crate::protocol::owed::Owed;
use crate::protocol::publish::PublishMachine;
use crate::protocol::{Action, Event, Fence, RecordFacts, Rules};
use crate::steps::RecordedStep;
use crate::storage::Storage;
use crate::{
    Epoch, FlowFingerprint, NextOffset, OutboxRef, Part, RecordNumber, SegmentRef, Slot, StoreError, TopicId,
    TopicPartition,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// What became of a commit epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Published {
    /// It is durable: this record says so.
    Record(RecordNumber),
    /// It changed nothing; it is as durable as the record before it.
    Unchanged,
}

/// Publishes the commit records of one generation.
#[derive(Debug)]
pub struct Publisher {
    storage: Arc<dyn Storage>,
    lease: Arc<Lease>,
    machine: PublishMachine,
    fingerprint: FlowFingerprint,
    store_timeout: Duration,
    steps: Vec<RecordedStep>,
    offsets: BTreeMap<TopicPartition, NextOffset>,
    topics: BTreeMap<Arc<str>, TopicId>,
    /// The transactional identities that a record names.
    slots: Vec<Slot>,
    /// What each process needs; `None` until it said so: then it may need all that the generation began with.
    needs: Vec<Option<BTreeSet<SegmentRef>>>,
    inherited: BTreeSet<SegmentRef>,
    /// What the newest record names.
    named: BTreeSet<SegmentRef>,
    /// Outboxes whose publication is not known.
    owed: Owed,
    epoch: Epoch,
    /// Files may wait for deletion.
    retention: bool,
    /// The newest record names outboxes.
    names_outboxes: bool,
}

impl Publisher {
    pub(crate) fn new(
        storage: Arc<dyn Storage>,
        lease: Arc<Lease>,
        fingerprint: FlowFingerprint,
        store_timeout: Duration,
        resume: &ResumeState,
    ) -> Publisher {
        let inherited: BTreeSet<SegmentRef> = resume.segments.iter().cloned().collect();
        let owed = Owed::new(Rules::ALL, resume.outboxes.iter().cloned());
        let resumed = resume.record.map(|number| RecordFacts {
            number,
            epoch: resume.epoch,
            generation: resume.recorded_by.unwrap_or_default(),
            files: files(&inherited, &owed),
        });
        Publisher {
            machine: PublishMachine::new(Rules::ALL, lease.generation(), resumed),
            storage,
            fingerprint,
            store_timeout,
            steps: resume.steps.clone(),
            offsets: resume.offsets.iter().cloned().collect(),
            topics: resume.topics.iter().cloned().collect(),
            slots: lease.holder().slots.clone(),
            needs: vec![None; lease.holder().shape.processes as usize],
            named: inherited.clone(),
            inherited,
            owed,
            epoch: resume.epoch,
            lease,
            retention: false,
            names_outboxes: !resume.outboxes.is_empty(),
        }
    }

    /// The newest record: resumed from or published.
    pub fn record(&self) -> Option<RecordNumber> {
        self.machine.newest().map(|facts| facts.number)
    }

    /// The newest durable epoch.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The ids of the topics that this generation reads: they stand in its records. Of the topics `begun_anew` the offsets so
    /// far are forgotten: they were offsets of a topic that was deleted.
    pub fn reads(&mut self, topics: impl IntoIterator<Item = (Arc<str>, TopicId)>, begun_anew: &[Arc<str>]) {
        for topic in begun_anew {
            self.topics.remove(topic);
            self.offsets.retain(|partition, _| partition.topic != *topic);
        }
        self.topics.extend(topics);
    }

    /// Publishes commit epoch `epoch` with the parts of all processes that had one. Epochs come in order. An epoch
    /// that changes nothing writes nothing. Blocks; tries a full disk again for `store_timeout`.
    ///
    /// # Errors
    ///
    /// `LEASE_LOST` (try again) when a newer generation is in charge: release nothing and leave. After any
    /// error of the disk, too, nothing of the epoch may be released.
    pub fn publish(&mut self, epoch: Epoch, parts: &[Part]) -> Result<Published, StoreError> {
        if epoch <= self.epoch {
            let what = format!("commit epoch {epoch} was to be published after {}", self.epoch);
            return Err(StoreError::Internal(what));
        }
        let mut offsets = self.offsets.clone();
        let mut needs = self.needs.clone();
        let outboxes: Vec<OutboxRef> = parts.iter().filter_map(|part| part.outbox.clone()).collect();
        for part in parts {
            let Some(slot) = needs.get_mut(part.process.0 as usize).filter(|_| part.epoch == epoch) else {
                let what = format!(
                    "a part of epoch {} and process {} came with commit epoch {epoch}",
                    part.epoch, part.process
                );
                return Err(StoreError::Internal(what));
            };
            *slot = Some(part.needs.iter().chain(&part.segment).cloned().collect());
            offsets.extend(part.offsets.iter().cloned());
        }
        let named: BTreeSet<SegmentRef> =
            needs.iter().flat_map(|needs| needs.as_ref().unwrap_or(&self.inherited)).cloned().collect();
        self.needs = needs;
        if offsets == self.offsets && named == self.named && outboxes.is_empty() {
            self.epoch = epoch;
            return Ok(Published::Unchanged);
        }
        // Looking before is a courtesy with a better message; what protects is the exclusive creation.
        self.lease.still_mine()?;
        self.retain()?;
        let owed = self.owed.with(epoch, outboxes);
        let number = self.write(epoch, &offsets, &named, &owed)?;
        self.names_outboxes = !owed.outboxes().is_empty();
        (self.offsets, self.named, self.owed) = (offsets, named, owed);
        (self.epoch, self.retention) = (epoch, true);
        Ok(Published::Record(number))
    }

    /// Publishes a record that begins anew at these offsets, without state: `tidegate offsets replay`. The epochs go on rising;
    /// partitions that are not among `offsets` keep theirs. `slots` are all that an older generation may use
    /// ([`ResumeState::slots`]): whoever starts next has to cut them off.
    ///
    /// # Errors
    ///
    /// As [`Publisher::publish`]; and when output is owed, since nobody would publish it any more.
    pub fn begin_anew(
        &mut self,
        offsets: impl IntoIterator<Item = (TopicPartition, NextOffset)>,
        slots: Vec<Slot>,
    ) -> Result<RecordNumber, StoreError> {
        if !self.owed.outboxes().is_empty() {
            return Err(StoreError::Internal("state was to be dropped whose output is owed".to_owned()));
        }
        self.lease.still_mine()?;
        self.offsets.extend(offsets);
        self.slots = slots;
        self.steps.clear();
        let (epoch, offsets, owed) = (self.epoch.next(), self.offsets.clone(), self.owed.clone());
        let number = self.write(epoch, &offsets, &BTreeSet::new(), &owed)?;
        self.named.clear();
        self.inherited.clear();
        (self.epoch, self.retention) = (epoch, true);
        Ok(number)
    }

    /// A slot has published everything up to `epoch` ([`crate::exactly_once::Action::Announce`]): later records do not name
    /// those outboxes any more, and retention deletes them.
    pub fn output_published(&mut self, slot: Slot, epoch: Epoch) {
        self.owed.published(slot, epoch);
    }

    /// What the generation began with is published: [`crate::exactly_once::OutputStart`] is ready. Until then every record goes
    /// on naming it, so that a flow that is not exactly-once any more loses no output in silence.
    pub fn leftovers_published(&mut self) {
        self.owed.all_published(self.epoch);
    }

    /// At the end of a run: when all output is published and the newest record does not know, another one says so. Without it
    /// the next start could not tell, but from the markers, and would have to be exactly-once again.
    ///
    /// # Errors
    ///
    /// As [`Publisher::publish`].
    pub fn settle(&mut self) -> Result<Published, StoreError> {
        if !self.names_outboxes || !self.owed.outboxes().is_empty() {
            return Ok(Published::Unchanged);
        }
        self.lease.still_mine()?;
        self.retain()?;
        let epoch = self.epoch.next();
        let (offsets, named, owed) = (self.offsets.clone(), self.named.clone(), self.owed.clone());
        let number = self.write(epoch, &offsets, &named, &owed)?;
        (self.epoch, self.retention, self.names_outboxes) = (epoch, true, false);
        Ok(Published::Record(number))
    }

    /// Outboxes whose publication is not known, oldest first.
    pub fn owed(&self) -> impl Iterator<Item = &OutboxRef> {
        self.owed.outboxes().iter()
    }

    /// Deletes what no start can need any more, behind the record that was just published. Call it after the news
    /// of the record was passed on; the next [`Publisher::publish`] does it otherwise. A file that
    /// cannot be deleted now is deleted behind a later record.
    pub fn retain(&mut self) -> Result<(), StoreError> {
        if !std::mem::take(&mut self.retention) {
            return Ok(());
        }
        let mut event = Event::Go;
        loop {
            let action = self.machine.on(event);
            if action == Action::Idle {
                return Ok(());
            }
            event = match perform(&*self.storage, &action, &[]) {
                Ok(event) => event,
                Err(error @ StoreError::Io { .. }) => {
                    tracing::warn!(generation = %self.lease.generation(), %error, "retention is put off");
                    self.machine.failed();
                    return Ok(());
                }
                Err(error) => return Err(error),
            };
        }
    }

    fn write(
        &mut self,
        epoch: Epoch,
        offsets: &BTreeMap<TopicPartition, NextOffset>,
        named: &BTreeSet<SegmentRef>,
        owed: &Owed,
    ) -> Result<RecordNumber, StoreError> {
        let files = files(named, owed);
        let mut retry = Retry::new(self.store_timeout);
        let mut action = self.machine.publish(epoch, files.clone());
        let bytes = self.record_of(epoch, offsets, named, owed).encode()?;
        loop {
            match &action {
                Action::Published(number) => return Ok(*number),
                Action::Fenced(fence) => return Err(self.fenced(*fence)),
                _ => {}
            }
            action = match perform(&*self.storage, &action, &[&bytes]) {
                Ok(event) => self.machine.on(event),
                Err(error) => {
                    // A newer generation deletes what an old one left half done.
                    self.lease.still_mine()?;
                    retry.after(error, "publish a commit record")?;
                    match self.machine.failed() {
                        Some(again) => again,
                        None => self.machine.publish(epoch, files.clone()),
                    }
                }
            };
        }
    }

    fn record_of(
        &self,
        epoch: Epoch,
        offsets: &BTreeMap<TopicPartition, NextOffset>,
        named: &BTreeSet<SegmentRef>,
        owed: &Owed,
    ) -> CommitRecord {
        let holder = self.lease.holder();
        CommitRecord {
            store: self.lease.store(),
            number: RecordNumber(self.record().map_or(0, |number| number.0) + 1),
            epoch,
            generation: holder.generation,
            run: holder.run,
            shape: holder.shape,
            slots: self.slots.clone(),
            fingerprint: self.fingerprint,
            steps: self.steps.clone(),
            offsets: offsets.iter().map(|(partition, next)| (partition.clone(), *next)).collect(),
            segments: named.iter().cloned().collect(),
            outboxes: owed.outboxes().iter().cloned().collect(),
            topics: self.topics.iter().map(|(topic, id)| (topic.clone(), *id)).collect(),
        }
    }

    fn fenced(&self, fence: Fence) -> StoreError {
        let own = self.lease.generation();
        match lease::newest(&*self.storage) {
            Ok(Some(newer)) if newer > own => lease::lost(&*self.storage, own, newer),
            // Without a newer lease in sight the record itself is the news.
            Ok(_) | Err(_) => {
                let found = match fence {
                    Fence::Taken(number) => format!("another generation published commit record {number}"),
                    Fence::Higher(number) => format!("there is commit record {number} already"),
                    Fence::Vanished(number) => format!("commit record {number} was created and is gone"),
                    Fence::Lease(newer) => format!("generation {newer} holds it"),
                };
                StoreError::LeaseLost { store: self.storage.place(), own, found }
            }
        }
    }
}

fn files(segments: &BTreeSet<SegmentRef>, owed: &Owed) -> Vec<Name> {
    let segments = segments.iter().map(|segment| Name::Segment(segment.into()));
    segments.chain(owed.outboxes().iter().map(|outbox| Name::Outbox(outbox.into()))).collect()
}
