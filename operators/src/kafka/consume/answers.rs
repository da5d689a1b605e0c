//! What comes to a reader beside records: answers to its questions and commits, and errors of no partition.

use super::super::raw::{Code, OffsetSpec, PartitionOffset, Reply};
use super::{CACHED_ENDS_EVERY, ENDS_EVERY, ENDS_TIMEOUT, IsolationLevel, KafkaReader, PartitionInput};
use crate::fault::Fault;
use std::time::{Duration, Instant};
use tidegate_recovery::ErrorClass;

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
        if !self.searches.is_empty() {
            self.ask_for_logs(now);
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
                    self.on_log_offset(tag, result, now)?;
                }
            }
            // Asked only before a start.
            Reply::Members { .. } => {}
            Reply::Topics { tag, result } => {
                if self.on_log_topic(tag, &result, now)? {
                    return Ok(());
                }
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
        // Only of what was fetched from: then the client knows its leader (see `Queue::ask_offsets`).
        let asked = |input: &&PartitionInput| !input.at_end && input.log_end.is_some();
        let behind = || self.inputs.iter().filter(asked).map(|input| &input.partition);
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
