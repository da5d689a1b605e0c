//! Tidegate: Kafka topics to right counts and windows, on timely dataflow.
//!
//! - [`config`] reads what a person wrote: flow file, environment and flags, into a checked description.
//! - [`expression`] compiles the CEL expressions of a YAML flow; they work on [`value`]s.
//! - [`cli`] is the command line, [`check`] the command that explains a configuration.
//! - [`telemetry`] sets logs up, [`exit`] says how a process ends.

pub mod config;
pub mod exit;
pub mod expression;
pub mod telemetry;
pub mod value;
