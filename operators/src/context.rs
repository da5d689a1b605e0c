//! What the operators of one worker thread share: who it is, what was restored for it, what is agreed.

use crate::clock::{Clock, EpochClock};
use crate::element::PartitionId;
use crate::ending::{Ending, EndingDesk};
use crate::fault::Fault;
use crate::inputs::InputTable;
use crate::limits::Limits;
use crate::metrics::StepMetrics;
use crate::process::{ProcessContext, Sabotage};
use crate::sink::OutboxDesk;
use crate::source::{InputDesk, SourceReader};
use crate::status::Hold;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use tidegate_recovery::{
    Epoch, EpochSchedule, ErrorClass, RestoredRows, StepId, StepNumber, TopicPartition, WorkerIndex,
};
use timely::scheduling::Activator;

/// A reader that the source operator shares with the receiver of durable epochs.
pub type SharedReader = Rc<RefCell<dyn SourceReader>>;

/// What the operators of one worker thread share. Clones are the same context.
#[derive(Clone)]
pub struct WorkerContext(Rc<Inner>);

struct Inner {
    process: Arc<ProcessContext>,
    worker: WorkerIndex,
    restored: RefCell<HashMap<StepNumber, RestoredRows>>,
    ending: Cell<Ending>,
    ending_watchers: RefCell<Vec<Activator>>,
    durable: Cell<Epoch>,
    durable_watchers: RefCell<Vec<Activator>>,
    published: Cell<Epoch>,
    outbox: OutboxDesk,
    acknowledged: Cell<Option<Epoch>>,
    volatile_holds: RefCell<Vec<Rc<VolatileInner>>>,
    volatile_records: Cell<usize>,
    ending_desk: EndingDesk,
    input_desk: InputDesk,
    readers: RefCell<Vec<SharedReader>>,
}

/// A step's handles, taken when it is built.
#[derive(Clone, Debug)]
pub struct StepHandle {
    /// Its id.
    pub id: StepId,
    /// Its number, if it keeps rows.
    pub number: Option<StepNumber>,
    /// Its counters.
    pub metrics: StepMetrics,
}

/// The hold of a step that keeps records without a store (`collect_batch`): it holds, on its row stream, the
/// epoch of its oldest record whose batch is not acknowledged.
#[derive(Clone)]
pub struct VolatileHold {
    context: WorkerContext,
    place: usize,
    inner: Rc<VolatileInner>,
}

struct VolatileInner {
    /// The oldest epoch that the step holds on any worker: the frontier of its row stream.
    open: Cell<Option<Epoch>>,
    watcher: RefCell<Option<Activator>>,
    records: Cell<usize>,
}

impl VolatileHold {
    /// Whether everything that this step emitted in `epoch` is acknowledged, also what later steps of this kind
    /// hold of it.
    pub fn is_released(&self, epoch: Epoch) -> bool {
        let has_left = |open: Option<Epoch>| open.is_none_or(|open| open > epoch);
        // Steps are built upstream first: those built later may stand downstream.
        let holds = self.context.0.volatile_holds.borrow();
        has_left(self.context.acknowledged())
            && holds.iter().skip(self.place + 1).all(|later| has_left(later.open.get()))
    }

    /// Wakes the step when [`VolatileHold::is_released`] may have changed.
    pub fn wake_with(&self, activator: Activator) {
        *self.inner.watcher.borrow_mut() = Some(activator);
    }

    /// The step now holds this many records; they count against `volatile_records_max`.
    pub fn set_records(&self, records: usize) {
        let others = self.context.0.volatile_records.get() - self.inner.records.get();
        self.inner.records.set(records);
        self.context.0.volatile_records.set(others + records);
    }

    pub(crate) fn set_open(&self, open: Option<Epoch>) {
        self.inner.open.set(open);
    }

    pub(crate) fn wake(&self) {
        if let Some(activator) = self.inner.watcher.borrow().as_ref() {
            activator.activate();
        }
    }
}

impl WorkerContext {
    /// The context of one worker thread; `restored` are the rows that it now owns, by step.
    pub fn new(
        process: Arc<ProcessContext>,
        worker: WorkerIndex,
        restored: HashMap<StepNumber, RestoredRows>,
    ) -> WorkerContext {
        let first = process.schedule.first;
        let durable = Epoch(first.0.saturating_sub(1));
        let outbox =
            if process.direct.is_some() { OutboxDesk::by_partition() } else { OutboxDesk::default() };
        WorkerContext(Rc::new(Inner {
            process,
            worker,
            restored: RefCell::new(restored),
            ending: Cell::new(Ending::None),
            ending_watchers: RefCell::default(),
            durable: Cell::new(durable),
            durable_watchers: RefCell::default(),
            published: Cell::new(durable),
            outbox,
            acknowledged: Cell::new(Some(first)),
            volatile_holds: RefCell::default(),
            volatile_records: Cell::new(0),
            ending_desk: EndingDesk::default(),
            input_desk: InputDesk::default(),
            readers: RefCell::default(),
        }))
    }

