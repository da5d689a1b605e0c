//! Which offsets may be committed to the group, and when.
//!
//! One tracker per process, shared by its worker threads. Sources say how far they read in each epoch
//! ([`CommitTracker::mark`]); whoever learns that epochs are done says so ([`CommitTracker::complete`]); each
//! worker asks what its client should commit now ([`CommitTracker::due`]) and reports the answer.
//!
//! Guarantees: an offset is handed out only when every epoch up to its own is complete; never one below the
//! commit floor (the group's offset at the start, or the highest offset this process ever committed); a failed
//! commit is handed out again after a backoff without new input; an idle partition is committed again every
//! keep-alive, because the clock of a group without members always runs. Time is an argument: no clock here.

use crate::{Epoch, NextOffset, TopicPartition};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Limits of a [`CommitTracker`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrackerSettings {
    /// After this long without a commit an idle partition's offset is committed again.
    pub keepalive: Duration,
    /// Wait after the first failure of a partition's commit; doubled with each further one.
    pub retry_min: Duration,
    /// Longest wait between two attempts.
    pub retry_max: Duration,
}

impl Default for TrackerSettings {
    fn default() -> TrackerSettings {
        TrackerSettings {
            keepalive: Duration::from_millis(1_800_000),
            retry_min: Duration::from_millis(100),
            retry_max: Duration::from_secs(10),
        }
    }
}

/// Where a partition begins in this generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// The partition.
    pub partition: TopicPartition,
    /// Its offset in the resume state, if it has one.
    pub resumed: Option<NextOffset>,
    /// The group's offset, read after the old clients were gone, if there is one.
    pub group: Option<NextOffset>,
}

/// The resume state is behind the group: records are processed again, the group stays where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaleResume {
    /// The partition.
    pub partition: TopicPartition,
    /// Its offset in the resume state.
    pub resumed: NextOffset,
    /// The group's offset.
    pub group: NextOffset,
}

impl fmt::Display for StaleResume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "STALE_RESUME: resume state {} is behind the committed group offset {} for {} (distance {}): these records are processed again, the group is not moved back",
            self.resumed,
            self.group,
            self.partition,
            self.group.0 - self.resumed.0
        )
    }
}

/// What is known about one partition, for `/status` and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionCommit {
    /// The partition.
    pub partition: TopicPartition,
    /// How far it was read.
    pub marked: Option<NextOffset>,
    /// How far everything is done.
    pub complete: Option<NextOffset>,
    /// What the group has, as far as we know: the broker's last answer, or the offset at the start.
    pub committed: Option<NextOffset>,
    /// Commits below this are suppressed.
    pub floor: Option<NextOffset>,
    /// Commits that failed since the start.
    pub failures: u64,
    /// Times that somebody moved the group below what we committed.
    pub rewinds_seen: u64,
    /// Epochs that are marked and not complete.
    pub epochs_open: usize,
}

/// Which offsets may be committed, shared by all worker threads of a process.
#[derive(Debug)]
pub struct CommitTracker {
    settings: TrackerSettings,
    partitions: Mutex<BTreeMap<TopicPartition, Partition>>,
}

impl CommitTracker {
    /// A tracker without partitions.
    pub fn new(settings: TrackerSettings) -> CommitTracker {
        CommitTracker { settings, partitions: Mutex::default() }
    }

    /// Begins a generation with the partitions that this process reads, and returns those whose resume state
    /// is behind the group. What earlier generations of this process committed stays part of the floor.
    pub fn begin(&self, assignments: &[Assignment], now: Instant) -> Vec<StaleResume> {
        let mut partitions = self.lock();
        for partition in partitions.values_mut() {
            *partition = Partition { highest: partition.highest, ..Partition::default() };
        }
        let mut stale = Vec::new();
        for assignment in assignments {
            let partition = partitions.entry(assignment.partition.clone()).or_default();
            partition.floor = assignment.group.max(partition.highest);
            partition.committed = assignment.group;
            partition.reported = assignment.resumed;
            partition.touched = Some(now);
            partition.owned = true;
            if let (Some(resumed), Some(group)) = (assignment.resumed, assignment.group)
                && resumed < group
            {
                stale.push(StaleResume { partition: assignment.partition.clone(), resumed, group });
            }
        }
        stale
    }

