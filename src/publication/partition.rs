//! The thread that publishes what was made of one input partition, together with the group's offset of it.
//!
//! It performs what the machine ([`PartitionPublisher`]) asks for, one thing after the other, and waits for the broker as long
//! as that takes; commit epochs that end meanwhile queue up. The output of an epoch is kept until the machine says that it is
//! published: a producer that had to be replaced sends it again.

use super::direct::Shared;
use super::fault_of_stop;
use super::waiting::Backoff;
use crate::test_points::reach;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Instant;
use tidegate_operators::element::PartitionId;
use tidegate_operators::fault::Fault;
use tidegate_operators::kafka::{Lookup, TransactionTrouble, TransactionalProducer};
use tidegate_operators::sink::PartitionOutput;
use tidegate_recovery::exactly_once::{Answer, DirectAction, DirectEvent, Identity, PartitionPublisher};
use tidegate_recovery::{Epoch, ErrorClass, NextOffset, TopicPartition};

/// What the thread is asked for.
pub(super) enum Job {
    /// The group's offsets were fetched; once, before all others.
    Begin {
        id: PartitionId,
        group: Option<NextOffset>,
        /// What the group is to have before anything is read.
        chosen: Option<NextOffset>,
    },
    /// A commit epoch is closed.
    Closed(Closed),
}

/// What is to be published of a commit epoch.
pub(super) struct Closed {
    pub(super) epoch: Epoch,
    pub(super) output: PartitionOutput,
    /// Where the partition goes on, where that moved.
    pub(super) next: Option<NextOffset>,
}

/// Why the thread ends.
enum End {
    /// The process lets go of it.
    Leaving,
    /// Nothing more can be published.
    Fault(Fault),
}

impl From<Fault> for End {
    fn from(fault: Fault) -> End {
        End::Fault(fault)
    }
}

/// The thread of one input partition.
pub(super) struct PartitionThread {
    partition: TopicPartition,
    shared: Arc<Shared>,
    machine: PartitionPublisher,
    producer: Option<TransactionalProducer>,
    /// Output that is not known to be published, oldest first.
    outputs: VecDeque<(Epoch, PartitionOutput)>,
    backoff: Backoff,
    /// Until when the start may take; `None` for the work, which has all the time that a broker needs.
    deadline: Option<Instant>,
}

impl PartitionThread {
    pub(super) fn new(partition: TopicPartition, shared: Arc<Shared>, deadline: Instant) -> PartitionThread {
        PartitionThread {
            machine: PartitionPublisher::new(partition.clone()),
            partition,
            shared,
            producer: None,
            outputs: VecDeque::new(),
            backoff: Backoff::default(),
            deadline: Some(deadline),
        }
    }

    /// Answers twice: when the producer is initialised, and when the partition may be read.
    pub(super) fn run(mut self, jobs: &Receiver<Job>, answer: &Sender<Result<(), Fault>>) {
        // Whoever does not wait for an answer any more is leaving.
        let say = |result: Result<(), Fault>| {
            let _ = answer.send(result);
        };
        match self.start(jobs, &say) {
            Ok(id) => match self.work(id, jobs) {
                End::Leaving => {}
                End::Fault(fault) => self.shared.failed(fault),
            },
            Err(End::Leaving) => {}
            Err(End::Fault(fault)) => say(Err(fault)),
        }
    }

    fn start(&mut self, jobs: &Receiver<Job>, say: &dyn Fn(Result<(), Fault>)) -> Result<PartitionId, End> {
        // Asks for the group's offset last, which is not answered here: process 0 fetches all of them.
        self.tell(DirectEvent::Go)?;
        say(Ok(()));
        let Ok(Job::Begin { id, group, chosen }) = jobs.recv() else { return Err(End::Leaving) };
        if let Some(chosen) = chosen {
            self.commit_offset(chosen).map_err(|trouble| match trouble {
                TransactionTrouble::Denied(fault) => fault,
                other => Fault::new(
                    ErrorClass::TryAgain,
                    format!(
                        "the start offset {chosen} of {} could not be committed: {other}; start again",
                        self.partition
                    ),
                ),
            })?;
            self.shared.committed(id, chosen);
        }
        self.deadline = None;
        self.tell(DirectEvent::Answer(Answer::Committed(chosen.or(group))))?;
        say(Ok(()));
        Ok(id)
    }

    fn work(&mut self, id: PartitionId, jobs: &Receiver<Job>) -> End {
        loop {
            let result = match jobs.recv_timeout(self.shared.settings.keepalive) {
                Ok(Job::Closed(closed)) => self.publish(id, closed),
                Ok(Job::Begin { .. }) => Ok(()),
                Err(RecvTimeoutError::Timeout) => self.keep_alive(id),
                Err(RecvTimeoutError::Disconnected) => return End::Leaving,
            };
            if let Err(end) = result {
                return end;
            }
        }
    }

