//! The operators of Tidegate on timely dataflow: sources, event time, keyed steps, windows, sinks.

pub mod element;
pub mod fault;
pub mod keyed;
pub mod sink;
pub mod source;
pub mod time;
pub mod window;
