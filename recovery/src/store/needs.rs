//! The segments in which a process still has something, and when old rows must be written again.
//!
//! Rows are rewritten oldest segment first, so that a delete row never has to be: by the time its segment is the
//! oldest, nothing older is left that it could hide. Until then it counts as live.

use crate::format::segment::FrameRef;
use crate::names::PartName;
use crate::{SegmentRef, StepNumber};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// A segment costs this much besides its rows: head, table of steps, a frame's head.
pub(crate) const SEGMENT_OVERHEAD: u64 = 256;

/// What a step number of a segment means today.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepMapping {
    /// Today's number.
    pub(crate) step: StepNumber,
    /// The version of the rows.
    pub(crate) version: u32,
    /// The number that a rewritten row carries: today's, or an alias while the rows are of an older version.
    pub(crate) written: StepNumber,
}

/// A segment in which this process has, or had, rows.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) segment: SegmentRef,
    /// Bytes of its rows that are this process's: live, dead and deletes.
    pub(crate) owned: u64,
    /// Bytes of live rows.
    pub(crate) live: u64,
    /// Bytes of delete rows.
    pub(crate) deletes: u64,
    /// It has rows of other processes too.
    pub(crate) shared: bool,
    /// It was there when the generation began.
    pub(crate) inherited: bool,
    pub(crate) released: bool,
    pub(crate) frames: Arc<[FrameRef]>,
    pub(crate) steps: Arc<[Option<StepMapping>]>,
}

/// A process's segments, oldest first. Their numbers rise and are never used again.
#[derive(Clone, Debug, Default)]
pub(crate) struct Needs {
    first: u32,
    held: VecDeque<Held>,
    live: u64,
    /// Inherited segments with rows of ours that the newest record still named when we last looked. Empty in a
    /// cluster of one process, which knows by itself what the record names.
    pinned: BTreeSet<PartName>,
}

impl Needs {
    /// Appends the newest segment and returns its number.
    pub(crate) fn push(&mut self, held: Held) -> u32 {
        debug_assert!(
            self.held.back().is_none_or(|last| last.segment.epoch <= held.segment.epoch),
            "segments come in the order of their epochs"
        );
        self.live += held.live;
        self.held.push_back(held);
        self.first + self.held.len() as u32 - 1
    }

    /// The number that the next segment will get.
    pub(crate) fn next(&self) -> u32 {
        self.first + self.held.len() as u32
    }

    pub(crate) fn get(&self, number: u32) -> Option<&Held> {
        self.held.get(number.checked_sub(self.first)? as usize)
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut Held> {
        self.held.get_mut(number.checked_sub(self.first)? as usize)
    }

    /// A live row of this segment died, or was written again elsewhere.
    #[inline]
    pub(crate) fn died(&mut self, number: u32, bytes: u32) {
        let held = self.get_mut(number).expect("a live row lies in a segment that is held");
        held.live -= u64::from(bytes);
        self.live -= u64::from(bytes);
    }

    /// This segment has that many more bytes of live rows.
    pub(crate) fn born(&mut self, number: u32, bytes: u64) {
        if let Some(held) = self.get_mut(number) {
            held.live += bytes;
            self.live += bytes;
        }
    }

    /// Bytes of live rows.
    pub(crate) fn live(&self) -> u64 {
        self.live
    }

    /// Segments that are still needed, oldest first.
    pub(crate) fn needed(&self) -> impl Iterator<Item = (u32, &Held)> {
        let numbered = self.held.iter().enumerate().map(|(at, held)| (self.first + at as u32, held));
        numbered.filter(|(_, held)| !held.released)
    }

    /// Bytes on disk for this process's sake.
    pub(crate) fn files(&self) -> u64 {
        self.needed().map(|(_, held)| held.owned + SEGMENT_OVERHEAD).sum()
    }

    /// Sets what the newest record pins of what the generation began with.
    pub(crate) fn pin(&mut self, pinned: BTreeSet<PartName>) {
        self.pinned = pinned;
    }

    /// Whether the record may still name inherited segments with rows of ours.
    pub(crate) fn is_pinned(&self) -> bool {
        !self.pinned.is_empty()
    }

    /// What the newest record names; what it does not name any more is gone for good.
    pub(crate) fn seen_in_record(&mut self, named: &BTreeSet<PartName>) {
        self.pinned.retain(|segment| named.contains(segment));
    }

    /// Lets go of segments without live rows, unless a delete row in them may still hide something older.
    pub(crate) fn release(&mut self) {
        let oldest_pinned = self.pinned.first().copied();
        let mut older = false;
        for held in self.held.iter_mut().filter(|held| !held.released) {
            let hides = held.deletes > 0
                && (older || oldest_pinned.is_some_and(|pinned| pinned < PartName::from(&held.segment)));
            if held.live == 0 && !hides {
                held.released = true;
            } else {
                older = true;
            }
        }
        while self.held.front().is_some_and(|held| held.released) {
            self.held.pop_front();
            self.first += 1;
        }
    }

    /// Whether old rows must be written again now.
    ///
    /// Rewriting oldest first at the pace of the changes, a segment's rows are all written again before its file goes:
    /// meanwhile the files grow by twice its live bytes. So rewriting begins at the last moment from which the files stay
    /// below three times the live rows all the way: that costs far fewer writes than rewriting all the time.
    pub(crate) fn must_rewrite(&self, segments_max: usize, dead_min: u64) -> bool {
        if self.needed().count() > segments_max / 2 {
            return true;
        }
        let (mut ahead, mut written, mut freed) = (0_u64, 0_u64, 0_u64);
        for (_, held) in self.needed() {
            written += 2 * held.live;
            ahead = ahead.max(written.saturating_sub(freed));
            freed += held.owned + SEGMENT_OVERHEAD;
        }
        let bound = 3 * self.live - self.live / 8 + dead_min;
        self.files() + ahead.min(2 * self.live) > bound && self.files() > self.live + dead_min
    }
}
