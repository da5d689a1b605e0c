//! What the results must be: windows computed again from the input by one thread, with no regard to speed.
//!
//! A record is on time or late by its own partition alone (design 2.9): it carries the watermark that its partition
//! had just before it, the highest event time seen there less the out-of-orderness. So the result is a function of
//! each partition's order, and of nothing else.

use std::collections::BTreeMap;

use crate::workload::Event;

/// The shape of the windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowKind {
    /// Windows of `size` ms, one after the other.
    Tumbling {
        /// Length in ms.
        size: i64,
    },
    /// Windows of `size` ms, one begins every `every` ms.
    Sliding {
        /// Length in ms.
        size: i64,
        /// Distance of the starts in ms.
        every: i64,
    },
    /// Records of a key that follow one another at most `gap` ms apart.
    Session {
        /// The longest pause within a session, in ms.
        gap: i64,
    },
}

/// The rules of one window step.
#[derive(Clone, Copy, Debug)]
pub struct Oracle {
    /// The windows.
    pub kind: WindowKind,
    /// `event_time.out_of_order` in ms.
    pub out_of_order_ms: i64,
    /// `window.lateness` in ms.
    pub lateness_ms: i64,
}

/// What a window holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Aggregates {
    /// `count()`.
    pub count: i64,
    /// `sum(value.amount)`.
    pub sum: i64,
    /// `min(value.amount)`.
    pub min: i64,
    /// `max(value.amount)`.
    pub max: i64,
    /// `mean(value.amount)`.
    pub mean: f64,
    /// `first(value.id)`.
    pub first: u64,
    /// `last(value.id)`.
    pub last: u64,
}

/// The results by (key, window start in ms); the window's end comes with the aggregates.
pub type Windows = BTreeMap<(String, i64), (i64, Aggregates)>;

/// What the oracle found.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// Every window with at least one record.
    pub windows: Windows,
    /// How many records no window took, because all of theirs were closed.
    pub late: u64,
    /// How many records the filter dropped.
    pub filtered: u64,
}

impl Oracle {
    /// Windows per customer over the paid orders of `events`, given in the order of each partition.
    ///
    /// Unpaid orders move the watermark all the same: the flow takes event times before its filter.
    pub fn paid(&self, events: &[Event]) -> Verdict {
        let mut verdict = Verdict::default();
        let mut watermarks: BTreeMap<i32, i64> = BTreeMap::new();
        let mut panes: BTreeMap<(String, i64), (i64, Vec<&Event>)> = BTreeMap::new();
        let mut on_time: BTreeMap<&str, Vec<&Event>> = BTreeMap::new();
        for event in events {
            let watermark = watermarks.entry(event.partition).or_insert(i64::MIN);
            let before = *watermark;
            *watermark = before.max(event.at_ms - self.out_of_order_ms);
            if !event.paid {
                verdict.filtered += 1;
                continue;
            }
            let mut taken = false;
            match self.kind {
                WindowKind::Session { .. } => {
                    if event.at_ms + self.lateness_ms >= before {
                        on_time.entry(&event.customer).or_default().push(event);
                        taken = true;
                    }
                }
                WindowKind::Tumbling { size } => {
                    for start in starts(event.at_ms, size, size) {
                        taken |= self.put(&mut panes, event, start, start + size, before);
                    }
                }
                WindowKind::Sliding { size, every } => {
                    for start in starts(event.at_ms, size, every) {
                        taken |= self.put(&mut panes, event, start, start + size, before);
                    }
                }
            }
            verdict.late += u64::from(!taken);
        }
        if let WindowKind::Session { gap } = self.kind {
            panes = sessions(on_time, gap);
        }
        verdict.windows =
            panes.into_iter().map(|(id, (end, events))| (id, (end, aggregate(events)))).collect();
        verdict
    }

    fn put<'a>(
        &self,
        panes: &mut BTreeMap<(String, i64), (i64, Vec<&'a Event>)>,
        event: &'a Event,
        start: i64,
        end: i64,
        watermark: i64,
    ) -> bool {
        if end + self.lateness_ms <= watermark {
            return false;
        }
        panes.entry((event.customer.clone(), start)).or_insert((end, Vec::new())).1.push(event);
        true
    }
}

/// The starts of all windows `[start, start + size)` that hold `at`, where starts are multiples of `every`.
fn starts(at: i64, size: i64, every: i64) -> impl Iterator<Item = i64> {
    let newest = at.div_euclid(every) * every;
    (0..).map(move |back| newest - back * every).take_while(move |start| at < start + size)
}

