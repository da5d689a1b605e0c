//! What comes to a reader beside records: answers to its questions and commits, and errors of no partition.

use super::super::raw::{Code, OffsetSpec, PartitionList, PartitionOffset, Reply};
use super::{CACHED_ENDS_EVERY, ENDS_EVERY, ENDS_TIMEOUT, IsolationLevel, KafkaReader, OutOfRange};
use crate::fault::Fault;
use std::time::{Duration, Instant};
use tidegate_recovery::ErrorClass;

/// A partition that waits for the offset at which it goes on after its own was not there.
pub(super) struct Reset {
    pub(super) input: usize,
    pub(super) tag: Option<usize>,
    pub(super) due: Instant,
}

impl KafkaReader {
    /// Serves what concerns no single partition.
    pub(super) fn serve(&mut self, now: Instant) -> Result<(), Fault> {
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

    pub(super) fn on_reply(&mut self, reply: Reply, now: Instant) -> Result<(), Fault> {
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
            // Asked only before a start.
            Reply::Members { .. } => {}
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
                Fault::new(
                    ErrorClass::Internal,
                    format!("partition {} cannot go on: {error}", input.partition),
                )
            })?;
            input.ready.keep();
        }
        Ok(())
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
