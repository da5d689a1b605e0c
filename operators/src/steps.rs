//! The steps of a flow, as the store and the other processes know them.

use std::collections::BTreeMap;
use std::sync::Arc;
use tidegate_recovery::{StepId, StepNumber, StepShape, StepTable};

/// What identifies a step and shapes its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepSpec {
    /// Stable id, from the step's name in the flow.
    pub id: StepId,
    /// What it does: `window`, `event_time`, `sink` …
    pub kind: Arc<str>,
    /// Version of its rows' format.
    pub version: u16,
    /// The parameters that shape its state; the store refuses others.
    pub parameters: BTreeMap<String, String>,
    /// Whether it keeps rows in the store.
    pub keeps_rows: bool,
}

impl StepSpec {
    /// A step without state.
    pub fn stateless(id: StepId, kind: impl AsRef<str>) -> StepSpec {
        StepSpec {
            id,
            kind: Arc::from(kind.as_ref()),
            version: 1,
            parameters: BTreeMap::new(),
            keeps_rows: false,
        }
    }

    /// A step that keeps rows of this version.
    pub fn stateful(id: StepId, kind: impl AsRef<str>, version: u16) -> StepSpec {
        StepSpec { version, keeps_rows: true, ..StepSpec::stateless(id, kind) }
    }

    /// With a parameter that shapes the state.
    pub fn parameter(mut self, name: impl Into<String>, value: impl ToString) -> StepSpec {
        self.parameters.insert(name.into(), value.to_string());
        self
    }
}

/// All steps of a flow. Those that keep rows are also a [`StepTable`], which is what the store knows of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowSteps {
    specs: BTreeMap<StepId, StepSpec>,
    table: StepTable,
}

/// Two steps of one name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("two steps are named {0}; give one of them another name")]
pub struct DuplicateStep(pub StepId);

impl FlowSteps {
    /// These steps.
    ///
    /// # Errors
    /// When two have one name.
    ///
    /// # Panics
    /// When more steps keep rows than have a number: nobody writes 65 536 of them.
    pub fn new(specs: impl IntoIterator<Item = StepSpec>) -> Result<FlowSteps, DuplicateStep> {
        let mut by_id = BTreeMap::new();
        for spec in specs {
            let id = spec.id.clone();
            if by_id.insert(id.clone(), spec).is_some() {
                return Err(DuplicateStep(id));
            }
        }
        let keeping = by_id.values().filter(|spec| spec.keeps_rows).map(|spec| StepShape {
            id: spec.id.clone(),
            kind: spec.kind.to_string(),
            version: u32::from(spec.version),
            parameters: spec.parameters.clone(),
        });
        let table = StepTable::new(keeping.collect()).expect("their names differ, and they have numbers");
        Ok(FlowSteps { specs: by_id, table })
    }

    /// The step with this id.
    pub fn get(&self, id: &StepId) -> Option<&StepSpec> {
        self.specs.get(id)
    }

    /// The number of a step that keeps rows.
    pub fn number(&self, id: &StepId) -> Option<StepNumber> {
        self.table.number(id)
    }

    /// The steps that keep rows, in the store's words.
    pub fn table(&self) -> &StepTable {
        &self.table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_that_keep_rows_are_numbered_by_name() {
        let id = StepId::new;
        let table = FlowSteps::new([
            StepSpec::stateful(id("window"), "window", 1),
            StepSpec::stateless(id("map"), "map"),
            StepSpec::stateful(id("event"), "event_time", 1),
        ])
        .expect("three names");
        assert_eq!(table.number(&id("event")), Some(StepNumber(0)));
        assert_eq!(table.number(&id("window")), Some(StepNumber(1)));
        assert_eq!(table.number(&id("map")), None);
        let twice = [StepSpec::stateless(id("a"), "map"), StepSpec::stateless(id("a"), "filter")];
        assert_eq!(FlowSteps::new(twice), Err(DuplicateStep(id("a"))));
    }
}
