//! The clients of one process: a reader for each worker thread, a writer for each sink of each worker thread.

use crate::config::kafka::{ConsumerSettings, OffsetReset, Tombstones as TombstoneSetting};
use crate::start::{StartPlan, out_of_range};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tidegate_operators::context::WorkerContext;
use tidegate_operators::fault::Fault;
use tidegate_operators::inputs::InputTable;
use tidegate_operators::kafka::{
    ConsumerConfig, KafkaProducer, KafkaReader, PartitionStart, ProducerConfig, ReaderOptions, Tombstones,
};
use tidegate_operators::sink::{OutboxWriter, SinkWriter, file, stdout};
use tidegate_operators::source::SourceReader;
use tidegate_recovery::{ProcessIndex, StepId, WorkerIndex};

/// Where a sink writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    /// A Kafka topic.
    Topic(String),
    /// A file; `{process}` in its path is the process index.
    File(String),
    /// The process's stdout.
    Stdout,
}

/// How the clients of a process are opened.
pub(crate) struct Connections {
    pub(crate) consumer: ConsumerSettings,
    pub(crate) consumer_config: ConsumerConfig,
    pub(crate) producer_config: ProducerConfig,
    pub(crate) process: ProcessIndex,
    pub(crate) processes: usize,
    pub(crate) inputs: InputTable,
    pub(crate) start: StartPlan,
    /// How long a commit of resolved start offsets may take; `None` where they were committed in transactions.
    pub(crate) commit_deadline: Option<Duration>,
}

impl Connections {
    /// The reader of one worker thread. Start offsets that a policy chose are made durable in the group before
    /// anything is read: `latest` must not move with every crash.
    fn reader(&self, worker: WorkerIndex) -> Result<KafkaReader, Fault> {
        let mut starts = Vec::new();
        let mut chosen = Vec::new();
        for id in self.inputs.owned_by(worker) {
            let plan = self
                .inputs
                .name(id)
                .and_then(|name| self.start.partitions.iter().find(|plan| plan.partition == *name))
                .expect("the table of inputs is made of the start plan");
            let unknown = plan.resumed.is_none() && plan.group.is_none();
            // Of a topic that was made again the group has an offset of the old one.
            let begun_anew = self.start.begun_anew.contains(&plan.partition.topic);
            if unknown && (begun_anew || self.consumer.auto_offset_reset == OffsetReset::Latest) {
                chosen.push((id, plan.start));
            }
            starts.push(PartitionStart {
                id,
                partition: plan.partition.clone(),
                start: plan.start,
                end_at_start: plan.end,
                lost: plan.lost,
            });
        }
        let options = ReaderOptions {
            config: self.consumer_config.clone(),
            worker,
            tombstones: match self.consumer.tombstones {
                TombstoneSetting::Skip => Tombstones::Skip,
                TombstoneSetting::Deliver => Tombstones::Deliver,
            },
            on_out_of_range: out_of_range(self.consumer.on_out_of_range),
        };
        let mut reader = KafkaReader::open(options, starts)?;
        reader.expect_topics(&self.start.known_topics());
        if let Some(deadline) = self.commit_deadline.filter(|_| !chosen.is_empty()) {
            reader.commit_and_wait(&chosen, deadline).map_err(|reason| {
                Fault::new(
                    tidegate_recovery::ErrorClass::Unavailable,
                    format!(
                        "the start offsets that auto_offset_reset chose could not be committed: {reason}"
                    ),
                )
            })?;
        }
        Ok(reader)
    }
}

/// The clients of one worker thread: its sinks share one producer, as far as their topics take batches of one size.
pub(crate) struct WorkerClients {
    shared: Arc<Connections>,
    worker: WorkerIndex,
    /// By the largest batch that their topics take.
    producers: RefCell<BTreeMap<Option<usize>, KafkaProducer>>,
}

impl WorkerClients {
    pub(crate) fn new(shared: Arc<Connections>, worker: WorkerIndex) -> WorkerClients {
        WorkerClients { shared, worker, producers: RefCell::default() }
    }

    /// The worker's reader.
    pub(crate) fn reader(&self) -> Result<KafkaReader, Fault> {
        self.shared.reader(self.worker)
    }

    /// The worker's producer for a topic, made when the first sink asks for it. A topic that takes less has another
    /// one: it must not make the others refuse what they take, such as the dead letter of a record that is too large.
    fn producer(&self, topic: &str) -> Result<KafkaProducer, Fault> {
        let record_bytes_max = self.shared.start.limits_of(topic).record_bytes_max;
        let mut producers = self.producers.borrow_mut();
        if let Some(producer) = producers.get(&record_bytes_max) {
            return Ok(producer.clone());
        }
        let config = ProducerConfig { record_bytes_max, ..self.shared.producer_config.clone() };
        let producer = KafkaProducer::new(&config, self.worker)?;
        producers.insert(record_bytes_max, producer.clone());
        Ok(producer)
    }

    /// A writer for the sink `step`.
    pub(crate) fn writer(
        &self,
        context: &WorkerContext,
        step: &StepId,
        destination: &Destination,
    ) -> Result<Box<dyn SinkWriter>, Fault> {
        Ok(match destination {
            Destination::Topic(topic) if context.process().publishes_output() => {
                let limits = self.shared.start.limits_of(topic);
                let desk = context.outbox().clone();
                Box::new(OutboxWriter::new(desk, context.schedule(), step, topic, limits))
            }
            Destination::Topic(topic) => Box::new(self.producer(topic)?.writer(topic)?),
            Destination::File(path) => {
                Box::new(file::writer(path, self.shared.process, self.shared.processes)?)
            }
            Destination::Stdout => Box::new(stdout::writer()?),
        })
    }
}
