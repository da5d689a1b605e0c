//! What a run says to the publications, from its settings and its start.

use super::{DirectSettings, PerformerSettings, Publication, PublicationSettings};
use crate::causes::{cause_of, internal};
use crate::clients::Clients;
use crate::run::{Job, ended};
use crate::start::StartPlan;
use crate::work::{own_partitions, standing};
use std::time::Duration;
use tidegate_cluster::{ClusterError, Joined};
use tidegate_operators::inputs::InputTable;
use tidegate_operators::kafka::{ConsumerConfig, OutputWatch, OutputWatchSettings};
use tidegate_recovery::{NextOffset, RecoveryStore, ResumeState, Slot};

impl Job {
    /// What the performers of exactly-once output need to know.
    pub(crate) fn performer_settings(&self, clients: &Clients) -> PerformerSettings {
        PerformerSettings {
            flow: self.name.clone(),
            group: clients.consumer.group_id.clone(),
            control_topic: self.settings.exactly_once.control_topic(&self.name),
            producer: clients.producer.clone(),
            consumer: ConsumerConfig { connection: clients.outputs.clone(), ..clients.consumer.clone() },
            request_timeout: self.settings.exactly_once.request_timeout,
            store_timeout: self.settings.recovery.store_timeout,
        }
    }

    /// So long after its last commit the group's offset is committed again.
    fn keepalive(&self) -> Duration {
        self.settings.consumer.as_ref().map_or(Duration::MAX, |of| of.commit_keepalive)
    }

    /// The same without a store.
    pub(crate) fn direct_settings(&self, clients: &Clients, joined: &Joined) -> DirectSettings {
        DirectSettings {
            flow: self.name.clone(),
            group: clients.consumer.group_id.clone(),
            producer: clients.producer.clone(),
            consumer: clients.consumer.clone(),
            request_timeout: self.settings.exactly_once.request_timeout,
            keepalive: self.keepalive(),
            start_timeout: self.settings.cluster.startup_timeout,
            standing: standing(joined, None),
        }
    }
}

/// Starts the publication of this process's slot, behind the barrier that the answer about the start is.
pub(crate) fn start_publication(
    job: &Job,
    clients: &Clients,
    store: &RecoveryStore,
    resume: &ResumeState,
    start: &StartPlan,
    inputs: &InputTable,
    joined: &Joined,
) -> Result<Publication, ClusterError> {
    let own = own_partitions(start, inputs, joined.spec());
    let offsets = |of: fn(&tidegate_recovery::Assignment) -> Option<NextOffset>| {
        own.iter().filter_map(|own| Some((own.partition.clone(), of(own)?))).collect()
    };
    let settings = PublicationSettings {
        performer: job.performer_settings(clients),
        keepalive: job.keepalive(),
        store: store.clone(),
        slot: Slot(joined.spec().index().0),
        group: offsets(|own| own.group),
        resumed: offsets(|own| own.resumed),
    };
    let started = Publication::start(settings, resume).and_then(|publication| {
        publication.wait_until_ready(job.settings.cluster.startup_timeout)?;
        Ok(publication)
    });
    started.map_err(|fault| ended(joined.supervisor(), cause_of(&fault)))
}

/// Process 0 looks at the output topics: for partitions that are added, and for transactions that hang, behind which nobody
/// would see what is published.
pub(crate) fn watch_output(
    job: &Job,
    clients: &Clients,
    start: &StartPlan,
    joined: &Joined,
) -> Result<Option<OutputWatch>, ClusterError> {
    if start.outputs.is_empty() || joined.spec().index().0 != 0 {
        return Ok(None);
    }
    let config = ConsumerConfig {
        connection: clients.outputs.clone(),
        group_id: clients.consumer.group_id.clone(),
        ..ConsumerConfig::default()
    };
    let settings = OutputWatchSettings {
        config,
        topics: start.outputs.clone(),
        refresh: clients.producer.topic_refresh(),
        transaction_timeout: job.is_exactly_once().then_some(job.settings.exactly_once.transaction_timeout),
    };
    OutputWatch::start(settings)
        .map(Some)
        .map_err(|error| ended(joined.supervisor(), internal("watch the output topics", &error)))
}
