//! The key of a record: encoded and hashed once, used for routing, for look-ups and for the output.
//!
//! Key bytes are part of the format of the store: bytes and strings as they are, everything else canonical JSON
//! (object fields sorted, no spaces). The null key has hash 0, and with it a bucket of its own.

use crate::batch::{Batch, ElementStream};
use crate::build::FlowBuild;
use crate::element::{Data, Element, Keyed};
use crate::record::transform::{Refusal, transform};
use crate::record::{ErrorHandling, OnError};
use bytes::Bytes;
use serde::Serialize;
use std::fmt::Display;
use std::sync::Arc;
use tidegate_recovery::{KeyHash, StepId};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::channels::pact::ExchangeCore;
use timely::dataflow::operators::Operator;

/// What can be a key.
pub trait KeyBytes {
    /// The key's bytes; `None` is the null key.
    fn key_bytes(self) -> Option<Bytes>;
}

impl KeyBytes for Bytes {
    fn key_bytes(self) -> Option<Bytes> {
        Some(self)
    }
}

impl KeyBytes for Vec<u8> {
    fn key_bytes(self) -> Option<Bytes> {
        Some(Bytes::from(self))
    }
}

impl KeyBytes for String {
    fn key_bytes(self) -> Option<Bytes> {
        Some(Bytes::from(self))
    }
}

impl KeyBytes for &str {
    fn key_bytes(self) -> Option<Bytes> {
        Some(Bytes::copy_from_slice(self.as_bytes()))
    }
}

impl KeyBytes for Arc<str> {
    fn key_bytes(self) -> Option<Bytes> {
        Some(Bytes::copy_from_slice(self.as_bytes()))
    }
}

impl<K: KeyBytes> KeyBytes for Option<K> {
    fn key_bytes(self) -> Option<Bytes> {
        self.and_then(K::key_bytes)
    }
}

macro_rules! integer_keys {
    ($($integer:ty)*) => {
        $(impl KeyBytes for $integer {
            fn key_bytes(self) -> Option<Bytes> {
                Some(Bytes::from(self.to_string()))
            }
        })*
    };
}
integer_keys!(u8 u16 u32 u64 i8 i16 i32 i64 bool);

/// A structured key: its bytes are canonical JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonKey<K>(pub K);

impl<K: Serialize> JsonKey<K> {
    /// The key's bytes; an error when the value is not JSON (a map with structured keys, say).
    pub fn try_bytes(&self) -> Result<Bytes, serde_json::Error> {
        let mut value = serde_json::to_value(&self.0)?;
        value.sort_all_objects();
        Ok(Bytes::from(serde_json::to_vec(&value)?))
    }
}

/// The hash of a key.
#[inline]
pub fn hash_of_key(key: Option<&Bytes>) -> KeyHash {
    key.map_or(KeyHash(0), |key| KeyHash::of(key))
}

/// Gives every element the key that `f` names.
pub fn key_by<'s, T: Data, K: KeyBytes>(
    build: &FlowBuild<'s>,
    step: &StepId,
    stream: ElementStream<'s, T>,
    mut f: impl FnMut(&Element<T>) -> K + 'static,
) -> ElementStream<'s, Keyed<T>> {
    try_key_by(build, step, stream, OnError::Fail, Originals::End, move |element| {
        Ok::<_, std::convert::Infallible>(f(element).key_bytes())
    })
}

/// Gives every element the key whose bytes `f` names; it may fail.
pub fn try_key_by<'s, T: Data, E: Display>(
    build: &FlowBuild<'s>,
    step: &StepId,
    stream: ElementStream<'s, T>,
    handling: impl Into<ErrorHandling<T>>,
    originals: Originals,
    mut f: impl FnMut(&Element<T>) -> Result<Option<Bytes>, E> + 'static,
) -> ElementStream<'s, Keyed<T>> {
    let keyed =
        transform(build, "key by", [(step, handling.into())], stream, move |element| match f(&element) {
            Ok(key) => Ok(element.keyed(key, originals, |value| value)),
            Err(reason) => Err(Refusal::of(element, reason)),
        });
    exchange_by_key(build, keyed)
}

