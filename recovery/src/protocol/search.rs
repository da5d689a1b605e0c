//! Exhaustive search over the commit protocol in a small world.
//!
//! The world: two input partitions of two records each, whose keys cross the processes; one or two processes, chosen
//! anew at every start; up to three starts; old generations that go on later ("zombies"); a host crash that loses any one
//! or all of the entries that were not synced. The machines are the ones that production code runs; every action of
//! each of them is a step of its own, and all interleavings are explored.
//!
//! After every step, on what is visible and on what each possible crash would leave: the highest record names only
//! files that are there and whole, the rows in them are what the record's offsets say, and no offset is below one whose
//! effects were released. Each rule taken away must give a counterexample; with all rules there must be none.
//!
//! `TIDEGATE_SEARCH=long` explores a larger world (minutes).

#![allow(clippy::print_stdout, reason = "what a search saw is for people")]
#![allow(
    clippy::large_enum_variant,
    reason = "there are few runs, and boxing them would only slow the search down"
)]

use super::part::PartMachine;
use super::publish::PublishMachine;
use super::start::StartMachine;
use super::{Action, Event, RecordFacts, Rule, Rules, highest_record};
use crate::names::{Folder, Name, SegmentName};
use crate::{Epoch, Generation, ProcessIndex};
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::hash::{Hash, Hasher};

/// Records per partition.
const RECORDS: u8 = 2;

type Offsets = [u8; 2];
/// Value per key, for keys that changed.
type Rows = [Option<u8>; 2];

/// How large the world is.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    starts: usize,
    zombies: usize,
    crashes: usize,
    /// Processes that a start may choose.
    shapes: &'static [u8],
    /// Commit epochs that a generation closes.
    epochs: u8,
    /// Commit epochs without a change that a generation closes.
    empty_epochs: u8,
    /// Commit epochs that are closed and not published.
    in_flight: usize,
    /// A crash takes only the entries of leases, and everybody lives on: the server of a shared store restarts.
    server_restarts: bool,
    /// A start may also find the one before it dead.
    kills: bool,
    reads: Reads,
    states_max: usize,
}

