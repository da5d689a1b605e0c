//! The world of the search: generations that run the protocol's own machines on one disk.

use super::Explored;
use super::disk::{Content, Disk, File, Offsets, Record, Rows, rows_at};
use super::reads::Reads;
use crate::names::{Folder, Name, PartName};
use crate::protocol::part::PartMachine;
use crate::protocol::publish::PublishMachine;
use crate::protocol::start::StartMachine;
use crate::protocol::{Action, Event, RecordFacts, Rule, Rules, highest_record};
use crate::{Epoch, Generation, ProcessIndex};
use std::collections::{BTreeMap, VecDeque};

/// How large the world is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) starts: usize,
    pub(super) zombies: usize,
    pub(super) crashes: usize,
    /// Processes that a start may choose.
    pub(super) shapes: &'static [u8],
    /// Commit epochs that a generation closes.
    pub(super) epochs: u8,
    /// Commit epochs without a change that a generation closes.
    pub(super) empty_epochs: u8,
    /// Commit epochs that are closed and not published.
    pub(super) in_flight: usize,
    /// A crash takes only the entries of leases, and everybody lives on: the server of a shared store restarts.
    pub(super) server_restarts: bool,
    /// A start may also find the one before it dead.
    pub(super) kills: bool,
    pub(super) reads: Reads,
    pub(super) states_max: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct World {
    disk: Disk,
    runs: Vec<Run>,
    /// The highest offsets whose effects were released.
    released: Offsets,
    zombies: usize,
    crashes: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[allow(
    clippy::large_enum_variant,
    reason = "there are few runs, and boxing them would only slow the search down"
)]
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
    homes: [Option<PartName>; 2],
    known: BTreeMap<PartName, Rows>,
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
    homes: [Option<PartName>; 2],
    changed: bool,
    /// The parts that are not reported yet, by process.
    parts: Vec<(PartName, PartMachine, Action)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Start { processes: u8, zombie: bool },
    Crash { lost: Option<usize> },
    Act { run: usize },
    Close { run: usize, read: Offsets },
    Part { run: usize, part: usize },
    Publish { run: usize },
}

impl World {
    pub(super) fn new() -> World {
        World { disk: Disk::default(), runs: Vec::new(), released: [0, 0], zombies: 0, crashes: 0 }
    }
}

impl Explored for World {
    type Step = Step;
    type Bounds = Bounds;

    fn at_rest(&self) -> Result<(), String> {
        Ok(())
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
                            let reads = bounds.reads.choices(index == 0, run.offsets);
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

    fn doing(&self, step: Step) -> String {
        let action = match step {
            Step::Act { run } => match &self.runs[run] {
                Run::Starting { action, .. } => Some(action),
                Run::Running(_) | Run::Gone => None,
            },
            Step::Publish { run } => match &self.runs[run] {
                Run::Running(run) => run.publishing.as_ref(),
                Run::Starting { .. } | Run::Gone => None,
            },
            Step::Start { .. } | Step::Crash { .. } | Step::Close { .. } | Step::Part { .. } => None,
        };
        action.map_or_else(String::new, |action| format!("{action:?}"))
    }

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
}

impl World {
    fn unsynced(&self, bounds: &Bounds) -> Vec<(Name, bool)> {
        let mut entries = self.disk.unsynced();
        entries.retain(|(name, _)| !bounds.server_restarts || matches!(name, Name::Lease(_)));
        entries
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
            Action::TakeOver(_) | Action::Fence => Event::Done,
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
            let name = PartName { epoch: run.epoch, generation, process: ProcessIndex(process.into()) };
            for (home, row) in run.homes.iter_mut().zip(rows) {
                if row.is_some() {
                    *home = Some(name);
                }
            }
            run.known.insert(name, rows);
            let mut machine = PartMachine::new(rules, Name::Segment(name));
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
                let files = closed.homes.iter().flatten().map(|home| Name::Segment(*home)).collect();
                run.publishing = Some(run.publisher.publish(closed.epoch, files));
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
                let mut segments: Vec<PartName> = closed.homes.iter().flatten().copied().collect();
                segments.sort_unstable();
                segments.dedup();
                let Name::RecordTemp(number, generation) = written(&action) else { return Ok(()) };
                Some(Content::Record(Record {
                    expected: segments.iter().map(|segment| (*segment, run.known[segment])).collect(),
                    facts: RecordFacts {
                        number,
                        epoch: closed.epoch,
                        generation,
                        files: segments.into_iter().map(Name::Segment).collect(),
                    },
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
