//! What the worker threads of one process share in one generation.

use crate::clock::{Clock, EpochClock};
use crate::commit::{DirectIo, OffsetMarks, OutputIo, SnapshotIo};
use crate::fault::{Fault, Faults};
use crate::inputs::InputTable;
use crate::limits::{Limits, SinkLoad};
use crate::metrics::Metrics;
use crate::status::StatusBoard;
use crate::steps::FlowSteps;
use std::sync::Arc;
use std::time::Duration;
use tidegate_recovery::{EpochSchedule, Generation, ProcessIndex, StopRequest};

/// What is promised about every record; the stronger promise is the greater one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeliveryGuarantee {
    /// Offsets are committed before the records are handed on: a crash loses what was on its way.
    AtMostOnce,
    /// Offsets are committed when everything that the records led to is durable: a crash repeats.
    AtLeastOnce,
    /// No record is lost, and every result is visible once.
    ExactlyOnce,
}

impl DeliveryGuarantee {
    /// The word in a configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            DeliveryGuarantee::AtMostOnce => "at_most_once",
            DeliveryGuarantee::AtLeastOnce => "at_least_once",
            DeliveryGuarantee::ExactlyOnce => "exactly_once",
        }
    }
}

/// Looks whether this process is still in charge (its lease is its own, it did not stand still); asked before
/// offsets are committed.
pub type StandingCheck = Arc<dyn Fn() -> Result<(), Fault> + Send + Sync>;

/// What the worker threads of one process share in one generation. Made by the assembly, before the workers
/// start; nothing in it changes but through its own locks.
pub struct ProcessContext {
    /// Place in the address list.
    pub process: ProcessIndex,
    /// Worker threads of each process.
    pub workers_per_process: usize,
    /// Worker threads of the whole cluster.
    pub peers: usize,
    /// Incarnation of the cluster.
    pub generation: Generation,
    /// What is promised.
    pub delivery: DeliveryGuarantee,
    /// First epoch, and which are commit epochs.
    pub schedule: EpochSchedule,
    /// The agreed clock of the epoch hand.
    pub epochs: EpochClock,
    /// All input partitions.
    pub inputs: InputTable,
    /// All steps.
    pub steps: FlowSteps,
    /// The limits.
    pub limits: Limits,
    /// The load of this process's sinks.
    pub sinks: SinkLoad,
    /// Whether the run ends when every partition has reached the log end that it had at start.
    pub until_end: bool,
    /// Asks for a stop.
    pub stop: StopRequest,
    /// Collects what went wrong.
    pub faults: Faults,
    /// The commit tracker.
    pub offsets: Arc<dyn OffsetMarks>,
    /// The recovery store, if there is one.
    pub snapshots: Option<Arc<dyn SnapshotIo>>,
    /// Publishes output by way of the store, where delivery is exactly once and there is one.
    pub output: Option<Arc<dyn OutputIo>>,
    /// Publishes output without a store, where delivery is exactly once and there is none.
    pub direct: Option<Arc<dyn DirectIo>>,
    /// Whether this process is still in charge.
    pub standing: StandingCheck,
    /// Figures.
    pub metrics: Arc<Metrics>,
    /// What `/status` shows.
    pub status: StatusBoard,
    /// Breaks rules on purpose; the simulation proves with it that it would notice.
    #[doc(hidden)]
    pub sabotage: Sabotage,
}

impl ProcessContext {
    /// A process that is alone, with one worker thread, no store, and every default; the caller sets the rest.
    pub fn alone(
        clock: Arc<dyn Clock>,
        schedule: EpochSchedule,
        epoch_interval: Duration,
        inputs: InputTable,
        steps: FlowSteps,
        offsets: Arc<dyn OffsetMarks>,
    ) -> ProcessContext {
        let limits = Limits::default();
        let origin = clock.now();
        ProcessContext {
            process: ProcessIndex(0),
            workers_per_process: 1,
            peers: 1,
            generation: Generation(1),
            delivery: DeliveryGuarantee::AtLeastOnce,
            schedule,
            epochs: EpochClock::new(clock, &schedule, origin, epoch_interval),
            inputs,
            steps,
            sinks: SinkLoad::new(limits.sink_in_flight_bytes),
            limits,
            until_end: false,
            stop: StopRequest::new(),
            faults: Faults::new(),
            offsets,
            snapshots: None,
            output: None,
            direct: None,
            standing: Arc::new(|| Ok(())),
            metrics: Arc::new(Metrics::new()),
            status: StatusBoard::new(Generation(1)),
            sabotage: Sabotage::default(),
        }
    }

    /// Whether offsets travel in transactions, together with what was made of their records, and never alone.
    pub fn commits_in_transactions(&self) -> bool {
        self.delivery == DeliveryGuarantee::ExactlyOnce
    }

    /// Whether output is published in transactions, by way of the store or without one.
    pub fn publishes_output(&self) -> bool {
        self.output.is_some() || self.direct.is_some()
    }

    /// The clock.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        self.epochs.clock()
    }
}

/// Rules of the design that the simulation takes away, one at a time, to prove that it would notice. Nothing
/// but a test sets one.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sabotage {
    /// 2.2: the committer does not wait for the acknowledgements.
    pub ignore_acknowledgements: bool,
    /// 2.1: a sink drops its capability when it has submitted a batch.
    pub forget_sink_capability: bool,
    /// 2.2: the source commits offsets, not the receiver of durable epochs.
    pub source_commits: bool,
    /// 2.3: a step closes all epochs that the frontier jumped over as one.
    pub close_epochs_together: bool,
    /// 2.5: a source at its limit keeps its hands where they are.
    pub limits_stop_hands: bool,
    /// 2.6: an empty frontier is read as the end.
    pub empty_frontier_is_the_end: bool,
    /// 2.6: acted-on watermarks are not frozen when the last epoch is agreed.
    pub do_not_freeze: bool,
    /// 2.7: `event_time` is connected in timely's sense.
    pub connect_event_time: bool,
    /// 2.7: a worker whose partitions are all idle moves its event hand to the maximum.
    pub idle_to_the_maximum: bool,
    /// 2.7: a hand moves past idle partitions by the last look at them, however old.
    pub trust_old_looks: bool,
    /// 2.8: a step acts by the event frontier alone, whatever its buffer holds.
    pub ignore_buffer_stamps: bool,
    /// 2.8: after a restart a step acts by the largest watermark of its buckets.
    pub largest_watermark: bool,
    /// 2.9: sessions refuse by the acted-on watermark alone.
    pub sessions_ignore_partition_watermark: bool,
    /// 2.10: a partition with backlog may be idle.
    pub idle_with_backlog: bool,
    /// 2.8: a step holds no capability for windows that may still appear.
    pub forget_lateness_hold: bool,
}
