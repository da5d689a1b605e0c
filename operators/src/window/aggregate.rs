//! What is kept of the records of a window, and what comes out of it.
//!
//! An aggregate is a value that says how to take a record's contribution, add it, merge two windows (sessions)
//! and give a result; the states are its own. The order in which records arrive never matters: two records at
//! the same place (only results of an earlier window can be) are told apart by their values. A record that
//! cannot be added (an overflow, not a number) is an error of that record and changes nothing.

use super::number::{ExactSum, Numeric};
use super::order::{Order, PartitionNames, decode, encode};
use crate::keyed::StateError;
use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};
use std::cmp::Ordering;

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

/// Number of records.
pub fn count() -> Count {
    Count
}

/// Sum of what `of` takes from a record; nulls are skipped.
pub fn sum<T, N: Numeric, F: Fn(&T) -> N>(of: F) -> Sum<F> {
    Sum { of }
}

/// Mean of what `of` takes from a record, as a double; nulls are skipped, and `None` is the mean of none.
pub fn mean<T, N: Numeric, F: Fn(&T) -> N>(of: F) -> Mean<F> {
    Mean { of }
}

/// Smallest of what `of` takes from a record; nulls are skipped.
pub fn min<T, V: Ranked, F: Fn(&T) -> V>(of: F) -> Min<F> {
    Min { of }
}

/// Largest of what `of` takes from a record; nulls are skipped.
pub fn max<T, V: Ranked, F: Fn(&T) -> V>(of: F) -> Max<F> {
    Max { of }
}

/// What `of` takes from the first record by (event time, topic, partition, offset).
pub fn first<T, V, F: Fn(&T) -> V>(of: F) -> First<F> {
    First { of }
}

/// What `of` takes from the last record by (event time, topic, partition, offset).
pub fn last<T, V, F: Fn(&T) -> V>(of: F) -> Last<F> {
    Last { of }
}

/// See [`count`].
#[derive(Clone, Copy, Debug)]
pub struct Count;

/// See [`sum`].
#[derive(Clone, Copy, Debug)]
pub struct Sum<F> {
    of: F,
}

/// See [`mean`].
#[derive(Clone, Copy, Debug)]
pub struct Mean<F> {
    of: F,
}

/// See [`min`].
#[derive(Clone, Copy, Debug)]
pub struct Min<F> {
    of: F,
}

/// See [`max`].
#[derive(Clone, Copy, Debug)]
pub struct Max<F> {
    of: F,
}

/// See [`first`].
#[derive(Clone, Copy, Debug)]
pub struct First<F> {
    of: F,
}

/// See [`last`].
#[derive(Clone, Copy, Debug)]
pub struct Last<F> {
    of: F,
}

/// Two aggregates over the same records; the result is a pair.
#[derive(Clone, Copy, Debug)]
pub struct And<A, B> {
    left: A,
    right: B,
}

macro_rules! combinable {
    ($($name:ident<$($param:ident),*>),*) => {$(
        impl<$($param),*> $name<$($param),*> {
            /// This aggregate and another one; the result is a pair.
            pub fn and<Other>(self, other: Other) -> And<Self, Other> {
                And { left: self, right: other }
            }
        }
    )*};
}
combinable!(Count<>, Sum<F>, Mean<F>, Min<F>, Max<F>, First<F>, Last<F>, And<A, B>);

/// Version of the states in this file; each state carries it.
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

