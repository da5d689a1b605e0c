//! A small cluster on a store: processes that hold rows in a map, and a plain recount to compare with.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tidegate_recovery::outbox::OutputRow;
use tidegate_recovery::rows::{RowChange, RowRef};
use tidegate_recovery::*;

/// Short, so that tests of dead holders end soon.
pub(crate) const PEER_TIMEOUT: Duration = Duration::from_millis(600);

/// A flow with two keyed steps.
pub(crate) fn steps() -> StepTable {
    table(vec![
        StepShape::new("per-minute", "window").parameter("size", "60000ms"),
        StepShape::new("watermark", "event_time"),
    ])
}

pub(crate) fn table(steps: Vec<StepShape>) -> StepTable {
    StepTable::new(steps).expect("the steps have different names")
}

pub(crate) fn options(run: u128, processes: u32, workers_per_process: u32) -> OpenOptions {
    OpenOptions {
        flow: "orders".to_owned(),
        fingerprint: FlowFingerprint(7),
        steps: steps(),
        run: RunId(run),
        host: "a-host".to_owned(),
        build: "a-build".to_owned(),
        shape: ClusterShape { processes, workers_per_process },
        slots: (0..processes).map(Slot).collect(),
        peer_timeout: PEER_TIMEOUT,
        store_timeout: Duration::from_millis(300),
        allow_dropped_state: false,
        allow_older_snapshot: false,
    }
}

/// (step, key, sub-key)
pub(crate) type RowKey = (u16, Vec<u8>, Vec<u8>);

/// All processes of one generation, driven by the test.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub(crate) opened: Opened,
    pub(crate) processes: Vec<ProcessStore>,
    /// The rows that the cluster restored, and has now.
    pub(crate) rows: BTreeMap<RowKey, Vec<u8>>,
    pub(crate) restored: u64,
    pub(crate) shape: ClusterShape,
    pub(crate) pending: Vec<Vec<RowBuffer>>,
    /// Whether records give output, which becomes an outbox of the process that reads their partition.
    pub(crate) outputs: bool,
    pub(crate) pending_output: Vec<OutputBuffer>,
}

pub(crate) fn process_options() -> ProcessOptions {
    ProcessOptions { store_timeout: Duration::from_millis(300), ..ProcessOptions::default() }
}

impl Cluster {
    pub(crate) fn start(storage: &Arc<dyn Storage>, options: &OpenOptions) -> Result<Cluster, StoreError> {
        Cluster::start_with(storage, options, process_options())
    }

    pub(crate) fn start_with(
        storage: &Arc<dyn Storage>,
        options: &OpenOptions,
        limits: ProcessOptions,
    ) -> Result<Cluster, StoreError> {
        let store = RecoveryStore::new(storage.clone());
        let opened = store.open(options, None)?;
        let shape = options.shape;
        let mut cluster = Cluster {
            processes: Vec::new(),
            rows: BTreeMap::new(),
            restored: 0,
            shape,
            pending: vec![Vec::new(); shape.processes as usize],
            outputs: false,
            pending_output: vec![OutputBuffer::new(); shape.processes as usize],
            opened,
        };
        for index in 0..shape.processes {
            let process = ProcessIndex(index);
            store.join(&cluster.opened.resume)?;
            let mut process_store =
                ProcessStore::new(storage.clone(), &cluster.opened.resume, process, limits);
            let restoration = process_store.restore(shape.workers_per_process as usize, &|row| {
                shape.local(process, worker_of(row, shape))
            })?;
            cluster.restored += restoration.rows;
            for (local, steps) in restoration.workers.iter().enumerate() {
                for step in steps {
                    for row in &step.rows.rows {
                        let again = RowRef {
                            step: step.step,
                            route: row.route,
                            key: &row.key,
                            sub: &row.sub,
                            change: RowChange::Delete,
                        };
                        assert_eq!(shape.local(process, worker_of(&again, shape)), Some(local));
                        let key = (step.step.0, row.key.to_vec(), row.sub.to_vec());
                        let twice = cluster.rows.insert(key, row.value.to_vec());
                        assert_eq!(twice, None, "a row came back twice");
                    }
                }
            }
            cluster.processes.push(process_store);
        }
        Ok(cluster)
    }

    /// Changes a row in memory; it is in the next part of its owner.
    pub(crate) fn change(&mut self, step: u16, key: &[u8], sub: &[u8], change: RowChange<'_>) {
        let row = RowRef {
            step: StepNumber(step),
            route: RowRoute::Bucket(KeyHash::of(key).bucket()),
            key,
            sub,
            change,
        };
        match change {
            RowChange::Put(value) => {
                self.rows.insert((step, key.to_vec(), sub.to_vec()), value.to_vec());
            }
            RowChange::Delete => {
                self.rows.remove(&(step, key.to_vec(), sub.to_vec()));
            }
            RowChange::DeletePrefix => self.rows.retain(|(other_step, other_key, other_sub), _| {
                *other_step != step || other_key != key || !other_sub.starts_with(sub)
            }),
        }
        let worker = worker_of(&row, self.shape);
        let process = worker.0 / self.shape.workers_per_process;
        let buffers = &mut self.pending[process as usize];
        if buffers.is_empty() {
            buffers.push(RowBuffer::new());
        }
        buffers[0].push(row);
    }

    /// Output of one record.
    pub(crate) fn output(&mut self, partition: i32, offset: i64) {
        let buffer = &mut self.pending_output[(partition as u32 % self.shape.processes) as usize];
        let destination = buffer.destination(&StepId::new("sink"), "orders.totals").expect("there is room");
        buffer.push(&OutputRow {
            destination,
            partition: None,
            timestamp: Some(offset),
            key: Some(format!("{partition}@{offset}").as_bytes()),
            value: Some(b"a value"),
            headers: Vec::new(),
        });
    }

    /// One commit epoch: parts of all processes, then the record.
    pub(crate) fn commit(
        &mut self,
        epoch: Epoch,
        offsets: Vec<(TopicPartition, NextOffset)>,
    ) -> Result<Published, StoreError> {
        let published = self.publish(epoch, offsets)?;
        self.opened.publisher.retain()?;
        Ok(published)
    }

    /// The same without retention.
    pub(crate) fn publish(
        &mut self,
        epoch: Epoch,
        offsets: Vec<(TopicPartition, NextOffset)>,
    ) -> Result<Published, StoreError> {
        let mut parts = Vec::new();
        let mut offsets = Some(offsets);
        for (index, process) in self.processes.iter_mut().enumerate() {
            let rows = std::mem::take(&mut self.pending[index]);
            let output = std::mem::take(&mut self.pending_output[index]);
            let offsets = offsets.take().unwrap_or_default();
            parts.extend(process.write_part_with_output(epoch, &rows, &[output], offsets)?);
        }
        self.opened.publisher.publish(epoch, &parts)
    }

    pub(crate) fn next_epoch(&self) -> Epoch {
        self.opened.publisher.epoch().next()
    }
}

fn worker_of(row: &RowRef<'_>, shape: ClusterShape) -> WorkerIndex {
    match row.route {
        RowRoute::Bucket(bucket) => bucket.worker(shape.workers()),
        RowRoute::Partition => {
            let partition = rows::parse_partition_key(row.key).expect("partition rows have partition keys");
            WorkerIndex(partition.partition as u32 % shape.workers() as u32)
        }
    }
}
