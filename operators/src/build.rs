//! Building a flow on one worker: the dataflow's scope, the worker's context, and the list of everything that a
//! commit must wait for.

use crate::batch::{ElementStream, FrontierOnly, FrontierStream};
use crate::commit;
use crate::context::{StepHandle, VolatileHold, WorkerContext};
use crate::element::Record;
use crate::fault::Fault;
use crate::time::{Hands, Time};
use std::cell::RefCell;
use std::sync::Arc;
use tidegate_recovery::{Epoch, ErrorClass, RowBuffer, StepId};
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::Concatenate;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::{Scope, Stream};
use timely::progress::Antichain;

/// Rows of one step on one worker for one commit epoch.
#[derive(Clone, Debug)]
pub struct SnapshotRows {
    /// The commit epoch at whose end the state was as the rows say.
    pub epoch: Epoch,
    /// The rows.
    pub rows: RowBuffer,
}

/// A stream of rows. It never leaves its worker, so the rows are never copied.
pub type RowStream<'s> = Stream<'s, Time, Vec<SnapshotRows>>;

/// What every step is built with.
pub struct FlowBuild<'s> {
    scope: Scope<'s, Time>,
    context: WorkerContext,
    rows: RefCell<Vec<RowStream<'s>>>,
    acknowledgements: RefCell<Vec<FrontierStream<'s>>>,
    volatile: RefCell<Vec<(VolatileHold, RowStream<'s>)>>,
    flow: Arc<str>,
    dead_letters: RefCell<Vec<(Arc<str>, ElementStream<'s, Record>)>>,
}

impl<'s> FlowBuild<'s> {
    /// Begins a flow in `scope`.
    pub fn new(scope: Scope<'s, Time>, context: WorkerContext) -> FlowBuild<'s> {
        FlowBuild {
            scope,
            context,
            rows: RefCell::default(),
            acknowledgements: RefCell::default(),
            volatile: RefCell::default(),
            flow: Arc::from(""),
            dead_letters: RefCell::default(),
        }
    }

    /// The flow's name, which its dead letters carry.
    pub fn named(self, flow: &str) -> FlowBuild<'s> {
        FlowBuild { flow: Arc::from(flow), ..self }
    }

    /// The flow's name.
    pub fn flow_name(&self) -> &Arc<str> {
        &self.flow
    }

    /// A step has dead letters for this topic.
    pub(crate) fn collect_dead_letters(&self, topic: Arc<str>, letters: ElementStream<'s, Record>) {
        self.dead_letters.borrow_mut().push((topic, letters));
    }

    /// The dead letters of all steps built so far, for one topic, if any step has some. Whoever takes the stream ends
    /// it in a sink: its acknowledgements are what completes the records.
    pub fn take_dead_letters(&self, topic: &str) -> Option<ElementStream<'s, Record>> {
        let mut all = self.dead_letters.borrow_mut();
        let streams: Vec<_> =
            all.extract_if(.., |(name, _)| **name == *topic).map(|(_, stream)| stream).collect();
        (!streams.is_empty()).then(|| self.scope.concatenate(streams))
    }

    /// The dataflow's scope.
    pub fn scope(&self) -> Scope<'s, Time> {
        self.scope
    }

    /// The worker's context.
    pub fn context(&self) -> &WorkerContext {
        &self.context
    }

    /// The handles of a step, see [`WorkerContext::step`].
    pub fn step(&self, id: &StepId) -> StepHandle {
        self.context.step(id)
    }

    /// The commit of an epoch waits until this stream's frontier has left it, and holds its rows.
    ///
    /// The step emits the rows of a commit epoch with a capability at `(that epoch, EventTime::MAX)` before
    /// the stream's frontier leaves it. The port is best disconnected from the step's inputs
    /// (`new_output_connection([])`) with a capability that the step holds at its oldest commit epoch that is not
    /// closed: downgraded once per commit, dropped when the run is over (empty input frontier).
    pub fn collect_rows(&self, rows: RowStream<'s>) {
        self.rows.borrow_mut().push(rows);
    }

    /// The same as [`FlowBuild::collect_rows`] for a step that keeps records without a store and holds, on this
    /// stream, the epoch of its oldest record whose batch is not acknowledged. It may let go of a record when
    /// [`VolatileHold::is_released`] for the epoch in which it emitted the record's batch. Steps are collected
    /// upstream first.
    pub fn collect_volatile(&self, rows: RowStream<'s>) -> VolatileHold {
        let hold = self.context.add_volatile_hold();
        self.volatile.borrow_mut().push((hold.clone(), rows.clone()));
        self.collect_rows(rows);
        hold
    }

    /// The commit of an epoch waits until this stream's frontier has left it.
    pub fn collect_acknowledgements(&self, acknowledgements: FrontierStream<'s>) {
        self.acknowledgements.borrow_mut().push(acknowledgements);
    }

    /// A stream without messages whose epoch hand follows `stream` and whose event hand is the maximum: for a
    /// branch that ends without a sink, so that a commit waits until its records are through.
    pub fn drain<C: timely::Container + Clone>(&self, stream: Stream<'s, Time, C>) {
        let mut builder = OperatorBuilder::new("drain".to_owned(), self.scope);
        let mut input = builder.new_input(stream, Pipeline);
        builder.set_notify_for(0, timely::progress::operate::FrontierInterest::Never);
        let (_output, acknowledgements) = builder.new_output_connection::<FrontierOnly, _>(epoch_only(0));
        builder.build(move |_capabilities| move |_frontiers| input.for_each(|_capability, _batch| ()));
        self.collect_acknowledgements(acknowledgements);
    }

    /// Ends the flow: adds what turns closed epochs into durable ones. Every worker calls it, last.
    pub fn finish(self) {
        let forgotten = self.dead_letters.borrow().iter().map(|(topic, _)| topic.to_string()).next();
        if let Some(topic) = forgotten {
            // Their epochs would be committed although nobody has written them.
            self.context.fail(Fault::new(
                ErrorClass::Internal,
                format!("nothing writes the dead letters for topic `{topic}`"),
            ));
        }
        let rows = self.scope.concatenate(self.rows.into_inner());
        let acknowledgements = self.scope.concatenate(self.acknowledgements.into_inner());
        commit::watch_progress(
            self.scope,
            &self.context,
            acknowledgements.clone(),
            self.volatile.into_inner(),
        );
        let sinks = acknowledgements.clone();
        let parts = match self.context.process().direct.clone() {
            Some(direct) => commit::publish_directly(self.scope, &self.context, direct, rows, sinks),
            None => commit::write_snapshots(self.scope, &self.context, rows, sinks),
        };
        let durable = commit::commit_epochs(self.scope, &self.context, parts, acknowledgements);
        if let Some(output) = self.context.process().output.clone() {
            commit::publish_output(self.scope, &self.context, output, durable.clone());
        }
        commit::receive_durable(self.scope, &self.context, durable);
    }
}

/// The connection from an input to an output behind which only epochs are tracked.
pub fn epoch_only(port: usize) -> [(usize, Antichain<Hands>); 1] {
    [(port, Antichain::from_elem(Hands::EpochOnly))]
}
