//! The smallest and the largest value.

use super::chosen::{Choice, Chosen};
use crate::keyed::StateError;
use crate::window::order::{Order, PartitionNames, decode, encode};
use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};
use std::cmp::Ordering;

/// Smallest of what `of` takes from a record; nulls are skipped.
pub fn min<T, V: Ranked, F: Fn(&T) -> V>(of: F) -> Min<F> {
    Chosen::new(of)
}

/// Largest of what `of` takes from a record; nulls are skipped.
pub fn max<T, V: Ranked, F: Fn(&T) -> V>(of: F) -> Max<F> {
    Chosen::new(of)
}

/// See [`min`].
pub type Min<F> = Chosen<F, ByRank<false>>;

/// See [`max`].
pub type Max<F> = Chosen<F, ByRank<true>>;

/// Chooses the smallest value, or the largest.
#[derive(Clone, Copy, Debug)]
pub struct ByRank<const LARGEST: bool>;

impl<const LARGEST: bool> ByRank<LARGEST> {
    fn keep<V: Ranked>(kept: &mut Option<V>, value: &V) {
        let wanted = if LARGEST { Ordering::Greater } else { Ordering::Less };
        keep_best(kept, value, V::is_null, V::rank, wanted);
    }
}

impl<V: Ranked, const LARGEST: bool> Choice<V> for ByRank<LARGEST> {
    const SHAPE: &'static str = if LARGEST { "max" } else { "min" };

    type Kept = V;

    fn choose(kept: &mut Option<V>, value: &V, _: &Order, _: &PartitionNames) {
        Self::keep(kept, value);
    }

    fn merge(into: &mut Option<V>, from: &V, _: &PartitionNames) {
        Self::keep(into, from);
    }

    fn value(kept: &V) -> &V {
        kept
    }

    fn encode(kept: &V, _: &PartitionNames, out: &mut Vec<u8>) {
        encode(&Some(kept), out);
    }

    fn decode(bytes: &mut &[u8], _: &mut PartitionNames) -> Result<V, StateError> {
        decode::<Option<V>>(bytes)?.ok_or(StateError::Damaged("a window without a record"))
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
pub(in crate::window) fn keep_best<V: Clone>(
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
