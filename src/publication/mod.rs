//! Exactly-once output: who performs what the machines of [`tidegate_recovery::exactly_once`] ask for.
//!
//! With a store, [`start`] is process 0's part before anybody works: older generations are fenced and what they left over is
//! published. [`slot`] is a thread of every process that publishes its outboxes, one commit epoch after the other. Both
//! have a [`Performer`], which owns the transactional producers and may wait for a broker as long as it takes; no worker
//! thread waits for it.

//!
//! Without a store, [`direct`] initialises a producer for every input partition of a process, and a thread for each
//! ([`partition`]) publishes what was made of it.

mod begin;
mod direct;
mod partition;
mod performer;
mod slot;
mod start;
mod waiting;

pub(crate) use begin::{start_publication, watch_output};
pub(crate) use direct::{DirectPublication, DirectSettings, Initialised, PartitionBeginning};
pub(crate) use performer::{Performer, PerformerSettings};
pub(crate) use slot::{Publication, PublicationSettings};
pub(crate) use start::start_output;

use tidegate_operators::fault::Fault;
use tidegate_recovery::exactly_once::Stop;

/// The fault that ends a publication.
fn fault_of_stop(stop: &Stop) -> Fault {
    Fault::new(stop.class(), stop.to_string()).code(stop.code())
}

/// A number that no other start has drawn.
fn nonce() -> Result<u64, Fault> {
    let drawn = tidegate_cluster::new_run_id()
        .map_err(|error| Fault::new(tidegate_recovery::ErrorClass::Internal, error.to_string()))?;
    Ok(drawn.0 as u64)
}
