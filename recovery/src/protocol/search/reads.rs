//! What an epoch reads.

use super::disk::{Offsets, RECORDS};

/// What an epoch may read: the fewer choices, the sooner a counterexample is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reads {
    /// The next record of either partition, or all that is left.
    Any,
    /// The next record only, of the first partition that has one.
    OneByOne,
    /// The first start reads all at once, later ones one by one.
    FirstReadsAll,
}

impl Reads {
    /// How far an epoch may read.
    pub(super) fn choices(self, first_start: bool, offsets: Offsets) -> Vec<Offsets> {
        let [a, b] = offsets;
        let one = if a < RECORDS { [a + 1, b] } else { [a, b + 1] };
        let mut reads = match self {
            Reads::Any => vec![[a + 1, b], [a, b + 1], [RECORDS, RECORDS]],
            Reads::FirstReadsAll if first_start => vec![[RECORDS, RECORDS]],
            Reads::OneByOne | Reads::FirstReadsAll => vec![one],
        };
        reads.retain(|read| read[0] <= RECORDS && read[1] <= RECORDS && *read != offsets);
        reads.dedup();
        reads
    }
}
