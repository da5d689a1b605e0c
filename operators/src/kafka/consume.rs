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
//! **Errors.** An offset that the broker does not have follows the policy. A connection, leader or coordinator
//! that is away is logged and waited for. A topic that is away is asked for, see [`super::topics`]. Whatever else is
//! reported in place of a record (a batch that fails its checksum, a codec that is unknown) would be a record
//! that was skipped, so it ends the run.

use super::arena::{Arena, size_of_record};
use super::config::{ConsumerConfig, IsolationLevel};
use super::raw::{Client, Code, Kind, Message, OffsetSpec, PartitionList, PartitionOffset, Queue, Reply};
use super::reaper;
use super::topics::TopicWatch;
use super::wake::{Ready, Wake};
use crate::element::PartitionId;
use crate::fault::Fault;
use crate::source::{CommitOutcome, PollBudget, SourceBatch, SourceReader};
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
    /// Go on at the oldest record that is there, with a line in the log.
    Earliest,
    /// Go on with the next record that is written, with a line in the log.
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
    resets: Vec<Reset>,
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

struct PartitionInput {
    id: PartitionId,
    partition: TopicPartition,
    topic: CString,
    /// Taken from the queue and not yet handed out.
    fetched: VecDeque<Message>,
    queue: Queue,
    ready: Arc<Ready>,
    held: bool,
    position: i64,
    /// The last thing heard was the end of the partition.
    at_end: bool,
    readable_end: Option<i64>,
    log_end: Option<i64>,
    end_at_start: i64,
    complained: Option<(Instant, u64)>,
}

#[derive(Default)]
struct CommitState {
    on_its_way: Option<(usize, Vec<(PartitionId, NextOffset)>)>,
    outcomes: Vec<CommitOutcome>,
}

