//! When a hand may leave idle partitions behind.
//!
//! That a partition is idle was true at the last look at it. Records may have come since, on all partitions at one
//! moment: whoever reads its own first raises its watermark and says so, and a worker that is slow follows before
//! it has read anything. ⚑ So a hand that leaves idle partitions out follows a watermark only when each of them has
//! been looked at *after* the watermark was heard of, had nothing to read then, and everything that had been read
//! of it by then has passed `event_time`. If that woke a partition the hand does not get past it; if it was dropped
//! on the way there, it keeps nobody waiting.

use tidegate_recovery::{Epoch, EventTime};

/// What the last look at an idle partition found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// The looks of a worker are numbered in their order, from 1 on.
    pub number: u64,
    /// Nothing was to be read.
    pub at_end: bool,
    /// The epoch in which the partition's newest record was read.
    pub last_read: Option<Epoch>,
}

/// The question whether a hand may move, while it is open.
#[derive(Clone, Debug, Default)]
pub struct Silence(Option<Question>);

#[derive(Clone, Copy, Debug)]
struct Question {
    to: EventTime,
    /// Looks up to this one do not count: they came before the watermark was heard of.
    heard: u64,
    /// All had nothing to read; records of the epochs up to this one may still be on their way.
    seen: Option<Option<Epoch>>,
}

impl Silence {
    /// How far the hand may move that wants to be at `to`, which was heard of when look `heard` was the newest. One
    /// question is answered after the other: the answer may be to an earlier one. `idle` are the looks at the
    /// partitions that are left out now; records of epochs before `open` have passed.
    pub fn allows(
        &mut self,
        to: EventTime,
        heard: u64,
        open: Epoch,
        idle: impl Iterator<Item = Look> + Clone,
    ) -> Option<EventTime> {
        if idle.clone().next().is_none() {
            self.0 = None;
            return Some(to);
        }
        let question = self.0.get_or_insert(Question { to, heard, seen: None });
        if question.seen.is_none() && idle.clone().all(|look| look.number > question.heard && look.at_end) {
            question.seen = Some(idle.filter_map(|look| look.last_read).max());
        }
        let passed = question.seen?.is_none_or(|read| read < open);
        let to = question.to;
        if passed {
            self.0 = None;
        }
        passed.then_some(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(silence: &mut Silence, to: i64, heard: u64, open: u64, idle: &[Look]) -> Option<i64> {
        silence.allows(EventTime(to), heard, Epoch(open), idle.iter().copied()).map(|to| to.0)
    }

    fn look(number: u64, at_end: bool, last_read: u64) -> Look {
        Look { number, at_end, last_read: Some(Epoch(last_read)) }
    }

    #[test]
    fn a_look_from_before_the_watermark_was_heard_of_says_nothing() {
        let mut silence = Silence::default();
        assert_eq!(ask(&mut silence, 100, 7, 9, &[look(7, true, 3)]), None);
        assert_eq!(ask(&mut silence, 100, 7, 9, &[look(8, true, 3), look(7, true, 3)]), None);
        assert_eq!(ask(&mut silence, 100, 7, 9, &[look(8, true, 3), look(9, true, 3)]), Some(100));
    }

    #[test]
    fn what_is_still_to_be_read_or_on_its_way_holds_the_hand() {
        let mut silence = Silence::default();
        assert_eq!(ask(&mut silence, 100, 7, 9, &[look(8, false, 3)]), None);
        assert_eq!(ask(&mut silence, 100, 7, 9, &[look(9, true, 9)]), None);
        assert_eq!(ask(&mut silence, 100, 7, 10, &[look(9, true, 9)]), Some(100));
    }

    #[test]
    fn a_partition_that_is_read_all_the_time_and_never_arrives_keeps_nobody_waiting() {
        // All of its records are filtered before event_time.
        let mut silence = Silence::default();
        assert_eq!(ask(&mut silence, 100, 1, 5, &[look(2, true, 5)]), None);
        assert_eq!(ask(&mut silence, 130, 3, 6, &[look(4, false, 6)]), Some(100));
        assert_eq!(ask(&mut silence, 130, 3, 6, &[look(4, false, 6)]), None);
    }
}
