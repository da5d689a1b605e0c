//! One way to run a case: who reads when, when the step acts, when it is restored and on how many workers.

use super::case::{Case, Rec, Results};
use bytes::Bytes;
use rand::{Rng, SeedableRng, rngs::SmallRng};
use std::collections::BTreeMap;
use tidegate_operators::element::PartitionId;
use tidegate_operators::keyed::{Applied, Closing, KeyedRow, StepRows, read_row};
use tidegate_operators::window::{
    Aggregator, Fired, Order, PartitionNames, WindowKind, WindowRecord, WindowState,
};
use tidegate_recovery::rows::RowChange;
use tidegate_recovery::{BUCKETS, EventTime, KeyHash, RestoredRow, RowRoute, StepNumber, TopicPartition};

/// What may happen besides reading.
#[derive(Clone, Copy)]
pub(crate) struct Script {
    pub(crate) restores: bool,
    /// Ends of bounded runs in between.
    pub(crate) ends: bool,
}

impl Script {
    pub(crate) const ALL: Script = Script { restores: true, ends: false };
}

struct Machine<A: Aggregator<Rec>> {
    windows: WindowState<Rec, A>,
    rows: StepRows,
    acted: i64,
}

pub(crate) struct Schedule<'a, A: Aggregator<Rec>, F> {
    case: &'a Case,
    script: Script,
    aggregate: F,
    rng: SmallRng,
    machines: Vec<Machine<A>>,
    /// What each bucket has acted on.
    buckets: Vec<i64>,
    store: BTreeMap<(RowRoute, Vec<u8>, Vec<u8>), Vec<u8>>,
    next: Vec<usize>,
    closed: Results<A::Out>,
    open: Results<A::Out>,
    late: usize,
}

const VERSION: u8 = 1;

/// Hash of a key; of the null key, any fixed one.
fn hash_of(key: Option<&[u8]>) -> KeyHash {
    key.map_or(KeyHash(77), KeyHash::of)
}

fn names(case: &Case) -> PartitionNames {
    PartitionNames::new((0..case.partitions.len()).map(|number| TopicPartition::new("in", number as i32)))
}