impl<T, N, F> Aggregator<T> for Sum<F>
where
    N: Numeric,
    F: Fn(&T) -> N + 'static,
{
    type State = ExactSum;
    type Input = Option<super::Number>;
    type Out = N::Total;

    fn shape(&self) -> String {
        "sum".to_owned()
    }

    fn input(&self, value: &T, input: &mut Self::Input) -> Result<(), AggregateError> {
        *input = (self.of)(value).number()?;
        Ok(())
    }

    fn start(&self) -> ExactSum {
        ExactSum::default()
    }

    fn can_refuse(&self) -> bool {
        true
    }

    fn check(&self, state: &ExactSum, input: &Self::Input) -> Result<(), AggregateError> {
        input.map_or(Ok(()), |number| state.check(number))
    }

    fn add(&self, state: &mut ExactSum, input: &Self::Input, _: &Order, _: &PartitionNames) {
        if let Some(number) = input {
            state.add(*number);
        }
    }

    fn merge(&self, into: &mut ExactSum, from: &ExactSum, _: &PartitionNames) -> Result<(), AggregateError> {
        into.merge(from);
        into.total().map(|_| ())
    }

    fn finish(&self, state: &ExactSum) -> N::Total {
        N::total(state.total().expect("every number was checked before it was added"))
    }

    fn encode(&self, state: &ExactSum, _: &PartitionNames, out: &mut Vec<u8>) {
        out.push(VERSION);
        encode(state, out);
    }

    fn decode(&self, bytes: &mut &[u8], _: &mut PartitionNames) -> Result<ExactSum, StateError> {
        expect_version(bytes, VERSION)?;
        decode_sum(bytes)
    }
}

/// Reads a sum whose total fits.
pub(super) fn decode_sum(bytes: &mut &[u8]) -> Result<ExactSum, StateError> {
    let sum: ExactSum = decode(bytes)?;
    sum.total().map_err(|_| StateError::Damaged("a sum is out of range"))?;
    Ok(sum)
}

/// State of a mean: how many numbers, and their sum.
pub(super) type MeanState = (u64, ExactSum);

/// The mean; `None` of no numbers.
pub(super) fn mean_of((numbers, sum): &MeanState) -> Option<f64> {
    (*numbers > 0).then(|| sum.as_f64() / *numbers as f64)
}

impl<T, N, F> Aggregator<T> for Mean<F>
where
    N: Numeric,
    F: Fn(&T) -> N + 'static,
{
    type State = MeanState;
    type Input = Option<super::Number>;
    type Out = Option<f64>;

    fn shape(&self) -> String {
        "mean".to_owned()
    }

    fn input(&self, value: &T, input: &mut Self::Input) -> Result<(), AggregateError> {
        *input = (self.of)(value).number()?;
        Ok(())
    }

    fn start(&self) -> MeanState {
        MeanState::default()
    }

    fn can_refuse(&self) -> bool {
        true
    }

    fn check(&self, state: &MeanState, input: &Self::Input) -> Result<(), AggregateError> {
        match input {
            // A mean is a double: a sum of integers may be larger than one integer.
            Some(super::Number::Int(_)) | None => Ok(()),
            Some(number) => state.1.check(*number),
        }
    }

    fn add(&self, state: &mut MeanState, input: &Self::Input, _: &Order, _: &PartitionNames) {
        if let Some(number) = input {
            state.0 += 1;
            state.1.add(*number);
        }
    }

    fn merge(
        &self,
        into: &mut MeanState,
        from: &MeanState,
        _: &PartitionNames,
    ) -> Result<(), AggregateError> {
        into.0 += from.0;
        into.1.merge(&from.1);
        Ok(())
    }

    fn finish(&self, state: &MeanState) -> Option<f64> {
        mean_of(state)
    }

    fn encode(&self, state: &MeanState, _: &PartitionNames, out: &mut Vec<u8>) {
        out.push(VERSION);
        encode(state, out);
    }

    fn decode(&self, bytes: &mut &[u8], _: &mut PartitionNames) -> Result<MeanState, StateError> {
        expect_version(bytes, VERSION)?;
        decode(bytes)
    }
}

/// A value of which there is a smallest and a largest.
///
/// The order must be total, and only equal values may compare equal: which of two was first must not show.
pub trait Ranked: Clone + Serialize + DeserializeOwned + 'static {
    /// Compares two values.
    fn rank(&self, other: &Self) -> Ordering;

    /// Whether it is null, which `min` and `max` skip.
    fn is_null(&self) -> bool {
        false
    }
}

macro_rules! ranked {
    ($($ranked:ty),*) => {$(
        impl Ranked for $ranked {
            fn rank(&self, other: &Self) -> Ordering {
                self.cmp(other)
            }
        }
    )*};
}
ranked!(i8, i16, i32, i64, i128, u8, u16, u32, u64, u128, usize, isize, bool, char, String, Bytes, Vec<u8>);

impl Ranked for f64 {
    fn rank(&self, other: &Self) -> Ordering {
        self.total_cmp(other)
    }
}

