//! What a store holds, for people: `tidegate recovery inspect` and `verify`. Neither changes anything.
//!
//! Both may run beside a cluster. They then show one moment: a file that retention takes meanwhile is no damage
//! when a newer record is there, so they look again.

use super::ResumeState;
use super::chosen::read_segment;
use super::drive::{self, read_record};
use super::open::{RecoveryStore, shown};
use super::process::{ProcessOptions, ProcessStore};
use crate::format::StoreBody;
use crate::format::record::CommitRecord;
use crate::format::segment::SegmentFile;
use crate::lease::{self, LeaseHolder};
use crate::names::{Folder, Name, STORE};
use crate::protocol::highest_record;
use crate::storage::Storage;
use crate::{
    ClusterShape, Epoch, FlowFingerprint, Generation, NextOffset, ProcessIndex, RecordNumber, RunId, StepId,
    StoreError, StoreId, TopicId, TopicPartition,
};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::sync::Arc;

/// Looks again this often when a running cluster deletes files under the reader.
const LOOKS_MAX: u32 = 5;

/// What a store holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// Where it is.
    pub place: String,
    /// Its id.
    pub store: StoreId,
    /// Its flow.
    pub flow: String,
    /// The leases, ascending.
    pub leases: Vec<InspectedLease>,
    /// The commit records, ascending.
    pub records: Vec<InspectedRecord>,
    /// Where every partition goes on, by the newest record.
    pub offsets: Vec<(TopicPartition, NextOffset)>,
    /// The ids of topics whose offsets these are, where the brokers told them.
    pub topics: Vec<(Arc<str>, TopicId)>,
    /// The steps that keep rows, by the newest record.
    pub steps: Vec<InspectedStep>,
    /// Segments that the newest record names.
    pub segments: usize,
    /// Their bytes on disk.
    pub segment_bytes: u64,
    /// Outboxes whose publication the newest record does not know.
    pub outboxes: usize,
    /// Files of ours that no record names: of epochs on their way, or left by a crash.
    pub unnamed: Vec<String>,
    /// Files that are none of ours.
    pub foreign: Vec<String>,
    /// Files that cannot be used.
    pub damage: Vec<Damage>,
}

/// A lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InspectedLease {
    /// Its generation.
    pub generation: Generation,
    /// Who took it; `None` when the file is damaged.
    pub holder: Option<LeaseHolder>,
    /// How often it was renewed.
    pub counter: Option<u64>,
    /// Whether somebody holds its lock. Only the newest one matters.
    pub locked: bool,
}

/// A commit record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InspectedRecord {
    /// Its number.
    pub number: RecordNumber,
    /// Its epoch.
    pub epoch: Epoch,
    /// The generation that published it.
    pub generation: Generation,
    /// The cluster's shape then.
    pub shape: ClusterShape,
    /// The flow's fingerprint then.
    pub fingerprint: FlowFingerprint,
    /// Segments that it names.
    pub segments: usize,
}

/// A step that keeps rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InspectedStep {
    /// Its id.
    pub id: StepId,
    /// Its kind.
    pub kind: String,
    /// Version of its rows.
    pub version: u32,
    /// The parameters that shape them.
    pub parameters: BTreeMap<String, String>,
    /// Live rows; `None` when damage hides them.
    pub rows: Option<u64>,
    /// Bytes of their keys and values.
    pub bytes: u64,
}

/// A file that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The file.
    pub file: String,
    /// The whole message.
    pub message: String,
}

/// What [`RecoveryStore::verify`] read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verification {
    /// Where the store is.
    pub place: String,
    /// Files that were read whole.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Files that cannot be used.
    pub damage: Vec<Damage>,
}

impl Verification {
    /// Whether every file can be used.
    pub fn is_sound(&self) -> bool {
        self.damage.is_empty()
    }
}

