//! The flows that are simulated, what goes into them, and what must come out.

use crate::oracle::{Kind, Seen, Windows, windows};
use crate::world::{Plan, World};
use bytes::Bytes;
use rand::Rng;
use rand::rngs::SmallRng;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tidegate_operators::batch::ElementStream;
use tidegate_operators::build::FlowBuild;
use tidegate_operators::clock::Clock;
use tidegate_operators::collect_batch::{BatchLimits, collect_batch};
use tidegate_operators::element::{Element, Keyed, Record};
use tidegate_operators::event_time::{EventTimeSettings, event_time};
use tidegate_operators::memory::{MemoryBroker, MemoryOutput, MemoryReader, MemoryWriter};
use tidegate_operators::process::DeliveryGuarantee;
use tidegate_operators::record::{OnError, filter, key_by, map, try_flat_map};
use tidegate_operators::sink::sink;
use tidegate_operators::source::{SourceSettings, source};
use tidegate_operators::stateful_map::stateful_map;
use tidegate_operators::steps::{FlowSteps, StepSpec};
use tidegate_operators::window::{Session, Sliding, Tumbling, WindowSpec, Windowed, count, sum, window};
use tidegate_recovery::{EventTime, NextOffset, StepId, TopicPartition};

/// What is to be appended to a partition.
#[derive(Clone, Debug)]
pub(crate) struct Scripted {
    /// `None` takes an offset without a record.
    pub(crate) record: Option<Record>,
    pub(crate) event: i64,
    /// Records of a round arrive together, on all partitions.
    pub(crate) round: u32,
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
    /// A window: event time, key, window, sink.
    Windows(Kind),
    /// Two windows in a row: counts per key, then their sums per group of keys.
    Chain,
    /// A running count per key.
    Totals,
    /// Batches per key.
    Batches,
}

/// Lateness of the simulated windows.
const LATENESS_MS: i64 = 30;

fn spec_of(kind: Kind, lateness: i64) -> WindowSpec {
    let ms = |ms: i64| Duration::from_millis(ms as u64);
    let spec: WindowSpec = match kind {
        Kind::Tumbling { size } => Tumbling::of(ms(size)).into(),
        Kind::Sliding { size, every } => Sliding::of(ms(size), ms(every)).into(),
        Kind::Session { gap } => Session::gap(ms(gap)).into(),
    };
    spec.lateness(ms(lateness))
}

/// The windows of [`Flow::Chain`].
const FIRST: Kind = Kind::Tumbling { size: 100 };
const SECOND: Kind = Kind::Tumbling { size: 300 };

fn event_of(record: &Record) -> i64 {
    let text = record.value.as_ref().and_then(|value| std::str::from_utf8(value).ok());
    text.and_then(|text| text.split(':').nth(1)?.parse().ok()).expect("a scripted value has its event time")
}

fn group_of(key: &str) -> String {
    let number: u64 = key.trim_start_matches('k').parse().expect("scripted keys are numbered");
    format!("g{}", number % 3)
}

fn line(key: &str, start: i64, end: i64, count: i64, sum: i64) -> String {
    format!("{key}|{start}|{end}|{count}|{sum}")
}

fn lines(windows: Windows) -> BTreeMap<String, String> {
    let named = windows.into_iter().map(|((key, start, end), (count, sum))| {
        (format!("{key}|{start}|{end}"), line(&key, start, end, count, sum))
    });
    named.collect()
}

/// A window's result as a record.
fn to_record(keyed: Keyed<Windowed<(i64, i64)>>) -> Record {
    let key =
        keyed.key.as_ref().and_then(|key| std::str::from_utf8(key).ok()).expect("scripted keys are text");
    let Windowed { start, end, value: (count, sum) } = keyed.value;
    Record { value: Some(Bytes::from(line(key, start.0, end.0, count, sum))), key: keyed.key }
}