/// A partition that waits for the offset at which it goes on after its own was not there.
struct Reset {
    input: usize,
    tag: Option<usize>,
    due: Instant,
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
            resets: Vec::new(),
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
                    format!("partition {} was to start at {}, which is no offset", start.partition, start.start),
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
                complained: None,
            });
        }
        let (mut main, mut replies) = (Queue::of_consumer(&client), Queue::new(&client));
        let (main_ready, replies_ready) = (Ready::new(&self.wake), Ready::new(&self.wake));
        main.signal_with(main_ready.clone());
        replies.signal_with(replies_ready.clone());
        let list = PartitionList::new(self.inputs.iter().map(|input| (&input.partition, input.position)));
        client.assign(&list).map_err(|code| config(format!("the partitions could not be assigned: {code}")))?;
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

    /// The topics whose growth or loss this reader watches are known to have this many partitions; more are
    /// announced once as `PARTITIONS_ADDED`.
    pub fn expect_partitions(&mut self, counts: &[(Arc<str>, usize)]) {
        if let Some(connected) = &mut self.connected {
            connected.topics.expect(counts);
        }
    }

    fn index(&self, partition: PartitionId) -> usize {
        self.ids.binary_search(&partition).expect("a reader is asked only for its own partitions")
    }

    fn tag(&mut self) -> usize {
        self.next_tag += 1;
        self.next_tag
    }

    /// Serves what concerns no single partition.
    fn serve(&mut self, now: Instant) -> Result<(), Fault> {
        let Some(connected) = &mut self.connected else { return Ok(()) };
        if connected.main_ready.take() {
            let mut messages = Vec::new();
            while connected.main.consume(64, &mut messages) > 0 {
                for message in messages.drain(..) {
                    if let Some(code) = message.error() {
                        general_error(code, &message.error_text())?;
                    }
                }
            }
        }
        if connected.replies_ready.take() {
            while let Some(reply) = self.connected.as_mut().and_then(|c| c.replies.reply(Duration::ZERO)) {
                self.on_reply(reply, now)?;
            }
        }
        if now >= self.cached_ends_due {
            self.cached_ends_due = now + CACHED_ENDS_EVERY;
            self.look_up_ends();
        }
        if now >= self.ends_due {
            self.ends_due = now + ENDS_EVERY;
            self.ask_for_ends(now);
        }
        if !self.resets.is_empty() {
            self.ask_for_resets(now);
        }
        let tag = self.next_tag + 1;
        if let Some(connected) = &mut self.connected
            && connected.topics.ask(&connected.replies, tag, now)
        {
            self.next_tag = tag;
        }
        Ok(())
    }

    fn on_reply(&mut self, reply: Reply, now: Instant) -> Result<(), Fault> {
        match reply {
            Reply::Commit { tag, error, offsets } => self.commit.answered(tag, error, &offsets),
            Reply::Offsets { tag, result } => {
                if self.ends_asked.is_some_and(|(asked, _)| asked == tag) {
                    self.ends_asked = None;
                    match result {
                        Ok(offsets) => self.learn_ends(&offsets),
                        Err(error) => tracing::debug!(error, "the ends of the partitions were not answered"),
                    }
                } else {
                    self.on_reset_offsets(tag, result, now)?;
                }
            }
            Reply::Topics { tag, result } => {
                if let Some(connected) = &mut self.connected {
                    connected.topics.answered(tag, result, now)?;
                }
            }
        }
        Ok(())
    }

    fn look_up_ends(&mut self) {
        let Some(connected) = &self.connected else { return };
        for input in &mut self.inputs {
            let bounds = connected.client.cached_bounds(&input.topic, input.partition.partition);
            if let Some((_, high)) = bounds
                && high >= 0
            {
                input.log_end = Some(high);
            }
        }
    }

    /// Under `read_committed` the fetches of the client bring the last stable offset too, but the library shows
    /// only the high watermark. At the end of a partition its event says it; before, it has to be asked for.
    fn ask_for_ends(&mut self, now: Instant) {
        if self.options.config.isolation == IsolationLevel::ReadUncommitted {
            return;
        }
        if self.ends_asked.is_some_and(|(_, at)| now.duration_since(at) < ENDS_TIMEOUT) {
            return;
        }
        let tag = self.tag();
        let Some(connected) = &self.connected else { return };
        let behind = || self.inputs.iter().filter(|input| !input.at_end).map(|input| &input.partition);
        if behind().next().is_none() {
            return;
        }
        let isolation = self.options.config.isolation.into();
        match connected.replies.ask_offsets(behind(), OffsetSpec::Latest, isolation, ENDS_TIMEOUT, tag) {
            Ok(()) => self.ends_asked = Some((tag, now)),
            Err(error) => tracing::debug!(error, "the ends of the partitions could not be asked for"),
        }
    }

    fn learn_ends(&mut self, offsets: &[PartitionOffset]) {
        for one in offsets.iter().filter(|one| one.error.is_ok() && one.offset >= 0) {
            if let Some(input) = self.inputs.iter_mut().find(|input| input.partition == one.partition)
                && !input.at_end
            {
                input.readable_end = Some(one.offset);
            }
        }
    }

    /// Takes what the partition's queue has and hands out as much as the budget allows; `first` says that
    /// nothing was handed out yet, so that one record may be larger. Returns how many records and bytes were.
    fn visit(
        &mut self,
        index: usize,
        budget: PollBudget,
        first: bool,
        batches: &mut Vec<SourceBatch>,
        now: Instant,
    ) -> Result<(usize, usize), Fault> {
        let input = &mut self.inputs[index];
        let limit = budget.records.min(CHUNK_RECORDS_MAX);
        if input.fetched.is_empty() && input.ready.take() {
            if input.queue.consume(limit, &mut self.scratch) == limit {
                input.ready.keep();
            }
            input.fetched.extend(self.scratch.drain(..));
        }
        let mut batch = SourceBatch { partition: input.id, elements: Vec::new(), bytes: 0 };
        let mut result = Ok(());
        while let Some(next) = self.inputs[index].fetched.front() {
            if let Some(code) = next.error() {
                let event = self.inputs[index].fetched.pop_front().expect("it was there");
                result = self.on_event(index, code, &event, now);
                if result.is_err() {
                    break;
                }
                continue;
            }
            let input = &mut self.inputs[index];
            let skip = self.options.tombstones == Tombstones::Skip;
            // After a change of leader a fetch may begin again below what was handed out.
            let wanted = move |message: &&Message, position: i64| {
                message.offset() >= position && !(skip && message.value().is_none())
            };
            let (mut taken, mut records, mut bytes) = (0, 0, batch.bytes);
            let room = limit - batch.elements.len();
            let mut last = input.position - 1;
            for message in input.fetched.iter().take_while(|message| message.error().is_none()) {
                let is_wanted = wanted(&message, input.position);
                if is_wanted {
                    let size = size_of_record(message);
                    let may_be_larger = first && batch.elements.is_empty() && records == 0;
                    if records == room || (!may_be_larger && bytes + size > budget.bytes) {
                        break;
                    }
                    records += 1;
                    bytes += size;
                }
                taken += 1;
                last = last.max(message.offset());
            }
            if taken == 0 {
                break;
            }
            if records > 0 {
                batch.elements.reserve(records);
                let run = input.fetched.iter().take(taken);
                let position = input.position;
                let run = run.filter(move |message| wanted(message, position));
                batch.bytes += self.arena.append(input.id, run, &mut batch.elements);
            }
            input.position = last + 1;
            input.at_end = false;
            drop(input.fetched.drain(..taken));
        }
        let handed_out = (batch.elements.len(), batch.bytes);
        if !batch.elements.is_empty() {
            batches.push(batch);
        }
        result.map(|()| handed_out)
    }

    /// Something that is no record stands in the partition's queue.
    fn on_event(&mut self, index: usize, code: Code, event: &Message, now: Instant) -> Result<(), Fault> {
        let input = &mut self.inputs[index];
        match code {
            Code::PARTITION_EOF => {
                input.position = input.position.max(event.offset());
                input.readable_end = Some(event.offset());
                input.at_end = true;
                Ok(())
            }
            Code::AUTO_OFFSET_RESET | Code::OFFSET_OUT_OF_RANGE => self.on_out_of_range(index, event, now),
            code if code.is_missing() => {
                input.complain(now, code, &event.error_text());
                if let Some(connected) = &mut self.connected {
                    connected.topics.suspect(now);
                }
                Ok(())
            }
            code if code.is_denied() => Err(Fault::new(
                ErrorClass::Config,
                format!(
                    "topic `{}` may not be read by this client (operation Read): {code}; grant it, or use other credentials",
                    input.partition.topic
                ),
            )),
            code if code.is_transient() => {
                input.complain(now, code, &event.error_text());
                Ok(())
            }
            Code::MSG_SIZE_TOO_LARGE => Err(Fault::new(
                ErrorClass::Data,
                "a record is larger than this client may fetch; raise `extra.receive.message.max.bytes`",
            )
            .at_record(input.partition.clone(), event.offset())),
            code => Err(Fault::new(
                ErrorClass::Data,
                format!("records cannot be read ({code:?}: {}); nothing is skipped in silence", event.error_text()),
            )
            .at_record(input.partition.clone(), event.offset())),
        }
    }

    fn on_out_of_range(&mut self, index: usize, event: &Message, now: Instant) -> Result<(), Fault> {
        let input = &mut self.inputs[index];
        match self.options.on_out_of_range {
            OutOfRange::Fail => Err(Fault::new(
                ErrorClass::Data,
                format!(
                    "partition {} goes on at offset {}, which the broker does not have ({}): records were deleted before they were read, or the topic was made again; set `on_out_of_range: earliest | latest` to go on without them",
                    input.partition,
                    input.position,
                    event.error_text()
                ),
            )
            .code("OFFSET_OUT_OF_RANGE")),
            OutOfRange::Earliest | OutOfRange::Latest => {
                if !self.resets.iter().any(|reset| reset.input == index) {
                    self.resets.push(Reset { input: index, tag: None, due: now });
                }
                Ok(())
            }
        }
    }

    fn ask_for_resets(&mut self, now: Instant) {
        let spec = match self.options.on_out_of_range {
            OutOfRange::Latest => OffsetSpec::Latest,
            OutOfRange::Earliest | OutOfRange::Fail => OffsetSpec::Earliest,
        };
        let Some(connected) = &self.connected else { return };
        let isolation = self.options.config.isolation.into();
        for reset in self.resets.iter_mut().filter(|reset| now >= reset.due) {
            self.next_tag += 1;
            let partition = [&self.inputs[reset.input].partition];
            reset.due = now + ENDS_TIMEOUT;
            match connected.replies.ask_offsets(partition, spec, isolation, ENDS_TIMEOUT, self.next_tag) {
                Ok(()) => reset.tag = Some(self.next_tag),
                Err(error) => tracing::warn!(error, "the offset to go on at could not be asked for"),
            }
        }
    }

    fn on_reset_offsets(
        &mut self,
        tag: usize,
        result: Result<Vec<PartitionOffset>, String>,
        now: Instant,
    ) -> Result<(), Fault> {
        let Some(place) = self.resets.iter().position(|reset| reset.tag == Some(tag)) else { return Ok(()) };
        let answer = result.and_then(|offsets| match offsets.first() {
            Some(one) if one.error.is_ok() && one.offset >= 0 => Ok(one.offset),
            Some(one) => Err(format!("{:?}", one.error)),
            None => Err("the answer was empty".to_owned()),
        });
        let target = match answer {
            Ok(target) => target,
            Err(error) => {
                tracing::warn!(error, "the offset to go on at was not answered");
                self.resets[place].due = now + ENDS_EVERY;
                return Ok(());
            }
        };
        let reset = self.resets.swap_remove(place);
        let input = &mut self.inputs[reset.input];
        tracing::warn!(
            topic = &*input.partition.topic,
            partition = input.partition.partition,
            position = input.position,
            target,
            lost_offsets = (target - input.position).max(0),
            "OFFSET_OUT_OF_RANGE: the broker does not have the offset; going on at another one as `on_out_of_range` says"
        );
        input.position = target;
        input.at_end = false;
        if let Some(connected) = &self.connected {
            // After such an error the partition is stopped in the client, and a stopped one cannot seek.
            let list = PartitionList::new([(&input.partition, target)]);
            connected.client.reassign(&list).map_err(|error| {
                Fault::new(ErrorClass::Internal, format!("partition {} cannot go on: {error}", input.partition))
            })?;
            input.ready.keep();
        }
        Ok(())
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
                    None => return self.commit.outcomes.drain(before..).find_map(|o| o.error).map_or(Ok(()), Err),
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

impl CommitState {
    fn answered(&mut self, tag: usize, error: Code, offsets: &[PartitionOffset]) {
        // An answer to a commit that nobody waits for any more says nothing new: its offsets stay dirty.
        let Some((_, committed)) = self.on_its_way.take_if(|(of, _)| *of == tag) else { return };
        let mut errors: Vec<String> = offsets
            .iter()
            .filter(|one| !one.error.is_ok())
            .map(|one| format!("{}@{}: {}", one.partition, one.offset, one.error))
            .collect();
        if errors.is_empty() && !error.is_ok() {
            errors.push(error.to_string());
        }
        let error = (!errors.is_empty()).then(|| errors.join(", "));
        self.outcomes.push(CommitOutcome { offsets: committed, error });
    }
}

impl PartitionInput {
    fn may_have_more(&self) -> bool {
        !self.held && (!self.fetched.is_empty() || self.ready.is_set())
    }

    /// Logs trouble that may pass, at most every [`REPEAT_LOG_EVERY`].
    fn complain(&mut self, now: Instant, code: Code, text: &str) {
        if let Some((last, left_out)) = &mut self.complained
            && now.duration_since(*last) < REPEAT_LOG_EVERY
        {
            *left_out += 1;
            return;
        }
        let left_out = self.complained.map_or(0, |(_, left_out)| left_out);
        self.complained = Some((now, 0));
        tracing::warn!(
            topic = &*self.partition.topic,
            partition = self.partition.partition,
            error = ?code,
            left_out,
            "reading is held up: {text}"
        );
    }
}

/// An error that names no partition.
fn general_error(code: Code, text: &str) -> Result<(), Fault> {
    match code {
        Code::FATAL => Err(Fault::new(ErrorClass::Internal, format!("the kafka consumer gave up: {text}"))),
        Code::GROUP_AUTHORIZATION_FAILED => Err(Fault::new(
            ErrorClass::Config,
            format!("the group may not be used by this client (operation Read on the group): {text}"),
        )),
        code => {
            tracing::warn!(error = ?code, "kafka consumer: {text}");
            Ok(())
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
