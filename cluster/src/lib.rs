//! The cluster: processes that form one timely dataflow, agree on everything before they work, and end
//! together.
//!
//! # What it guarantees
//!
//! - **Nothing starts in disagreement.** Every connection begins with a handshake that compares protocol,
//!   flow, fingerprint, build, shape, place, and what else the caller names; a difference ends both sides with
//!   both values (`PEER_MISMATCH`, exit 78). Work starts when every process has acknowledged the same generation
//!   and the same list of runs.
//! - **Strangers do not matter.** Probes, garbage, HTTP requests, silent connections are dropped by a
//!   deadline, logged once, and change nothing. With a shared secret, only who proves that it knows it counts.
//! - **A lost peer is noticed within `peer_timeout`**, whether it died, froze or was cut off, on a connection
//!   of its own (`PEER_LOST`, exit 75). A process that itself stood still that long notices that first, and
//!   [`Liveness::check`] keeps it from committing anything.
//! - **One first cause.** The [`Supervisor`] keeps the cause that came first, spreads it to the peers, and
//!   makes all worker loops leave; a worker that does not is left behind after `unwind_timeout`.
//! - **All end alike.** A process whose work is done waits until that of all is, and goes when all know it: one
//!   that is killed on its way out turns nobody's success into a failure, and one that is killed before its
//!   work was done ends all of them (`farewell`).
//!
//! # What it assumes
//!
//! - All processes run one build of one program with one flow; the handshake checks the claim, not the code.
//! - The network between the processes is trusted or the cluster has a secret. Connections are neither
//!   encrypted nor signed after the handshake: across untrusted networks put a sidecar or WireGuard under
//!   them. Timely needs to clone its streams, which a TLS session cannot do.
//! - Host names resolve, again at every attempt; a process's own entry is an address of its host.
//!
//! # The life of a process
//!
//! ```
//! use tidegate_cluster::*;
//! use tidegate_recovery::{FlowFingerprint, Generation};
//!
//! # fn main() -> Result<(), ClusterError> {
//! let spec = ClusterSpec::from_flags(None, None, Some(2))?;
//! let identity = Identity {
//!     cluster_id: "order-totals".into(),
//!     fingerprint: FlowFingerprint(7),
//!     build: "0.1.0".into(),
//!     in_common: [("the epoch interval".to_owned(), "100ms".to_owned())].into(),
//!     run_id: new_run_id()?,
//!     known_generation: Generation(0),
//!     secret: None,
//! };
//! let supervisor = Supervisor::new();
//! // Bind first: a taken port is reported before anything else happens.
//! let mesh = Mesh::bind(spec, identity, Timeouts::default(), &supervisor)?;
//! // Process 0 assigns the generation when all are there; with a store it takes its lease here.
//! let mut joined = mesh.join(|present| {
//!     Ok(Assignment { generation: present.next_generation(), settings: b"resume at 41".to_vec() })
//! })?;
//! assert_eq!(joined.settings(), b"resume at 41");
//! // Rounds of the start sequence: everybody gives something, process 0 answers all.
//! let answer = joined.exchange(b"ready".to_vec(), |all| Ok(all.concat()))?;
//! assert_eq!(answer, b"ready");
//! // The common base of the epochs' clock.
//! let base = joined.start_clock()?;
//! let outcome = joined.execute(worker_config(), move |worker, context| {
//!     // Build the dataflow, then step until the work is done or the generation is given up.
//!     while worker.has_dataflows() && !context.leaving() {
//!         context.step_or_park(worker, PARK_MAX);
//!     }
//!     Ok(base.elapsed())
//! });
//! assert_eq!(outcome.exit_code(), 0);
//! # Ok(())
//! # }
//! ```
//!
//! # Reading the code
//!
//! Protocols are pure: [`handshake`] (one connection), `admission` (who gets a seat), `assembly` (when the
//! cluster is complete), `farewell` (when it is done), `supervisor::FirstCause`, `liveness::Silence`. The shells around them are `socket`,
//! `door` (the listener), `dial`, `link` (the heartbeat's threads), `mesh` (what they share), `join` and
//! `execute`.

mod admission;
mod assembly;
mod cause;
mod clock;
mod dial;
mod door;
mod error;
mod execute;
mod exit;
mod farewell;
pub mod handshake;
mod identity;
mod join;
mod link;
mod liveness;
mod mesh;
mod panics;
mod socket;
mod spec;
mod supervisor;
mod timeouts;
mod wire;

pub use cause::{
    CLUSTER_ALREADY_RUNNING, Cause, LEASE_LOST, Origin, PANIC, PEER_LOST, PEER_MISMATCH, PEERS_MISSING,
    STOOD_STILL,
};
pub use error::ClusterError;
pub use execute::{Outcome, PARK_MAX, WorkerContext, worker_config};
pub use exit::HardExit;
pub use identity::{
    BUILD_ID_BYTES_MAX, CLUSTER_ID_BYTES_MAX, IN_COMMON_BYTES_MAX, Identity, Secret, new_run_id,
};
pub use join::{Assignment, ClusterWatch, Joined, Mesh, Present};
pub use liveness::Liveness;
pub use mesh::PeerStatus;
pub use panics::ThreadWatch;
pub use spec::{Address, ClusterSpec, PROCESSES_MAX, WORKERS_PER_PROCESS_MAX};
pub use supervisor::Supervisor;
pub use timeouts::Timeouts;
