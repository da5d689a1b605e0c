//! State of one's own per key: a function sees the state and a record, and gives any number of results.

use crate::batch::ElementStream;
use crate::build::FlowBuild;
use crate::element::{Data, Element, Keyed};
use crate::keyed::{
    Applied, Closing, Keep, KeyRow, KeyTable, KeyedLogic, LastEpoch, Outlet, RecordError, StateError,
    StepRows, keyed_step,
};
use crate::record::{ErrorHandling, OnError};
use crate::steps::StepSpec;
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
/// offsets. After an error that does not end the run the state is as it was before the record.
///
/// ```
/// use tidegate_operators::{build::FlowBuild, batch::ElementStream, element::Keyed, record::OnError};
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
    handling: impl Into<ErrorHandling<T>>,
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
    let ErrorHandling { on_error, record_of } = handling.into();
    keyed_step(build, stream, step, StatefulMap::new(&on_error, f), on_error, record_of)
}

/// The step in the table of steps.
pub fn step_spec(id: StepId) -> StepSpec {
    StepSpec::stateful(id, "stateful_map", u16::from(STATEFUL_MAP_STATE_VERSION))
}

/// Version of the rows of a `stateful_map`; the state inside is the user's.
pub const STATEFUL_MAP_STATE_VERSION: u8 = 1;

struct StatefulMap<T, S, O, F> {
    f: F,
    keys: KeyTable<Kept<S>>,
    /// The run may go on after an error: the state before each record must be at hand.
    keep_before: bool,
    types: PhantomData<fn(T) -> O>,
}

struct Kept<S> {
    state: Option<S>,
    /// The store has a row of it.
    stored: bool,
}

impl<T, S, O, F> StatefulMap<T, S, O, F> {
    fn new(on_error: &OnError, f: F) -> StatefulMap<T, S, O, F> {
        let keep_before = *on_error != OnError::Fail;
        StatefulMap { f, keys: KeyTable::new(), keep_before, types: PhantomData }
    }

    /// A key that has no state and no change to be put needs no place.
    fn forget_if_clean(&mut self, place: u32) {
        if !self.keys.is_dirty(place) {
            self.keys.remove(place);
        }
    }
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

    fn state_rows(&self) -> usize {
        self.keys.len()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keyed::Untaken;
    use crate::keyed::hand_driven::HandDriven;

    type Sum = fn(&mut Option<i64>, i64) -> Result<Vec<i64>, String>;

    fn sum(total: &mut Option<i64>, amount: i64) -> Result<Vec<i64>, String> {
        let sum = total.unwrap_or(0) + amount;
        *total = if amount == 0 { None } else { Some(sum) };
        if amount == 13 { Err("an unlucky amount".to_owned()) } else { Ok(vec![sum]) }
    }

    fn step(on_error: OnError) -> HandDriven<StatefulMap<i64, i64, i64, Sum>> {
        let policy = on_error.clone();
        HandDriven::new(move || StatefulMap::new(&policy, sum as Sum), on_error)
    }

    fn sums(step: &mut HandDriven<StatefulMap<i64, i64, i64, Sum>>) -> Vec<(String, i64)> {
        step.take_results().into_iter().map(|(_, result)| (result.key_text(), result.value.value)).collect()
    }

    #[test]
    fn state_survives_a_restart_and_goes_with_its_key() {
        // L50
        let mut step = step(OnError::Fail);
        for (key, amount) in [("a", 1), ("b", 5), ("a", 2)] {
            step.push(1, key, amount);
        }
        step.frontier(5);
        assert_eq!(sums(&mut step), [("a", 1), ("b", 5), ("a", 3)].map(|(k, v)| (k.to_owned(), v)));
        step.push(9, "a", 100);
        step.frontier(8); // not yet durable
        step.restart_after(4);
        step.push(5, "a", 10);
        step.push(5, "b", 10);
        step.frontier(9);
        assert_eq!(sums(&mut step), [("a", 13), ("b", 15)].map(|(k, v)| (k.to_owned(), v)));
    }

    #[test]
    fn a_key_whose_state_is_gone_leaves_no_row() {
        let mut step = step(OnError::Fail);
        step.push(1, "a", 1);
        step.frontier(5);
        assert_eq!(step.stored_rows(), 1);
        step.push(6, "a", 0);
        step.push(6, "c", 0);
        step.frontier(9);
        assert_eq!(step.stored_rows(), 0);
    }

    #[test]
    fn a_record_that_is_dropped_leaves_the_state_as_it_was() {
        let mut step = step(OnError::Drop);
        for amount in [1, 13, 2] {
            step.push(1, "a", amount);
        }
        step.frontier(2);
        assert_eq!(sums(&mut step), [("a", 1), ("a", 3)].map(|(k, v)| (k.to_owned(), v)));
        assert_eq!(step.counts().dropped, 1);
    }

    #[test]
    fn a_record_that_fails_is_named() {
        // P1
        let mut step = step(OnError::Fail);
        step.push(1, "a", 13);
        let failure = step.try_frontier(2).expect_err("an unlucky amount");
        assert_eq!(failure.error.to_string(), "an unlucky amount");
    }

    #[test]
    fn a_record_is_tried_again_with_the_state_as_it_was_and_then_given_up() {
        // E23 P1
        let tried = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
        let seen = tried.clone();
        let step = move |total: &mut Option<i64>, amount: i64| {
            seen.borrow_mut().push((amount, *total));
            sum(total, amount)
        };
        let policy = OnError::dead_letter(crate::record::DeadLetters::to("letters").attempts(4));
        let made = StatefulMap::new(&policy, step);
        let made = std::cell::RefCell::new(Some(made));
        let mut driven = HandDriven::new(move || made.take().expect("started once"), policy);
        for amount in [1, 13, 2] {
            driven.push(1, "a", amount);
        }
        driven.frontier(2);
        let expected = [(1, None), (13, Some(1)), (13, Some(1)), (13, Some(1)), (13, Some(1)), (2, Some(1))];
        assert_eq!(*tried.borrow(), expected);
        let buried = driven.take_buried();
        let [(time, record, why)] = buried.as_slice() else { panic!("{buried:?}") };
        assert_eq!((time.epoch.0, record.value.value), (1, 13));
        assert_eq!(*why, Untaken::Failed(RecordError("an unlucky amount".to_owned())));
        assert_eq!(driven.counts().dropped, 0);
    }

    #[test]
    fn a_record_that_becomes_100_000_does_not_starve_the_sinks() {
        // behaviour 13
        let fan = |_: &mut Option<i64>, of: i64| Ok::<_, String>(0..of);
        let mut step = HandDriven::new(move || StatefulMap::new(&OnError::Fail, fan), OnError::Fail);
        for _ in 0..3 {
            step.push(1, "a", 100_000);
        }
        step.slice = 1_000;
        step.crowded = true;
        step.frontier(2);
        assert_eq!(step.take_results().len(), 100_000, "one record, then it waits for the sinks");
        step.run();
        assert_eq!(step.take_results().len(), 0);
        assert_eq!(step.holds().results.map(|time| time.epoch.0), Some(1));
        step.crowded = false;
        step.run();
        step.run();
        assert_eq!(step.take_results().len(), 200_000);
        step.run();
        assert_eq!(step.holds().results.map(|time| time.epoch.0), Some(2));
    }
}
