//! One partition of a reader: what was fetched of it, where it goes on, what stands in its queue in place of
//! records.

use super::super::arena::size_of_record;
use super::super::raw::{Code, Message, Queue};
use super::super::wake::Ready;
use super::{CHUNK_RECORDS_MAX, KafkaReader, REPEAT_LOG_EVERY, Tombstones};
use crate::element::PartitionId;
use crate::fault::Fault;
use crate::source::{PollBudget, SourceBatch};
use std::collections::VecDeque;
use std::ffi::CString;
use std::sync::Arc;
use std::time::Instant;
use tidegate_recovery::{ErrorClass, TopicPartition};

pub(super) struct PartitionInput {
    pub(super) id: PartitionId,
    pub(super) partition: TopicPartition,
    pub(super) topic: CString,
    /// Taken from the queue and not yet handed out.
    pub(super) fetched: VecDeque<Message>,
    pub(super) queue: Queue,
    pub(super) ready: Arc<Ready>,
    pub(super) held: bool,
    pub(super) position: i64,
    /// The last thing heard was the end of the partition.
    pub(super) at_end: bool,
    pub(super) readable_end: Option<i64>,
    pub(super) log_end: Option<i64>,
    pub(super) end_at_start: i64,
    /// Offsets that were not read because the broker does not have them any more, since the run began.
    pub(super) lost: u64,
    pub(super) complained: Option<(Instant, u64)>,
}

impl PartitionInput {
    pub(super) fn may_have_more(&self) -> bool {
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

impl KafkaReader {
    /// Takes what the partition's queue has and hands out as much as the budget allows; `first` says that
    /// nothing was handed out yet, so that one record may be larger. Returns how many records and bytes were.
    pub(super) fn visit(
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
            Code::AUTO_OFFSET_RESET | Code::OFFSET_OUT_OF_RANGE => {
                self.search(index, event, now);
                Ok(())
            }
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
                format!(
                    "records cannot be read ({code:?}: {}); nothing is skipped in silence",
                    event.error_text()
                ),
            )
            .at_record(input.partition.clone(), event.offset())),
        }
    }
}
