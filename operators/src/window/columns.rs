//! Aggregates that are only known when the flow is read: a list of names, kinds and expressions.
//!
//! The expressions are evaluated outside, once per record, and give values of the flow's own dynamic type; a
//! [`Scalar`] says what the aggregates must know of it.

use super::aggregate::{
    AggregateError, Aggregator, Placed, decode_sum, expect_version, keep_best, keep_placed,
};
use super::number::{ExactMean, ExactSum, Number};
use super::order::{Order, PartitionNames, decode, encode};
use crate::keyed::StateError;
use serde::{Serialize, de::DeserializeOwned};
use std::cmp::Ordering;
use std::sync::Arc;

/// A dynamic value, as aggregates see it.
pub trait Scalar: Clone + Default + Serialize + DeserializeOwned + 'static {
    /// The number that it is; `None` for null, which is skipped.
    fn number(&self) -> Result<Option<Number>, AggregateError>;

    /// Whether it is null.
    fn is_null(&self) -> bool;

    /// A total order over all values in which only equal values are equal: an integer comes before the double
    /// of the same value.
    fn rank(&self, other: &Self) -> Ordering;

    /// A number as a value.
    fn from_number(number: Number) -> Self;

    /// The null value.
    fn null() -> Self;
}

/// What an aggregate of a list does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ColumnKind {
    /// Number of records; its expression is not looked at.
    Count,
    /// Sum: an integer unless a double was among them; 0 of none.
    Sum,
    /// Smallest; null of none.
    Min,
    /// Largest; null of none.
    Max,
    /// Mean, a double; null of none.
    Mean,
    /// The first by (event time, topic, partition, offset).
    First,
    /// The last by (event time, topic, partition, offset).
    Last,
}

impl ColumnKind {
    /// Its name in a flow.
    pub fn name(self) -> &'static str {
        match self {
            ColumnKind::Count => "count",
            ColumnKind::Sum => "sum",
            ColumnKind::Min => "min",
            ColumnKind::Max => "max",
            ColumnKind::Mean => "mean",
            ColumnKind::First => "first",
            ColumnKind::Last => "last",
        }
    }

    /// Whether its values must be numbers (or null), and can refuse one.
    fn adds_numbers(self) -> bool {
        matches!(self, ColumnKind::Sum | ColumnKind::Mean)
    }
}

/// One aggregate of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its name in the result.
    pub name: Arc<str>,
    /// What it does.
    pub kind: ColumnKind,
}

/// A list of aggregates. `evaluate` writes one value per column: null for a count.
#[derive(Clone)]
pub struct Columns<V, F> {
    columns: Arc<[Column]>,
    evaluate: F,
    value: std::marker::PhantomData<fn() -> V>,
}

impl<V: Scalar, F> Columns<V, F> {
    /// Aggregates `columns`, of which `evaluate` gives the values: it appends exactly one per column.
    pub fn new<T>(columns: impl Into<Arc<[Column]>>, evaluate: F) -> Columns<V, F>
    where
        F: Fn(&T, &mut Vec<V>) -> Result<(), AggregateError>,
    {
        Columns { columns: columns.into(), evaluate, value: std::marker::PhantomData }
    }

    /// The columns, in the order of the results.
    pub fn columns(&self) -> &Arc<[Column]> {
        &self.columns
    }
}

/// State of one column.
#[derive(Clone, Debug)]
pub enum ColumnState<V> {
    /// Of a count.
    Count(u64),
    /// Of a sum.
    Sum(ExactSum),
    /// Of a mean.
    Mean(ExactMean),
    /// Of `min` and `max`.
    Best(Option<V>),
    /// Of `first` and `last`.
    Placed(Option<Placed<V>>),
}

/// Version of [`ColumnState`] in the store.
const VERSION: u8 = 1;

