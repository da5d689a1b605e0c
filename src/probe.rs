//! What `/readyz`, `/metrics` and `/status` show of a process, from its first moment on.

use crate::http::Probe;
use serde::Serialize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidegate_cluster::ClusterWatch;
use tidegate_operators::metrics::Metrics;
use tidegate_operators::process::ProcessContext;
use tidegate_operators::status::Status;
use tidegate_recovery::{CommitTracker, WorkerIndex};

/// How far the start has come.
pub(crate) struct Stage(Mutex<&'static str>);

impl Stage {
    pub(crate) fn begin() -> Arc<Stage> {
        Arc::new(Stage(Mutex::new("starting")))
    }

    pub(crate) fn set(&self, stage: &'static str) {
        *lock(&self.0) = stage;
    }

    fn get(&self) -> &'static str {
        *lock(&self.0)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The probe of a process.
pub(crate) struct ProcessProbe {
    flow: String,
    stage: Arc<Stage>,
    cluster: Mutex<Option<ClusterWatch>>,
    work: Mutex<Option<(Arc<ProcessContext>, Arc<CommitTracker>)>>,
}

#[derive(Serialize)]
struct Document<'a> {
    flow: &'a str,
    version: &'static str,
    stage: &'static str,
    /// Processes that are not there yet, while the cluster gathers.
    waiting_for_peers: Vec<String>,
    #[serde(flatten)]
    status: Option<Status>,
}

impl ProcessProbe {
    pub(crate) fn new(flow: &str, stage: Arc<Stage>) -> ProcessProbe {
        ProcessProbe { flow: flow.to_owned(), stage, cluster: Mutex::default(), work: Mutex::default() }
    }

    /// From now on the cluster is shown.
    pub(crate) fn watch(&self, cluster: ClusterWatch) {
        *lock(&self.cluster) = Some(cluster);
    }

    /// From now on the flow is shown.
    pub(crate) fn serve(&self, process: Arc<ProcessContext>, tracker: Arc<CommitTracker>) {
        *lock(&self.work) = Some((process, tracker));
    }

    fn missing_peers(&self) -> Vec<String> {
        lock(&self.cluster).as_ref().map(ClusterWatch::waiting_for).unwrap_or_default()
    }
}

impl Probe for ProcessProbe {
    fn ready(&self) -> Result<(), String> {
        match &*lock(&self.work) {
            Some((process, _)) => {
                let first = process.process.0 as usize * process.workers_per_process;
                let own = (first..first + process.workers_per_process)
                    .map(|worker| process.inputs.owned_by(WorkerIndex(worker as u32)).len());
                match process.status.snapshot().partitions.len() < own.sum() {
                    true => Err("the partitions are being opened".to_owned()),
                    false => Ok(()),
                }
            }
            None => {
                let missing = self.missing_peers();
                Err(if missing.is_empty() {
                    self.stage.get().to_owned()
                } else {
                    format!("{}: {}", self.stage.get(), missing.join("; "))
                })
            }
        }
    }

    fn metrics(&self) -> String {
        match &*lock(&self.work) {
            Some((process, _)) => process.metrics.encode(),
            None => Metrics::new().encode(),
        }
    }

    fn status(&self) -> String {
        let status = lock(&self.work).as_ref().map(|(process, _)| process.status.snapshot());
        let document = Document {
            flow: &self.flow,
            version: env!("CARGO_PKG_VERSION"),
            stage: self.stage.get(),
            waiting_for_peers: self.missing_peers(),
            status,
        };
        serde_json::to_string_pretty(&document)
            .unwrap_or_else(|error| format!("{{\"error\":\"the status cannot be written: {error}\"}}"))
    }
}
