//! Performs the actions of the machines: producers, transactions, markers, the lease.

use super::waiting::{Backoff, Leaving};
use crate::causes::store_fault;
use crate::test_points::reach;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tidegate_operators::fault::Fault;
use tidegate_operators::kafka::{
    ConsumerConfig, ProducerConfig, TransactionTrouble, TransactionalProducer, read_markers, write_token,
};
use tidegate_recovery::exactly_once::{Action, Answer, ControlKey, Identity, Marker};
use tidegate_recovery::outbox::{Decision, StoredRow};
use tidegate_recovery::{
    ErrorClass, LeaseView, NextOffset, OutboxRef, RecoveryStore, Slot, StoreError, StoreId, TopicPartition,
};

/// The number under which a marker goes: no row of an outbox has it.
const MARKER_ROW: u64 = u64::MAX;
/// How long a disk that did not answer is left alone.
const STORE_RETRY: Duration = Duration::from_secs(5);

/// What a performer needs to know.
#[derive(Clone)]
pub(crate) struct PerformerSettings {
    pub(crate) flow: String,
    pub(crate) group: String,
    pub(crate) control_topic: String,
    pub(crate) producer: ProducerConfig,
    pub(crate) consumer: ConsumerConfig,
    /// How long an answer is waited for before its outcome counts as unknown.
    pub(crate) request_timeout: Duration,
    /// How long a disk that does not answer is asked again.
    pub(crate) store_timeout: Duration,
}

/// Owns the transactional producers of some slots.
pub(crate) struct Performer {
    settings: PerformerSettings,
    store: RecoveryStore,
    store_id: StoreId,
    lease: LeaseView,
    producers: BTreeMap<Slot, TransactionalProducer>,
    /// Until when a start may take; `None` for the work, which has all the time that a broker needs.
    deadline: Option<Instant>,
    leaving: Leaving,
    backoff: Backoff,
    carrying: Vec<(TopicPartition, NextOffset)>,
}

/// Why sending an outbox ended.
enum Sending {
    Store(StoreError),
    Kafka(TransactionTrouble),
}

impl From<StoreError> for Sending {
    fn from(error: StoreError) -> Sending {
        Sending::Store(error)
    }
}

impl Performer {
    pub(crate) fn new(
        settings: PerformerSettings,
        store: RecoveryStore,
        store_id: StoreId,
        lease: LeaseView,
        deadline: Option<Instant>,
        leaving: Leaving,
    ) -> Performer {
        Performer {
            settings,
            store,
            store_id,
            lease,
            producers: BTreeMap::new(),
            deadline,
            leaving,
            backoff: Backoff::default(),
            carrying: Vec::new(),
        }
    }

    /// The offsets of the transaction that was committed last; taken once.
    pub(super) fn carried(&mut self) -> Vec<(TopicPartition, NextOffset)> {
        std::mem::take(&mut self.carrying)
    }

    /// Performs an action that wants an answer.
    ///
    /// # Errors
    ///
    /// What no answer of a machine says: the store cannot be read, the broker denies it, the deadline of a start is over.
    pub(super) fn perform(&mut self, action: &Action) -> Result<Answer, Fault> {
        let done = match action {
            Action::LookAtLease => return self.look_at_lease(),
            Action::Initialise(slot) => {
                reach("publication.initialise");
                self.initialise(*slot)
            }
            Action::ReadMarkers { slot, token } => {
                let (topic, store) = (self.settings.control_topic.clone(), self.store_id);
                let written =
                    self.with(*slot, |producer| write_token(producer, &topic, store, *slot, *token));
                let read = written.and_then(|()| {
                    read_markers(&self.settings.consumer, &topic, *token, self.settings.request_timeout)
                });
                match read {
                    Ok(markers) => {
                        self.backoff.reset();
                        return Ok(Answer::Markers(markers));
                    }
                    Err(trouble) => Err(trouble),
                }
            }
            Action::Begin(slot) => {
                self.carrying.clear();
                self.with(*slot, TransactionalProducer::begin)
            }
            Action::SendOutbox(outbox) => match self.send_outbox(outbox) {
                Ok(()) => Ok(()),
                Err(Sending::Kafka(trouble)) => Err(trouble),
                Err(Sending::Store(error)) => return Err(store_fault(&error)),
            },
            Action::SendMarker { slot, marker } => self.send_marker(*slot, *marker),
            Action::SendOffsets { slot, offsets } => {
                self.carrying.clone_from(offsets);
                let group = self.settings.group.clone();
                self.with(*slot, |producer| producer.send_offsets(&group, offsets))
            }
            Action::Commit(slot) => {
                reach("publication.sent");
                let done = self.with(*slot, TransactionalProducer::commit);
                reach("publication.ended");
                done
            }
            Action::ChooseRecord | Action::Ready | Action::Announce { .. } | Action::Stop(_) => {
                return Err(Fault::new(ErrorClass::Internal, format!("nobody performs {action:?} here")));
            }
        };
        self.answer(action, done)
    }

