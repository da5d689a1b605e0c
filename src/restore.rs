//! Reading back the state that this process now owns.

use std::collections::HashMap;
use std::time::Duration;
use tidegate_cluster::ClusterSpec;
use tidegate_operators::inputs::InputTable;
use tidegate_operators::steps::FlowSteps;
use tidegate_recovery::rows::{RowRef, parse_partition_key};
use tidegate_recovery::{
    ProcessOptions, ProcessStore, RecoveryStore, RestoredRows, ResumeState, RowRoute, StepNumber, StoreError,
    WorkerIndex,
};

/// What one process got back from the store.
pub(crate) struct Restored {
    /// Its own part of the store, which goes on; `None` where there is no store.
    pub(crate) store: Option<ProcessStore>,
    /// The rows of each worker thread, by step.
    pub(crate) rows: Vec<HashMap<StepNumber, RestoredRows>>,
}

impl Restored {
    /// Without a store.
    pub(crate) fn nothing(threads: usize) -> Restored {
        Restored { store: None, rows: (0..threads).map(|_| HashMap::new()).collect() }
    }
}

/// Reads the newest state. A row belongs to the worker that owns its key bucket, or reads its input partition; the
/// rows of a partition that is no input any more stay with worker 0, so that nothing is lost by a topic that is
/// taken out and put back.
pub(crate) fn restore(
    store: &RecoveryStore,
    resume: &ResumeState,
    steps: &FlowSteps,
    inputs: &InputTable,
    spec: &ClusterSpec,
    store_timeout: Duration,
) -> Result<Restored, StoreError> {
    let options = ProcessOptions { store_timeout, ..ProcessOptions::default() };
    let mut process = ProcessStore::new(store.storage().clone(), resume, spec.index(), options);
    let threads = spec.workers_per_process();
    let first = spec.index().0 as usize * threads;
    let owner = |row: &RowRef<'_>| {
        let worker = match row.route {
            RowRoute::Bucket(bucket) => bucket.worker(spec.workers()),
            RowRoute::Partition => parse_partition_key(row.key)
                .and_then(|name| inputs.id(&name))
                .and_then(|id| inputs.get(id))
                .map_or(WorkerIndex(0), |input| input.owner),
        };
        (worker.0 as usize).checked_sub(first).filter(|thread| *thread < threads)
    };
    let restoration = process.restore(threads, &owner)?;
    let mut workers: Vec<HashMap<StepNumber, RestoredRows>> = Vec::with_capacity(threads);
    for of_worker in restoration.workers {
        let mut rows: HashMap<StepNumber, RestoredRows> = HashMap::new();
        for restored in of_worker {
            // A row says its own version to the step that reads it; the store has refused newer ones.
            debug_assert!(
                steps.table().get(restored.step).is_none_or(|shape| restored.version <= shape.version)
            );
            rows.entry(restored.step).or_default().rows.extend(restored.rows.rows);
        }
        workers.push(rows);
    }
    tracing::info!(rows = restoration.rows, bytes = restoration.read_bytes, "state restored");
    Ok(Restored { store: Some(process), rows: workers })
}