/// Gives every element the key whose bytes `f` names, and another value, before it moves to the worker that owns the
/// key. An error is that of the key, under the handling of `step`, or that of the value, under the other one.
pub fn try_key_by_projected<'s, T: Data, U: Data>(
    build: &FlowBuild<'s>,
    (step, key): (&StepId, ErrorHandling<T>),
    value: (&StepId, ErrorHandling<T>),
    stream: ElementStream<'s, T>,
    originals: Originals,
    mut f: impl FnMut(&Element<T>) -> Result<(Option<Bytes>, U), Unprojected> + 'static,
) -> ElementStream<'s, Keyed<U>> {
    let keyed = transform(build, "key by", [(step, key), value], stream, move |element| match f(&element) {
        Ok((key, value)) => Ok(element.keyed(key, originals, |_| value)),
        Err(Unprojected::Key(reason)) => Err(Refusal::by(0, element, reason)),
        Err(Unprojected::Value(reason)) => Err(Refusal::by(1, element, reason)),
    });
    exchange_by_key(build, keyed)
}

/// Which of two steps that are done in one cannot take a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unprojected {
    /// The one that gives the key.
    Key(String),
    /// The one that gives the value.
    Value(String),
}

/// Whether records as they were read travel on behind a `key_by`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Originals {
    /// A later step has dead letters.
    Travel,
    /// Nobody needs them any more, and they would travel between processes.
    #[default]
    End,
}

impl<T> Element<T> {
    fn keyed<U>(
        self,
        key: Option<Bytes>,
        originals: Originals,
        value: impl FnOnce(T) -> U,
    ) -> Element<Keyed<U>> {
        let hash = hash_of_key(key.as_ref());
        let mut meta = self.meta;
        if originals == Originals::End {
            meta.original = None;
        }
        Element { value: Keyed { key, hash, value: value(self.value) }, meta }
    }
}

/// Brings every element to the worker that owns its key's bucket. Restored rows are dealt by the same expression,
/// [`tidegate_recovery::Bucket::worker`].
pub fn exchange_by_key<'s, T: Data>(
    build: &FlowBuild<'s>,
    stream: ElementStream<'s, Keyed<T>>,
) -> ElementStream<'s, Keyed<T>> {
    let peers = build.context().peers();
    if peers == 1 {
        return stream;
    }
    // Timely takes the number modulo the number of workers (or masks it, which is the same for a worker's index).
    let route = move |element: &Element<Keyed<T>>| u64::from(element.value.hash.bucket().worker(peers).0);
    let pact = ExchangeCore::<CapacityContainerBuilder<Batch<Keyed<T>>>, _>::new(route);
    stream.unary::<CapacityContainerBuilder<Batch<Keyed<T>>>, _, _, _>(pact, "exchange by key", |_, _| {
        |input, output| {
            input.for_each(|capability, batch| output.session(&capability).give_container(batch));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_bytes_are_strings_as_they_are_and_canonical_json() {
        assert_eq!("a b".key_bytes(), Some(Bytes::from_static(b"a b")));
        assert_eq!(42_i64.key_bytes(), Some(Bytes::from_static(b"42")));
        assert_eq!(None::<String>.key_bytes(), None);
        let structured = JsonKey(serde_json::json!({"b": 1, "a": {"d": null, "c": "x"}}));
        let bytes = structured.try_bytes().expect("it is JSON");
        assert_eq!(bytes, Bytes::from_static(br#"{"a":{"c":"x","d":null},"b":1}"#));
    }

    #[test]
    fn the_null_key_is_not_the_empty_key() {
        assert_eq!(hash_of_key(None), KeyHash(0));
        assert_ne!(hash_of_key(Some(&Bytes::new())), KeyHash(0));
    }
}
