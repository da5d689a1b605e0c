//! The recovery store from outside: what a process sees of it, on a disk that may fail.
//!
//! One binary, so that it is linked once.

mod bounds;
mod cluster;
mod crash_points;
mod faults;
mod input;
mod owners;
mod round_trip;
mod tracker;