/// What an epoch may read: the fewer choices, the sooner a counterexample is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reads {
    /// The next record of either partition, or all that is left.
    Any,
    /// The next record only, of the first partition that has one.
    OneByOne,
    /// The first start reads all at once, later ones one by one.
    FirstReadsAll,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Content {
    Lease(usize),
    Segment(Rows),
    Record(Record),
    Torn,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Record {
    facts: RecordFacts,
    offsets: Offsets,
    /// What the checksums would tell.
    expected: BTreeMap<SegmentName, Rows>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct File {
    content: Content,
    synced: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Disk {
    visible: BTreeMap<Name, File>,
    durable: BTreeMap<Name, File>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    disk: Disk,
    runs: Vec<Run>,
    /// The highest offsets whose effects were released.
    released: Offsets,
    zombies: usize,
    crashes: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Run {
    Starting {
        processes: u8,
        machine: StartMachine,
        action: Action,
        /// What was released when the start last listed the records: it must not go on from less.
        must: Offsets,
    },
    Running(Box<Running>),
    Gone,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Running {
    processes: u8,
    generation: Generation,
    /// The last closed epoch, its offsets, and where the newest row of each key lies at its end.
    epoch: Epoch,
    offsets: Offsets,
    homes: [Option<SegmentName>; 2],
    known: BTreeMap<SegmentName, Rows>,
    closed: VecDeque<Closed>,
    publisher: PublishMachine,
    publishing: Option<Action>,
    epochs_left: u8,
    empty_left: u8,
}

/// A closed commit epoch on its way to its record.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Closed {
    epoch: Epoch,
    offsets: Offsets,
    homes: [Option<SegmentName>; 2],
    changed: bool,
    /// The parts that are not reported yet, by process.
    parts: Vec<(SegmentName, PartMachine, Action)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Start { processes: u8, zombie: bool },
    Crash { lost: Option<usize> },
    Act { run: usize },
    Close { run: usize, read: Offsets },
    Part { run: usize, part: usize },
    Publish { run: usize },
}

/// The value of a key once the partitions were read up to `offsets`: how many of its records that are.
fn value(key: u8, offsets: Offsets) -> u8 {
    let mut count = 0;
    for partition in 0..2_u8 {
        count += (0..offsets[usize::from(partition)]).filter(|record| (partition + record) % 2 == key).count()
            as u8;
    }
    count
}

fn rows_at(offsets: Offsets) -> [u8; 2] {
    [value(0, offsets), value(1, offsets)]
}

impl Disk {
    fn list(&self, folder: Folder) -> Vec<Name> {
        self.visible.keys().filter(|name| name.folder() == folder).copied().collect()
    }

    /// Entries that a crash may take: names whose creation or removal is not durable, and bytes that are not.
    fn unsynced(&self) -> Vec<(Name, bool)> {
        let mut entries = Vec::new();
        let names: std::collections::BTreeSet<Name> =
            self.visible.keys().chain(self.durable.keys()).copied().collect();
        for name in names {
            let (seen, kept) = (self.visible.get(&name), self.durable.get(&name));
            if seen.map(|file| &file.content) != kept.map(|file| &file.content) {
                entries.push((name, false));
            }
            if seen.is_some_and(|file| !file.synced) {
                entries.push((name, true));
            }
        }
        entries
    }

    /// What a crash leaves that takes the given entries.
    fn after_crash(&self, lost: &[(Name, bool)]) -> Disk {
        let mut left = self.visible.clone();
        for (name, bytes) in lost {
            if *bytes {
                if let Some(file) = left.get_mut(name) {
                    file.content = Content::Torn;
                }
                continue;
            }
            match self.durable.get(name) {
                Some(file) => {
                    let content = if file.synced { file.content.clone() } else { Content::Torn };
                    left.insert(*name, File { content, synced: true });
                }
                None => {
                    left.remove(name);
                }
            }
        }
        for file in left.values_mut() {
            file.synced = true;
        }
        Disk { durable: left.clone(), visible: left }
    }

    /// Every disk that a crash now could leave.
    fn crashes(&self) -> Vec<Disk> {
        let unsynced = self.unsynced();
        if unsynced.is_empty() {
            return Vec::new();
        }
        let mut disks = vec![self.after_crash(&unsynced)];
        disks.extend(unsynced.iter().map(|entry| self.after_crash(std::slice::from_ref(entry))));
        disks
    }

    /// The offsets from which a start would go on, or why it could not.
    fn resume(&self) -> Result<Offsets, String> {
        let names = self.list(Folder::Commits);
        match highest_record(&names) {
            None => Ok([0, 0]),
            Some(number) => match &self.visible[&Name::Record(number)].content {
                Content::Record(record) => self.usable(record),
                other => Err(format!("record {number} is {other:?}")),
            },
        }
    }

    /// Whether the files of a record are there and say what its offsets say.
    fn usable(&self, record: &Record) -> Result<Offsets, String> {
        let mut newest: [Option<(Epoch, u8)>; 2] = [None, None];
        for segment in &record.facts.segments {
            let name = Name::Segment(*segment);
            let Some(file) = self.visible.get(&name) else {
                return Err(format!("record {} names {name}, which is gone", record.facts.number));
            };
            if file.content != Content::Segment(record.expected[segment]) {
                return Err(format!(
                    "record {} names {name}, which is {:?}",
                    record.facts.number, file.content
                ));
            }
            for (key, row) in record.expected[segment].iter().enumerate() {
                if let Some(row) = row
                    && newest[key].is_none_or(|(epoch, _)| epoch < segment.epoch)
                {
                    newest[key] = Some((segment.epoch, *row));
                }
            }
        }
        let rows = newest.map(|row| row.map_or(0, |(_, value)| value));
        if rows == rows_at(record.offsets) {
            return Ok(record.offsets);
        }
        Err(format!("record {} has rows {rows:?} at offsets {:?}", record.facts.number, record.offsets))
    }
}

impl World {
    fn new() -> World {
        World { disk: Disk::default(), runs: Vec::new(), released: [0, 0], zombies: 0, crashes: 0 }
    }

    fn steps(&self, bounds: &Bounds) -> Vec<Step> {
        let mut steps = Vec::new();
        for (index, run) in self.runs.iter().enumerate() {
            match run {
                Run::Gone => {}
                Run::Starting { .. } => steps.push(Step::Act { run: index }),
                Run::Running(run) => {
                    for part in 0..run.closed.iter().map(|closed| closed.parts.len()).sum() {
                        steps.push(Step::Part { run: index, part });
                    }
                    let ready = run.closed.front().is_some_and(|closed| closed.parts.is_empty());
                    if run.publishing.is_some() || ready {
                        steps.push(Step::Publish { run: index });
                    }
                    if run.closed.len() < bounds.in_flight {
                        if run.epochs_left > 0 {
                            let [a, b] = run.offsets;
                            let one = if a < RECORDS { [a + 1, b] } else { [a, b + 1] };
                            let mut reads = match bounds.reads {
                                Reads::Any => vec![[a + 1, b], [a, b + 1], [RECORDS, RECORDS]],
                                Reads::FirstReadsAll if index == 0 => vec![[RECORDS, RECORDS]],
                                Reads::OneByOne | Reads::FirstReadsAll => vec![one],
                            };
                            reads.retain(|read| {
                                read[0] <= RECORDS && read[1] <= RECORDS && *read != run.offsets
                            });
                            reads.dedup();
                            steps.extend(reads.into_iter().map(|read| Step::Close { run: index, read }));
                        }
                        if run.empty_left > 0 {
                            steps.push(Step::Close { run: index, read: run.offsets });
                        }
                    }
                }
            }
        }
        if self.runs.len() < bounds.starts {
            let current = self.runs.iter().any(|run| *run != Run::Gone);
            for &processes in bounds.shapes {
                if bounds.kills || !current {
                    steps.push(Step::Start { processes, zombie: false });
                }
                if current && self.zombies < bounds.zombies {
                    steps.push(Step::Start { processes, zombie: true });
                }
            }
        }
        // A machine that has not synced its lease yet has nothing that a server could forget.
        let starting = self.runs.iter().any(|run| matches!(run, Run::Starting { .. }));
        if self.crashes < bounds.crashes && !(starting && bounds.server_restarts) {
            let unsynced = self.unsynced(bounds);
            if !unsynced.is_empty() {
                steps.push(Step::Crash { lost: None });
                steps.extend((0..unsynced.len()).map(|lost| Step::Crash { lost: Some(lost) }));
            }
        }
        steps
    }

    fn unsynced(&self, bounds: &Bounds) -> Vec<(Name, bool)> {
        let mut entries = self.disk.unsynced();
        entries.retain(|(name, _)| !bounds.server_restarts || matches!(name, Name::Lease(_)));
        entries
    }

    /// Takes one step; `Err` when a machine is told what must never happen.
    fn take(&mut self, step: Step, rules: Rules, bounds: &Bounds) -> Result<(), String> {
        match step {
            Step::Start { processes, zombie } => {
                if zombie {
                    self.zombies += 1;
                } else {
                    self.runs.iter_mut().for_each(|run| *run = Run::Gone);
                }
                let mut machine = StartMachine::new(rules, self.runs.len() as u32);
                let action = machine.on(Event::Go);
                self.runs.push(Run::Starting { processes, machine, action, must: [0, 0] });
            }
            Step::Crash { lost } => {
                self.crashes += 1;
                let mut unsynced = self.unsynced(bounds);
                if let Some(lost) = lost {
                    unsynced = vec![unsynced[lost]];
                }
                if bounds.server_restarts {
                    for (name, _) in unsynced {
                        self.disk.visible.remove(&name);
                    }
                } else {
                    self.disk = self.disk.after_crash(&unsynced);
                    self.runs.iter_mut().for_each(|run| *run = Run::Gone);
                }
            }
            Step::Act { run } => self.act(run, rules, bounds)?,
            Step::Close { run, read } => self.close(run, read, rules),
            Step::Part { run, part } => self.part(run, part),
            Step::Publish { run } => self.publish(run)?,
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        let sound = |disk: &Disk, when: &str| {
            let offsets = disk.resume().map_err(|what| format!("{when}: {what}"))?;
            if offsets[0] < self.released[0] || offsets[1] < self.released[1] {
                return Err(format!(
                    "{when}: a start goes on from {offsets:?}, released was {:?}",
                    self.released
                ));
            }
            Ok(())
        };
        sound(&self.disk, "as it is")?;
        for disk in self.disk.crashes() {
            sound(&disk, "after a crash")?;
        }
        Ok(())
    }

    /// Performs an action on files. A machine whose file is gone under it dies.
    fn perform(&mut self, action: &Action, content: Option<Content>) -> Option<Event> {
        let disk = &mut self.disk;
        Some(match action {
            Action::List(folder) => Event::Listed(disk.list(*folder)),
            Action::Write(name) => {
                let file = File { content: content?, synced: false };
                // The same inode: what was durable under this name is overwritten too.
                if disk.visible.contains_key(name) && disk.durable.contains_key(name) {
                    disk.durable.insert(*name, file.clone());
                }
                disk.visible.insert(*name, file);
                Event::Done
            }
            Action::Sync(name) => match disk.visible.get_mut(name) {
                Some(file) => {
                    file.synced = true;
                    let content = file.content.clone();
                    if let Some(kept) = disk.durable.get_mut(name)
                        && kept.content == content
                    {
                        kept.synced = true;
                    }
                    Event::Done
                }
                None => Event::Missing,
            },
            Action::SyncFolder(folder) => {
                disk.durable.retain(|name, _| name.folder() != *folder);
                let kept = disk.visible.iter().filter(|(name, _)| name.folder() == *folder);
                disk.durable.extend(kept.map(|(name, file)| (*name, file.clone())));
                Event::Done
            }
            Action::Link { from, to } => {
                let file = disk.visible.get(from)?.clone();
                if disk.visible.contains_key(to) {
                    return Some(Event::Exists);
                }
                disk.visible.insert(*to, file);
                Event::Done
            }
            Action::Rename { from, to } => {
                let file = disk.visible.remove(from)?;
                disk.visible.insert(*to, file);
                Event::Done
            }
            Action::Remove(name) => {
                disk.visible.remove(name);
                Event::Done
            }
            Action::Read(number) => match disk.visible.get(&Name::Record(*number)) {
                Some(File { content: Content::Record(record), .. }) => Event::Record(record.facts.clone()),
                Some(_) => Event::Damaged,
                None => Event::Missing,
            },
            Action::TakeOver(_) => Event::Done,
            _ => return None,
        })
    }

    fn act(&mut self, index: usize, rules: Rules, bounds: &Bounds) -> Result<(), String> {
        let Run::Starting { action, .. } = &self.runs[index] else { return Ok(()) };
        let action = action.clone();
        match &action {
            Action::Resume(facts) => return self.resume(index, facts.as_ref(), rules, bounds),
            Action::Lost(name) => return Err(format!("start {index} cannot find {name}")),
            Action::Unusable(number) => return Err(format!("start {index} cannot use record {number}")),
            Action::Fenced(_) => {
                self.runs[index] = Run::Gone;
                return Ok(());
            }
            _ => {}
        }
        let event = self.perform(&action, Some(Content::Lease(index)));
        let released = self.released;
        let Run::Starting { machine, action, must, .. } = &mut self.runs[index] else { return Ok(()) };
        if *action == Action::List(Folder::Commits) {
            *must = released;
        }
        match event {
            Some(event) => *action = machine.on(event),
            None => self.runs[index] = Run::Gone,
        }
        Ok(())
    }

    fn resume(
        &mut self,
        index: usize,
        facts: Option<&RecordFacts>,
        rules: Rules,
        bounds: &Bounds,
    ) -> Result<(), String> {
        let Run::Starting { processes, machine, must, .. } = &self.runs[index] else { return Ok(()) };
        let must = *must;
        let mut running = Running {
            processes: *processes,
            generation: machine.generation(),
            epoch: Epoch(0),
            offsets: [0, 0],
            homes: [None, None],
            known: BTreeMap::new(),
            closed: VecDeque::new(),
            publisher: PublishMachine::new(rules, machine.generation(), facts.cloned()),
            publishing: None,
            epochs_left: bounds.epochs,
            empty_left: bounds.empty_epochs,
        };
        if let Some(facts) = facts {
            let found = self.disk.visible.get(&Name::Record(facts.number)).map(|file| file.content.clone());
            let Some(Content::Record(record)) = found else {
                // Somebody else went on meanwhile and deleted it. The shell reads it again and ends the start.
                self.runs[index] = Run::Gone;
                return Ok(());
            };
            match self.disk.usable(&record) {
                Ok(offsets) => running.offsets = offsets,
                // The same with a segment, when a newer record is there: the restore ends the start.
                Err(_) if highest_record(&self.disk.list(Folder::Commits)) > Some(facts.number) => {
                    self.runs[index] = Run::Gone;
                    return Ok(());
                }
                Err(what) => return Err(format!("start {index}: {what}")),
            }
            running.epoch = facts.epoch;
            for (segment, rows) in &record.expected {
                for (home, row) in running.homes.iter_mut().zip(rows) {
                    if row.is_some() && home.is_none_or(|home| home.epoch < segment.epoch) {
                        *home = Some(*segment);
                    }
                }
            }
            running.known = record.expected;
        }
        if running.offsets[0] < must[0] || running.offsets[1] < must[1] {
            return Err(format!("start {index} goes on from {:?}, released was {must:?}", running.offsets));
        }
        // A start commits the offsets that it goes on from.
        for (released, resumed) in self.released.iter_mut().zip(running.offsets) {
            *released = (*released).max(resumed);
        }
        self.runs[index] = Run::Running(Box::new(running));
        Ok(())
    }

    fn close(&mut self, index: usize, read: Offsets, rules: Rules) {
        let Run::Running(run) = &mut self.runs[index] else { return };
        let (before, after) = (rows_at(run.offsets), rows_at(read));
        let changed = read != run.offsets;
        if changed {
            run.epochs_left -= 1
        } else {
            run.empty_left -= 1
        }
        run.epoch = run.epoch.next();
        let mut parts = Vec::new();
        for process in 0..run.processes {
            let mut rows: Rows = [None, None];
            for key in 0..2_u8 {
                if key % run.processes == process && before[usize::from(key)] != after[usize::from(key)] {
                    rows[usize::from(key)] = Some(after[usize::from(key)]);
                }
            }
            if rows == [None, None] {
                continue;
            }
            let generation = if rules.has(Rule::GenerationInNames) { run.generation } else { Generation(1) };
            let name = SegmentName { epoch: run.epoch, generation, process: ProcessIndex(process.into()) };
            for (home, row) in run.homes.iter_mut().zip(rows) {
                if row.is_some() {
                    *home = Some(name);
                }
            }
            run.known.insert(name, rows);
            let mut machine = PartMachine::new(rules, name);
            let action = machine.on(Event::Go);
            parts.push((name, machine, action));
        }
        run.offsets = read;
        run.closed.push_back(Closed { epoch: run.epoch, offsets: read, homes: run.homes, changed, parts });
    }

    fn part(&mut self, index: usize, part: usize) {
        let Run::Running(run) = &self.runs[index] else { return };
        let Some((name, _, action)) = run.closed.iter().flat_map(|closed| &closed.parts).nth(part).cloned()
        else {
            return;
        };
        let content = Content::Segment(run.known[&name]);
        let event = self.perform(&action, Some(content));
        let Run::Running(run) = &mut self.runs[index] else { return };
        match event {
            Some(Event::Missing) | None => self.runs[index] = Run::Gone,
            Some(event) => {
                for closed in &mut run.closed {
                    closed.parts.retain_mut(|(other, machine, action)| {
                        if *other == name {
                            *action = machine.on(event.clone());
                        }
                        *action != Action::Report
                    });
                }
            }
        }
    }

    fn publish(&mut self, index: usize) -> Result<(), String> {
        let Run::Running(run) = &mut self.runs[index] else { return Ok(()) };
        let Some(action) = run.publishing.clone() else {
            let Some(closed) = run.closed.front() else { return Ok(()) };
            if closed.changed {
                let segments = closed.homes.iter().flatten().copied().collect();
                run.publishing = Some(run.publisher.publish(closed.epoch, segments));
            } else {
                run.publisher.skip();
                run.closed.pop_front();
            }
            return Ok(());
        };
        match action {
            Action::Fenced(_) => {
                self.runs[index] = Run::Gone;
                return Ok(());
            }
            Action::Published(_) => {
                let Some(closed) = run.closed.pop_front() else { return Ok(()) };
                for (released, reached) in self.released.iter_mut().zip(closed.offsets) {
                    *released = (*released).max(reached);
                }
                run.publishing = Some(run.publisher.on(Event::Go)).filter(|action| *action != Action::Idle);
                return Ok(());
            }
            _ => {}
        }
        let content = match (&action, run.closed.front()) {
            (Action::Write(_), Some(closed)) => {
                let mut segments: Vec<SegmentName> = closed.homes.iter().flatten().copied().collect();
                segments.sort_unstable();
                segments.dedup();
                let Name::RecordTemp(number, generation) = written(&action) else { return Ok(()) };
                Some(Content::Record(Record {
                    expected: segments.iter().map(|segment| (*segment, run.known[segment])).collect(),
                    facts: RecordFacts { number, epoch: closed.epoch, generation, segments },
                    offsets: closed.offsets,
                }))
            }
            _ => None,
        };
        let event = self.perform(&action, content);
        let Run::Running(run) = &mut self.runs[index] else { return Ok(()) };
        match event {
            Some(Event::Missing) | None => self.runs[index] = Run::Gone,
            Some(event) => {
                run.publishing = Some(run.publisher.on(event)).filter(|action| *action != Action::Idle);
            }
        }
        Ok(())
    }
}

fn written(action: &Action) -> Name {
    match action {
        Action::Write(name) => *name,
        other => unreachable!("{other:?} writes nothing"),
    }
}

#[derive(Debug)]
struct Found {
    states: usize,
    complete: bool,
    violation: Option<(String, Vec<Step>)>,
}

/// Explores breadth first, so that a counterexample is as short as they get.
fn explore(rules: Rules, bounds: &Bounds) -> Found {
    let mut seen: HashSet<u64> = HashSet::new();
    let mut came_from: Vec<(u32, Step)> = Vec::new();
    let mut queue: VecDeque<(u32, World)> = VecDeque::from([(u32::MAX, World::new())]);
    let mut states = 1;
    while let Some((from, world)) = queue.pop_front() {
        for step in world.steps(bounds) {
            let mut next = world.clone();
            let taken = next.take(step, rules, bounds);
            // 64 bits: with some millions of states, two of them meet with a chance of one in a million.
            let mut hasher = xxhash_rust::xxh3::Xxh3Default::new();
            next.hash(&mut hasher);
            let fresh = seen.insert(hasher.finish());
            if let Err(what) = taken.and_then(|()| if fresh { next.check() } else { Ok(()) }) {
                let mut path = vec![step];
                let mut at = from;
                while let Some((before, step)) = came_from.get(at as usize) {
                    path.push(*step);
                    at = *before;
                }
                path.reverse();
                return Found { states, complete: false, violation: Some((what, path)) };
            }
            if fresh {
                states += 1;
                came_from.push((from, step));
                queue.push_back((came_from.len() as u32 - 1, next));
            }
        }
        if states >= bounds.states_max {
            return Found { states, complete: false, violation: None };
        }
    }
    Found { states, complete: true, violation: None }
}

/// What each step of a path did, for people.
fn told(path: &[Step], rules: Rules, bounds: &Bounds) -> String {
    let mut world = World::new();
    let mut lines = String::new();
    for step in path {
        let doing = match step {
            Step::Act { run } => match &world.runs[*run] {
                Run::Starting { action, .. } => format!("{action:?}"),
                _ => String::new(),
            },
            Step::Publish { run } => match &world.runs[*run] {
                Run::Running(run) => format!("{:?}", run.publishing),
                _ => String::new(),
            },
            _ => String::new(),
        };
        lines.push_str(&format!("  {step:?} {doing}\n"));
        // The last step is the one that fails.
        let _ = world.take(*step, rules, bounds);
    }
    lines
}

const SMALL: Bounds = Bounds {
    starts: 2,
    zombies: 1,
    crashes: 1,
    shapes: &[1],
    epochs: 2,
    empty_epochs: 0,
    in_flight: 1,
    server_restarts: false,
    kills: true,
    reads: Reads::Any,
    states_max: 3_000_000,
};

fn long() -> bool {
    std::env::var("TIDEGATE_SEARCH").is_ok_and(|value| value == "long")
}

#[test]
fn with_every_rule_in_place_no_crash_and_no_old_generation_breaks_a_start() {
    let one = Bounds { epochs: 1, ..SMALL };
    let mut worlds = vec![
        ("a crash", Bounds { zombies: 0, reads: Reads::OneByOne, ..SMALL }),
        ("a crash, two processes", Bounds { zombies: 0, shapes: &[2], reads: Reads::FirstReadsAll, ..one }),
        ("an old generation", Bounds { crashes: 0, kills: false, reads: Reads::OneByOne, ..SMALL }),
        (
            "an old generation of two processes",
            Bounds { crashes: 0, kills: false, shapes: &[2, 1], reads: Reads::FirstReadsAll, ..one },
        ),
        (
            "two epochs in flight",
            Bounds { zombies: 0, crashes: 0, in_flight: 2, reads: Reads::OneByOne, ..SMALL },
        ),
        (
            "empty epochs",
            Bounds { crashes: 0, kills: false, empty_epochs: 1, reads: Reads::FirstReadsAll, ..one },
        ),
        ("a server restarts", Bounds { server_restarts: true, reads: Reads::OneByOne, ..one }),
    ];
    if long() {
        let all = Bounds { starts: 3, shapes: &[1, 2], states_max: 15_000_000, ..SMALL };
        worlds
            .push(("three starts, an old generation and a crash", Bounds { epochs: 1, shapes: &[1], ..all }));
        worlds.push((
            "two old generations",
            Bounds { zombies: 2, crashes: 0, shapes: &[1], kills: false, reads: Reads::OneByOne, ..all },
        ));
        worlds.push((
            "two in flight and an old generation",
            Bounds { crashes: 0, in_flight: 2, shapes: &[2, 1], starts: 2, ..all },
        ));
        worlds.push((
            "an old generation that reads further",
            Bounds { crashes: 0, epochs: 4, shapes: &[1], reads: Reads::FirstReadsAll, starts: 2, ..all },
        ));
        worlds.push(("three starts on one and two processes", all));
    }
    for (name, bounds) in worlds {
        let started = std::time::Instant::now();
        let found = explore(Rules::ALL, &bounds);
        println!("{name}: {} states{}", found.states, if found.complete { "" } else { " (cut off)" });
        println!("  {:.1} s", started.elapsed().as_secs_f32());
        if let Some((what, path)) = found.violation {
            panic!("{name}: {what}\n{}", told(&path, Rules::ALL, &bounds));
        }
        assert!(found.complete || long(), "{name}: the world is too large for the short form");
    }
}

/// The world in which a rule's counterexample is found soonest.
fn world_for(rule: Rule) -> Bounds {
    let zombie = Bounds { crashes: 0, kills: false, ..SMALL };
    let crash = Bounds { zombies: 0, starts: 1, ..SMALL };
    match rule {
        Rule::CreateIfAbsent => zombie,
        // One in flight, or retention finds the fault before the old generation does.
        Rule::GenerationInNames => zombie,
        Rule::DenseNumbers => Bounds { epochs: 1, empty_epochs: 1, ..zombie },
        // Retention must have freed a number, and the late writer must have read further.
        Rule::CountsOnlyIfHighest => Bounds { epochs: 4, reads: Reads::FirstReadsAll, ..zombie },
        Rule::OnlyHighestRead => Bounds { epochs: 3, reads: Reads::OneByOne, ..zombie },
        Rule::StartDeletesNothing => zombie,
        Rule::RetentionSparesAbove => Bounds { zombies: 0, crashes: 0, starts: 1, in_flight: 2, ..SMALL },
        Rule::RetentionSparesNewer => Bounds { reads: Reads::OneByOne, ..zombie },
        Rule::SegmentSynced | Rule::SegmentNameSynced => crash,
        Rule::StartSyncs => Bounds { starts: 2, epochs: 1, crashes: 0, ..SMALL },
        Rule::RecordSynced | Rule::RecordDurableFirst => crash,
        Rule::LeaseDurable => Bounds { server_restarts: true, epochs: 1, ..SMALL },
    }
}

#[test]
fn without_any_single_rule_there_is_a_counterexample() {
    for rule in [
        Rule::CreateIfAbsent,
        Rule::GenerationInNames,
        Rule::DenseNumbers,
        Rule::CountsOnlyIfHighest,
        Rule::OnlyHighestRead,
        Rule::StartDeletesNothing,
        Rule::RetentionSparesAbove,
        Rule::RetentionSparesNewer,
        Rule::SegmentSynced,
        Rule::SegmentNameSynced,
        Rule::StartSyncs,
        Rule::RecordSynced,
        Rule::RecordDurableFirst,
        Rule::LeaseDurable,
    ] {
        let (rules, bounds) = (Rules::without(rule), world_for(rule));
        let found = explore(rules, &bounds);
        let Some((what, path)) = found.violation else {
            panic!("without {rule:?} nothing breaks in {} states: the search does not see it", found.states);
        };
        println!("without {rule:?}: {what} ({} steps, {} states)", path.len(), found.states);
        if long() {
            println!("{}", told(&path, rules, &bounds));
        }
    }
}
