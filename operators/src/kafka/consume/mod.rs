//! [`KafkaReader`]: the partitions that one worker reads.
//!
//! One client per worker. Each partition has a queue of its own, split from the client's, because then holding
//! a partition back is simply not to look at its queue: the fetcher stops when the queue is full, nothing that
//! was fetched is lost, and the other partitions go on. Pausing would throw away what was fetched, and goes on
//! from the client's own idea of the position, which is wrong by one after an end-of-partition event in a
//! batch (`rd_kafka_q_serve_rkmessages` counts the event like a record). So that idea is never used:
//!
//! **Position.** After a record it is the record's offset + 1. Everything that is not a record (control records,
//! aborted transactions, compaction gaps) is stepped over when the next record or the end-of-partition event
//! comes; that event carries the offset at which the next record will be.
//!
//! **Errors.** An offset that the broker does not have is a matter of its own (`out_of_range`). A connection, leader or coordinator
//! that is away is logged and waited for. A topic that is away is asked for (`topics`). Whatever else is
//! reported in place of a record (a batch that fails its checksum, a codec that is unknown) would be a record
//! that was skipped, so it ends the run.

mod answers;
mod commit;
mod out_of_range;
mod partition;

use super::arena::Arena;
use super::config::{ConsumerConfig, IsolationLevel};
use super::raw::{Client, Kind, Message, PartitionList, Queue, Reply};
use super::reaper;
use super::topics::{KnownTopic, TopicWatch};
use super::wake::{Ready, Wake};
use crate::element::PartitionId;
use crate::fault::Fault;
use crate::source::{CommitOutcome, PollBudget, SourceBatch, SourceReader};
use commit::CommitState;
use out_of_range::Search;
pub(crate) use out_of_range::beyond_the_end;
use partition::PartitionInput;
use std::collections::VecDeque;
use std::ffi::CString;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_recovery::{ErrorClass, NextOffset, TopicPartition, WorkerIndex};
use timely::scheduling::SyncActivator;

/// What to do when the broker does not have the offset at which a partition goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OutOfRange {
    /// End the run with `OFFSET_OUT_OF_RANGE`.
    #[default]
    Fail,
    /// Go on at the oldest record that is there, with the number of lost offsets in log, metric and status. This is about
    /// records that were deleted: a log that ends before the offset always ends the run.
    Earliest,
    /// Go on with the next record that is written, likewise.
    Latest,
}

/// What to do with records whose value is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tombstones {
    /// Step over them.
    #[default]
    Skip,
    /// Hand them out.
    Deliver,
}

/// A partition and where it is read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionStart {
    /// Its place in the run's list.
    pub id: PartitionId,
    /// The partition.
    pub partition: TopicPartition,
    /// The first offset to read; a number, never one of Kafka's sentinels.
    pub start: NextOffset,
    /// The log end when the run began.
    pub end_at_start: NextOffset,
    /// Offsets before `start` that were known and not read, because the broker did not have them any more.
    pub lost: u64,
}

/// How a worker reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReaderOptions {
    /// The client.
    pub config: ConsumerConfig,
    /// Which worker this is, for the client's name.
    pub worker: WorkerIndex,
    /// What to do with tombstones.
    pub tombstones: Tombstones,
    /// What to do when an offset is not there.
    pub on_out_of_range: OutOfRange,
}

/// Records that one look at one partition takes at most, so that partitions take turns.
const CHUNK_RECORDS_MAX: usize = 1024;
/// A look takes this many where the budget allows, however many partitions share it: a look has a cost of its own.
const SHARE_RECORDS_MIN: usize = 64;
/// While a partition is behind, its readable end is asked for this often (at its end the fetches say it).
const ENDS_EVERY: Duration = Duration::from_secs(1);
/// The high watermark that the last fetch brought is looked up this often.
const CACHED_ENDS_EVERY: Duration = Duration::from_millis(250);
/// A question for offsets that got no answer is given up, and asked again.
const ENDS_TIMEOUT: Duration = Duration::from_secs(10);
/// A line about the same trouble of a partition appears this often.
const REPEAT_LOG_EVERY: Duration = Duration::from_secs(10);

/// Reads the partitions of one worker.
pub struct KafkaReader {
    ids: Vec<PartitionId>,
    /// Their records and queues go before the client; see `Drop`.
    inputs: Vec<PartitionInput>,
    connected: Option<Connected>,
    options: ReaderOptions,
    wake: Arc<Wake>,
    arena: Arena,
    scratch: Vec<Message>,
    /// Which partition is looked at first.
    turn: usize,
    commit: CommitState,
    ends_asked: Option<(usize, Instant)>,
    ends_due: Instant,
    cached_ends_due: Instant,
    searches: Vec<Search>,
    known_topics: Vec<KnownTopic>,
    next_tag: usize,
}

