//! State of one's own per key: a function sees the state and a record, and gives any number of results.

use crate::batch::ElementStream;
use crate::build::FlowBuild;
use crate::element::{Data, Element, Keyed};
use crate::keyed::{
    Applied, Closing, Keep, KeyRow, KeyTable, KeyedLogic, LastEpoch, OnError, Outlet, RecordError, StateError,
    StepRows, keyed_step,
};
use serde::{Serialize, de::DeserializeOwned};
use std::fmt::Display;
use std::marker::PhantomData;
use tidegate_recovery::{EventTime, KeyHash, StepId};

/// State that a step keeps per key.
pub trait KeyState: Clone + Serialize + DeserializeOwned + 'static {}
impl<S: Clone + Serialize + DeserializeOwned + 'static> KeyState for S {}

/// Calls `f` with the state of the record's key and the record's value; `None` is a key without state, before
/// the first record and after `f` has set it to `None`. Results carry the record's event time, timestamp and
/// headers, and its key.
///
/// The records of a key come in the order of their epochs, and those of one partition in the order of their
/// offsets. After an error under [`OnError::Drop`] the state is as it was before the record.
///
/// ```
/// use tidegate_operators::{build::FlowBuild, batch::ElementStream, element::Keyed, keyed::OnError};
/// use tidegate_operators::stateful_map::stateful_map;
/// use tidegate_recovery::StepId;
///
/// fn running_total<'s>(
///     build: &FlowBuild<'s>,
///     amounts: ElementStream<'s, Keyed<i64>>,
/// ) -> ElementStream<'s, Keyed<i64>> {
///     stateful_map(build, &StepId::new("total"), amounts, OnError::Fail, |total: &mut Option<i64>, amount| {
///         let sum = total.unwrap_or(0).checked_add(amount).ok_or("the total is too large")?;
///         *total = Some(sum);
///         Ok::<_, &str>([sum])
///     })
/// }
/// ```
pub fn stateful_map<'s, T, S, O, I, E, F>(
    build: &FlowBuild<'s>,
    step: &StepId,
    stream: ElementStream<'s, Keyed<T>>,
    on_error: OnError,
    f: F,
) -> ElementStream<'s, Keyed<O>>
where
    T: Data,
    S: KeyState,
    O: Data,
    I: IntoIterator<Item = O>,
    E: Display,
    F: FnMut(&mut Option<S>, T) -> Result<I, E> + 'static,
{
    let logic = StatefulMap { f, keys: KeyTable::new(), keep_before: on_error == OnError::Drop, types: PhantomData };
    keyed_step(build, stream, step, logic, on_error)
}

/// Version of the rows of a `stateful_map`; the state inside is the user's.
pub const STATEFUL_MAP_STATE_VERSION: u8 = 1;

struct StatefulMap<T, S, O, F> {
    f: F,
    keys: KeyTable<Kept<S>>,
    /// An error may be dropped: the state before each record must be at hand.
    keep_before: bool,
    types: PhantomData<fn(T) -> O>,
}

struct Kept<S> {
    state: Option<S>,
    /// The store has a row of it.
    stored: bool,
}

impl<T, S, O, I, E, F> KeyedLogic for StatefulMap<T, S, O, F>
where
    T: Data,
    S: KeyState,
    O: Data,
    I: IntoIterator<Item = O>,
    E: Display,
    F: FnMut(&mut Option<S>, T) -> Result<I, E> + 'static,
{
    type In = T;
    type Out = Keyed<O>;

    fn version(&self) -> u8 {
        STATEFUL_MAP_STATE_VERSION
    }

    fn acts_on_watermarks(&self) -> bool {
        false
    }

    fn lateness_ms(&self) -> i64 {
        0
    }

    fn restore(&mut self, row: &KeyRow, hash: KeyHash) -> Result<(), StateError> {
        let (state, rest) = postcard::take_from_bytes(&row.value)
            .map_err(|_| StateError::Damaged("it is not the state that this step keeps"))?;
        if !rest.is_empty() {
            return Err(StateError::Damaged("more bytes than the state that this step keeps"));
        }
        let kept = Kept { state: Some(state), stored: true };
        self.keys.find_or_insert(hash, row.key.as_deref(), || kept);
        Ok(())
    }

    fn apply(
        &mut self,
        record: Element<Keyed<T>>,
        _: EventTime,
        outlet: &mut Outlet<'_, Keyed<O>>,
    ) -> Result<Applied, RecordError> {
        let Element { value: Keyed { key, hash, value }, meta } = record;
        let place = self.keys.find_or_insert(hash, key.as_deref(), || Kept { state: None, stored: false });
        let kept = &mut self.keys.at_mut(place).value;
        let before = self.keep_before.then(|| kept.state.clone());
        match (self.f)(&mut kept.state, value) {
            Ok(results) => {
                outlet.results.extend(results.into_iter().map(|value| Element {
                    value: Keyed { key: key.clone(), hash, value },
                    meta: meta.clone(),
                }));
            }
            Err(error) => {
                if let Some(before) = before {
                    kept.state = before;
                }
                if kept.state.is_none() && !kept.stored {
                    self.forget_if_clean(place);
                }
                return Err(RecordError(error.to_string()));
            }
        }
        if outlet.rows.kept() {
            self.keys.touch(place);
        } else if kept.state.is_none() {
            self.keys.remove(place);
        }
        Ok(Applied::Taken)
    }

    fn earliest_result(&mut self) -> Option<EventTime> {
        None
    }

    fn hand_out(&mut self, _: EventTime, _: usize, _: &mut Outlet<'_, Keyed<O>>) -> Closing {
        Closing::Done
    }

    fn hand_out_last(&mut self, _: LastEpoch, _: usize, _: &mut Outlet<'_, Keyed<O>>) -> Closing {
        Closing::Done
    }

    fn snapshot(&mut self, rows: &mut StepRows) {
        self.keys.visit_changed(|slot| {
            let (bucket, key) = (slot.hash.bucket(), slot.key.as_deref());
            match &slot.value.state {
                Some(state) => {
                    rows.put(bucket, key, &[], |out| {
                        *out = postcard::to_extend(state, std::mem::take(out))
                            .expect("a state of serde's data model can be encoded");
                    });
                    slot.value.stored = true;
                    Keep::Yes
                }
                None => {
                    if slot.value.stored {
                        rows.delete(bucket, key, &[]);
                    }
                    Keep::No
                }
            }
        });
    }
}

impl<T, S, O, F> StatefulMap<T, S, O, F> {
    /// A key that has no state and no change to be put needs no place.
    fn forget_if_clean(&mut self, place: u32) {
        if !self.keys.is_dirty(place) {
            self.keys.remove(place);
        }
    }
}
