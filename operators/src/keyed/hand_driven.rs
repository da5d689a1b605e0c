//! A keyed step whose frontier, clock and store a test moves by hand.

use super::{
    Bury, Counts, Emit, Failure, Holds, KeyedLogic, KeyedPolicies, Machine, RecordError, StepRows,
    Surroundings, Untaken, Wake,
};
use crate::element::{Element, Headers, Keyed, Meta, PartitionId};
use crate::ending::Ending;
use crate::frontier::FrontierHands;
use crate::process::Sabotage;
use crate::record::hash_of_key;
use crate::time::Time;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tidegate_recovery::rows::RowChange;
use tidegate_recovery::{
    Epoch, EpochSchedule, EventTime, RestoredRow, RestoredRows, RowBuffer, RowRoute, StepId, StepNumber,
};

/// Every fourth epoch is a commit epoch.
pub(crate) const COMMIT_EVERY: u64 = 4;

pub(crate) struct HandDriven<L: KeyedLogic> {
    make: Box<dyn Fn() -> L>,
    policies: KeyedPolicies,
    /// Which worker of how many.
    pub(crate) place: (usize, usize),
    machine: Machine<L, Time>,
    emitted: Emitted<L::In, L::Out>,
    store: Option<Log>,
    offset: i64,
    counts: Counts,
    pub(crate) hands: FrontierHands,
    pub(crate) ending: Ending,
    pub(crate) now: Duration,
    pub(crate) wall_ms: i64,
    pub(crate) slice: usize,
    pub(crate) crowded: bool,
    pub(crate) released: BTreeSet<Epoch>,
    pub(crate) wake: Wake,
}

struct Emitted<I, O> {
    results: Vec<(Time, Element<O>)>,
    buried: Vec<Buried<I>>,
    rows: BTreeMap<Epoch, RowBuffer>,
}

/// A record that was given up: when it came, and why.
type Buried<I> = (Time, Element<Keyed<I>>, Untaken);

/// Rows by commit epoch, as they were emitted.
type Log = BTreeMap<Epoch, RowBuffer>;
type Live = BTreeMap<(RowRoute, Vec<u8>, Vec<u8>), Vec<u8>>;

impl<I, O> Emit<O, Time> for Emitted<I, O> {
    fn results_of(&mut self, capability: &Time, results: &mut Vec<Element<O>>) {
        self.results.extend(results.drain(..).map(|result| (*capability, result)));
    }

    fn results_at(&mut self, time: Time, results: &mut Vec<Element<O>>) {
        self.results.extend(results.drain(..).map(|result| (time, result)));
    }

    fn rows(&mut self, epoch: Epoch, rows: RowBuffer) {
        self.rows.insert(epoch, rows);
    }
}

impl<I: Clone, O> Bury<I, Time> for Emitted<I, O> {
    fn bury(&mut self, arrived: &Time, record: &Element<Keyed<I>>, why: Untaken) -> Result<(), RecordError> {
        self.buried.push((*arrived, record.clone(), why));
        Ok(())
    }
}

impl<T> Element<Keyed<T>> {
    /// The key, for an assertion.
    pub(crate) fn key_text(&self) -> String {
        self.value.key.as_ref().map_or("null".to_owned(), |key| String::from_utf8_lossy(key).into_owned())
    }
}

impl<L: KeyedLogic> HandDriven<L> {
    /// With a store, from epoch 1 on.
    pub(crate) fn new(make: impl Fn() -> L + 'static, policies: impl Into<KeyedPolicies>) -> HandDriven<L> {
        HandDriven::start(Box::new(make), policies.into(), Some(Log::new()))
    }

    /// Without a store.
    pub(crate) fn volatile(
        make: impl Fn() -> L + 'static,
        policies: impl Into<KeyedPolicies>,
    ) -> HandDriven<L> {
        HandDriven::start(Box::new(make), policies.into(), None)
    }

    fn start(make: Box<dyn Fn() -> L>, policies: KeyedPolicies, store: Option<Log>) -> HandDriven<L> {
        let place = (0, 1);
        let machine = machine(make(), policies.clone(), store.as_ref(), place, Epoch(1), Duration::ZERO);
        HandDriven {
            make,
            policies,
            place,
            machine,
            emitted: Emitted { results: Vec::new(), buried: Vec::new(), rows: BTreeMap::new() },
            store,
            offset: 0,
            counts: Counts::default(),
            hands: FrontierHands { epoch: Some(Epoch(1)), event: EventTime::MIN },
            ending: Ending::None,
            now: Duration::ZERO,
            wall_ms: i64::MAX,
            slice: 1_000_000,
            crowded: false,
            released: BTreeSet::new(),
            wake: Wake::Never,
        }
    }

    /// A record without event time.
    pub(crate) fn push(&mut self, epoch: u64, key: &str, value: L::In) {
        self.push_at(Time::new(Epoch(epoch), EventTime::MIN), key, value, EventTime::MIN, EventTime::MIN);
    }

    /// A record that comes stamped, at an event time, with its partition's watermark.
    pub(crate) fn push_at(
        &mut self,
        stamp: Time,
        key: &str,
        value: L::In,
        event: EventTime,
        watermark: EventTime,
    ) {
        let key = Some(Bytes::copy_from_slice(key.as_bytes()));
        let hash = hash_of_key(key.as_ref());
        let meta = Meta {
            partition: PartitionId(0),
            offset: self.offset,
            timestamp: (event != EventTime::MIN).then_some(event.0),
            event,
            watermark,
            headers: Headers::default(),
            original: None,
        };
        self.offset += 1;
        self.machine.push(stamp, || stamp, vec![Element { value: Keyed { key, hash, value }, meta }]);
    }