impl RecoveryStore {
    /// What the store holds. Reads the newest record's state whole.
    ///
    /// # Errors
    ///
    /// When there is no store, or the disk fails. Damage is part of the answer.
    pub fn inspect(&self) -> Result<Inspection, StoreError> {
        let mut looks = 0;
        loop {
            looks += 1;
            let before = self.newest_record()?;
            let inspection = self.look()?;
            if inspection.damage.is_empty() || looks == LOOKS_MAX || self.newest_record()? == before {
                return Ok(inspection);
            }
        }
    }

    /// Reads every file that a record names, and every other file of ours that has to be whole.
    ///
    /// # Errors
    ///
    /// When there is no store, or the disk fails. Damage is part of the answer.
    pub fn verify(&self) -> Result<Verification, StoreError> {
        let mut looks = 0;
        loop {
            looks += 1;
            let before = self.newest_record()?;
            let verification = self.read_all()?;
            if verification.is_sound() || looks == LOOKS_MAX || self.newest_record()? == before {
                return Ok(verification);
            }
        }
    }

    /// Where every partition goes on, by the newest commit record; nothing before the first one. Reads no state.
    ///
    /// # Errors
    ///
    /// When there is no store, `STORE_DAMAGED` when the record is not whole, or what the disk says.
    pub fn offsets(&self) -> Result<Vec<(TopicPartition, NextOffset)>, StoreError> {
        self.body()?;
        Ok(self.newest()?.map(|record| record.offsets).unwrap_or_default())
    }

    /// The newest commit record.
    pub(super) fn newest(&self) -> Result<Option<CommitRecord>, StoreError> {
        while let Some(number) = self.newest_record()? {
            let record = read_record(&**self.storage(), number)?;
            if record.is_some() {
                return Ok(record);
            }
            // Retention of a running cluster has taken it since: there is a newer one.
        }
        Ok(None)
    }

    fn newest_record(&self) -> Result<Option<RecordNumber>, StoreError> {
        Ok(highest_record(&drive::list(&**self.storage(), Folder::Commits)?))
    }

    fn look(&self) -> Result<Inspection, StoreError> {
        let storage = &**self.storage();
        let body = self.body()?;
        let mut inspection = Inspection {
            place: storage.place(),
            store: body.store,
            flow: body.flow,
            leases: Vec::new(),
            records: Vec::new(),
            offsets: Vec::new(),
            topics: Vec::new(),
            steps: Vec::new(),
            segments: 0,
            segment_bytes: 0,
            outboxes: 0,
            unnamed: Vec::new(),
            foreign: Vec::new(),
            damage: Vec::new(),
        };
        let mut named: BTreeSet<Name> = BTreeSet::new();
        let mut newest = None;
        for (folder, path) in
            [Folder::Leases, Folder::Commits, Folder::Segments, Folder::Outboxes].map(|f| (f, f.path()))
        {
            let mut entries = match storage.list(path) {
                // A store of a version that had no outboxes.
                Err(error) if folder == Folder::Outboxes && error.kind() == io::ErrorKind::NotFound => {
                    continue;
                }
                listed => listed.map_err(StoreError::io("list", shown(storage, path)))?,
            };
            entries.sort();
            for entry in entries {
                match folder.parse(&entry.name) {
                    Some(Name::Lease(generation)) => inspection.lease(storage, generation)?,
                    Some(Name::Record(number)) => {
                        if let Some(record) = inspection.record(storage, number)? {
                            named.extend(record.facts().files);
                            newest = Some(record);
                        }
                    }
                    Some(name) if named.contains(&name) => {}
                    Some(Name::Decision(outbox, _)) if named.contains(&Name::Outbox(outbox)) => {}
                    Some(name) => inspection.unnamed.push(name.to_string()),
                    None => inspection.foreign.push(format!("{path}/{}", entry.name)),
                }
            }
        }
        if let Some(record) = newest {
            inspection.state(self.storage(), record)?;
        }
        Ok(inspection)
    }

