//! From fetched records to elements: one buffer for many records, and slices of it.
//!
//! Keys, values and header values of a run of records are copied into one buffer, which is then frozen; every
//! element holds slices of it. So a record costs no allocation, and the fetch response is free as soon as its
//! records were copied. A slice keeps its whole buffer alive: a step that stores a key for long copies it.

use super::raw::Message;
use crate::element::{Element, Header, Headers, Meta, PartitionId, Record};
use crate::record::is_diagnostic;
use bytes::Bytes;
use std::sync::Arc;
use tidegate_recovery::EventTime;

/// A buffer holds records up to this size (or one record). Small enough to stay in the cache and to come from
/// the allocator's free lists, large enough that its own cost disappears among its records.
const ARENA_BYTES: usize = 64 << 10;

/// Header names seen lately; they repeat, and sharing them saves an allocation each.
const NAMES_MAX: usize = 64;

/// Makes elements; keeps the header names that it has seen.
#[derive(Default)]
pub(super) struct Arena {
    names: Vec<Arc<str>>,
}

/// Headers of one record: its place in the run, and name and range of each.
type RunHeaders = Vec<(usize, Vec<(Arc<str>, Option<std::ops::Range<usize>>)>)>;

impl Arena {
    /// Appends the records as elements and returns their bytes. None of `messages` is an event.
    pub(super) fn append<'a>(
        &mut self,
        partition: PartitionId,
        messages: impl Iterator<Item = &'a Message> + Clone,
        elements: &mut Vec<Element<Record>>,
    ) -> usize {
        let mut bytes = 0;
        let mut rest = messages.peekable();
        while rest.peek().is_some() {
            let run = rest.clone();
            let (mut count, mut size) = (0, 0);
            while let Some(message) = rest.peek() {
                let one = size_of_record(message);
                if count > 0 && size + one > ARENA_BYTES {
                    break;
                }
                count += 1;
                size += one;
                rest.next();
            }
            bytes += self.run(partition, run.take(count), size, elements);
        }
        bytes
    }

    fn run<'a>(
        &mut self,
        partition: PartitionId,
        messages: impl Iterator<Item = &'a Message> + Clone,
        size: usize,
        elements: &mut Vec<Element<Record>>,
    ) -> usize {
        let mut buffer = Vec::with_capacity(size);
        for message in messages.clone() {
            buffer.extend_from_slice(message.key().unwrap_or_default());
            buffer.extend_from_slice(message.value().unwrap_or_default());
        }
        let mut all_headers = RunHeaders::new();
        for (index, message) in messages.clone().enumerate() {
            let mut headers = Vec::new();
            message.headers(|name, value| {
                // A dead letter that is read again begins anew.
                if is_diagnostic(name) {
                    return;
                }
                let range = value.map(|value| {
                    let start = buffer.len();
                    buffer.extend_from_slice(value);
                    start..buffer.len()
                });
                headers.push((self.name(name), range));
            });
            if !headers.is_empty() {
                all_headers.push((index, headers));
            }
        }
        let buffer = Bytes::from(buffer);
        let mut at = 0;
        let mut slice = |part: Option<&[u8]>| {
            part.map(|part| {
                let start = at;
                at += part.len();
                buffer.slice(start..at)
            })
        };
        let mut all_headers = all_headers.into_iter().peekable();
        for (index, message) in messages.enumerate() {
            let key = slice(message.key());
            let value = slice(message.value());
            let headers = match all_headers.next_if(|(of, _)| *of == index) {
                None => Headers::default(),
                Some((_, headers)) => Headers::new(
                    headers
                        .into_iter()
                        .map(|(name, range)| Header { name, value: range.map(|range| buffer.slice(range)) })
                        .collect(),
                ),
            };
            elements.push(Element {
                value: Record { key, value },
                meta: Meta {
                    partition,
                    offset: message.offset(),
                    timestamp: message.timestamp(),
                    event: EventTime::MIN,
                    watermark: EventTime::MIN,
                    headers,
                    original: None,
                },
            });
        }
        buffer.len()
    }

    fn name(&mut self, name: &[u8]) -> Arc<str> {
        if let Some(known) = self.names.iter().find(|known| known.as_bytes() == name) {
            return known.clone();
        }
        let name: Arc<str> = Arc::from(String::from_utf8_lossy(name));
        if self.names.len() == NAMES_MAX {
            self.names.clear();
        }
        self.names.push(name.clone());
        name
    }
}

/// Bytes of key and value.
pub(super) fn size_of_record(message: &Message) -> usize {
    message.key().map_or(0, <[u8]>::len) + message.value().map_or(0, <[u8]>::len)
}