impl Ranked for f32 {
    fn rank(&self, other: &Self) -> Ordering {
        self.total_cmp(other)
    }
}

impl<V: Ranked> Ranked for Option<V> {
    fn rank(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Some(left), Some(right)) => left.rank(right),
            _ => self.is_some().cmp(&other.is_some()),
        }
    }

    fn is_null(&self) -> bool {
        self.is_none()
    }
}

/// Keeps the better of what is there and `value`: `wanted` is how the better one compares to the other.
/// A null is kept only until something better comes.
pub(super) fn keep_best<V: Clone>(
    best: &mut Option<V>,
    value: &V,
    is_null: impl Fn(&V) -> bool,
    rank: impl Fn(&V, &V) -> Ordering,
    wanted: Ordering,
) {
    let better = match best {
        None => true,
        Some(_) if is_null(value) => false,
        Some(best) => is_null(best) || rank(value, best) == wanted,
    };
    if better {
        *best = Some(value.clone());
    }
}

macro_rules! extreme {
    ($name:ident, $shape:literal, $wanted:expr) => {
        impl<T, V, F> Aggregator<T> for $name<F>
        where
            V: Ranked,
            F: Fn(&T) -> V + 'static,
        {
            type State = Option<V>;
            type Input = Option<V>;
            type Out = V;

            fn shape(&self) -> String {
                $shape.to_owned()
            }

            fn input(&self, value: &T, input: &mut Option<V>) -> Result<(), AggregateError> {
                *input = Some((self.of)(value));
                Ok(())
            }

            fn start(&self) -> Option<V> {
                None
            }

            fn can_refuse(&self) -> bool {
                false
            }

            fn check(&self, _: &Option<V>, _: &Option<V>) -> Result<(), AggregateError> {
                Ok(())
            }

            fn add(&self, state: &mut Option<V>, input: &Option<V>, _: &Order, _: &PartitionNames) {
                let input = input.as_ref().expect("the record's value was taken");
                keep_best(state, input, V::is_null, V::rank, $wanted);
            }

            fn merge(
                &self,
                into: &mut Option<V>,
                from: &Option<V>,
                _: &PartitionNames,
            ) -> Result<(), AggregateError> {
                if let Some(value) = from {
                    keep_best(into, value, V::is_null, V::rank, $wanted);
                }
                Ok(())
            }

            fn finish(&self, state: &Option<V>) -> V {
                state.clone().expect("a window has at least one record")
            }

            fn encode(&self, state: &Option<V>, _: &PartitionNames, out: &mut Vec<u8>) {
                out.push(VERSION);
                encode(state, out);
            }

            fn decode(&self, bytes: &mut &[u8], _: &mut PartitionNames) -> Result<Option<V>, StateError> {
                expect_version(bytes, VERSION)?;
                match decode(bytes)? {
                    None => Err(StateError::Damaged("a window without a record")),
                    some => Ok(some),
                }
            }
        }
    };
}
extreme!(Min, "min", Ordering::Less);
extreme!(Max, "max", Ordering::Greater);

/// A value and the place of its record.
#[derive(Clone, Debug, PartialEq)]
pub struct Placed<V> {
    /// The place.
    pub order: Order,
    /// The value.
    pub value: V,
}

/// Keeps the first or the last of what is there and a value at `order`; at the same place the encoded values
/// decide.
pub(super) fn keep_placed<V: Clone>(
    kept: &mut Option<Placed<V>>,
    value: &V,
    order: &Order,
    names: &PartitionNames,
    wanted: Ordering,
    encode_value: impl Fn(&V, &mut Vec<u8>),
) {
    let better = match kept {
        None => true,
        Some(kept) => {
            let by_value = || {
                let (mut new, mut old) = (Vec::new(), Vec::new());
                encode_value(value, &mut new);
                encode_value(&kept.value, &mut old);
                new.cmp(&old)
            };
            names.compare(order, &kept.order).then_with(by_value) == wanted
        }
    };
    if better {
        *kept = Some(Placed { order: *order, value: value.clone() });
    }
}