struct Connected {
    main: Queue,
    main_ready: Arc<Ready>,
    replies: Queue,
    replies_ready: Arc<Ready>,
    topics: TopicWatch,
    client: Arc<Client>,
}

impl KafkaReader {
    /// Makes the client and begins to fetch. Does not wait for a broker. Without partitions no client is made.
    pub fn open(options: ReaderOptions, mut partitions: Vec<PartitionStart>) -> Result<KafkaReader, Fault> {
        partitions.sort_by_key(|partition| partition.id);
        let wake = Arc::new(Wake::default());
        let now = Instant::now();
        let mut reader = KafkaReader {
            ids: partitions.iter().map(|partition| partition.id).collect(),
            inputs: Vec::with_capacity(partitions.len()),
            connected: None,
            options,
            wake,
            arena: Arena::default(),
            scratch: Vec::new(),
            turn: 0,
            commit: CommitState::default(),
            ends_asked: None,
            ends_due: now,
            cached_ends_due: now,
            searches: Vec::new(),
            known_topics: Vec::new(),
            next_tag: 0,
        };
        if !partitions.is_empty() {
            reader.connect(partitions)?;
        }
        Ok(reader)
    }

    fn connect(&mut self, partitions: Vec<PartitionStart>) -> Result<(), Fault> {
        let config = |text: String| Fault::new(ErrorClass::Config, format!("the kafka consumer: {text}"));
        let suffix = format!("-w{}", self.options.worker);
        let properties = self.options.config.properties(&suffix, partitions.len());
        let client = Client::new(Kind::Consumer, &properties, 0).map_err(config)?;
        for start in partitions {
            if start.start.0 < 0 {
                return Err(Fault::new(
                    ErrorClass::Internal,
                    format!(
                        "partition {} was to start at {}, which is no offset",
                        start.partition, start.start
                    ),
                ));
            }
            let mut queue = Queue::of_partition(&client, &start.partition)
                .map_err(|code| config(format!("partition {}: {code}", start.partition)))?;
            let ready = Ready::new(&self.wake);
            queue.signal_with(ready.clone());
            let topic = CString::new(&*start.partition.topic)
                .map_err(|_| config(format!("topic `{}` has a zero byte", start.partition.topic)))?;
            self.inputs.push(PartitionInput {
                id: start.id,
                partition: start.partition,
                topic,
                fetched: VecDeque::new(),
                queue,
                ready,
                held: false,
                position: start.start.0,
                at_end: false,
                readable_end: None,
                log_end: None,
                end_at_start: start.end_at_start.0,
                lost: start.lost,
                complained: None,
            });
        }
        let (mut main, mut replies) = (Queue::of_consumer(&client), Queue::new(&client));
        let (main_ready, replies_ready) = (Ready::new(&self.wake), Ready::new(&self.wake));
        main.signal_with(main_ready.clone());
        replies.signal_with(replies_ready.clone());
        let list = PartitionList::new(self.inputs.iter().map(|input| (&input.partition, input.position)));
        client
            .assign(&list)
            .map_err(|code| config(format!("the partitions could not be assigned: {code}")))?;
        // The worker with a topic's first partition looks after the topic for the whole cluster.
        let topics = TopicWatch::new(
            self.inputs
                .iter()
                .filter(|input| input.partition.partition == 0)
                .map(|input| input.partition.topic.clone()),
        );
        self.connected = Some(Connected { main, main_ready, replies, replies_ready, topics, client });
        Ok(())
    }

    /// What the start knew of the input topics: a reader watches some of them, and says what has changed since.
    pub fn expect_topics(&mut self, known: &[KnownTopic]) {
        if let Some(connected) = &mut self.connected {
            connected.topics.expect(known);
        }
        self.known_topics = known.to_vec();
    }

    fn index(&self, partition: PartitionId) -> usize {
        self.ids.binary_search(&partition).expect("a reader is asked only for its own partitions")
    }

    fn tag(&mut self) -> usize {
        self.next_tag += 1;
        self.next_tag
    }
}

impl SourceReader for KafkaReader {
    fn partitions(&self) -> &[PartitionId] {
        &self.ids
    }

    fn wake_with(&mut self, activator: SyncActivator) {
        self.wake.add(activator);
    }

