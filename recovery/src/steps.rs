//! Which steps of a flow keep rows, in what shape, and whether that fits what a store holds.
//!
//! Rows name a step by its number in the table of the run that wrote them; every segment carries that table, so
//! that a run with other numbers can read it. New steps start empty. A removed step, a changed kind or a changed
//! parameter is refused with the difference; a removed one can be dropped explicitly.

use crate::{Epoch, StepId, StepNumber};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// What shapes the state of one step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepShape {
    /// The step.
    pub id: StepId,
    /// Its kind, such as `window`.
    pub kind: String,
    /// Version of the encoding of its rows, from 1.
    pub version: u32,
    /// The parameters that shape its rows, such as `size: 60000ms`; not those that may change freely.
    pub parameters: BTreeMap<String, String>,
}

impl StepShape {
    /// A step of this name and kind, at version 1 of its rows, without parameters.
    pub fn new(id: impl AsRef<str>, kind: impl Into<String>) -> StepShape {
        StepShape { id: StepId::new(id), kind: kind.into(), version: 1, parameters: BTreeMap::new() }
    }

    /// With a parameter that shapes its rows.
    pub fn parameter(mut self, name: impl Into<String>, value: impl fmt::Display) -> StepShape {
        self.parameters.insert(name.into(), value.to_string());
        self
    }
}

/// The steps of a flow that keep rows, sorted by id; a step's place is its [`StepNumber`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepTable(Vec<StepShape>);

impl StepTable {
    /// The table of these steps. `Err` names an id that two of them share, or the first one above the limit
    /// of `u16::MAX` steps.
    pub fn new(mut steps: Vec<StepShape>) -> Result<StepTable, StepId> {
        steps.sort_by(|a, b| a.id.cmp(&b.id));
        if let Some(pair) = steps.windows(2).find(|pair| pair[0].id == pair[1].id) {
            return Err(pair[0].id.clone());
        }
        match steps.get(usize::from(u16::MAX)) {
            Some(step) => Err(step.id.clone()),
            None => Ok(StepTable(steps)),
        }
    }

    /// The number of a step.
    pub fn number(&self, id: &StepId) -> Option<StepNumber> {
        self.0.binary_search_by(|step| step.id.cmp(id)).ok().map(|index| StepNumber(index as u16))
    }

    /// The step of a number.
    pub fn get(&self, number: StepNumber) -> Option<&StepShape> {
        self.0.get(usize::from(number.0))
    }

    /// The steps, by number.
    pub fn iter(&self) -> impl Iterator<Item = &StepShape> {
        self.0.iter()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no step keeps rows.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A step as a commit record names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedStep {
    /// Its shape.
    pub shape: StepShape,
    /// Rows of older epochs are not this step's: a step that was dropped and comes back starts empty.
    pub since: Epoch,
}

/// One way in which a flow does not fit a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepDifference {
    /// The store has state of a step that the flow does not have.
    Removed {
        /// The step.
        step: StepId,
    },
    /// The step is of another kind.
    Kind {
        /// The step.
        step: StepId,
        /// Its kind in the store.
        stored: String,
        /// Its kind in the flow.
        wanted: String,
    },
    /// A parameter that shapes state has another value.
    Parameter {
        /// The step.
        step: StepId,
        /// The parameter.
        name: String,
        /// Its value in the store.
        stored: Option<String>,
        /// Its value in the flow.
        wanted: Option<String>,
    },
}

impl fmt::Display for StepDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |value: &Option<String>| value.clone().unwrap_or_else(|| "not set".to_owned());
        match self {
            StepDifference::Removed { step } => write!(
                f,
                "step {step}: in the store, not in the flow: put it back, or give its state up with --allow-dropped-state"
            ),
            StepDifference::Kind { step, stored, wanted } => write!(
                f,
                "step {step}: kind {stored} in the store, {wanted} in the flow: give the new step another name"
            ),
            StepDifference::Parameter { step, name, stored, wanted } => write!(
                f,
                "step {step}: {name} is {} in the store, {} in the flow: put it back, or give the step another name",
                shown(stored),
                shown(wanted)
            ),
        }
    }
}

/// The steps that go on, and what does not fit. A version above ours is the caller's to refuse.
pub(crate) fn compare(
    stored: &[RecordedStep],
    table: &StepTable,
    resumed: Epoch,
    allow_dropped_state: bool,
) -> (Vec<RecordedStep>, Vec<StepDifference>) {
    let mut differences = Vec::new();
    for step in stored {
        let id = &step.shape.id;
        let Some(wanted) = table.number(id).and_then(|number| table.get(number)) else {
            if !allow_dropped_state {
                differences.push(StepDifference::Removed { step: id.clone() });
            }
            continue;
        };
        if wanted.kind != step.shape.kind {
            differences.push(StepDifference::Kind {
                step: id.clone(),
                stored: step.shape.kind.clone(),
                wanted: wanted.kind.clone(),
            });
            continue;
        }
        let names = step.shape.parameters.keys().chain(wanted.parameters.keys());
        for name in names.collect::<std::collections::BTreeSet<_>>() {
            let (stored, wanted) = (step.shape.parameters.get(name), wanted.parameters.get(name));
            if stored != wanted {
                differences.push(StepDifference::Parameter {
                    step: id.clone(),
                    name: name.clone(),
                    stored: stored.cloned(),
                    wanted: wanted.cloned(),
                });
            }
        }
    }
    let steps = table.iter().map(|shape| RecordedStep {
        shape: shape.clone(),
        since: stored.iter().find(|step| step.shape.id == shape.id).map_or(resumed.next(), |step| step.since),
    });
    (steps.collect(), differences)
}
