//! The recovery store from outside: what a process sees of it, on a disk that may fail.
//!
//! One binary, so that it is linked once.

mod cluster;
mod round_trip;