    /// What the worker threads of this process share.
    pub fn process(&self) -> &Arc<ProcessContext> {
        &self.0.process
    }

    /// This worker's number in the whole cluster.
    pub fn worker(&self) -> WorkerIndex {
        self.0.worker
    }

    /// Worker threads of the whole cluster.
    pub fn peers(&self) -> usize {
        self.0.process.peers
    }

    /// First epoch, and which are commit epochs.
    pub fn schedule(&self) -> EpochSchedule {
        self.0.process.schedule
    }

    /// The agreed clock of the epoch hand.
    pub fn epochs(&self) -> &EpochClock {
        &self.0.process.epochs
    }

    /// The clock.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        self.0.process.clock()
    }

    /// All input partitions of the run.
    pub fn inputs(&self) -> &InputTable {
        &self.0.process.inputs
    }

    /// The name of an input partition, for a fault's text.
    pub fn partition_name(&self, id: PartitionId) -> Option<TopicPartition> {
        self.inputs().name(id).cloned()
    }

    /// The limits.
    pub fn limits(&self) -> &Limits {
        &self.0.process.limits
    }

    /// Whether state survives a crash. Without a store a step need not emit rows.
    pub fn has_store(&self) -> bool {
        self.0.process.snapshots.is_some()
    }

    /// The handles of a step. A step that is not in the table is a defect of the assembly; it is reported, and
    /// ends the run before it reads anything.
    pub fn step(&self, id: &StepId) -> StepHandle {
        if self.0.process.steps.get(id).is_none() {
            self.fail(
                Fault::new(ErrorClass::Internal, "the step is missing in the table of steps")
                    .at_step(id.clone()),
            );
        }
        let metrics = self.0.process.metrics.step(id);
        self.0.process.status.add_step(id.clone(), metrics.clone());
        StepHandle { id: id.clone(), number: self.0.process.steps.number(id), metrics }
    }

    /// The rows that this worker owns of a step, handed out once: at the second call there are none.
    pub fn take_restored(&self, step: StepNumber) -> RestoredRows {
        self.0.restored.borrow_mut().remove(&step).unwrap_or_default()
    }

    /// What is agreed about the end of the run.
    pub fn ending(&self) -> Ending {
        self.0.ending.get()
    }

    /// Sets what is agreed and wakes whoever watches. Only [`crate::ending`] calls this, once.
    pub(crate) fn set_ending(&self, ending: Ending) {
        self.0.ending.set(ending);
        self.0.process.status.worker(self.worker().0, |worker| worker.ending = ending);
        for activator in self.0.ending_watchers.borrow().iter() {
            activator.activate();
        }
    }

    /// Wakes the operator behind `activator` when the end of the run is agreed.
    pub fn watch_ending(&self, activator: Activator) {
        self.0.ending_watchers.borrow_mut().push(activator);
    }

    /// The newest durable epoch; before the first it is the one that the run resumed from.
    pub fn durable(&self) -> Epoch {
        self.0.durable.get()
    }

    /// Sets the newest durable epoch and wakes whoever watches. Only the receiver of durable epochs calls this.
    pub(crate) fn set_durable(&self, epoch: Epoch) {
        debug_assert!(epoch >= self.0.durable.get(), "durable epochs come in order");
        self.0.durable.set(epoch);
        for activator in self.0.durable_watchers.borrow().iter() {
            activator.activate();
        }
    }

    /// The newest commit epoch with which nothing is left to do: it is durable and, where output is published by way
    /// of the store, published by every process. (Without a store it is durable when it is published.)
    pub fn done(&self) -> Epoch {
        if self.0.process.output.is_some() { self.0.published.get() } else { self.durable() }
    }

    /// Every process has published its output up to this epoch. Only the receiver of that news calls this.
    pub(crate) fn set_published(&self, epoch: Epoch) {
        self.0.published.set(epoch);
    }

    /// What exactly-once sinks of this worker have to publish.
    pub fn outbox(&self) -> &OutboxDesk {
        &self.0.outbox
    }

    /// Bytes of output that wait for the ends of their epochs, or, without a store, for their transactions: this worker's
    /// part of them.
    pub fn outbox_bytes(&self) -> usize {
        let process = &self.0.process;
        let of_process = process.direct.as_ref().map_or(0, |direct| direct.bytes());
        self.0.outbox.bytes() + of_process / process.workers_per_process
    }

    /// Wakes the operator behind `activator` whenever an epoch becomes durable.
    pub fn watch_durable(&self, activator: Activator) {
        self.0.durable_watchers.borrow_mut().push(activator);
    }

    /// The processing probe: the oldest epoch that is not through the flow, its sinks' acknowledgements
    /// included; `None` when all are.
    pub fn acknowledged(&self) -> Option<Epoch> {
        self.0.acknowledged.get()
    }

    /// Only the operator that watches the acknowledgements calls this.
    pub(crate) fn set_acknowledged(&self, open: Option<Epoch>) {
        self.0.acknowledged.set(open);
    }

    /// A step without a store that holds epochs, see [`crate::build::FlowBuild::collect_volatile`].
    pub(crate) fn add_volatile_hold(&self) -> VolatileHold {
        let mut holds = self.0.volatile_holds.borrow_mut();
        let inner = Rc::new(VolatileInner {
            open: Cell::new(Some(self.schedule().first)),
            watcher: RefCell::default(),
            records: Cell::new(0),
        });
        holds.push(inner.clone());
        VolatileHold { context: self.clone(), place: holds.len() - 1, inner }
    }

    /// Records that steps without a store hold for a replay, on this worker.
    pub fn volatile_records(&self) -> usize {
        self.0.volatile_records.get()
    }

    pub(crate) fn ending_desk(&self) -> &EndingDesk {
        &self.0.ending_desk
    }

    /// What sources and `event_time` steps of this worker tell each other.
    pub(crate) fn input_desk(&self) -> &InputDesk {
        &self.0.input_desk
    }

    /// Reports a fault: the first one ends the run, and every worker leaves.
    ///
    /// Whoever calls this keeps the capability of what it could not do (see [`crate::record::Unfinished`]): until
    /// the worker has left, nothing may complete behind the failure.
    pub fn fail(&self, fault: Fault) {
        self.0.process.faults.report(fault);
    }

    /// What was asked of a thread behind the dataflow. `None`: its failure is reported, and the asker does no more and keeps its
    /// capabilities, so that no epoch becomes durable or published that is not.
    pub(crate) fn or_fail<T>(&self, answer: Result<T, Fault>) -> Option<T> {
        answer.map_err(|fault| self.fail(fault)).ok()
    }

    /// What a step says about the oldest epoch that it holds.
    pub fn hold(&self, step: &StepId) -> Hold {
        self.0.process.status.add_hold(self.worker().0, step)
    }

    /// The readers of this worker: the receiver of durable epochs commits through them.
    pub(crate) fn readers(&self) -> std::cell::Ref<'_, Vec<SharedReader>> {
        self.0.readers.borrow()
    }

    /// Adds a reader of this worker.
    pub(crate) fn add_reader(&self, reader: SharedReader) {
        self.0.readers.borrow_mut().push(reader);
    }

    /// Rules that a test takes away.
    #[doc(hidden)]
    pub fn sabotage(&self) -> Sabotage {
        self.0.process.sabotage
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::VirtualClock;
    use crate::commit::NoOffsets;
    use crate::steps::{FlowSteps, StepSpec};
    use std::time::Duration;

    fn context() -> WorkerContext {
        let steps =
            FlowSteps::new([StepSpec::stateful(StepId::new("count"), "window", 1)]).expect("one step");
        let process = ProcessContext::alone(
            Arc::new(VirtualClock::new(0)),
            EpochSchedule { first: Epoch(8), commit_every: 10 },
            Duration::from_millis(100),
            InputTable::default(),
            steps,
            Arc::new(NoOffsets),
        );
        let restored = HashMap::from([(StepNumber(0), RestoredRows { rows: Vec::new() })]);
        WorkerContext::new(Arc::new(process), WorkerIndex(0), restored)
    }

    #[test]
    fn a_step_that_is_not_in_the_table_ends_the_run() {
        let context = context();
        assert_eq!(context.step(&StepId::new("count")).number, Some(StepNumber(0)));
        assert!(!context.process().faults.is_raised());
        context.step(&StepId::new("unknown"));
        assert!(context.process().faults.is_raised());
    }

    #[test]
    fn before_the_first_commit_the_resumed_epoch_is_durable() {
        assert_eq!(context().durable(), Epoch(7));
    }
}
