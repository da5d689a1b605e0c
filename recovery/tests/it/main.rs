//! The recovery store from outside: what a process sees of it, on a disk that may fail.
//!
//! One binary, so that it is linked once.

#![allow(clippy::print_stdout, reason = "tests print the figures that a person compares")]

mod bounds;
mod cluster;
mod crash_points;
mod faults;
mod golden;
mod input;
mod outbox;
mod owners;
mod round_trip;
mod tracker;
