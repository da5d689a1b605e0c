//! Process 0 opens the recovery store: the lease, the newest record and, for exactly-once output, all that earlier runs had
//! left to publish.

use crate::causes::{cause_of, store_cause};
use crate::clients::{self, Clients};
use crate::publication::start_output;
use crate::run::{Job, build_id};
use tidegate_cluster::Cause;
use tidegate_operators::kafka::{check_control_topic, fit_to_topics};
use tidegate_recovery::{
    ClusterShape, ErrorClass, FlowFingerprint, OpenOptions, Opened, RecoveryStore, RunId, Slot, StepTable,
};

/// What is said to a store, but for the steps that keep rows.
pub(crate) fn open_options(
    job: &Job,
    fingerprint: FlowFingerprint,
    run: RunId,
    shape: ClusterShape,
) -> OpenOptions {
    OpenOptions {
        flow: job.name.clone(),
        fingerprint,
        steps: StepTable::default(),
        run,
        host: clients::host_name(),
        build: build_id(),
        shape,
        slots: (0..shape.processes).map(Slot).collect(),
        peer_timeout: job.settings.cluster.peer_timeout,
        store_timeout: job.settings.recovery.store_timeout,
        allow_dropped_state: job.allow_dropped_state,
        allow_older_snapshot: job.allow_older_snapshot,
    }
}

/// Opens the store as process 0, with all that earlier runs had left to publish.
pub(crate) fn open_store(
    job: &Job,
    clients: &Clients,
    store: &RecoveryStore,
    options: &OpenOptions,
) -> Result<Opened, Cause> {
    if job.is_exactly_once() {
        return open_with_output(job, clients, store, options);
    }
    let opened = store.open(options, None).map_err(|error| store_cause(&error))?;
    refuse_owed_output(&opened)?;
    Ok(opened)
}

/// The start of exactly-once output: older generations are fenced, and what they left over is published.
fn open_with_output(
    job: &Job,
    clients: &Clients,
    store: &RecoveryStore,
    options: &OpenOptions,
) -> Result<Opened, Cause> {
    let within = job.settings.cluster.startup_timeout;
    let mut settings = job.performer_settings(clients);
    let create = job.settings.exactly_once.create_replication;
    check_control_topic(&clients.outputs, &settings.control_topic, create, within)
        .map_err(|fault| cause_of(&fault))?;
    let mut claim = store.claim(options, None).map_err(|error| store_cause(&error))?;
    // What was left over goes where it was meant to go, which need not be a topic of the flow as it is now.
    let topics = claim.output_topics().map_err(|error| store_cause(&error))?;
    fit_to_topics(&mut settings.producer, &clients.outputs, &topics, within)
        .map_err(|fault| cause_of(&fault))?;
    start_output(&mut claim, store, settings, job.allow_lost_state, within)?;
    let mut opened = claim.open().map_err(|error| store_cause(&error))?;
    opened.publisher.leftovers_published();
    Ok(opened)
}

/// A flow that is not exactly-once any more publishes no outbox: what is left would be lost in silence.
fn refuse_owed_output(opened: &Opened) -> Result<(), Cause> {
    let owed = opened.resume.outboxes.len();
    if owed == 0 {
        return Ok(());
    }
    let text = format!(
        "the recovery store holds {owed} outboxes that may not be published yet, and without exactly_once nobody would publish them: run the flow once more with delivery: exactly_once, stop it, and change it then"
    );
    Err(Cause::new(ErrorClass::Config, "OUTPUT_OWED", text))
}
