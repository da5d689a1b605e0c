//! What a source operator needs of the thing that it reads: Kafka, or memory in the simulation.

use crate::element::{Element, PartitionId, Record};
use crate::fault::Fault;
use tidegate_recovery::NextOffset;
use timely::scheduling::SyncActivator;

/// How much one poll may hand out. One record is always allowed, however large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollBudget {
    /// Records.
    pub records: usize,
    /// Bytes of keys, values and headers.
    pub bytes: usize,
}

/// Records of one partition, in offset order.
#[derive(Clone, Debug)]
pub struct SourceBatch {
    /// The partition.
    pub partition: PartitionId,
    /// The records; `event` and `watermark` of their meta are [`tidegate_recovery::EventTime::MIN`].
    pub elements: Vec<Element<Record>>,
    /// Bytes of keys, values and headers.
    pub bytes: usize,
}

/// Outcome of an offset commit that the reader was asked for.
#[derive(Clone, Debug)]
pub struct CommitOutcome {
    /// What was to be committed.
    pub offsets: Vec<(PartitionId, NextOffset)>,
    /// `None` when the broker took it; else why not.
    pub error: Option<String>,
}

/// The partitions that one worker reads. All calls come from that worker's thread; none blocks for more than
/// a few milliseconds, unless it says so.
pub trait SourceReader: 'static {
    /// The partitions, ascending.
    fn partitions(&self) -> &[PartitionId];

    /// Called once, before the first poll: whoever learns that something has arrived (records, the end of a
    /// partition, the outcome of a commit) wakes the operator with it. A reader that is only polled ignores it.
    fn wake_with(&mut self, activator: SyncActivator) {
        let _ = activator;
    }

    /// Appends what has arrived. Partitions that are held (see [`SourceReader::hold`]) are left out.
    fn poll(&mut self, budget: PollBudget, batches: &mut Vec<SourceBatch>) -> Result<(), Fault>;

    /// Where the partition goes on after everything that was handed out; it steps over control records,
    /// aborted transactions, compaction gaps and skipped tombstones.
    fn position(&self, partition: PartitionId) -> NextOffset;

    /// The end of what a reader may see (the last stable offset under `read_committed`), as last heard from
    /// the broker; `None` when nothing was heard yet.
    fn readable_end(&self, partition: PartitionId) -> Option<NextOffset>;

    /// The end of the log itself (the high watermark), as last heard; a partition that is held at an open
    /// transaction has it above [`SourceReader::readable_end`].
    fn log_end(&self, partition: PartitionId) -> Option<NextOffset>;

    /// The log end that the partition had when the run began: where a bounded run ends.
    fn end_at_start(&self, partition: PartitionId) -> NextOffset;

    /// Offsets of the partition that were known and never read, because the broker did not have them any more: the
    /// run went on without them, as the user chose.
    fn lost(&self, partition: PartitionId) -> u64 {
        let _ = partition;
        0
    }

    /// Partitions that were added to topics which this reader watches, since the run began: nobody reads them before
    /// the next start.
    fn partitions_added(&self) -> u64 {
        0
    }

    /// Stops (or resumes) handing out records of a partition, without losing what was prefetched.
    fn hold(&mut self, partition: PartitionId, held: bool);

    /// Commits offsets to the group without waiting. The outcome comes with [`SourceReader::commit_outcomes`].
    /// At most one commit is on its way at a time: the caller waits for its outcome.
    fn commit(&mut self, offsets: &[(PartitionId, NextOffset)]);

    /// Outcomes of commits since the last call.
    fn commit_outcomes(&mut self) -> Vec<CommitOutcome>;

    /// Commits and waits for the answer, at most `deadline`; used at a close, and by `at_most_once`
    /// before records are handed on.
    fn commit_and_wait(
        &mut self,
        offsets: &[(PartitionId, NextOffset)],
        deadline: std::time::Duration,
    ) -> Result<(), String>;
}
