//! [`KeyedStream`]: values with their key, and the steps that keep state per key.

use super::plan::Keeps;
use super::shape::{Parameters, put_windows};
use super::stream::Stream;
use crate::config::problems::{Problem, code};
use crate::config::yaml::Origin;
use serde::{Deserialize, Serialize};
use std::fmt::Display;
use std::marker::PhantomData;
use tidegate_operators::collect_batch::{BatchLimits, collect_batch};
use tidegate_operators::element::{Data, Element, Keyed};
use tidegate_operators::record::{self, ErrorHandling, OnError, RecordOf};
use tidegate_operators::stateful_map::{KeyState, stateful_map};
use tidegate_operators::window::{Aggregator, LatePolicy, WindowSettings, Windowed, window_of};

pub use tidegate_operators::record::KeyBytes;

/// A stream that is grouped by a key of type `K`.
pub struct KeyedStream<'s, K, T: Data> {
    stream: Stream<'s, Keyed<T>>,
    key: PhantomData<fn() -> K>,
}

/// What a window gives for one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window<K, R> {
    /// The key.
    pub key: K,
    /// Start of the window, in milliseconds since the Unix epoch; it belongs to the window.
    pub window_start: i64,
    /// End of the window, in milliseconds since the Unix epoch; it does not belong to the window.
    pub window_end: i64,
    /// What was aggregated.
    pub result: R,
}

/// A key type that can be read back from its bytes.
pub trait KeyFromBytes: Sized {
    /// The key; `None` when the bytes are no such key.
    fn key_from_bytes(bytes: Option<&[u8]>) -> Option<Self>;
}

impl KeyFromBytes for String {
    fn key_from_bytes(bytes: Option<&[u8]>) -> Option<String> {
        String::from_utf8(bytes?.to_vec()).ok()
    }
}

impl KeyFromBytes for std::sync::Arc<str> {
    fn key_from_bytes(bytes: Option<&[u8]>) -> Option<Self> {
        std::str::from_utf8(bytes?).ok().map(Into::into)
    }
}

impl KeyFromBytes for bytes::Bytes {
    fn key_from_bytes(bytes: Option<&[u8]>) -> Option<bytes::Bytes> {
        bytes.map(bytes::Bytes::copy_from_slice)
    }
}

impl KeyFromBytes for Vec<u8> {
    fn key_from_bytes(bytes: Option<&[u8]>) -> Option<Vec<u8>> {
        bytes.map(<[u8]>::to_vec)
    }
}

impl<K: KeyFromBytes> KeyFromBytes for Option<K> {
    fn key_from_bytes(bytes: Option<&[u8]>) -> Option<Option<K>> {
        match bytes {
            None => Some(None),
            some => K::key_from_bytes(some).map(Some),
        }
    }
}

macro_rules! integer_keys {
    ($($integer:ty),*) => {$(
        impl KeyFromBytes for $integer {
            fn key_from_bytes(bytes: Option<&[u8]>) -> Option<$integer> {
                std::str::from_utf8(bytes?).ok()?.parse().ok()
            }
        }
    )*};
}

integer_keys!(i8, i16, i32, i64, u8, u16, u32, u64);