    /// Everything below `next` that the partition will ever give was read in an epoch up to `epoch`.
    pub fn mark(&self, partition: &TopicPartition, epoch: Epoch, next: NextOffset) {
        let mut partitions = self.lock();
        match partitions.get_mut(partition) {
            Some(state) => state.mark(epoch, next),
            None => {
                let mut state = Partition { owned: true, ..Partition::default() };
                state.mark(epoch, next);
                partitions.insert(partition.clone(), state);
            }
        }
    }

    /// All epochs up to `epoch` are done (and, with a store, durable).
    pub fn complete(&self, epoch: Epoch) {
        for partition in self.lock().values_mut() {
            partition.complete(epoch);
        }
    }

    /// Where partitions go on after `epoch`, for those where that changed since the last call: what this
    /// process's part of the commit epoch says. Call it once per commit epoch, in order, and before
    /// [`CommitTracker::complete`] of that epoch.
    pub fn offsets_at(&self, epoch: Epoch) -> Vec<(TopicPartition, NextOffset)> {
        let mut moved = Vec::new();
        for (name, partition) in self.lock().iter_mut() {
            let at = partition.at(epoch);
            if let Some(next) = at
                && at != partition.reported
            {
                partition.reported = at;
                moved.push((name.clone(), next));
            }
        }
        moved
    }

    /// What one client should commit now, of the partitions that it owns. What is handed out is on its way
    /// until [`CommitTracker::committed`] or [`CommitTracker::failed`] is told.
    pub fn due(&self, owned: &[TopicPartition], now: Instant) -> Vec<(TopicPartition, NextOffset)> {
        self.take(owned, |partition| partition.due(now, self.settings.keepalive))
    }

    /// What one client should commit at its close: everything complete that the group does not have yet,
    /// whatever the backoff says and whatever is on its way.
    pub fn due_at_close(&self, owned: &[TopicPartition]) -> Vec<(TopicPartition, NextOffset)> {
        self.take(owned, |partition| {
            partition.in_flight = None;
            partition.ahead()
        })
    }

    /// The broker took these.
    pub fn committed(&self, offsets: &[(TopicPartition, NextOffset)], now: Instant) {
        let mut partitions = self.lock();
        for (name, next) in offsets {
            if let Some(partition) = partitions.get_mut(name) {
                partition.in_flight = None;
                partition.retry = None;
                partition.attempts = 0;
                partition.again = false;
                partition.touched = Some(now);
                partition.committed = Some(*next);
                partition.highest = partition.highest.max(Some(*next));
                partition.floor = partition.floor.max(Some(*next));
            }
        }
    }

    /// The broker did not take these; they are due again after a backoff. The caller logs and counts them.
    pub fn failed(&self, offsets: &[(TopicPartition, NextOffset)], now: Instant) {
        let mut partitions = self.lock();
        for (name, _) in offsets {
            if let Some(partition) = partitions.get_mut(name) {
                let wait = self.settings.retry_min.saturating_mul(1 << partition.attempts.min(16));
                partition.retry = Some(now + wait.min(self.settings.retry_max));
                partition.attempts += 1;
                partition.in_flight = None;
                partition.again = true;
                partition.failures += 1;
            }
        }
    }

    /// The group's offset as somebody just read it. When it is below what this process committed, a client
    /// of an old generation moved it back: it is committed again at once. Returns whether that is so.
    pub fn seen_in_group(&self, partition: &TopicPartition, seen: Option<NextOffset>) -> bool {
        let mut partitions = self.lock();
        let Some(state) = partitions.get_mut(partition) else { return false };
        let below = state.highest.is_some() && state.in_flight.is_none() && seen < state.highest;
        if below {
            state.again = true;
            state.retry = None;
            state.rewinds_seen += 1;
        }
        below
    }

