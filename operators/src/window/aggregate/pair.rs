//! Several aggregates over the same records.

use super::added::Added;
use super::chosen::Chosen;
use super::{AggregateError, Aggregator, Count};
use crate::keyed::StateError;
use crate::window::order::{Order, PartitionNames};

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
combinable!(Count<>, Added<F, S>, Chosen<F, C>, And<A, B>);

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
