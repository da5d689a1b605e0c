//! A cluster without timely: sources that stamp, channels that delay, machines that see a frontier which is
//! right but may be old, commits, crashes, other numbers of workers.
//!
//! Results are kept with the epoch in which they came; a crash takes away those that were not durable, and the
//! sources go back to the durable offsets. So at the end every window must be there exactly once.

use super::case::{Case, Rec, Results, Value};
use bytes::Bytes;
use rand::{Rng, SeedableRng, rngs::SmallRng};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use tidegate_operators::element::{Element, Headers, Keyed, Meta, PartitionId};
use tidegate_operators::ending::Ending;
use tidegate_operators::frontier::FrontierHands;
use tidegate_operators::keyed::{
    Bury, Emit, LastEpoch, Machine, RecordError, StepRows, Surroundings, Untaken, Wake,
};
use tidegate_operators::process::Sabotage;
use tidegate_operators::record::OnError;
use tidegate_operators::time::Time;
use tidegate_operators::window::{
    Aggregator, LatePolicy, PartitionNames, WINDOW_STATE_VERSION, WindowKind, WindowLogic, WindowSettings,
    Windowed,
};
use tidegate_recovery::rows::RowChange;
use tidegate_recovery::{
    Epoch, EpochSchedule, EventTime, KeyHash, RestoredRow, RestoredRows, RowBuffer, RowRoute, StepId,
    StepNumber, TopicPartition,
};

type Out = Keyed<Windowed<Vec<Value>>>;
type Store = BTreeMap<(RowRoute, Vec<u8>, Vec<u8>), Vec<u8>>;

/// What a machine emitted.
#[derive(Default)]
struct Emitted {
    results: Vec<(Time, Element<Out>)>,
    rows: BTreeMap<Epoch, RowBuffer>,
}

impl Emit<Out, Time> for Emitted {
    fn results_of(&mut self, _: &Time, _: &mut Vec<Element<Out>>) {
        panic!("a window emits when it is closed");
    }

    fn results_at(&mut self, time: Time, results: &mut Vec<Element<Out>>) {
        self.results.extend(results.drain(..).map(|result| (time, result)));
    }

    fn rows(&mut self, epoch: Epoch, rows: RowBuffer) {
        assert!(self.rows.insert(epoch, rows).is_none(), "rows of {epoch} twice");
    }
}

impl Bury<Rec, Time> for Emitted {
    fn bury(&mut self, _: &Time, record: &Element<Keyed<Rec>>, why: Untaken) -> Result<(), RecordError> {
        panic!("nothing has dead letters here, and {why:?} buries {:?}", record.meta);
    }
}

struct Source {
    partitions: Vec<usize>,
    /// `None` when it has let go.
    hand: Option<Time>,
}

struct Worker<A: Aggregator<Rec, Out = Vec<Value>>> {
    machine: Machine<WindowLogic<Rec, A>, Time>,
    emitted: Emitted,
    /// The frontier that it has heard of.
    view: FrontierHands,
    woken: Wake,
}

pub(crate) struct Cluster<'a, A: Aggregator<Rec, Out = Vec<Value>>, F> {
    case: &'a Case,
    sabotage: Sabotage,
    aggregate: F,
    rng: SmallRng,
    crashes_left: usize,
    schedule: EpochSchedule,
    sources: Vec<Source>,
    workers: Vec<Worker<A>>,
    /// From source to worker.
    channels: Vec<Vec<VecDeque<(Time, Element<Keyed<Rec>>)>>>,
    position: Vec<usize>,
    /// Where each partition stood when an epoch was left.
    marks: BTreeMap<Epoch, Vec<usize>>,
    ending: Ending,
    /// Runs that are still to come: where they end, and whether that is an end or a stop.
    runs: VecDeque<(Vec<usize>, LastEpoch)>,
    // What survives a crash.
    durable: Epoch,
    durable_position: Vec<usize>,
    store: Store,
    /// Results, and whether an end has given them out: those may come again.
    durable_results: Results<(Vec<Value>, bool)>,
}

/// Why a run is wrong.
#[derive(Debug)]
pub(crate) struct Wrong(pub(crate) String);

const COMMIT_EVERY: u64 = 4;