    fn publish(&mut self, id: PartitionId, closed: Closed) -> Result<(), End> {
        let Closed { epoch, output, next } = closed;
        let has_output = !output.rows.is_empty();
        let before = self.machine.committed();
        let Some(next) = next.filter(|next| Some(*next) > before || !has_output) else {
            return Err(End::Fault(Fault::new(
                ErrorClass::Data,
                format!(
                    "{} went back behind offset {}, which is committed: its topic was truncated or made anew, and what follows cannot be told from what was published",
                    self.partition,
                    before.map_or("none".to_owned(), |before| before.to_string())
                ),
            )));
        };
        self.outputs.push_back((epoch, output));
        self.tell(DirectEvent::Closed { epoch, output: has_output, next })?;
        debug_assert!(self.machine.is_settled(), "an epoch is published before the next one is taken");
        // What did not move has nothing to publish and is not said to be published.
        self.forget(epoch);
        if let Some(committed) = self.machine.committed().filter(|committed| Some(*committed) != before) {
            self.shared.committed(id, committed);
        }
        self.shared.published(epoch);
        Ok(())
    }

    /// An idle group's offsets would expire.
    fn keep_alive(&mut self, id: PartitionId) -> Result<(), End> {
        let Some(committed) = self.machine.committed() else { return Ok(()) };
        match self.commit_offset(committed) {
            Ok(()) => {
                self.shared.committed(id, committed);
                Ok(())
            }
            Err(trouble) => {
                let answer = self.answer("commit the offset again", Err(trouble))?;
                self.tell(DirectEvent::Answer(answer))
            }
        }
    }

    fn commit(&mut self) -> Result<(), TransactionTrouble> {
        reach("direct.sent");
        let committed = self.with(TransactionalProducer::commit);
        reach("direct.ended");
        committed
    }

    /// A transaction with the offset alone.
    fn commit_offset(&mut self, next: NextOffset) -> Result<(), TransactionTrouble> {
        self.with(TransactionalProducer::begin)?;
        self.send_offset(next)?;
        self.with(TransactionalProducer::commit)
    }