    fn read_all(&self) -> Result<Verification, StoreError> {
        let storage = &**self.storage();
        let mut verification = Verification { place: storage.place(), ..Verification::default() };
        let bytes = storage.read(STORE).map_err(StoreError::io("read", shown(storage, STORE)))?;
        let length = bytes.len() as u64;
        verification.note(length, StoreBody::decode(&bytes).map(|_| ()))?;
        for name in drive::list(storage, Folder::Leases)? {
            if let Name::Lease(generation) = name {
                verification.note(0, lease::read(storage, generation).map(|_| ()))?;
            }
        }
        let (mut segments, mut outboxes) = (BTreeSet::new(), BTreeSet::new());
        for name in drive::list(storage, Folder::Commits)? {
            if let Name::Record(number) = name {
                let record = read_record(storage, number);
                if let Ok(Some(record)) = &record {
                    segments.extend(record.segments.iter().cloned());
                    outboxes.extend(record.outboxes.iter().cloned());
                }
                verification.note(0, record.map(|_| ()))?;
            }
        }
        for segment in segments {
            let read = read_segment(storage, &segment).and_then(|file| every_row(&file));
            verification.note(segment.length, read)?;
        }
        for outbox in outboxes {
            let read = self.read_outbox(&outbox).and_then(|outbox| outbox.rows());
            verification.note(outbox.length, read.map(|_| ()))?;
        }
        Ok(verification)
    }
}

fn every_row(file: &SegmentFile) -> Result<(), StoreError> {
    for frame in &file.frames {
        super::process::row_starts(&file.file, &file.rows(frame)?)?;
    }
    Ok(())
}

impl Verification {
    fn note(&mut self, bytes: u64, outcome: Result<(), StoreError>) -> Result<(), StoreError> {
        self.files += 1;
        self.bytes += bytes;
        self.damage.extend(damage_of(outcome)?);
        Ok(())
    }
}

/// Damage is part of an answer; anything else ends it.
fn damage_of(outcome: Result<(), StoreError>) -> Result<Option<Damage>, StoreError> {
    match outcome {
        Ok(()) => Ok(None),
        Err(error) => match &error {
            StoreError::Damaged { file, .. } | StoreError::NewerFormat { file, .. } => {
                Ok(Some(Damage { file: file.clone(), message: error.to_string() }))
            }
            _ => Err(error),
        },
    }
}