    /// What is known about every partition of this generation, ascending.
    pub fn status(&self) -> Vec<PartitionCommit> {
        let partitions = self.lock();
        let owned = partitions.iter().filter(|(_, partition)| partition.owned);
        owned
            .map(|(name, partition)| PartitionCommit {
                partition: name.clone(),
                marked: partition.marked,
                complete: partition.complete,
                committed: partition.committed,
                floor: partition.floor,
                failures: partition.failures,
                rewinds_seen: partition.rewinds_seen,
                epochs_open: partition.marks.len(),
            })
            .collect()
    }

    fn take(
        &self,
        owned: &[TopicPartition],
        mut wanted: impl FnMut(&mut Partition) -> Option<NextOffset>,
    ) -> Vec<(TopicPartition, NextOffset)> {
        let mut partitions = self.lock();
        let mut due = Vec::new();
        for name in owned {
            if let Some(partition) = partitions.get_mut(name)
                && let Some(next) = wanted(partition)
            {
                partition.in_flight = Some(next);
                due.push((name.clone(), next));
            }
        }
        due
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<TopicPartition, Partition>> {
        // Each change is complete before the guard goes; a panic elsewhere leaves a usable tracker.
        self.partitions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Clone, Debug, Default)]
struct Partition {
    owned: bool,
    /// (epoch, next offset) of epochs that are not complete, where the offset moved; ascending.
    marks: VecDeque<(Epoch, NextOffset)>,
    marked: Option<NextOffset>,
    complete: Option<NextOffset>,
    /// What the last part said.
    reported: Option<NextOffset>,
    floor: Option<NextOffset>,
    committed: Option<NextOffset>,
    /// The highest offset that this process ever committed, in any generation.
    highest: Option<NextOffset>,
    in_flight: Option<NextOffset>,
    /// The group must be told again, although nothing moved.
    again: bool,
    retry: Option<Instant>,
    attempts: u32,
    /// The last commit, or the beginning.
    touched: Option<Instant>,
    failures: u64,
    rewinds_seen: u64,
}

impl Partition {
    fn mark(&mut self, epoch: Epoch, next: NextOffset) {
        if self.marked >= Some(next) {
            return;
        }
        self.marked = Some(next);
        match self.marks.back_mut() {
            Some((last, offset)) if *last >= epoch => *offset = next,
            _ => self.marks.push_back((epoch, next)),
        }
    }

    fn complete(&mut self, epoch: Epoch) {
        while let Some((marked, next)) = self.marks.front().copied()
            && marked <= epoch
        {
            self.complete = Some(next);
            self.marks.pop_front();
        }
    }

    fn at(&self, epoch: Epoch) -> Option<NextOffset> {
        let open = self.marks.iter().take_while(|(marked, _)| *marked <= epoch).last();
        open.map(|(_, next)| *next).or(self.complete)
    }

    /// The offset that the group should have and does not have.
    fn ahead(&self) -> Option<NextOffset> {
        let allowed = self.complete.filter(|complete| self.floor.is_none_or(|floor| floor <= *complete));
        if allowed > self.committed {
            return allowed;
        }
        // Somebody moved the group back, or the last answer was a failure.
        if self.again { self.highest.max(allowed) } else { None }
    }

    fn due(&self, now: Instant, keepalive: Duration) -> Option<NextOffset> {
        if self.in_flight.is_some() || self.retry.is_some_and(|at| now < at) {
            return None;
        }
        let idle = || self.touched.is_some_and(|at| now.saturating_duration_since(at) >= keepalive);
        self.ahead().or_else(|| if idle() { self.committed.max(self.highest) } else { None })
    }
}
