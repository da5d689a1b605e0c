//! Aggregates that add numbers up: the sum and the mean.

use super::{AggregateError, Aggregator, VERSION, expect_version};
use crate::keyed::StateError;
use crate::window::number::{ExactMean, ExactSum, Number, Numeric};
use crate::window::order::{Order, PartitionNames, decode, encode};
use serde::Serialize;
use std::marker::PhantomData;

/// Sum of what `of` takes from a record; nulls are skipped.
pub fn sum<T, N: Numeric, F: Fn(&T) -> N>(of: F) -> Sum<F> {
    Added { of, total: PhantomData }
}

/// Mean of what `of` takes from a record, as a double; nulls are skipped, and `None` is the mean of none.
pub fn mean<T, N: Numeric, F: Fn(&T) -> N>(of: F) -> Mean<F> {
    Added { of, total: PhantomData }
}

/// See [`sum`].
pub type Sum<F> = Added<F, ExactSum>;

/// See [`mean`].
pub type Mean<F> = Added<F, ExactMean>;

/// What numbers are added to, and what comes of it where they are of type `N`.
pub trait Total<N>: Clone + Default + Serialize + 'static {
    /// The aggregate's name.
    const SHAPE: &'static str;

    /// The result.
    type Out;

    /// Whether a number can be added.
    fn check(&self, number: Number) -> Result<(), AggregateError>;

    /// Adds a number that was checked.
    fn add(&mut self, number: Number);

    /// Adds all that another one has. After an error `self` is of no use.
    fn merge(&mut self, other: &Self) -> Result<(), AggregateError>;

    /// The result.
    fn out(&self) -> Self::Out;

    /// Reads one from the front of `bytes`.
    fn decode(bytes: &mut &[u8]) -> Result<Self, StateError>;
}

impl<N: Numeric> Total<N> for ExactSum {
    const SHAPE: &'static str = "sum";

    type Out = N::Total;

    fn check(&self, number: Number) -> Result<(), AggregateError> {
        self.check(number)
    }

    fn add(&mut self, number: Number) {
        self.add(number);
    }

    fn merge(&mut self, other: &ExactSum) -> Result<(), AggregateError> {
        self.merge(other);
        self.total().map(|_| ())
    }

    fn out(&self) -> N::Total {
        N::total(self.total().expect("every number was checked before it was added"))
    }

    fn decode(bytes: &mut &[u8]) -> Result<ExactSum, StateError> {
        decode_sum(bytes)
    }
}

impl<N: Numeric> Total<N> for ExactMean {
    const SHAPE: &'static str = "mean";

    type Out = Option<f64>;

    fn check(&self, number: Number) -> Result<(), AggregateError> {
        self.check(number)
    }

    fn add(&mut self, number: Number) {
        self.add(number);
    }

    fn merge(&mut self, other: &ExactMean) -> Result<(), AggregateError> {
        self.merge(other);
        Ok(())
    }

    fn out(&self) -> Option<f64> {
        self.mean()
    }

    fn decode(bytes: &mut &[u8]) -> Result<ExactMean, StateError> {
        decode(bytes)
    }
}

/// What `of` takes from the records, added to an `S`.
#[derive(Clone, Copy, Debug)]
pub struct Added<F, S> {
    of: F,
    total: PhantomData<S>,
}

impl<T, N, F, S> Aggregator<T> for Added<F, S>
where
    N: Numeric,
    F: Fn(&T) -> N + 'static,
    S: Total<N>,
{
    type State = S;
    type Input = Option<Number>;
    type Out = S::Out;

    fn shape(&self) -> String {
        S::SHAPE.to_owned()
    }

    fn input(&self, value: &T, input: &mut Option<Number>) -> Result<(), AggregateError> {
        *input = (self.of)(value).number()?;
        Ok(())
    }

    fn start(&self) -> S {
        S::default()
    }

    fn can_refuse(&self) -> bool {
        true
    }

    fn check(&self, state: &S, input: &Option<Number>) -> Result<(), AggregateError> {
        input.map_or(Ok(()), |number| state.check(number))
    }

    fn add(&self, state: &mut S, input: &Option<Number>, _: &Order, _: &PartitionNames) {
        if let Some(number) = input {
            state.add(*number);
        }
    }

    fn merge(&self, into: &mut S, from: &S, _: &PartitionNames) -> Result<(), AggregateError> {
        into.merge(from)
    }

    fn finish(&self, state: &S) -> S::Out {
        state.out()
    }

    fn encode(&self, state: &S, _: &PartitionNames, out: &mut Vec<u8>) {
        out.push(VERSION);
        encode(state, out);
    }

    fn decode(&self, bytes: &mut &[u8], _: &mut PartitionNames) -> Result<S, StateError> {
        expect_version(bytes, VERSION)?;
        S::decode(bytes)
    }
}

/// Reads a sum whose total fits.
pub(in crate::window) fn decode_sum(bytes: &mut &[u8]) -> Result<ExactSum, StateError> {
    let sum: ExactSum = decode(bytes)?;
    sum.total().map_err(|_| StateError::Damaged("a sum is out of range"))?;
    Ok(sum)
}