impl<T, V, F> Aggregator<T> for Columns<V, F>
where
    V: Scalar,
    F: Fn(&T, &mut Vec<V>) -> Result<(), AggregateError> + 'static,
{
    type State = Box<[ColumnState<V>]>;
    type Input = Vec<V>;
    type Out = Vec<V>;

    fn shape(&self) -> String {
        let columns = self.columns.iter().map(|column| format!("{}={}", column.name, column.kind.name()));
        columns.collect::<Vec<_>>().join(",")
    }

    fn input(&self, value: &T, input: &mut Vec<V>) -> Result<(), AggregateError> {
        input.clear();
        (self.evaluate)(value, input)?;
        assert_eq!(input.len(), self.columns.len(), "one value per aggregate");
        for (column, value) in self.columns.iter().zip(input.iter()) {
            if column.kind.adds_numbers() {
                value.number().map_err(|error| named(column, error))?;
            }
        }
        Ok(())
    }

    fn start(&self) -> Self::State {
        let start = |column: &Column| match column.kind {
            ColumnKind::Count => ColumnState::Count(0),
            ColumnKind::Sum => ColumnState::Sum(ExactSum::default()),
            ColumnKind::Mean => ColumnState::Mean(ExactMean::default()),
            ColumnKind::Min | ColumnKind::Max => ColumnState::Best(None),
            ColumnKind::First | ColumnKind::Last => ColumnState::Placed(None),
        };
        self.columns.iter().map(start).collect()
    }

    fn can_refuse(&self) -> bool {
        self.columns.iter().any(|column| column.kind.adds_numbers())
    }

    fn check(&self, state: &Self::State, input: &Vec<V>) -> Result<(), AggregateError> {
        for ((column, state), value) in self.columns.iter().zip(state).zip(input) {
            if !column.kind.adds_numbers() {
                continue;
            }
            let check = |number| match state {
                ColumnState::Sum(sum) => sum.check(number),
                ColumnState::Mean(mean) => mean.check(number),
                _ => unreachable!("only sums and means add numbers: {}", kind_name(state)),
            };
            let checked = value.number().and_then(|number| number.map_or(Ok(()), check));
            checked.map_err(|error| named(column, error))?;
        }
        Ok(())
    }

    fn add(&self, state: &mut Self::State, input: &Vec<V>, order: &Order, names: &PartitionNames) {
        for ((column, state), value) in self.columns.iter().zip(state).zip(input) {
            let number = || value.number().expect("the record's numbers were checked");
            match state {
                ColumnState::Count(count) => *count += 1,
                ColumnState::Sum(sum) => {
                    if let Some(number) = number() {
                        sum.add(number);
                    }
                }
                ColumnState::Mean(mean) => {
                    if let Some(number) = number() {
                        mean.add(number);
                    }
                }
                ColumnState::Best(best) => keep_best(best, value, V::is_null, V::rank, wanted(column.kind)),
                ColumnState::Placed(placed) => {
                    keep_placed(placed, value, order, names, wanted(column.kind));
                }
            }
        }
    }

    fn merge(
        &self,
        into: &mut Self::State,
        from: &Self::State,
        names: &PartitionNames,
    ) -> Result<(), AggregateError> {
        for ((column, into), from) in self.columns.iter().zip(into).zip(from) {
            let wanted = wanted(column.kind);
            match (into, from) {
                (ColumnState::Count(into), ColumnState::Count(from)) => *into += from,
                (ColumnState::Sum(into), ColumnState::Sum(from)) => {
                    into.merge(from);
                    into.total().map_err(|error| named(column, error))?;
                }
                (ColumnState::Mean(into), ColumnState::Mean(from)) => into.merge(from),
                (ColumnState::Best(into), ColumnState::Best(Some(from))) => {
                    keep_best(into, from, V::is_null, V::rank, wanted);
                }
                (ColumnState::Placed(into), ColumnState::Placed(Some(from))) => {
                    keep_placed(into, &from.value, &from.order, names, wanted);
                }
                (ColumnState::Best(_), ColumnState::Best(None))
                | (ColumnState::Placed(_), ColumnState::Placed(None)) => (),
                (into, _) => unreachable!("two states of one column are of one kind: {}", kind_name(into)),
            }
        }
        Ok(())
    }

    fn finish(&self, state: &Self::State) -> Vec<V> {
        let finish = |state: &ColumnState<V>| match state {
            ColumnState::Count(count) => V::from_number(Number::Int(*count as i64)),
            ColumnState::Sum(sum) => V::from_number(sum.total().expect("every number was checked")),
            ColumnState::Mean(mean) => {
                mean.mean().map_or_else(V::null, |mean| V::from_number(Number::Double(mean)))
            }
            ColumnState::Best(best) => best.clone().unwrap_or_else(V::null),
            ColumnState::Placed(placed) => {
                placed.as_ref().map_or_else(V::null, |placed| placed.value.clone())
            }
        };
        state.iter().map(finish).collect()
    }

    fn encode(&self, state: &Self::State, names: &PartitionNames, out: &mut Vec<u8>) {
        out.push(VERSION);
        for state in state {
            match state {
                ColumnState::Count(count) => encode(count, out),
                ColumnState::Sum(sum) => encode(sum, out),
                ColumnState::Mean(mean) => encode(mean, out),
                ColumnState::Best(best) => encode(best, out),
                ColumnState::Placed(None) => out.push(0),
                ColumnState::Placed(Some(placed)) => {
                    out.push(1);
                    placed.encode(names, out);
                }
            }
        }
    }

    fn decode(&self, bytes: &mut &[u8], names: &mut PartitionNames) -> Result<Self::State, StateError> {
        expect_version(bytes, VERSION)?;
        let mut states = Vec::with_capacity(self.columns.len());
        for column in self.columns.iter() {
            states.push(match column.kind {
                ColumnKind::Count => ColumnState::Count(decode(bytes)?),
                ColumnKind::Sum => ColumnState::Sum(decode_sum(bytes)?),
                ColumnKind::Mean => ColumnState::Mean(decode(bytes)?),
                ColumnKind::Min | ColumnKind::Max => ColumnState::Best(decode(bytes)?),
                ColumnKind::First | ColumnKind::Last => match decode::<bool>(bytes)? {
                    false => ColumnState::Placed(None),
                    true => ColumnState::Placed(Some(Placed::decode(bytes, names)?)),
                },
            });
        }
        Ok(states.into())
    }
}

/// How the value that is kept compares to the one that is not.
fn wanted(kind: ColumnKind) -> Ordering {
    match kind {
        ColumnKind::Min | ColumnKind::First => Ordering::Less,
        ColumnKind::Max | ColumnKind::Last => Ordering::Greater,
        ColumnKind::Count | ColumnKind::Sum | ColumnKind::Mean => Ordering::Equal,
    }
}

fn named(column: &Column, error: AggregateError) -> AggregateError {
    AggregateError::Column { name: column.name.to_string(), error: Box::new(error) }
}

fn kind_name<V>(state: &ColumnState<V>) -> &'static str {
    match state {
        ColumnState::Count(_) => "count",
        ColumnState::Sum(_) => "sum",
        ColumnState::Mean(_) => "mean",
        ColumnState::Best(_) => "min or max",
        ColumnState::Placed(_) => "first or last",
    }
}