    fn poll(&mut self, budget: PollBudget, batches: &mut Vec<SourceBatch>) -> Result<(), Fault> {
        self.wake.rearm();
        let now = Instant::now();
        self.serve(now)?;
        let mut left = budget;
        let (mut idle, mut any) = (0, false);
        let count = self.inputs.len();
        let waiting = self.inputs.iter().filter(|input| input.may_have_more()).count();
        // Partitions take turns, each with a share of what is left, until all are empty or nothing is left.
        while count > 0 && idle < count && left.records > 0 && (left.bytes > 0 || !any) {
            let index = self.turn % count;
            self.turn = (self.turn + 1) % count;
            let input = &self.inputs[index];
            if !input.may_have_more() {
                idle += 1;
                continue;
            }
            let fair = (budget.records / waiting.max(1)).max(SHARE_RECORDS_MIN);
            let share = PollBudget { records: left.records.min(fair), bytes: left.bytes };
            let before = input.position;
            let (records, bytes) = self.visit(index, share, !any, batches, now)?;
            left.records -= records;
            left.bytes = left.bytes.saturating_sub(bytes);
            any |= records > 0;
            let moved = records > 0 || self.inputs[index].position != before;
            idle = if moved { 0 } else { idle + 1 };
        }
        Ok(())
    }

    fn position(&self, partition: PartitionId) -> NextOffset {
        NextOffset(self.inputs[self.index(partition)].position)
    }

    fn readable_end(&self, partition: PartitionId) -> Option<NextOffset> {
        let input = &self.inputs[self.index(partition)];
        let heard = match self.options.config.isolation {
            IsolationLevel::ReadCommitted => input.readable_end,
            IsolationLevel::ReadUncommitted => input.log_end.or(input.readable_end),
        };
        heard.map(|end| NextOffset(end.max(input.position)))
    }

    fn log_end(&self, partition: PartitionId) -> Option<NextOffset> {
        let input = &self.inputs[self.index(partition)];
        input.log_end.or(input.readable_end).map(|end| NextOffset(end.max(input.position)))
    }

    fn end_at_start(&self, partition: PartitionId) -> NextOffset {
        NextOffset(self.inputs[self.index(partition)].end_at_start)
    }

    fn lost(&self, partition: PartitionId) -> u64 {
        self.inputs[self.index(partition)].lost
    }

    fn partitions_added(&self) -> u64 {
        self.connected.as_ref().map_or(0, |connected| connected.topics.added())
    }

    fn hold(&mut self, partition: PartitionId, held: bool) {
        let index = self.index(partition);
        self.inputs[index].held = held;
    }

    fn commit(&mut self, offsets: &[(PartitionId, NextOffset)]) {
        let tag = self.tag();
        let refused = |error: String| CommitOutcome { offsets: offsets.to_vec(), error: Some(error) };
        if self.commit.on_its_way.is_some() {
            self.commit.outcomes.push(refused("another commit is on its way".to_owned()));
            return;
        }
        let list = PartitionList::new(
            offsets.iter().map(|(id, next)| (&self.inputs[self.index(*id)].partition, next.0)),
        );
        let Some(connected) = &self.connected else { return };
        match connected.replies.commit(&list, tag) {
            Ok(()) => self.commit.on_its_way = Some((tag, offsets.to_vec())),
            Err(code) => self.commit.outcomes.push(refused(code.to_string())),
        }
    }

    fn commit_outcomes(&mut self) -> Vec<CommitOutcome> {
        std::mem::take(&mut self.commit.outcomes)
    }

    fn commit_and_wait(
        &mut self,
        offsets: &[(PartitionId, NextOffset)],
        deadline: Duration,
    ) -> Result<(), String> {
        let end = Instant::now() + deadline;
        let mut sent = None;
        loop {
            if sent.is_none() && self.commit.on_its_way.is_none() {
                let before = self.commit.outcomes.len();
                self.commit(offsets);
                match &self.commit.on_its_way {
                    Some((tag, _)) => sent = Some(*tag),
                    // Refused at once, or nothing to do without partitions.
                    None => {
                        return self
                            .commit
                            .outcomes
                            .drain(before..)
                            .find_map(|o| o.error)
                            .map_or(Ok(()), Err);
                    }
                }
            }
            let left = end.saturating_duration_since(Instant::now());
            let Some(connected) = &mut self.connected else { return Ok(()) };
            let Some(reply) = (if left.is_zero() { None } else { connected.replies.reply(left) }) else {
                if left.is_zero() {
                    return Err(format!(
                        "no answer within {} ms: the offsets may or may not have been committed",
                        deadline.as_millis()
                    ));
                }
                continue;
            };
            let mine = matches!(&reply, Reply::Commit { tag, .. } if Some(*tag) == sent);
            self.on_reply(reply, Instant::now()).map_err(|fault| fault.to_string())?;
            if mine {
                let outcome = self.commit.outcomes.pop().expect("the answer made an outcome");
                return outcome.error.map_or(Ok(()), Err);
            }
        }
    }
}

impl Drop for KafkaReader {
    fn drop(&mut self) {
        // Records and queues live inside the client and go first, here; they only give memory back.
        self.inputs.clear();
        self.scratch.clear();
        if let Some(connected) = self.connected.take() {
            let Connected { main, replies, client, .. } = connected;
            drop((main, replies));
            reaper::close(format!("consumer of worker {}", self.options.worker), move || drop(client));
        }
    }
}
