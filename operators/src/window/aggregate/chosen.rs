//! Aggregates that keep what one record of the window gave: the smallest, the largest, the first, the last.

use super::{AggregateError, Aggregator, VERSION, expect_version};
use crate::keyed::StateError;
use crate::window::order::{Order, PartitionNames};
use std::marker::PhantomData;

/// Which record's value is kept, and what is kept with it.
pub trait Choice<V>: 'static {
    /// The aggregate's name.
    const SHAPE: &'static str;

    /// What is kept of a record.
    type Kept: Clone + 'static;

    /// Keeps the better of what is there and the value of a record at `order`.
    fn choose(kept: &mut Option<Self::Kept>, value: &V, order: &Order, names: &PartitionNames);

    /// Keeps the better of what is there and what another state has kept.
    fn merge(into: &mut Option<Self::Kept>, from: &Self::Kept, names: &PartitionNames);

    /// The value.
    fn value(kept: &Self::Kept) -> &V;

    /// Appends what is kept.
    fn encode(kept: &Self::Kept, names: &PartitionNames, out: &mut Vec<u8>);

    /// Reads what was kept.
    fn decode(bytes: &mut &[u8], names: &mut PartitionNames) -> Result<Self::Kept, StateError>;
}

/// What `of` takes from the record that `C` chooses.
#[derive(Clone, Copy, Debug)]
pub struct Chosen<F, C> {
    of: F,
    choice: PhantomData<C>,
}

impl<F, C> Chosen<F, C> {
    pub(super) fn new(of: F) -> Chosen<F, C> {
        Chosen { of, choice: PhantomData }
    }
}

impl<T, V, F, C> Aggregator<T> for Chosen<F, C>
where
    V: Clone + 'static,
    F: Fn(&T) -> V + 'static,
    C: Choice<V>,
{
    type State = Option<C::Kept>;
    type Input = Option<V>;
    type Out = V;

    fn shape(&self) -> String {
        C::SHAPE.to_owned()
    }

    fn input(&self, value: &T, input: &mut Option<V>) -> Result<(), AggregateError> {
        *input = Some((self.of)(value));
        Ok(())
    }

    fn start(&self) -> Self::State {
        None
    }

    fn can_refuse(&self) -> bool {
        false
    }

    fn check(&self, _: &Self::State, _: &Option<V>) -> Result<(), AggregateError> {
        Ok(())
    }

    fn add(&self, state: &mut Self::State, input: &Option<V>, order: &Order, names: &PartitionNames) {
        C::choose(state, input.as_ref().expect("the record's value was taken"), order, names);
    }

    fn merge(
        &self,
        into: &mut Self::State,
        from: &Self::State,
        names: &PartitionNames,
    ) -> Result<(), AggregateError> {
        if let Some(from) = from {
            C::merge(into, from, names);
        }
        Ok(())
    }

    fn finish(&self, state: &Self::State) -> V {
        C::value(state.as_ref().expect("a window has at least one record")).clone()
    }

    fn encode(&self, state: &Self::State, names: &PartitionNames, out: &mut Vec<u8>) {
        out.push(VERSION);
        C::encode(state.as_ref().expect("a window has at least one record"), names, out);
    }

    fn decode(&self, bytes: &mut &[u8], names: &mut PartitionNames) -> Result<Self::State, StateError> {
        expect_version(bytes, VERSION)?;
        C::decode(bytes, names).map(Some)
    }
}