impl<'s, K: 'static, T: Data> KeyedStream<'s, K, T> {
    pub(super) fn new(stream: Stream<'s, Keyed<T>>) -> KeyedStream<'s, K, T> {
        KeyedStream { stream, key: PhantomData }
    }

    /// The same stream, not as a grouped one: each value with the bytes of its key.
    pub fn keyed_values(self) -> Stream<'s, Keyed<T>> {
        self.stream
    }

    /// The elements of every window, with the bytes of their key.
    ///
    /// `parameters` are what shapes the state besides the windows themselves.
    pub(crate) fn window_elements<A>(
        self,
        name: Option<&str>,
        settings: WindowSettings,
        record_of: RecordOf<T>,
        mut parameters: Parameters,
        aggregate: A,
    ) -> Stream<'s, Keyed<Windowed<A::Out>>>
    where
        A: Aggregator<T>,
        A::Out: Data,
    {
        let flow = self.stream.flow.clone();
        let path = || format!("steps.{}", name.unwrap_or("window"));
        if !self.stream.event_time {
            flow.problem(
                Problem::error(
                    code::NO_EVENT_TIME,
                    path(),
                    &Origin::Default,
                    "a window needs event time, and the stream has none",
                )
                .advise("put an event_time step before the key_by"),
            );
        }
        if let Err(error) = settings.windows.check() {
            flow.problem(Problem::error(code::INVALID_VALUE, path(), &Origin::Default, error.to_string()));
        }
        put_windows(&settings.windows, &mut parameters);
        let as_read = self.stream.as_read;
        let failed = settings.on_error.dead_letters().cloned();
        let late = match &settings.late {
            LatePolicy::DeadLetter(letters) => Some(letters.clone()),
            LatePolicy::Drop => None,
        };
        let results = self.stream.step_that_keeps(
            name,
            "window",
            Keeps::Keyed,
            parameters,
            move |build, id, elements| match window_of(build, id, elements, settings, record_of, aggregate) {
                Ok(results) => results,
                // The plan has reported it, and a flow with an error is not built.
                Err(error) => panic!("the windows of step {id} were checked before the build: {error}"),
            },
        );
        flow.note(results.node, |known| known.of_many = true);
        results.dead_letters(failed.as_ref(), as_read).dead_letters(late.as_ref(), as_read)
    }

    /// Calls `f` with the state of the value's key and the value, and emits what it returns. `None` is a key
    /// without state. An error is the record's: see [`OnError`].
    pub fn try_stateful_map<S: KeyState, U: Data, I, E: Display>(
        self,
        name: &str,
        on_error: OnError,
        f: impl FnMut(&mut Option<S>, T) -> Result<I, E> + 'static,
    ) -> KeyedStream<'s, K, U>
    where
        I: IntoIterator<Item = U> + 'static,
    {
        self.stateful_map_shaped(Some(name), on_error, Parameters::new(), f)
    }

    /// The same, with parameters that shape the state.
    pub(crate) fn stateful_map_shaped<S: KeyState, U: Data, I, E: Display>(
        self,
        name: Option<&str>,
        handling: impl Into<ErrorHandling<T>>,
        parameters: Parameters,
        f: impl FnMut(&mut Option<S>, T) -> Result<I, E> + 'static,
    ) -> KeyedStream<'s, K, U>
    where
        I: IntoIterator<Item = U> + 'static,
    {
        let (as_read, handling) = (self.stream.as_read, handling.into());
        let letters = handling.on_error().dead_letters().cloned();
        let mapped = self.stream.step_that_keeps(
            name,
            "stateful_map",
            Keeps::Keyed,
            parameters,
            move |build, id, elements| stateful_map(build, id, elements, handling, f),
        );
        KeyedStream::new(mapped.dead_letters(letters.as_ref(), as_read))
    }

    /// Calls `f` with the state of the value's key and the value, and emits what it returns.
    pub fn stateful_map<S: KeyState, U: Data, I>(
        self,
        name: &str,
        mut f: impl FnMut(&mut Option<S>, T) -> I + 'static,
    ) -> KeyedStream<'s, K, U>
    where
        I: IntoIterator<Item = U> + 'static,
    {
        self.try_stateful_map(name, OnError::Fail, move |state, value| {
            Ok::<_, std::convert::Infallible>(f(state, value))
        })
    }

    /// Collects the values of each key into batches.
    pub fn collect_batch(self, name: &str, limits: BatchLimits) -> KeyedStream<'s, K, Vec<T>> {
        self.collect_batch_shaped(Some(name), limits, Parameters::new())
    }

    /// The same, with parameters that shape the state.
    pub(crate) fn collect_batch_shaped(
        self,
        name: Option<&str>,
        limits: BatchLimits,
        parameters: Parameters,
    ) -> KeyedStream<'s, K, Vec<T>> {
        let flow = self.stream.flow.clone();
        let batches = self.stream.step_that_keeps(
            name,
            "collect_batch",
            Keeps::Replayable,
            parameters,
            move |build, id, elements| collect_batch(build, id, elements, limits),
        );
        flow.note(batches.node, |known| known.of_many = true);
        KeyedStream::new(batches)
    }
}

impl<'s, K: KeyFromBytes + Data, T: Data> KeyedStream<'s, K, T> {
    /// One result per key and window, when the window is closed. Its timestamp is the window's end less one
    /// millisecond. What becomes of late records, and of those that the aggregate cannot take, is said with
    /// [`WindowSettings`].
    pub fn window<A>(
        self,
        name: &str,
        windows: impl Into<WindowSettings>,
        aggregate: A,
    ) -> Stream<'s, Window<K, A::Out>>
    where
        A: Aggregator<T>,
        A::Out: Data,
    {
        let parameters =
            Parameters::from([("aggregate".to_owned(), std::any::type_name::<A::State>().to_owned())]);
        let results =
            self.window_elements(Some(name), windows.into(), record::as_record, parameters, aggregate);
        results.typed()
    }

    /// Each value with its key.
    pub fn with_key(self) -> Stream<'s, (K, T)> {
        self.stream.keyed(|key, value| (key, value))
    }
}

impl<'s, T: Data> Stream<'s, Keyed<T>> {
    /// Reads each key back from its bytes. A key of another type than was written is a defect of the flow's own
    /// `KeyBytes`, and that record's failure.
    fn keyed<K: KeyFromBytes, U: Data>(self, with: impl Fn(K, T) -> U + 'static) -> Stream<'s, U> {
        self.untracked(move |build, id, elements| {
            record::try_map(build, id, elements, OnError::Fail, move |Element { value, meta }| {
                match K::key_from_bytes(value.key.as_deref()) {
                    Some(key) => Ok(Element { value: with(key, value.value), meta }),
                    None => Err("the bytes of the key cannot be read as the type of the key"),
                }
            })
        })
    }
}

impl<'s, R: Data> Stream<'s, Keyed<Windowed<R>>> {
    fn typed<K: KeyFromBytes + Data>(self) -> Stream<'s, Window<K, R>> {
        self.keyed(|key, windowed: Windowed<R>| Window {
            key,
            window_start: windowed.start.0,
            window_end: windowed.end.0,
            result: windowed.value,
        })
    }
}