fn seen(world: &World) -> Vec<Vec<Seen>> {
    let of_partition = |name| {
        let records = world.broker.records(name).into_iter();
        let seen = records.map(|(_, record)| Seen {
            key: String::from_utf8(record.key.as_ref().expect("scripted keys").to_vec()).expect("text"),
            event: event_of(&record),
            id: id_of(&record),
        });
        seen.collect()
    };
    world.names.iter().map(of_partition).collect()
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
    pub(crate) fn steps(self) -> FlowSteps {
        let stateless = |name: &str| StepSpec::stateless(step(name), name);
        let stateful = |name: &str| StepSpec::stateful(step(name), name, 1);
        let mut steps = vec![stateless("source"), stateless("sink"), stateless("to-record")];
        steps.extend(match self {
            Flow::Records => vec![stateless("filter"), stateless("copies")],
            Flow::Windows(_) => vec![stateful("event-time"), stateless("key"), stateful("window")],
            Flow::Chain => vec![
                stateful("event-time"),
                stateless("key"),
                stateful("window"),
                stateless("group"),
                stateful("second"),
            ],
            Flow::Totals => vec![stateless("key"), stateful("total")],
            Flow::Batches => vec![stateless("key"), stateful("batch")],
        });
        FlowSteps::new(steps).expect("no name twice")
    }

    /// What goes in.
    pub(crate) fn script(
        self,
        random: &mut SmallRng,
        plan: &Plan,
        partitions: usize,
    ) -> Vec<VecDeque<Scripted>> {
        let mut script = vec![VecDeque::new(); partitions];
        let base = 1_000_000_000_000_i64 - 3_600_000;
        let mut times = vec![base; partitions];
        for id in 0..plan.records as u64 {
            let partition = random.random_range(0..partitions);
            let round = (id / 30) as u32;
            if random.random_ratio(1, 12) {
                script[partition].push_back(Scripted { record: None, event: 0, round });
            }
            let event = if plan.rounds {
                base + i64::from(round) * 10_000 + random.random_range(0..250)
            } else {
                // With skew, one partition is far ahead of the others.
                let stride = if plan.skewed && partition == 0 { 400 } else { 40 };
                times[partition] += random.random_range(0..stride);
                // Most records are at most as far out of order as the flow allows; some are late.
                let disorder = if random.random_ratio(1, 8) { 300 } else { 60 };
                times[partition] - random.random_range(0..disorder)
            };
            let key = Bytes::from(format!("k{}", random.random_range(0..9)));
            let value = Bytes::from(format!("{id}:{event}"));
            let record = Some(Record { key: Some(key), value: Some(value) });
            script[partition].push_back(Scripted { record, event, round });
        }
        script
    }

    pub(crate) fn build(self, build: &FlowBuild<'_>, plan: &Plan, ends: &Ends<'_>) {
        let context = build.context();
        let reader = MemoryReader::new(ends.broker, context.inputs(), context.worker(), ends.start, |_| true);
        let writer = MemoryWriter::new(ends.output, ends.clock.clone(), ends.sink_latency, ends.capacity);
        let records = source(build, &step("source"), reader, SourceSettings::default());
        let out = match self {
            Flow::Records => {
                let kept = filter(build, &step("filter"), records, |element| {
                    !id_of(&element.value).is_multiple_of(5)
                });
                try_flat_map(build, &step("copies"), kept, OnError::Fail, |element: Element<Record>| {
                    let key = element.value.key.clone();
                    let made = made_of(id_of(&element.value)).into_iter();
                    Ok::<_, String>(
                        made.map(move |text| Record { key: key.clone(), value: Some(Bytes::from(text)) }),
                    )
                })
            }
            Flow::Windows(kind) => {
                let windows = windowed(build, plan, records, kind);
                map(build, &step("to-record"), windows, to_record)
            }
            Flow::Chain => {
                let counts = windowed(build, plan, records, FIRST);
                let grouped = key_by(build, &step("group"), counts, |element| {
                    let key = element.value.key.as_ref().expect("scripted keys");
                    group_of(std::str::from_utf8(key).expect("text"))
                });
                let sums = count().and(sum(|counted: &Keyed<Windowed<(i64, i64)>>| counted.value.value.0));
                let second =
                    window(build, &step("second"), grouped, spec_of(SECOND, 0), sums).expect("a good window");
                map(build, &step("to-record"), second, to_record)
            }
            Flow::Totals => {
                let keyed = keyed_by_key(build, records);
                let totals = stateful_map(
                    build,
                    &step("total"),
                    keyed,
                    OnError::Fail,
                    |total: &mut Option<i64>, _: Record| {
                        let now = total.unwrap_or(0) + 1;
                        *total = Some(now);
                        Ok::<_, String>([now])
                    },
                );
                map(build, &step("to-record"), totals, |keyed| {
                    let text = format!("{}", keyed.value);
                    Record { key: keyed.key, value: Some(Bytes::from(text)) }
                })
            }
            Flow::Batches => {
                let keyed = keyed_by_key(build, records);
                let limits = BatchLimits { records_max: 4, timeout: Duration::from_millis(400) };
                let batches = collect_batch(build, &step("batch"), keyed, limits);
                map(build, &step("to-record"), batches, |keyed| {
                    let ids: Vec<String> =
                        keyed.value.iter().map(|record| id_of(record).to_string()).collect();
                    Record { key: keyed.key, value: Some(Bytes::from(ids.join(","))) }
                })
            }
        };
        sink(build, &step("sink"), out, OnError::Fail, writer);
    }

    /// At every moment: below what is committed, everything is written.
    pub(crate) fn check_commits(self, world: &World) -> Result<(), String> {
        if world.plan.delivery != DeliveryGuarantee::AtLeastOnce {
            return Ok(());
        }
        let written: Vec<String> =
            world.output.written().iter().map(|element| text_of(&element.value)).collect();
        type Lines = fn(u64) -> Vec<String>;
        let (written, of_record): (BTreeSet<String>, Lines) = match self {
            Flow::Records => (written.into_iter().collect(), made_of),
            Flow::Batches if !world.plan.store => {
                (written.iter().flat_map(|ids| ids.split(',').map(str::to_owned)).collect(), |id| {
                    vec![id.to_string()]
                })
            }
            // What is not written is in the snapshot.
            _ => return Ok(()),
        };
        for name in &world.names {
            let committed = world.broker.committed(name).map_or(0, |next| next.0);
            for (offset, record) in world.broker.records(name) {
                if offset >= committed {
                    break;
                }
                if let Some(missing) =
                    of_record(id_of(&record)).into_iter().find(|text| !written.contains(text))
                {
                    return Err(format!(
                        "{name} is committed up to {committed} and {missing} is not written"
                    ));
                }
            }
        }
        Ok(())
    }

    /// At the end.
    pub(crate) fn check_output(self, world: &World) -> Result<(), String> {
        let written: Vec<(String, String)> = world
            .output
            .written()
            .iter()
            .map(|element| {
                let key = element.value.key.as_ref().map(|key| String::from_utf8_lossy(key).into_owned());
                (key.unwrap_or_default(), text_of(&element.value))
            })
            .collect();
        match self {
            Flow::Records => check_records(world, &written),
            Flow::Windows(kind) => {
                let expected = lines(windows(&seen(world), kind, LATENESS_MS, world.plan.out_of_order_ms));
                check_windows(world, &written, &expected)
            }
            Flow::Chain => {
                let first = windows(&seen(world), FIRST, LATENESS_MS, world.plan.out_of_order_ms);
                let mut counts: Vec<Seen> = first
                    .into_iter()
                    .map(|((key, _, end), (count, _))| Seen {
                        key: group_of(&key),
                        event: end - 1,
                        id: count as u64,
                    })
                    .collect();
                counts.sort_by_key(|count| count.event);
                let expected = lines(windows(&[counts], SECOND, 0, i64::MAX / 4));
                check_windows(world, &written, &expected)
            }
            Flow::Totals => {
                let mut expected = BTreeMap::<String, i64>::new();
                for record in seen(world).into_iter().flatten() {
                    *expected.entry(record.key).or_default() += 1;
                }
                let mut found = BTreeMap::<String, BTreeSet<i64>>::new();
                for (key, total) in written {
                    found.entry(key).or_default().insert(total.parse().expect("totals are numbers"));
                }
                for (key, total) in expected {
                    let of_key = found.remove(&key).unwrap_or_default();
                    if !of_key.iter().copied().eq(1..=total) {
                        return Err(format!("the totals of {key} are {of_key:?}, expected 1 to {total}"));
                    }
                }
                Ok(())
            }
            Flow::Batches => {
                let mut found = BTreeMap::<u64, usize>::new();
                for id in written.iter().flat_map(|(_, ids)| ids.split(',')) {
                    *found.entry(id.parse().expect("ids are numbers")).or_default() += 1;
                }
                match (0..world.plan.records as u64).find(|id| !found.contains_key(id)) {
                    Some(missing) => Err(format!("record {missing} is in no batch")),
                    None => Ok(()),
                }
            }
        }
    }
}