fn sessions<'a>(
    on_time: BTreeMap<&str, Vec<&'a Event>>,
    gap: i64,
) -> BTreeMap<(String, i64), (i64, Vec<&'a Event>)> {
    let mut sessions = BTreeMap::new();
    for (customer, mut events) in on_time {
        events.sort_by_key(|event| event.at_ms);
        let mut current: Vec<&Event> = Vec::new();
        let mut close = |current: &mut Vec<&'a Event>| {
            if let (Some(first), Some(last)) = (current.first(), current.last()) {
                let id = (customer.to_owned(), first.at_ms);
                sessions.insert(id, (session_end(last.at_ms, gap), std::mem::take(current)));
            }
        };
        for event in events {
            if current.last().is_some_and(|last| event.at_ms - last.at_ms > gap) {
                close(&mut current);
            }
            current.push(event);
        }
        close(&mut current);
    }
    sessions
}

/// A session ends a gap behind its last record; a record at that very moment still joins it, so it is closed 1 ms later.
fn session_end(last: i64, gap: i64) -> i64 {
    last + gap
}

fn aggregate(mut events: Vec<&Event>) -> Aggregates {
    events.sort_by_key(|event| (event.at_ms, event.partition, event.offset));
    let amounts = || events.iter().map(|event| event.amount);
    let count = i64::try_from(events.len()).unwrap_or_else(|e| panic!("count: {e}"));
    let sum: i64 = amounts().sum();
    let (Some(first), Some(last), Some(min), Some(max)) =
        (events.first(), events.last(), amounts().min(), amounts().max())
    else {
        panic!("a window without a record");
    };
    Aggregates { count, sum, min, max, mean: sum as f64 / count as f64, first: first.id, last: last.id }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(id: u64, partition: i32, offset: i64, at_ms: i64) -> Event {
        Event {
            id,
            partition,
            offset,
            customer: "a".into(),
            at_ms,
            amount: i64::try_from(id).unwrap_or(0),
            paid: true,
        }
    }

    #[test]
    fn a_record_is_late_by_its_own_partition_only() {
        let oracle = Oracle { kind: WindowKind::Tumbling { size: 10 }, out_of_order_ms: 0, lateness_ms: 0 };
        // Partition 0 is far ahead; that closes nothing for partition 1, and its own old record is late.
        let verdict = oracle.paid(&[event(1, 0, 0, 100), event(2, 1, 0, 5), event(3, 0, 1, 5)]);
        assert_eq!(verdict.late, 1);
        assert_eq!(verdict.windows[&("a".to_owned(), 0)].1.count, 1);
        assert_eq!(verdict.windows[&("a".to_owned(), 0)].1.first, 2);
    }

    #[test]
    fn a_window_is_closed_when_the_watermark_reaches_its_end_and_not_before() {
        let oracle = Oracle { kind: WindowKind::Tumbling { size: 10 }, out_of_order_ms: 0, lateness_ms: 5 };
        let on_time = oracle.paid(&[event(1, 0, 0, 14), event(2, 0, 1, 9)]);
        assert_eq!(on_time.late, 0);
        let late = oracle.paid(&[event(1, 0, 0, 15), event(2, 0, 1, 9)]);
        assert_eq!(late.late, 1);
    }

    #[test]
    fn sliding_windows_take_a_record_once_per_overlap_also_before_the_year_1970() {
        assert_eq!(starts(12, 10, 5).collect::<Vec<_>>(), vec![10, 5]);
        assert_eq!(starts(-1, 10, 5).collect::<Vec<_>>(), vec![-5, -10]);
    }

    #[test]
    fn a_late_record_can_join_two_sessions() {
        let oracle = Oracle { kind: WindowKind::Session { gap: 10 }, out_of_order_ms: 100, lateness_ms: 0 };
        let verdict =
            oracle.paid(&[event(1, 0, 0, 0), event(2, 0, 1, 20), event(3, 0, 2, 10), event(4, 0, 3, 31)]);
        assert_eq!(verdict.windows.len(), 2);
        assert_eq!(verdict.windows[&("a".to_owned(), 0)].1.count, 3);
    }

    #[test]
    fn first_and_last_are_by_event_time_then_partition_then_offset() {
        let oracle =
            Oracle { kind: WindowKind::Tumbling { size: 100 }, out_of_order_ms: 100, lateness_ms: 0 };
        let verdict =
            oracle.paid(&[event(1, 1, 0, 7), event(2, 0, 0, 7), event(3, 0, 1, 7), event(4, 0, 2, 3)]);
        let window = verdict.windows[&("a".to_owned(), 0)].1;
        assert_eq!((window.first, window.last), (4, 1));
    }
}
