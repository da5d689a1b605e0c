//! Commits of a reader: at most one is on its way.

use super::super::raw::{Code, PartitionOffset};
use crate::element::PartitionId;
use crate::source::CommitOutcome;
use tidegate_recovery::NextOffset;

#[derive(Default)]
pub(super) struct CommitState {
    pub(super) on_its_way: Option<(usize, Vec<(PartitionId, NextOffset)>)>,
    pub(super) outcomes: Vec<CommitOutcome>,
}

impl CommitState {
    pub(super) fn answered(&mut self, tag: usize, error: Code, offsets: &[PartitionOffset]) {
        // An answer to a commit that nobody waits for any more says nothing new: its offsets stay dirty.
        let Some((_, committed)) = self.on_its_way.take_if(|(of, _)| *of == tag) else { return };
        let mut errors: Vec<String> = offsets
            .iter()
            .filter(|one| !one.error.is_ok())
            .map(|one| format!("{}@{}: {}", one.partition, one.offset, one.error))
            .collect();
        if errors.is_empty() && !error.is_ok() {
            errors.push(error.to_string());
        }
        let error = (!errors.is_empty()).then(|| errors.join(", "));
        self.outcomes.push(CommitOutcome { offsets: committed, error });
    }
}
