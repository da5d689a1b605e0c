//! A reader beside a running flow that copies records with ids into one output partition: over and over it reads the
//! group's offsets, then reads the output to its end, and compares.
//!
//! The ids are dealt over the input's partitions in turn: of `n` partitions, id `i` is the record at offset `i / n` of
//! partition `i % n`. Then what can be read of an input partition must always be a prefix of it, in order, without a gap
//! and without a repeat (I2, I3, I5), and not shorter than the group's offset (I1, I4).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::Message as _;
use rdkafka::{Offset, TopicPartitionList};

use crate::kafka::{Kafka, REQUEST, committed};

/// What a watch has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Looks {
    /// How often it compared.
    pub all: u64,
    /// How often it found the group's offsets not where they were the time before.
    pub moves: u64,
}

/// Watches until it is finished or dropped.
pub struct OutputWatch {
    stop: Arc<AtomicBool>,
    moves: Arc<AtomicU64>,
    thread: Option<JoinHandle<Looks>>,
}

impl OutputWatch {
    /// Begins to watch; the output topic has one partition.
    pub fn start(kafka: &Kafka, group: &str, input: &str, output: &str) -> OutputWatch {
        let partitions = kafka.partitions(input);
        assert_eq!(kafka.partitions(output), 1, "partitions of {output}");
        let reader = kafka.reader("harness-output-watch", "read_committed");
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(output, 0, Offset::Beginning)
            .unwrap_or_else(|e| panic!("start of {output}: {e}"));
        reader.assign(&list).unwrap_or_else(|e| panic!("assign {output}: {e}"));
        let watching = Watching {
            group: kafka.reader(group, "read_committed"),
            reader,
            input: input.to_owned(),
            output: output.to_owned(),
            partitions,
            next: (0..partitions).map(|partition| (partition, 0)).collect(),
            position: 0,
        };
        let (stop, moves) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, moved) = (Arc::clone(&stop), Arc::clone(&moves));
        let thread = std::thread::Builder::new()
            .name("output-watch".into())
            .spawn(move || watching.watch(&stopped, &moved))
            .unwrap_or_else(|e| panic!("start the output watch: {e}"));
        OutputWatch { stop, moves, thread: Some(thread) }
    }

    /// How often it found the group's offsets not where they were the time before.
    pub fn moves(&self) -> u64 {
        self.moves.load(Ordering::Acquire)
    }

    /// Looks once more, and panics if anything was ever wrong.
    #[track_caller]
    pub fn finish(mut self) -> Looks {
        self.end().unwrap_or_else(|_| panic!("the reader beside the flow found something wrong, see above"))
    }

    fn end(&mut self) -> std::thread::Result<Looks> {
        self.stop.store(true, Ordering::Release);
        self.thread.take().map_or(Ok(Looks::default()), JoinHandle::join)
    }
}

impl Drop for OutputWatch {
    fn drop(&mut self) {
        let ended = self.end();
        assert!(
            ended.is_ok() || std::thread::panicking(),
            "the reader beside the flow found something wrong"
        );
    }
}

struct Watching {
    group: BaseConsumer,
    reader: BaseConsumer,
    input: String,
    output: String,
    partitions: i32,
    /// By input partition: the first offset whose record was not seen in the output.
    next: BTreeMap<i32, i64>,
    /// Up to where the output was read.
    position: i64,
}

impl Watching {
    fn watch(mut self, stopped: &AtomicBool, moved: &AtomicU64) -> Looks {
        let mut looks = Looks::default();
        let mut before = BTreeMap::new();
        loop {
            // Asked for before the look, so that the last one sees the end.
            let is_last = stopped.load(Ordering::Acquire);
            let offsets = committed(&self.group, &self.input, self.partitions)
                .unwrap_or_else(|e| panic!("the group's offsets of {}: {e}", self.input));
            self.read_to_the_end();
            for (partition, offset) in &offsets {
                let seen = self.next[partition];
                assert!(
                    *offset <= seen,
                    "I4 order of durability: the group is at offset {offset} of {}:{partition}, and what can be read ends below offset {seen}",
                    self.input
                );
            }
            looks.all += 1;
            if offsets != before {
                looks.moves = moved.fetch_add(1, Ordering::AcqRel) + 1;
                before = offsets;
            }
            if is_last {
                return looks;
            }
        }
    }

    /// Reads up to the end that a `read_committed` reader has at this moment.
    fn read_to_the_end(&mut self) {
        let (_, end) = self
            .reader
            .fetch_watermarks(&self.output, 0, REQUEST)
            .unwrap_or_else(|e| panic!("the end of {}: {e}", self.output));
        let reader = &self.reader;
        while self.position < end {
            match reader.poll(Duration::from_millis(100)) {
                Some(Ok(message)) => {
                    let place = place_of(message.payload().unwrap_or_default(), self.partitions);
                    let next = self.next.entry(place.0).or_default();
                    assert_eq!(
                        place.1,
                        *next,
                        "I2 I3 I5: offset {} of the output is the record at offset {} of {}:{}, expected offset {next}",
                        message.offset(),
                        place.1,
                        self.input,
                        place.0
                    );
                    *next += 1;
                    self.position = message.offset() + 1;
                }
                Some(Err(KafkaError::PartitionEOF(_))) | None => {}
                Some(Err(error)) => panic!("read {}: {error}", self.output),
            }
            // The position moves over control records and aborted transactions too.
            if let Ok(positions) = reader.position()
                && let Some(Offset::Offset(position)) =
                    positions.find_partition(&self.output, 0).map(|element| element.offset())
            {
                self.position = self.position.max(position);
            }
        }
    }
}

/// Input partition and offset of the record with the id in `value`.
fn place_of(value: &[u8], partitions: i32) -> (i32, i64) {
    let json: serde_json::Value = serde_json::from_slice(value)
        .unwrap_or_else(|e| panic!("not JSON ({e}): {}", String::from_utf8_lossy(value)));
    let id = json["id"].as_i64().unwrap_or_else(|| panic!("no id in {json}"));
    let partition = id % i64::from(partitions);
    (
        i32::try_from(partition).unwrap_or_else(|e| panic!("partition {partition}: {e}")),
        id / i64::from(partitions),
    )
}
