//! How many records there are.

use super::{AggregateError, Aggregator, VERSION, expect_version};
use crate::keyed::StateError;
use crate::window::order::{Order, PartitionNames, decode, encode};

/// Number of records.
pub fn count() -> Count {
    Count
}

/// See [`count`].
#[derive(Clone, Copy, Debug)]
pub struct Count;

impl<T> Aggregator<T> for Count {
    type State = u64;
    type Input = ();
    type Out = i64;

    fn shape(&self) -> String {
        "count".to_owned()
    }

    fn input(&self, _: &T, (): &mut ()) -> Result<(), AggregateError> {
        Ok(())
    }

    fn start(&self) -> u64 {
        0
    }

    fn can_refuse(&self) -> bool {
        false
    }

    fn check(&self, _: &u64, (): &()) -> Result<(), AggregateError> {
        Ok(())
    }

    fn add(&self, state: &mut u64, (): &(), _: &Order, _: &PartitionNames) {
        *state += 1;
    }

    fn merge(&self, into: &mut u64, from: &u64, _: &PartitionNames) -> Result<(), AggregateError> {
        *into += from;
        Ok(())
    }

    fn finish(&self, state: &u64) -> i64 {
        *state as i64
    }

    fn encode(&self, state: &u64, _: &PartitionNames, out: &mut Vec<u8>) {
        out.push(VERSION);
        encode(state, out);
    }

    fn decode(&self, bytes: &mut &[u8], _: &mut PartitionNames) -> Result<u64, StateError> {
        expect_version(bytes, VERSION)?;
        decode(bytes)
    }
}
