//! What is kept of the records of a window, and what comes out of it.
//!
//! An aggregate is a value that says how to take a record's contribution, add it, merge two windows (sessions)
//! and give a result; the states are its own. The order in which records arrive never matters: two records at
//! the same place (only results of an earlier window can be) are told apart by their values. A record that
//! cannot be added (an overflow, not a number) is an error of that record and changes nothing.

mod added;
mod chosen;
mod count;
mod pair;
mod place;
mod rank;

pub(super) use added::decode_sum;
pub use added::{Mean, Sum, mean, sum};
pub use count::{Count, count};
pub use pair::And;
pub use place::{First, Last, first, last};
pub(super) use place::{Placed, keep_placed};
pub(super) use rank::keep_best;
pub use rank::{Max, Min, max, min};

use super::order::{Order, PartitionNames};
use crate::keyed::StateError;

/// Why a record cannot be added to a window.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AggregateError {
    /// The result would not fit.
    #[error("a sum leaves the range of a 64-bit integer or of a double")]
    Overflow,
    /// A sum or mean of something else than numbers.
    #[error("cannot add up {0}: it is not a number")]
    NotANumber(String),
    /// The aggregate's expression fails on the record.
    #[error("{0}")]
    Expression(String),
    /// One of several aggregates cannot take the record.
    #[error("aggregate {name}: {error}")]
    Column {
        /// Name of the aggregate.
        name: String,
        /// Why.
        error: Box<AggregateError>,
    },
    /// The window's borders would be outside the range of times.
    #[error("event time {0} ms is outside the range of times that a window can have")]
    EventTime(i64),
}

/// How the records of a window become one result.
pub trait Aggregator<T>: 'static {
    /// What is kept per key and window.
    type State: Clone + 'static;
    /// What one record contributes; reused from record to record.
    type Input: Default + 'static;
    /// The result.
    type Out;

    /// What it keeps, in one word or a list: state of another shape is not its own.
    fn shape(&self) -> String;

    /// Takes a record's contribution, once per record.
    fn input(&self, value: &T, input: &mut Self::Input) -> Result<(), AggregateError>;

    /// The state before the first record.
    fn start(&self) -> Self::State;

    /// Whether [`Aggregator::check`] ever refuses.
    fn can_refuse(&self) -> bool;

    /// Whether the contribution can be added.
    fn check(&self, state: &Self::State, input: &Self::Input) -> Result<(), AggregateError>;

    /// Adds a contribution that was checked.
    fn add(&self, state: &mut Self::State, input: &Self::Input, order: &Order, names: &PartitionNames);

    /// Adds all that another state has. After an error `into` is of no use.
    fn merge(
        &self,
        into: &mut Self::State,
        from: &Self::State,
        names: &PartitionNames,
    ) -> Result<(), AggregateError>;

    /// The result of a state with at least one record.
    fn finish(&self, state: &Self::State) -> Self::Out;

    /// Appends the state as the store keeps it, with its version.
    fn encode(&self, state: &Self::State, names: &PartitionNames, out: &mut Vec<u8>);

    /// Reads a state from the front of `bytes`.
    fn decode(&self, bytes: &mut &[u8], names: &mut PartitionNames) -> Result<Self::State, StateError>;
}

/// Where aggregates of a flow in Rust begin: `Aggregate::count().and(sum(|o: &Order| o.amount))`.
#[derive(Clone, Copy, Debug)]
pub struct Aggregate;

impl Aggregate {
    /// Number of records.
    pub fn count() -> Count {
        Count
    }
}

/// Version of the states of this module; each state carries it.
const VERSION: u8 = 1;

/// Reads the version in front of a state.
pub(super) fn expect_version(bytes: &mut &[u8], known: u8) -> Result<(), StateError> {
    let (&found, rest) =
        bytes.split_first().ok_or(StateError::Damaged("an aggregate's version is missing"))?;
    if found > known {
        return Err(StateError::Newer { found, known });
    }
    *bytes = rest;
    Ok(())
}

/// Reads a state that is all of `bytes`.
pub(super) fn decode_all<T, A: Aggregator<T>>(
    aggregate: &A,
    mut bytes: &[u8],
    names: &mut PartitionNames,
) -> Result<A::State, StateError> {
    let state = aggregate.decode(&mut bytes, names)?;
    if bytes.is_empty() { Ok(state) } else { Err(StateError::Damaged("more bytes than the aggregates have")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::PartitionId;
    use tidegate_recovery::{EventTime, TopicPartition};

    /// The bytes of the state after one record of value 5 at event time 7, offset 3.
    fn bytes_of<A: Aggregator<i64>>(aggregate: &A) -> Vec<u8> {
        let mut names = PartitionNames::new([TopicPartition::new("in", 2)]);
        let order = Order { event: EventTime(7), partition: PartitionId(0), offset: 3 };
        let mut input = A::Input::default();
        aggregate.input(&5, &mut input).expect("a number");
        let mut state = aggregate.start();
        aggregate.check(&state, &input).expect("it fits");
        aggregate.add(&mut state, &input, &order, &names);
        let (mut bytes, mut again) = (Vec::new(), Vec::new());
        aggregate.encode(&state, &names, &mut bytes);
        let decoded = decode_all(aggregate, &bytes, &mut names).expect("what was encoded");
        aggregate.encode(&decoded, &names, &mut again);
        assert_eq!(bytes, again);
        bytes
    }

    #[test]
    fn states_stay_in_the_bytes_of_version_1() {
        // Integers are zigzag varints: 5 is 10. A sum is its integers, its doubles (none), what is not finite, and
        // whether there were doubles.
        let sum = [10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        // Event time, then whether there is a partition, its topic and number, the offset, the value.
        let placed = [14, 1, 2, b'i', b'n', 4, 6, 10];
        assert_eq!(bytes_of(&count()), [1, 1]);
        assert_eq!(bytes_of(&super::sum(|value: &i64| *value)), [&[1], &sum[..]].concat());
        assert_eq!(bytes_of(&mean(|value: &i64| *value)), [&[1, 1], &sum[..]].concat());
        assert_eq!(bytes_of(&min(|value: &i64| *value)), [1, 1, 10]);
        assert_eq!(bytes_of(&max(|value: &i64| *value)), [1, 1, 10]);
        assert_eq!(bytes_of(&first(|value: &i64| *value)), [&[1], &placed[..]].concat());
        assert_eq!(bytes_of(&last(|value: &i64| *value)), [&[1], &placed[..]].concat());
        assert_eq!(bytes_of(&count().and(min(|value: &i64| *value))), [1, 1, 1, 1, 10]);
    }

    #[test]
    fn a_newer_or_damaged_state_is_refused() {
        let mut names = PartitionNames::default();
        let smallest = min(|value: &i64| *value);
        let refused = |bytes: &[u8], names: &mut PartitionNames| {
            decode_all(&smallest, bytes, names).expect_err("it is not a state of this build")
        };
        assert_eq!(refused(&[2, 1, 10], &mut names), StateError::Newer { found: 2, known: 1 });
        for damaged in [&[][..], &[1], &[1, 0], &[1, 1], &[1, 1, 10, 0]] {
            assert!(matches!(refused(damaged, &mut names), StateError::Damaged(_)), "{damaged:?}");
        }
    }
}