    /// Tells the machine, and performs what it asks for until it asks for nothing more.
    fn tell(&mut self, event: DirectEvent) -> Result<(), End> {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            for action in self.machine.on(event) {
                if let Some(answer) = self.perform(action)? {
                    events.push_back(DirectEvent::Answer(answer));
                }
            }
        }
        Ok(())
    }

    fn perform(&mut self, action: DirectAction) -> Result<Option<Answer>, End> {
        let (what, done) = match action {
            DirectAction::Initialise => {
                reach("direct.initialise");
                // One that stood still here would only fence the owner that took over.
                if self.look_around() == Answer::Overtaken {
                    return Ok(Some(Answer::Overtaken));
                }
                ("initialise", self.initialise()?)
            }
            DirectAction::LookAround => return Ok(Some(self.look_around())),
            DirectAction::FetchOffset if self.deadline.is_some() => return Ok(None),
            DirectAction::FetchOffset => return self.fetch().map(Some),
            DirectAction::Begin => ("begin", self.with(TransactionalProducer::begin)),
            DirectAction::Send(epoch) => match self.send(epoch) {
                Err(TransactionTrouble::Refused { row, what }) => {
                    return Err(End::Fault(self.refused(epoch, row, &what)));
                }
                sent => ("send the output", sent),
            },
            DirectAction::SendOffset(next) => ("send the offset", self.send_offset(next)),
            DirectAction::Commit => match self.commit() {
                Err(TransactionTrouble::Refused { row, what }) => {
                    let epoch = self.outputs.front().map_or(Epoch(0), |(epoch, _)| *epoch);
                    return Err(End::Fault(self.refused(epoch, row, &what)));
                }
                committed => {
                    if committed.is_ok() {
                        self.backoff.reset();
                    }
                    ("commit", committed)
                }
            },
            DirectAction::Resume(_) => return Ok(None),
            DirectAction::Published(epoch) => {
                self.forget(epoch);
                return Ok(None);
            }
            DirectAction::Stop(stop) => return Err(End::Fault(fault_of_stop(&stop))),
        };
        self.answer(what, done).map(Some)
    }

    /// What the machine is told of what became of a request.
    fn answer(&mut self, what: &str, done: Result<(), TransactionTrouble>) -> Result<Answer, End> {
        let partition = &self.partition;
        match done {
            Ok(()) => Ok(Answer::Done),
            Err(TransactionTrouble::Denied(fault)) => Err(End::Fault(fault)),
            Err(TransactionTrouble::Fenced(text)) => {
                tracing::error!(topic = %partition.topic, partition = partition.partition, text, "another owner of the partition took over");
                Ok(Answer::Fenced)
            }
            Err(TransactionTrouble::Unclear(text)) => {
                if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                    return Err(End::Fault(Fault::new(
                        ErrorClass::Unavailable,
                        format!(
                            "the transactional producer of {partition} could not be initialised in time: {text}"
                        ),
                    )));
                }
                tracing::warn!(
                    topic = %partition.topic,
                    partition = partition.partition,
                    action = what,
                    text,
                    "the outcome of a transaction is not known; its producer is replaced and the group's offset says what happened"
                );
                self.backoff.lengthen();
                Ok(Answer::Unclear)
            }
            Err(TransactionTrouble::Refused { what, .. }) => {
                Err(End::Fault(Fault::new(ErrorClass::Data, format!("{partition}: {what}"))))
            }
        }
    }

    fn look_around(&self) -> Answer {
        match (self.shared.settings.standing)() {
            Ok(()) => Answer::InCharge,
            Err(fault) => {
                tracing::warn!(partition = %self.partition, %fault, "this process is not in charge any more");
                Answer::Overtaken
            }
        }
    }

    fn initialise(&mut self) -> Result<Result<(), TransactionTrouble>, End> {
        self.producer = None;
        if self.backoff.wait(&self.shared.leaving) {
            return Err(End::Leaving);
        }
        let settings = &self.shared.settings;
        let id = Identity::Partition(self.partition.clone()).transactional_id(&settings.flow);
        let initialised =
            TransactionalProducer::initialise(&settings.producer, &id, settings.request_timeout);
        Ok(initialised.map(|producer| self.producer = Some(producer)))
    }

    fn fetch(&mut self) -> Result<Answer, End> {
        let settings = &self.shared.settings;
        let asked = std::slice::from_ref(&self.partition);
        let found = Lookup::new(&settings.consumer, settings.request_timeout)
            .and_then(|lookup| lookup.committed(asked));
        match found {
            Ok(offsets) => {
                self.backoff.reset();
                Ok(Answer::Committed(offsets.get(&self.partition).copied()))
            }
            Err(fault) if fault.class == ErrorClass::Unavailable => {
                self.answer("fetch the group's offset", Err(TransactionTrouble::Unclear(fault.to_string())))
            }
            Err(fault) => Err(End::Fault(fault)),
        }
    }

    fn send(&mut self, epoch: Epoch) -> Result<(), TransactionTrouble> {
        let producer = self.producer.as_mut().ok_or_else(no_producer)?;
        let Some((_, output)) = self.outputs.iter().find(|(of, _)| *of == epoch) else { return Ok(()) };
        let destinations = output.rows.destinations();
        for (row, number) in output.rows.rows().zip(0..) {
            let topic = &destinations[usize::from(row.destination.0)].topic;
            let headers = row.headers.iter().copied();
            producer.produce(topic, row.partition, row.key, row.value, row.timestamp, headers, number)?;
        }
        Ok(())
    }

    fn send_offset(&mut self, next: NextOffset) -> Result<(), TransactionTrouble> {
        let shared = Arc::clone(&self.shared);
        let offsets = [(self.partition.clone(), next)];
        self.with(|producer| producer.send_offsets(&shared.settings.group, &offsets))
    }

    fn with(
        &mut self,
        work: impl FnOnce(&mut TransactionalProducer) -> Result<(), TransactionTrouble>,
    ) -> Result<(), TransactionTrouble> {
        work(self.producer.as_mut().ok_or_else(no_producer)?)
    }

    /// A row that the broker refuses although its sink took it: the record that it was made of is named.
    fn refused(&self, epoch: Epoch, row: u64, what: &str) -> Fault {
        let fault = Fault::new(ErrorClass::Data, format!("the destination refuses the record: {what}"));
        let Some((_, output)) = self.outputs.iter().find(|(of, _)| *of == epoch) else { return fault };
        let index = usize::try_from(row).unwrap_or(usize::MAX);
        let fault = match output.offsets.get(index) {
            Some(offset) => fault.at_record(self.partition.clone(), *offset),
            None => fault,
        };
        match output.rows.rows().nth(index) {
            Some(row) => {
                fault.at_step(output.rows.destinations()[usize::from(row.destination.0)].step.clone())
            }
            None => fault,
        }
    }

    /// The output of an epoch, and of all before it, will not be asked for again.
    fn forget(&mut self, epoch: Epoch) {
        while let Some((of, output)) = self.outputs.front()
            && *of <= epoch
        {
            self.shared.forgotten(output.bytes());
            self.outputs.pop_front();
        }
    }
}

fn no_producer() -> TransactionTrouble {
    TransactionTrouble::Unclear("there is no producer".to_owned())
}