macro_rules! placed {
    ($name:ident, $shape:literal, $wanted:expr) => {
        impl<T, V, F> Aggregator<T> for $name<F>
        where
            V: Clone + Serialize + DeserializeOwned + 'static,
            F: Fn(&T) -> V + 'static,
        {
            type State = Option<Placed<V>>;
            type Input = Option<V>;
            type Out = V;

            fn shape(&self) -> String {
                $shape.to_owned()
            }

            fn input(&self, value: &T, input: &mut Option<V>) -> Result<(), AggregateError> {
                *input = Some((self.of)(value));
                Ok(())
            }

            fn start(&self) -> Option<Placed<V>> {
                None
            }

            fn can_refuse(&self) -> bool {
                false
            }

            fn check(&self, _: &Self::State, _: &Option<V>) -> Result<(), AggregateError> {
                Ok(())
            }

            fn add(&self, state: &mut Self::State, input: &Option<V>, order: &Order, names: &PartitionNames) {
                let input = input.as_ref().expect("the record's value was taken");
                keep_placed(state, input, order, names, $wanted, |v, out| encode(v, out));
            }

            fn merge(
                &self,
                into: &mut Self::State,
                from: &Self::State,
                names: &PartitionNames,
            ) -> Result<(), AggregateError> {
                if let Some(placed) = from {
                    let encode_value = |v: &V, out: &mut Vec<u8>| encode(v, out);
                    keep_placed(into, &placed.value, &placed.order, names, $wanted, encode_value);
                }
                Ok(())
            }

            fn finish(&self, state: &Self::State) -> V {
                state.as_ref().expect("a window has at least one record").value.clone()
            }

            fn encode(&self, state: &Self::State, names: &PartitionNames, out: &mut Vec<u8>) {
                let placed = state.as_ref().expect("a window has at least one record");
                out.push(VERSION);
                names.encode(&placed.order, out);
                encode(&placed.value, out);
            }

            fn decode(
                &self,
                bytes: &mut &[u8],
                names: &mut PartitionNames,
            ) -> Result<Self::State, StateError> {
                expect_version(bytes, VERSION)?;
                let order = names.decode(bytes)?;
                Ok(Some(Placed { order, value: decode(bytes)? }))
            }
        }
    };
}
placed!(First, "first", Ordering::Less);
placed!(Last, "last", Ordering::Greater);

impl<T, A: Aggregator<T>, B: Aggregator<T>> Aggregator<T> for And<A, B> {
    type State = (A::State, B::State);
    type Input = (A::Input, B::Input);
    type Out = (A::Out, B::Out);

    fn shape(&self) -> String {
        format!("{},{}", self.left.shape(), self.right.shape())
    }

    fn input(&self, value: &T, input: &mut Self::Input) -> Result<(), AggregateError> {
        self.left.input(value, &mut input.0)?;
        self.right.input(value, &mut input.1)
    }

    fn start(&self) -> Self::State {
        (self.left.start(), self.right.start())
    }

    fn can_refuse(&self) -> bool {
        self.left.can_refuse() || self.right.can_refuse()
    }

    fn check(&self, state: &Self::State, input: &Self::Input) -> Result<(), AggregateError> {
        self.left.check(&state.0, &input.0)?;
        self.right.check(&state.1, &input.1)
    }

    fn add(&self, state: &mut Self::State, input: &Self::Input, order: &Order, names: &PartitionNames) {
        self.left.add(&mut state.0, &input.0, order, names);
        self.right.add(&mut state.1, &input.1, order, names);
    }

    fn merge(
        &self,
        into: &mut Self::State,
        from: &Self::State,
        names: &PartitionNames,
    ) -> Result<(), AggregateError> {
        self.left.merge(&mut into.0, &from.0, names)?;
        self.right.merge(&mut into.1, &from.1, names)
    }

    fn finish(&self, state: &Self::State) -> Self::Out {
        (self.left.finish(&state.0), self.right.finish(&state.1))
    }

    fn encode(&self, state: &Self::State, names: &PartitionNames, out: &mut Vec<u8>) {
        self.left.encode(&state.0, names, out);
        self.right.encode(&state.1, names, out);
    }

    fn decode(&self, bytes: &mut &[u8], names: &mut PartitionNames) -> Result<Self::State, StateError> {
        Ok((self.left.decode(bytes, names)?, self.right.decode(bytes, names)?))
    }
}