impl<'a, A, F> Schedule<'a, A, F>
where
    A: Aggregator<Rec>,
    A::Out: Clone + PartialEq + std::fmt::Debug,
    F: Fn() -> A,
{
    pub(crate) fn new(case: &'a Case, script: Script, aggregate: F, seed: u64) -> Schedule<'a, A, F> {
        let mut rng = SmallRng::seed_from_u64(seed);
        let workers = rng.random_range(1..4);
        let mut schedule = Schedule {
            case,
            script,
            aggregate,
            rng,
            machines: Vec::new(),
            buckets: vec![i64::MIN; usize::from(BUCKETS)],
            store: BTreeMap::new(),
            next: vec![0; case.partitions.len()],
            closed: Results::new(),
            open: Results::new(),
            late: 0,
        };
        schedule.start(workers);
        schedule
    }

    pub(crate) fn run_to_end(&mut self) {
        loop {
            let readable: Vec<usize> =
                (0..self.next.len()).filter(|p| self.next[*p] < self.case.partitions[*p].len()).collect();
            if readable.is_empty() {
                break;
            }
            match self.rng.random_range(0..20) {
                0..12 => {
                    let partition = readable[self.rng.random_range(0..readable.len())];
                    self.read(partition);
                }
                12..17 => self.act(),
                17 => self.snapshot(),
                18 if self.script.restores => {
                    self.snapshot();
                    let workers = self.rng.random_range(1..5);
                    self.start(workers);
                }
                19 if self.script.ends => self.end(),
                _ => (),
            }
        }
        while self.rng.random_bool(0.5) {
            self.act();
        }
        self.end();
    }

    /// Every window's last result, and how many records were late.
    pub(crate) fn results(self) -> (Results<A::Out>, usize) {
        let mut results = self.open;
        for (window, result) in self.closed {
            results.insert(window, result);
        }
        (results, self.late)
    }

    fn start(&mut self, workers: usize) {
        self.machines.clear();
        for worker in 0..workers {
            let windows = WindowState::new(self.case.spec, (self.aggregate)(), names(self.case));
            let lowest = self.buckets.iter().skip(worker).step_by(workers).min();
            self.machines.push(Machine {
                windows: windows.expect("a valid window"),
                rows: StepRows::new(StepNumber(0), VERSION),
                acted: *lowest.expect("more buckets than workers"),
            });
        }
        for ((route, key, sub), value) in &self.store {
            let row = RestoredRow {
                route: *route,
                key: Bytes::from(key.clone()),
                sub: Bytes::from(sub.clone()),
                value: Bytes::from(value.clone()),
            };
            let KeyedRow::Key(row) = read_row(&row, VERSION).expect("a row that was written") else {
                panic!("nobody wrote a watermark");
            };
            let machine = &mut self.machines[row.bucket.worker(workers).0 as usize];
            machine.windows.restore(&row, hash_of(row.key.as_deref())).expect("a row that was written");
        }
    }

    fn read(&mut self, partition: usize) {
        let offset = self.next[partition];
        self.next[partition] += 1;
        let rec = &self.case.partitions[partition][offset];
        let key = rec.key_bytes();
        let hash = hash_of(key.as_deref());
        let own = self.case.watermarks(partition)[offset];
        let bucket = &self.buckets[usize::from(hash.bucket().0)];
        let workers = self.machines.len();
        let machine = &mut self.machines[hash.bucket().worker(workers).0 as usize];
        let record = WindowRecord {
            key: key.as_deref(),
            hash,
            order: Order {
                event: EventTime(rec.event),
                partition: PartitionId(partition as u32),
                offset: offset as i64,
            },
            watermark: EventTime(own.max(*bucket).max(machine.acted)),
            value: rec,
        };
        if machine.windows.apply(record, &mut machine.rows) == Ok(Applied::Late) {
            self.late += 1;
        }
    }

    /// A worker acts on a watermark that all partitions have passed, and hands out some of what it closes.
    fn act(&mut self) {
        let passed = (0..self.next.len()).map(|p| self.case.watermarks(p)[self.next[p]]).min();
        let passed = passed.expect("a case has partitions");
        let worker = self.rng.random_range(0..self.machines.len());
        let machine = &mut self.machines[worker];
        if passed == i64::MIN {
            return;
        }
        // Sometimes not the newest watermark.
        let behind = if self.rng.random_bool(0.5) { 0 } else { self.rng.random_range(0..20) };
        machine.acted = machine.acted.max(passed - behind);
        let workers = self.machines.len();
        let machine = &mut self.machines[worker];
        for bucket in self.buckets.iter_mut().skip(worker).step_by(workers) {
            *bucket = (*bucket).max(machine.acted);
        }
        let mut fired = Vec::new();
        let slices = if self.rng.random_bool(0.7) { usize::MAX } else { self.rng.random_range(0..3) };
        for _ in 0..slices {
            let slice = self.rng.random_range(1..5);
            let closing =
                machine.windows.close(EventTime(machine.acted), slice, &mut machine.rows, &mut fired);
            if closing == Closing::Done {
                break;
            }
        }
        for fired in fired {
            let (window, result) = keyed(fired);
            Self::supersede(self.case, &mut self.open, &window);
            let before = self.closed.insert(window.clone(), result);
            assert_eq!(before, None, "window {window:?} was closed twice");
        }
    }

    fn end(&mut self) {
        for machine in &mut self.machines {
            let mut fired = Vec::new();
            loop {
                let slice = self.rng.random_range(1..5);
                if machine.windows.fire_open(slice, &mut fired) == Closing::Done {
                    break;
                }
            }
            assert_eq!(fired.len(), machine.windows.open_windows());
            let fired: Vec<_> = fired.into_iter().map(keyed).collect();
            for (window, result) in fired {
                assert!(!self.closed.contains_key(&window), "{window:?} was closed before");
                Self::supersede(self.case, &mut self.open, &window);
                self.open.insert(window, result);
            }
        }
    }

    /// A window that is given out replaces what an end has given out of it; a session replaces every session
    /// that it has grown out of.
    fn supersede(case: &Case, open: &mut Results<A::Out>, window: &(Option<Vec<u8>>, i64, i64)) {
        let session = matches!(case.spec.kind, WindowKind::Session { .. });
        open.retain(|other, _| {
            let grown = session && other.0 == window.0 && other.1 <= window.2 && other.2 >= window.1;
            other != window && !grown
        });
    }

    fn snapshot(&mut self) {
        for machine in &mut self.machines {
            machine.windows.snapshot(&mut machine.rows);
            for row in machine.rows.take().iter() {
                let address = (row.route, row.key.to_vec(), row.sub.to_vec());
                match row.change {
                    RowChange::Put(value) => self.store.insert(address, value.to_vec()),
                    RowChange::Delete => Some(self.store.remove(&address).expect("a row to delete")),
                    RowChange::DeletePrefix => panic!("windows delete single rows"),
                };
            }
        }
        let open: usize = self.machines.iter().map(|machine| machine.windows.open_windows()).sum();
        assert_eq!(self.store.len(), open, "the store has a row per open window");
    }
}

fn keyed<O>(fired: Fired<O>) -> ((Option<Vec<u8>>, i64, i64), O) {
    let key = fired.key.map(|key| key.to_vec());
    ((key, fired.windowed.start.0, fired.windowed.end.0), fired.windowed.value)
}
