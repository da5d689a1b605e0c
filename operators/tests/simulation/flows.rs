//! The flows that are simulated, what goes into them, and what must come out.

use crate::world::{Plan, World};
use bytes::Bytes;
use rand::Rng;
use rand::rngs::SmallRng;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tidegate_operators::build::FlowBuild;
use tidegate_operators::clock::Clock;
use tidegate_operators::element::{Element, Record};
use tidegate_operators::memory::{MemoryBroker, MemoryOutput, MemoryReader, MemoryWriter};
use tidegate_operators::process::DeliveryGuarantee;
use tidegate_operators::record::{OnError, filter, try_flat_map};
use tidegate_operators::sink::sink;
use tidegate_operators::source::{SourceSettings, source};
use tidegate_operators::steps::{StepSpec, StepTable};
use tidegate_recovery::{NextOffset, StepId, TopicPartition};

/// What is to be appended to a partition.
#[derive(Clone, Debug)]
pub(crate) struct Scripted {
    /// `None` takes an offset without a record.
    pub(crate) record: Option<Record>,
    pub(crate) event: i64,
}

/// Where a flow reads and writes.
pub(crate) struct Ends<'a> {
    pub(crate) broker: &'a MemoryBroker,
    pub(crate) output: &'a MemoryOutput,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) start: &'a BTreeMap<TopicPartition, NextOffset>,
    pub(crate) sink_latency: Duration,
    pub(crate) capacity: usize,
}

/// The flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// Source, filter, flat map, sink.
    Records,
}

fn step(name: &str) -> StepId {
    StepId::new(name)
}

/// The record's number in the whole run.
fn id_of(record: &Record) -> u64 {
    let text = record.value.as_ref().and_then(|value| std::str::from_utf8(value).ok());
    text.and_then(|text| text.split(':').next()?.parse().ok())
        .expect("a scripted value begins with its number")
}

/// What the record-wise flow makes of a record.
fn made_of(id: u64) -> Vec<String> {
    if id.is_multiple_of(5) { Vec::new() } else { (0..id % 4).map(|copy| format!("{id}/{copy}")).collect() }
}

fn text_of(record: &Record) -> String {
    String::from_utf8(record.value.as_ref().expect("outputs have values").to_vec()).expect("outputs are text")
}

impl Flow {
    pub(crate) fn steps(self) -> StepTable {
        let names: &[(&str, &str)] = match self {
            Flow::Records => {
                &[("source", "source"), ("filter", "filter"), ("copies", "flat_map"), ("sink", "sink")]
            }
        };
        StepTable::new(names.iter().map(|(name, kind)| StepSpec::stateless(step(name), kind)))
            .expect("no name twice")
    }

    /// What goes in.
    pub(crate) fn script(
        self,
        random: &mut SmallRng,
        plan: &Plan,
        partitions: usize,
    ) -> Vec<VecDeque<Scripted>> {
        let mut script = vec![VecDeque::new(); partitions];
        let mut times = vec![1_000_000_000_000_i64 - 3_600_000; partitions];
        for id in 0..plan.records as u64 {
            let partition = random.random_range(0..partitions);
            if random.random_ratio(1, 12) {
                script[partition].push_back(Scripted { record: None, event: 0 });
            }
            times[partition] += random.random_range(0..40);
            let event = times[partition] - random.random_range(0..60);
            let key = Bytes::from(format!("k{}", random.random_range(0..9)));
            let value = Bytes::from(format!("{id}:{event}"));
            script[partition]
                .push_back(Scripted { record: Some(Record { key: Some(key), value: Some(value) }), event });
        }
        script
    }

    pub(crate) fn build(self, build: &FlowBuild<'_>, _plan: &Plan, ends: &Ends<'_>) {
        let context = build.context();
        let reader = MemoryReader::new(ends.broker, context.inputs(), context.worker(), ends.start, |_| true);
        let writer = MemoryWriter::new(ends.output, ends.clock.clone(), ends.sink_latency, ends.capacity);
        match self {
            Flow::Records => {
                let records = source(build, &step("source"), reader, SourceSettings::default());
                let kept = filter(build, &step("filter"), records, |element| {
                    !id_of(&element.value).is_multiple_of(5)
                });
                let copies =
                    try_flat_map(build, &step("copies"), kept, OnError::Fail, |element: Element<Record>| {
                        let key = element.value.key.clone();
                        let made = made_of(id_of(&element.value)).into_iter();
                        Ok::<_, String>(
                            made.map(move |text| Record { key: key.clone(), value: Some(Bytes::from(text)) }),
                        )
                    });
                sink(build, &step("sink"), copies, OnError::Fail, writer);
            }
        }
    }

    /// At every moment: below what is committed, everything is written.
    pub(crate) fn check_commits(self, world: &World) -> Result<(), String> {
        if world.plan.delivery != DeliveryGuarantee::AtLeastOnce {
            return Ok(());
        }
        match self {
            Flow::Records => {
                let written: BTreeSet<String> =
                    world.output.written().iter().map(|element| text_of(&element.value)).collect();
                for name in &world.names {
                    let committed = world.broker.committed(name).map_or(0, |next| next.0);
                    for (offset, record) in world.broker.records(name) {
                        if offset >= committed {
                            break;
                        }
                        if let Some(missing) =
                            made_of(id_of(&record)).into_iter().find(|text| !written.contains(text))
                        {
                            return Err(format!(
                                "{name} is committed up to {committed} and {missing} is not written"
                            ));
                        }
                    }
                }
                Ok(())
            }
        }
    }

    /// At the end.
    pub(crate) fn check_output(self, world: &World) -> Result<(), String> {
        match self {
            Flow::Records => {
                let mut counted = BTreeMap::<String, usize>::new();
                for element in world.output.written() {
                    *counted.entry(text_of(&element.value)).or_default() += 1;
                }
                let expected: BTreeSet<String> = (0..world.plan.records as u64).flat_map(made_of).collect();
                match world.plan.delivery {
                    DeliveryGuarantee::AtMostOnce => {
                        if let Some((text, times)) = counted.iter().find(|(_, times)| **times > 1) {
                            return Err(format!("{text} was written {times} times under at_most_once"));
                        }
                    }
                    _ => {
                        if let Some(missing) = expected.iter().find(|text| !counted.contains_key(*text)) {
                            return Err(format!("{missing} was never written"));
                        }
                    }
                }
                match counted.keys().find(|text| !expected.contains(*text)) {
                    Some(text) => Err(format!("{text} comes from nowhere")),
                    None => Ok(()),
                }
            }
        }
    }
}