    fn answer(&mut self, action: &Action, done: Result<(), TransactionTrouble>) -> Result<Answer, Fault> {
        let trouble = match done {
            Ok(()) => return Ok(Answer::Done),
            Err(trouble) => trouble,
        };
        self.carrying.clear();
        match trouble {
            TransactionTrouble::Denied(fault) => Err(fault),
            TransactionTrouble::Refused { row: MARKER_ROW, what } => Err(Fault::new(
                ErrorClass::Config,
                format!("the control topic {} takes no marker: {what}", self.settings.control_topic),
            )),
            TransactionTrouble::Refused { row, what } => Ok(Answer::Refused { row, what }),
            TransactionTrouble::Fenced(what) => {
                tracing::warn!(what, "another producer took over: looking who is in charge");
                Ok(Answer::Fenced)
            }
            TransactionTrouble::Unclear(what) => {
                tracing::warn!(
                    action = name_of(action),
                    what,
                    "the outcome of a transaction is not known; its producer is replaced and the control topic says what happened"
                );
                if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                    return Err(Fault::new(
                        ErrorClass::Unavailable,
                        format!("the transactions of the last run could not be settled in time: {what}"),
                    ));
                }
                self.backoff.lengthen();
                Ok(Answer::Unclear)
            }
        }
    }

    /// A newer generation is an answer; a disk that does not answer is asked again for a while.
    fn look_at_lease(&self) -> Result<Answer, Fault> {
        let end = Instant::now() + self.settings.store_timeout;
        loop {
            match self.lease.still_mine() {
                Ok(()) => return Ok(Answer::InCharge),
                Err(StoreError::LeaseLost { .. }) => return Ok(Answer::Overtaken),
                Err(error) if Instant::now() >= end => return Err(store_fault(&error)),
                Err(error) => {
                    tracing::warn!(%error, "the lease cannot be read; it is tried again");
                    if self.leaving.wait(STORE_RETRY.min(self.settings.store_timeout)) {
                        return Err(store_fault(&error));
                    }
                }
            }
        }
    }

    fn initialise(&mut self, slot: Slot) -> Result<(), TransactionTrouble> {
        self.producers.remove(&slot);
        if self.backoff.wait(&self.leaving) {
            return Err(TransactionTrouble::Unclear("the process is leaving".to_owned()));
        }
        let id = Identity::Slot { store: self.store_id, slot }.transactional_id(&self.settings.flow);
        let timeout = match self.deadline {
            None => self.settings.request_timeout,
            Some(deadline) => {
                deadline.saturating_duration_since(Instant::now()).min(self.settings.request_timeout)
            }
        };
        let producer = TransactionalProducer::initialise(&self.settings.producer, &id, timeout)?;
        self.producers.insert(slot, producer);
        Ok(())
    }

    fn with<T>(
        &mut self,
        slot: Slot,
        work: impl FnOnce(&mut TransactionalProducer) -> Result<T, TransactionTrouble>,
    ) -> Result<T, TransactionTrouble> {
        match self.producers.get_mut(&slot) {
            Some(producer) => work(producer),
            None => Err(TransactionTrouble::Unclear(format!("slot {slot} has no producer"))),
        }
    }

    fn send_outbox(&mut self, outbox: &OutboxRef) -> Result<(), Sending> {
        let Some(producer) = self.producers.get_mut(&outbox.slot) else {
            let what = format!("slot {} has no producer", outbox.slot);
            return Err(Sending::Kafka(TransactionTrouble::Unclear(what)));
        };
        let read = self.store.read_outbox(outbox)?;
        read.visit(|stored| {
            let StoredRow { number, destination, row, decision } = stored;
            let headers = row.headers.iter().map(|(name, value)| (*name, *value));
            let sent = match decision {
                None => producer.produce(
                    &destination.topic,
                    row.partition,
                    row.key,
                    row.value,
                    row.timestamp,
                    headers,
                    number,
                ),
                Some(Decision::Skip) => Ok(()),
                Some(Decision::DeadLetter { topic }) => {
                    let message = format!("row {number} of {} was refused for ever", read.file());
                    let diagnosis: [(&str, Option<&[u8]>); 4] = [
                        ("tidegate-error-class", Some(b"refused")),
                        ("tidegate-error-message", Some(message.as_bytes())),
                        ("tidegate-error-step", Some(destination.step.as_str().as_bytes())),
                        ("tidegate-error-flow", Some(self.settings.flow.as_bytes())),
                    ];
                    let headers: Vec<_> = headers.chain(diagnosis).collect();
                    producer.produce(
                        topic,
                        None,
                        row.key,
                        row.value,
                        row.timestamp,
                        headers.into_iter(),
                        number,
                    )
                }
            };
            sent.map_err(Sending::Kafka)
        })
    }

    fn send_marker(&mut self, slot: Slot, marker: Marker) -> Result<(), TransactionTrouble> {
        let (topic, store) = (self.settings.control_topic.clone(), self.store_id);
        self.with(slot, |producer| {
            let (key, value) = (ControlKey::Marker(store, slot).to_string(), marker.to_string());
            let none = std::iter::empty();
            producer.produce(
                &topic,
                Some(0),
                Some(key.as_bytes()),
                Some(value.as_bytes()),
                None,
                none,
                MARKER_ROW,
            )
        })
    }
}

/// What an action is called in the log.
fn name_of(action: &Action) -> &'static str {
    match action {
        Action::Initialise(_) => "initialise",
        Action::LookAtLease => "look at the lease",
        Action::ChooseRecord => "choose a record",
        Action::ReadMarkers { .. } => "read the markers",
        Action::Begin(_) => "begin",
        Action::SendOutbox(_) => "send the outbox",
        Action::SendMarker { .. } => "send the marker",
        Action::SendOffsets { .. } => "send the offsets",
        Action::Commit(_) => "commit",
        Action::Ready => "be ready",
        Action::Announce { .. } => "announce",
        Action::Stop(_) => "stop",
    }
}
