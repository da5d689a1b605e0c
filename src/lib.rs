//! Tidegate: right counts, windows and loads from Kafka topics, on timely dataflow.
//!
//! A flow is written in YAML and run by the `tidegate` command, or in Rust:
//!
//! ```no_run
//! use serde::{Deserialize, Serialize};
//! use tidegate::{Aggregate, IntoRecord, Json, OutOfOrder, Record, Tumbling, sum};
//!
//! #[derive(Clone, Serialize, Deserialize)]
//! struct Order { customer: String, at_ms: i64, amount: i64, paid: bool }
//!
//! fn main() -> std::process::ExitCode {
//!     tidegate::main(|flow| {
//!         flow.kafka("orders")
//!             .decode(Json::<Order>::new()).or_drop()
//!             .event_time("ordered-at", |o| o.at_ms, OutOfOrder::secs(5))
//!             .filter("paid", |o| o.paid)
//!             .key_by(|o| o.customer.clone())
//!             .window("per-minute", Tumbling::minutes(1), Aggregate::count().and(sum(|o: &Order| o.amount)))
//!             .map("to-record", |w| Record::json(&*w.key, &w))
//!             .kafka_sink("totals");
//!     })
//! }
//! ```
//!
//! # The path of a record
//!
//! ```text
//!  Kafka partition p          worker that owns p                     worker that owns key k
//! ┌───────────────┐   ┌────────────────────────────────┐   ┌─────────────────────────────────────┐
//! │ offsets o…o+n ├──►│ source ► decode ► event_time    ├──►│ window / stateful step   ► sink     │
//! └───────▲───────┘   │ ► map/filter ► key_by (exchange)│   │   │ snapshot rows           │ acks  │
//!         │           └────────────────────────────────┘   └───┼─────────────────────────┼───────┘
//!         │ commit(p, next offset at the end of e)             ▼                         ▼
//!         │                                             one segment per process ──► all of e durable and acknowledged?
//!         └───────────────── CommitTracker ◄── epoch e durable ◄── commit record of e
//! ```
//!
//! # Where to read on
//!
//! - `src/run.rs` is the life of a process, from top to bottom; `src/work.rs` is what its worker threads do.
//! - [`Flow`] and [`Stream`] are the flow in Rust; a flow in YAML is put together from the same steps.
//! - [`config`] reads what a person wrote: flow file, environment and flags, into a checked description.
//! - [`expression`] compiles the CEL expressions of a YAML flow; they work on [`value`]s.
//! - [`cli`] is the command line, [`check`] the command that explains a configuration, `src/command.rs` what the others do.
//! - `tidegate-operators`, `tidegate-cluster` and `tidegate-recovery` are the three parts beneath.

#[cfg(feature = "mimalloc")]
mod allocator;
mod causes;
pub mod check;
pub mod cli;
mod clients;
mod command;
pub mod config;
mod connections;
mod demo;
pub mod exit;
pub mod expression;
mod flow;
mod http;
mod offsets;
mod opening;
mod outboxes;
mod probe;
mod progress;
mod publication;
mod replay;
mod restore;
mod run;
mod signals;
mod snapshots;
mod standing;
mod start;
mod start_watch;
mod table;
pub mod telemetry;
mod test_points;
pub mod value;
mod work;

pub use flow::{
    Decode, Decoded, Flow, IntoRecord, Json, KeyBytes, KeyFromBytes, KeyedStream, OutOfOrder, Stream, Window,
};
pub use tidegate_operators::collect_batch::BatchLimits;
pub use tidegate_operators::element::{Data, Element, Header, Headers, Meta, Record};
pub use tidegate_operators::record::{DeadLetters, OnError};
pub use tidegate_operators::window::{
    Aggregate, Aggregator, Session, Sliding, Tumbling, WindowSettings, WindowSpec, count, first, last, max,
    mean, min, sum,
};

pub use command::{main, tidegate};
