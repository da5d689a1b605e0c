//! How a run comes to its last epoch: a stop and an end are not the same, and an empty frontier means neither.
//!
//! The last epoch, and which of the two it is, is agreed on all workers before a source lets go. From that
//! moment on each step's acted-on watermark is frozen and further changes of the event frontier are ignored:
//! workers drop their capabilities one at a time, and every drop *raises* the event frontier of the rest.

use tidegate_recovery::Epoch;

/// What is agreed about the end of the run. Steps read it from the worker's context whenever they run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ending {
    /// The run goes on.
    #[default]
    None,
    /// A stop: drain, snapshot and commit up to `last`; open windows stay in the snapshot.
    Stop {
        /// The last epoch, a commit epoch.
        last: Epoch,
    },
    /// The end (`--until-end`): the same, but every window that is still open after `last` is emitted without
    /// being forgotten.
    End {
        /// The last epoch, a commit epoch.
        last: Epoch,
    },
}

impl Ending {
    /// The last epoch, once it is agreed.
    pub fn last(self) -> Option<Epoch> {
        match self {
            Ending::None => None,
            Ending::Stop { last } | Ending::End { last } => Some(last),
        }
    }

    /// Whether the acted-on watermarks are frozen: a step that reads this ignores the event frontier from now on.
    pub fn is_agreed(self) -> bool {
        self != Ending::None
    }
}