impl Inspection {
    fn lease(&mut self, storage: &dyn Storage, generation: Generation) -> Result<(), StoreError> {
        let name = Name::Lease(generation).to_string();
        let locked = match storage.lock(&name) {
            Ok(lock) => lock.is_none(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(StoreError::io("lock", name)(error)),
        };
        let (holder, counter) = match lease::read(storage, generation) {
            Ok(Some(file)) => (Some(file.body.holder), file.counter),
            Ok(None) => return Ok(()),
            Err(error) => {
                self.damage.extend(damage_of(Err(error))?);
                (None, None)
            }
        };
        self.leases.push(InspectedLease { generation, holder, counter, locked });
        Ok(())
    }

    fn record(
        &mut self,
        storage: &dyn Storage,
        number: RecordNumber,
    ) -> Result<Option<CommitRecord>, StoreError> {
        let record = match read_record(storage, number) {
            Ok(Some(record)) => record,
            Ok(None) => return Ok(None),
            Err(error) => {
                self.damage.extend(damage_of(Err(error))?);
                return Ok(None);
            }
        };
        self.records.push(InspectedRecord {
            number,
            epoch: record.epoch,
            generation: record.generation,
            shape: record.shape,
            fingerprint: record.fingerprint,
            segments: record.segments.len(),
        });
        Ok(Some(record))
    }

    /// Counts rows and bytes per step as a start on one worker would read them.
    fn state(&mut self, storage: &Arc<dyn Storage>, record: CommitRecord) -> Result<(), StoreError> {
        self.offsets = record.offsets.clone();
        self.topics = record.topics.clone();
        self.segments = record.segments.len();
        self.outboxes = record.outboxes.len();
        self.segment_bytes = record.segments.iter().map(|segment| segment.length).sum();
        self.steps = record
            .steps
            .iter()
            .map(|step| InspectedStep {
                id: step.shape.id.clone(),
                kind: step.shape.kind.clone(),
                version: step.shape.version,
                parameters: step.shape.parameters.clone(),
                rows: None,
                bytes: 0,
            })
            .collect();
        let resume = ResumeState {
            store: record.store,
            lease: LeaseHolder {
                generation: record.generation,
                run: RunId(0),
                host: String::new(),
                pid: 0,
                shape: ClusterShape { processes: 1, workers_per_process: 1 },
                slots: Vec::new(),
                build: String::new(),
            },
            record: Some(record.number),
            epoch: record.epoch,
            recorded_by: Some(record.generation),
            recorded_shape: Some(record.shape),
            offsets: record.offsets,
            topics: record.topics,
            segments: record.segments,
            outboxes: record.outboxes,
            steps: record.steps,
            slots: Vec::new(),
            unreadable_leases: Vec::new(),
        };
        let mut process =
            ProcessStore::new(storage.clone(), &resume, ProcessIndex(0), ProcessOptions::default());
        match process.restore(1, &|_| Some(0)) {
            Ok(restoration) => {
                for step in &mut self.steps {
                    step.rows = Some(0);
                }
                for step in restoration.workers.into_iter().flatten() {
                    if let Some(shown) = self.steps.get_mut(usize::from(step.step.0)) {
                        *shown.rows.get_or_insert(0) += step.rows.rows.len() as u64;
                        let bytes =
                            step.rows.rows.iter().map(|row| row.key.len() + row.sub.len() + row.value.len());
                        shown.bytes += bytes.sum::<usize>() as u64;
                    }
                }
            }
            Err(error) => self.damage.extend(damage_of(Err(error))?),
        }
        Ok(())
    }
}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "store      {} (id {})", self.place, self.store)?;
        writeln!(f, "flow       {}", self.flow)?;
        for lease in &self.leases {
            let state = if lease.locked { "held" } else { "free" };
            match &lease.holder {
                Some(holder) => writeln!(
                    f,
                    "lease      {state}: {holder}, renewed {} times",
                    lease.counter.map_or_else(|| "?".to_owned(), |counter| counter.to_string())
                )?,
                None => writeln!(f, "lease      {state}: generation {}, unreadable", lease.generation)?,
            }
        }
        for record in &self.records {
            writeln!(
                f,
                "record     {}: epoch {}, generation {}, {}, {} segments, flow fingerprint {}",
                record.number,
                record.epoch,
                record.generation,
                record.shape,
                record.segments,
                record.fingerprint
            )?;
        }
        if self.records.is_empty() {
            writeln!(f, "record     none")?;
        }
        writeln!(f, "segments   {} ({} bytes)", self.segments, self.segment_bytes)?;
        if self.outboxes > 0 {
            writeln!(f, "outboxes   {} that may wait for publication", self.outboxes)?;
        }
        for (topic, id) in &self.topics {
            writeln!(f, "topic      {topic} has the id {id}")?;
        }
        for (partition, next) in &self.offsets {
            writeln!(f, "offset     {partition} goes on at {next}")?;
        }
        for step in &self.steps {
            write!(f, "step       {} ({}, version {}", step.id, step.kind, step.version)?;
            for (name, value) in &step.parameters {
                write!(f, ", {name} {value}")?;
            }
            match step.rows {
                Some(rows) => writeln!(f, "): {rows} rows, {} bytes", step.bytes)?,
                None => writeln!(f, "): hidden by damage")?,
            }
        }
        for file in &self.unnamed {
            writeln!(f, "unnamed    {file}")?;
        }
        for file in &self.foreign {
            writeln!(f, "foreign    {file}")?;
        }
        for damage in &self.damage {
            writeln!(f, "damage     {}", damage.message)?;
        }
        Ok(())
    }
}

impl fmt::Display for Verification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for damage in &self.damage {
            writeln!(f, "damage     {}", damage.message)?;
        }
        let outcome = if self.is_sound() { "sound" } else { "damaged" };
        writeln!(
            f,
            "{outcome}: {} files, {} bytes of segments read in {}",
            self.files, self.bytes, self.place
        )
    }
}
