//! The operators of Tidegate on timely dataflow: sources, event time, keyed steps, windows, sinks.
//!
//! Every message is stamped with [`time::Time`], one clock with two hands: the epoch frontier is the tracker of
//! completion, the event frontier is the watermark. A flow is built per worker through [`build::FlowBuild`]; what
//! its operators share is a [`context::WorkerContext`], and what the worker threads of a process share is a
//! [`process::ProcessContext`].
//!
//! This crate guarantees that an epoch is committed only when every effect of every record read in it is durable
//! or acknowledged. It assumes that somebody steps the workers, that the store and the clients behind
//! [`commit::SnapshotIo`], [`source::SourceReader`] and [`sink::SinkWriter`] keep their promises, and that a worker
//! leaves its dataflows (drops them, unfinished) once [`fault::Faults::is_raised`].

pub mod batch;
pub mod build;
pub mod clock;
pub mod collect_batch;
pub mod commit;
pub mod context;
pub mod drive;
pub mod element;
pub mod ending;
pub mod event_time;
pub mod fault;
pub mod frontier;
pub mod inputs;
pub mod kafka;
pub mod keyed;
pub mod limits;
pub mod memory;
pub mod metrics;
pub mod process;
pub mod record;
pub mod sink;
pub mod source;
pub mod stateful_map;
pub mod status;
pub mod steps;
pub mod time;
pub mod wake;
pub mod window;
pub mod wire;