    /// Moves the epoch hand of the frontier, and runs.
    pub(crate) fn frontier(&mut self, epoch: u64) {
        self.try_frontier(epoch).expect("no record fails");
    }

    pub(crate) fn try_frontier(&mut self, epoch: u64) -> Result<(), Failure> {
        self.hands.epoch = Some(Epoch(epoch));
        self.try_run()
    }

    /// Moves both hands of the frontier, and runs.
    pub(crate) fn hands(&mut self, epoch: u64, event: i64) {
        self.hands.event = EventTime(event);
        self.frontier(epoch);
    }

    /// Nothing comes any more; runs.
    pub(crate) fn empty(&mut self) {
        self.hands = FrontierHands { epoch: None, event: EventTime::MAX };
        self.run();
    }

    pub(crate) fn run(&mut self) {
        self.try_run().expect("no record fails");
    }

    fn try_run(&mut self) -> Result<(), Failure> {
        let sabotage = Sabotage::default();
        let around = Surroundings {
            hands: self.hands,
            ending: self.ending,
            now: self.now,
            wall_ms: self.wall_ms,
            slice: self.slice,
            crowded: self.crowded,
            sabotage: &sabotage,
        };
        let wake = self.machine.run(&around, &mut self.emitted);
        let counts = self.machine.take_counts();
        self.counts.received += counts.received;
        self.counts.emitted += counts.emitted;
        self.counts.late += counts.late;
        self.counts.dropped += counts.dropped;
        if let Some(store) = &mut self.store {
            store.append(&mut self.emitted.rows);
        } else {
            assert!(self.emitted.rows.is_empty(), "rows without a store");
        }
        self.wake = wake?;
        Ok(())
    }

    pub(crate) fn take_results(&mut self) -> Vec<(Time, Element<L::Out>)> {
        std::mem::take(&mut self.emitted.results)
    }

    /// The records that were given up since the last call, and why.
    pub(crate) fn take_buried(&mut self) -> Vec<Buried<L::In>> {
        std::mem::take(&mut self.emitted.buried)
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    pub(crate) fn holds(&mut self) -> Holds {
        let released = &self.released;
        self.machine.holds(&|epoch| released.contains(&epoch))
    }

    pub(crate) fn logic(&self) -> &L {
        self.machine.logic()
    }

    pub(crate) fn acted_on(&self) -> EventTime {
        self.machine.acted_on()
    }

    pub(crate) fn held_records(&self) -> usize {
        self.machine.held_records()
    }

    pub(crate) fn cut_early(&mut self) {
        self.machine.cut_early();
    }

    /// Rows in the store, watermarks not counted.
    pub(crate) fn stored_rows(&self) -> usize {
        live(self.store.as_ref().expect("with a store"))
            .keys()
            .filter(|(_, _, sub)| sub[0] != super::rows::RowKind::Watermark as u8)
            .count()
    }

    /// The newest durable commit epoch is `epoch`: a new generation begins after it.
    pub(crate) fn restart_after(&mut self, epoch: u64) {
        self.restart_as(epoch, self.place);
    }

    /// The same as another worker.
    pub(crate) fn restart_as(&mut self, epoch: u64, place: (usize, usize)) {
        let first = Epoch(epoch + 1);
        self.place = place;
        if let Some(store) = &mut self.store {
            store.split_off(&first);
        }
        self.machine =
            machine((self.make)(), self.policies.clone(), self.store.as_ref(), place, first, self.now);
        self.emitted.results.clear();
        self.hands = FrontierHands { epoch: Some(first), event: EventTime::MIN };
        self.ending = Ending::None;
    }
}

fn machine<L: KeyedLogic>(
    logic: L,
    policies: KeyedPolicies,
    store: Option<&Log>,
    place: (usize, usize),
    first: Epoch,
    now: Duration,
) -> Machine<L, Time> {
    let mut restored = RestoredRows::default();
    for ((route, key, sub), value) in &store.map(live).unwrap_or_default() {
        let RowRoute::Bucket(bucket) = route else { panic!("a keyed step has no other rows") };
        if bucket.worker(place.1).0 as usize == place.0 {
            restored.rows.push(RestoredRow {
                route: *route,
                key: Bytes::from(key.clone()),
                sub: Bytes::from(sub.clone()),
                value: Bytes::from(value.clone()),
            });
        }
    }
    let version = logic.version();
    let rows = store.map_or_else(StepRows::volatile, |_| StepRows::new(StepNumber(0), version));
    let schedule = EpochSchedule { first, commit_every: COMMIT_EVERY };
    let step = StepId::new("step");
    Machine::new(&step, logic, policies, schedule, rows, place, &restored, now, &Sabotage::default())
        .expect("rows that were written")
}

fn live(log: &Log) -> Live {
    let mut live = Live::new();
    for row in log.values().flat_map(RowBuffer::iter) {
        let address = (row.route, row.key.to_vec(), row.sub.to_vec());
        match row.change {
            RowChange::Put(value) => {
                live.insert(address, value.to_vec());
            }
            RowChange::Delete => {
                live.remove(&address).expect("a row to delete");
            }
            RowChange::DeletePrefix => panic!("no keyed step deletes prefixes"),
        }
    }
    live
}