impl<'a, A, F> Cluster<'a, A, F>
where
    A: Aggregator<Rec, Out = Vec<Value>>,
    F: Fn() -> A,
{
    pub(crate) fn new(case: &'a Case, sabotage: Sabotage, aggregate: F, seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let all: Vec<usize> = case.partitions.iter().map(Vec::len).collect();
        let mut runs = VecDeque::from([(all.clone(), LastEpoch::End)]);
        for _ in 0..rng.random_range(0..3) {
            let (first, _) = &runs[0];
            let upto = first.iter().map(|at| rng.random_range(0..=*at)).collect();
            runs.push_front((upto, if rng.random_bool(0.5) { LastEpoch::End } else { LastEpoch::Stop }));
        }
        let mut cluster = Cluster {
            case,
            sabotage,
            aggregate,
            rng,
            crashes_left: 3,
            schedule: EpochSchedule { first: Epoch(1), commit_every: COMMIT_EVERY },
            sources: Vec::new(),
            workers: Vec::new(),
            channels: Vec::new(),
            position: Vec::new(),
            marks: BTreeMap::new(),
            ending: Ending::None,
            runs,
            durable: Epoch(0),
            durable_position: vec![0; case.partitions.len()],
            store: Store::new(),
            durable_results: Results::new(),
        };
        cluster.start();
        cluster
    }

    /// Runs to the end of all partitions; every window's result.
    pub(crate) fn run(mut self) -> Result<Results<Vec<Value>>, Wrong> {
        let mut steps = 0;
        while !self.is_done() {
            steps += 1;
            if steps > 200_000 {
                return Err(Wrong("it does not come to its end".to_owned()));
            }
            match self.rng.random_range(0..100) {
                0..30 => self.read(),
                30..45 => self.move_source(),
                45..85 => self.step_worker()?,
                85..98 => self.commit()?,
                98 if self.crashes_left > 0 && self.rng.random_bool(0.3) => {
                    self.crashes_left -= 1;
                    self.start();
                }
                _ => self.agree_on_end(),
            }
            if self.runs.len() > 1 && self.ending.last().is_some_and(|last| self.durable >= last) {
                self.runs.pop_front();
                self.start();
            }
        }
        Ok(self.durable_results.into_iter().map(|(window, (result, _))| (window, result)).collect())
    }

    /// A result becomes durable; it replaces what an end has given out of the same window, or of the sessions
    /// that it has grown out of.
    fn keep(
        &mut self,
        window: (Option<Vec<u8>>, i64, i64),
        result: Vec<Value>,
        at_end: bool,
    ) -> Result<(), Wrong> {
        let session = matches!(self.case.spec.kind, WindowKind::Session { .. });
        self.durable_results.retain(|other, (_, at_end)| {
            let grown = session && other.0 == window.0 && other.1 <= window.2 && other.2 >= window.1;
            !(*at_end && (grown || *other == window))
        });
        match self.durable_results.insert(window.clone(), (result, at_end)) {
            None => Ok(()),
            Some(_) => Err(Wrong(format!("{window:?} came twice"))),
        }
    }

    fn is_done(&self) -> bool {
        self.runs.len() == 1 && self.ending.last().is_some_and(|last| self.durable >= last)
    }

    fn start(&mut self) {
        let (sources, workers) = (self.rng.random_range(1..4), self.rng.random_range(1..4));
        self.schedule.first = self.durable.next();
        let first = Time::new(self.schedule.first, EventTime::MIN);
        self.ending = Ending::None;
        self.marks.clear();
        self.position = self.durable_position.clone();
        self.sources = (0..sources)
            .map(|source| Source {
                partitions: (source..self.case.partitions.len()).step_by(sources).collect(),
                hand: Some(first),
            })
            .collect();
        self.channels = (0..sources).map(|_| (0..workers).map(|_| VecDeque::new()).collect()).collect();
        let names = || {
            PartitionNames::new(
                (0..self.case.partitions.len()).map(|number| TopicPartition::new("in", number as i32)),
            )
        };
        let settings =
            WindowSettings { windows: self.case.spec, late: LatePolicy::Drop, on_error: OnError::Fail };
        let mut restored: Vec<RestoredRows> = (0..workers).map(|_| RestoredRows::default()).collect();
        for ((route, key, sub), value) in &self.store {
            let RowRoute::Bucket(bucket) = route else { panic!("keyed steps have no other rows") };
            restored[bucket.worker(workers).0 as usize].rows.push(RestoredRow {
                route: *route,
                key: Bytes::from(key.clone()),
                sub: Bytes::from(sub.clone()),
                value: Bytes::from(value.clone()),
            });
        }
        self.workers = (0..workers)
            .map(|worker| {
                let logic = WindowLogic::new(&settings, (self.aggregate)(), names(), &self.sabotage);
                let machine = Machine::new(
                    &StepId::new("window"),
                    logic.expect("a valid window"),
                    OnError::Fail,
                    self.schedule,
                    StepRows::new(StepNumber(0), WINDOW_STATE_VERSION),
                    (worker, workers),
                    &restored[worker],
                    Duration::ZERO,
                    &self.sabotage,
                );
                Worker {
                    machine: machine.expect("rows that were written"),
                    emitted: Emitted::default(),
                    view: FrontierHands { epoch: Some(first.epoch), event: first.event },
                    woken: Wake::Never,
                }
            })
            .collect();
    }

    fn watermark(&self, partition: usize) -> i64 {
        self.case.watermarks(partition)[self.position[partition]]
    }

    fn read(&mut self) {
        let source = self.rng.random_range(0..self.sources.len());
        let Source { partitions, hand } = &self.sources[source];
        let Some(time) = *hand else { return };
        if partitions.is_empty() || self.ending.is_agreed() {
            return;
        }
        let partition = partitions[self.rng.random_range(0..partitions.len())];
        for _ in 0..self.rng.random_range(1..4) {
            let offset = self.position[partition];
            if offset == self.runs[0].0[partition] {
                return;
            }
            let rec = &self.case.partitions[partition][offset];
            let watermark = EventTime(self.watermark(partition));
            self.position[partition] += 1;
            let key = rec.key_bytes().map(Bytes::from);
            let hash = key.as_ref().map_or(KeyHash(0), |key| KeyHash::of(key));
            let element = Element {
                value: Keyed { key, hash, value: rec.clone() },
                meta: Meta {
                    partition: PartitionId(partition as u32),
                    offset: offset as i64,
                    timestamp: Some(rec.event),
                    event: EventTime(rec.event),
                    watermark,
                    headers: Headers::default(),
                    original: None,
                },
            };
            let workers = self.workers.len();
            let worker = hash.bucket().worker(workers).0 as usize;
            self.channels[source][worker].push_back((time, element));
        }
    }

    /// A source moves its hands, or lets go when it may.
    fn move_source(&mut self) {
        let source = self.rng.random_range(0..self.sources.len());
        let watermarks: Vec<i64> =
            self.sources[source].partitions.iter().map(|partition| self.watermark(*partition)).collect();
        let Some(mut hand) = self.sources[source].hand else { return };
        if let Some(last) = self.ending.last() {
            // Sources let go one by one.
            while hand.epoch <= last {
                self.mark(hand.epoch, source);
                hand.epoch = hand.epoch.next();
            }
            self.sources[source].hand = None;
            return;
        }
        // A source without partitions holds no watermark back.
        if let Some(lowest) = watermarks.iter().min()
            && self.rng.random_bool(0.7)
        {
            hand.event = hand.event.max(EventTime(*lowest));
        } else if watermarks.is_empty() {
            hand.event = EventTime::MAX;
        }
        let newest = self.sources.iter().filter_map(|source| source.hand).map(|hand| hand.epoch).min();
        let ahead = newest.expect("this one holds").0 + 6;
        for _ in 0..self.rng.random_range(0..4) {
            if hand.epoch.0 < ahead {
                self.mark(hand.epoch, source);
                hand.epoch = hand.epoch.next();
            }
        }
        self.sources[source].hand = Some(hand);
    }

    fn mark(&mut self, epoch: Epoch, source: usize) {
        let marks = self.marks.entry(epoch).or_insert_with(|| vec![0; self.position.len()]);
        for partition in &self.sources[source].partitions {
            marks[*partition] = self.position[*partition];
        }
    }

    /// What no source holds and no message carries any more.
    fn frontier(&self) -> FrontierHands {
        let held = self.sources.iter().filter_map(|source| source.hand);
        let sent = self.channels.iter().flatten().flatten().map(|(time, _)| *time);
        let times: Vec<Time> = held.chain(sent).collect();
        FrontierHands {
            epoch: times.iter().map(|time| time.epoch).min(),
            event: times.iter().map(|time| time.event).min().unwrap_or(EventTime::MAX),
        }
    }

    fn step_worker(&mut self) -> Result<(), Wrong> {
        let worker = self.rng.random_range(0..self.workers.len());
        for source in 0..self.sources.len() {
            let channel = &mut self.channels[source][worker];
            let take = self.rng.random_range(0..=channel.len());
            for (time, element) in channel.drain(..take) {
                self.workers[worker].machine.push(time, || time, vec![element]);
            }
        }
        if self.rng.random_bool(0.6) {
            self.workers[worker].view = self.frontier();
        }
        let around = Surroundings {
            hands: self.workers[worker].view,
            ending: self.ending,
            now: Duration::ZERO,
            wall_ms: i64::MAX,
            slice: if self.rng.random_bool(0.5) { 1000 } else { self.rng.random_range(1..4) },
            crowded: self.rng.random_bool(0.2),
            sabotage: &self.sabotage,
        };
        let worker = &mut self.workers[worker];
        let before = worker.machine.holds(&|_| true);
        let emitted = worker.emitted.results.len();
        let wake = worker.machine.run(&around, &mut worker.emitted);
        worker.woken = wake.map_err(|failure| Wrong(format!("{failure:?}")))?;
        // What the step held before it ran allows what it emitted.
        for (time, result) in &worker.emitted.results[emitted..] {
            let allowed =
                before.results.is_some_and(|held| held.epoch <= time.epoch && held.event <= time.event);
            let on_time = result.meta.event >= time.event && result.meta.watermark == time.event;
            if !allowed || !on_time {
                return Err(Wrong(format!("{result:?} at {time:?}, held {:?}", before.results)));
            }
        }
        let after = worker.machine.holds(&|_| true);
        let moves_on = match (before.results, after.results) {
            (Some(before), Some(after)) => before.epoch <= after.epoch && before.event <= after.event,
            (None, Some(_)) => false,
            _ => true,
        };
        if moves_on { Ok(()) } else { Err(Wrong(format!("{before:?} went back to {after:?}"))) }
    }

    fn commit(&mut self) -> Result<(), Wrong> {
        let epoch = self.schedule.commit_at_or_after(self.durable.next());
        let sources = self.sources.iter().all(|source| source.hand.is_none_or(|hand| hand.epoch > epoch));
        let steps = self.workers.iter_mut().all(|worker| {
            let holds = worker.machine.holds(&|_| true);
            holds.rows.is_none_or(|open| open > epoch) && holds.results.is_none_or(|held| held.epoch > epoch)
        });
        let known = self.channels.iter().flatten().flatten().all(|(time, _)| time.epoch > epoch);
        if !(sources && steps && known) || self.ending.last().is_some_and(|last| epoch > last) {
            return Ok(());
        }
        let mut durable = Vec::new();
        for worker in &mut self.workers {
            for (epoch_of_rows, rows) in std::mem::take(&mut worker.emitted.rows) {
                if epoch_of_rows != epoch {
                    worker.emitted.rows.insert(epoch_of_rows, rows);
                    continue;
                }
                for row in rows.iter() {
                    let address = (row.route, row.key.to_vec(), row.sub.to_vec());
                    match row.change {
                        RowChange::Put(value) => self.store.insert(address, value.to_vec()),
                        RowChange::Delete => match self.store.remove(&address) {
                            None => return Err(Wrong(format!("no row {address:?} to delete"))),
                            some => some,
                        },
                        RowChange::DeletePrefix => panic!("windows delete single rows"),
                    };
                }
            }
            let results = std::mem::take(&mut worker.emitted.results);
            for (time, result) in results {
                if time.epoch > epoch {
                    worker.emitted.results.push((time, result));
                    continue;
                }
                let Windowed { start, end, value } = result.value.value;
                let key = result.value.key.map(|key| key.to_vec());
                let at_end = self.ending == Ending::End { last: epoch } && time.epoch == epoch;
                durable.push(((key, start.0, end.0), value, at_end));
            }
        }
        for (window, result, at_end) in durable {
            self.keep(window, result, at_end)?;
        }
        if let Some(marks) = self.marks.get(&epoch) {
            self.durable_position = marks.clone();
        }
        self.durable = epoch;
        Ok(())
    }

    fn agree_on_end(&mut self) {
        let (upto, kind) = &self.runs[0];
        if self.position == *upto && !self.ending.is_agreed() {
            let newest = self.sources.iter().filter_map(|source| source.hand).map(|hand| hand.epoch).max();
            let newest = newest.expect("nobody lets go before the end is agreed");
            let last = self.schedule.commit_at_or_after(newest);
            self.ending = match kind {
                LastEpoch::End => Ending::End { last },
                LastEpoch::Stop => Ending::Stop { last },
            };
        }
    }
}