fn keyed_by_key<'s>(
    build: &FlowBuild<'s>,
    records: ElementStream<'s, Record>,
) -> ElementStream<'s, Keyed<Record>> {
    key_by(build, &step("key"), records, |element| element.value.key.clone())
}

type WindowStream<'s> = ElementStream<'s, Keyed<Windowed<(i64, i64)>>>;

fn windowed<'s>(
    build: &FlowBuild<'s>,
    plan: &Plan,
    records: ElementStream<'s, Record>,
    kind: Kind,
) -> WindowStream<'s> {
    let settings =
        EventTimeSettings { idle: plan.idle, ..EventTimeSettings::out_of_order_ms(plan.out_of_order_ms) };
    let timed = event_time(build, &step("event-time"), records, settings, OnError::Fail, |element| {
        Ok::<_, String>(EventTime(event_of(&element.value)))
    });
    let keyed = keyed_by_key(build, timed);
    let aggregate = count().and(sum(|record: &Record| id_of(record)));
    window(build, &step("window"), keyed, spec_of(kind, LATENESS_MS), aggregate).expect("a good window")
}

fn check_records(world: &World, written: &[(String, String)]) -> Result<(), String> {
    let mut counted = BTreeMap::<&str, usize>::new();
    for (_, text) in written {
        *counted.entry(text).or_default() += 1;
    }
    let expected: BTreeSet<String> = (0..world.plan.records as u64).flat_map(made_of).collect();
    match world.plan.delivery {
        DeliveryGuarantee::AtMostOnce => {
            if let Some((text, times)) = counted.iter().find(|(_, times)| **times > 1) {
                return Err(format!("{text} was written {times} times under at_most_once"));
            }
        }
        _ => {
            if let Some(missing) = expected.iter().find(|text| !counted.contains_key(text.as_str())) {
                return Err(format!("{missing} was never written"));
            }
        }
    }
    match counted.keys().find(|text| !expected.contains(**text)) {
        Some(text) => Err(format!("{text} comes from nowhere")),
        None => Ok(()),
    }
}

/// Every expected window was written, whole, and last; where no run ended before the last one, nothing else was.
fn check_windows(
    world: &World,
    written: &[(String, String)],
    expected: &BTreeMap<String, String>,
) -> Result<(), String> {
    let name_of = |text: &str| text.splitn(4, '|').take(3).collect::<Vec<_>>().join("|");
    let mut last = BTreeMap::new();
    for (_, text) in written {
        let name = name_of(text);
        if !world.plan.ends && expected.get(&name) != Some(text) {
            return Err(format!("{text} was written, expected {:?}", expected.get(&name)));
        }
        last.insert(name, text);
    }
    for (name, text) in expected {
        if last.get(name) != Some(&text) {
            return Err(format!("{text} is expected, {:?} was the last", last.get(name)));
        }
    }
    Ok(())
}
