//! [`HangingWatch`]: transactions that stay open in the output.
//!
//! Readers with `read_committed` get nothing behind an open transaction, so one whose producer is gone, and which the
//! broker does not abort, hides every later result from them, although this flow goes on. No transaction of this flow is open for
//! longer than its timeout; what is open for twice as long is named in the log, once, with what to do about it.
//!
//! It looks with a thread of its own, and it is only advice: a look that fails is left out.

use super::config::ConsumerConfig;
use super::start::Lookup;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tidegate_recovery::{NextOffset, TopicPartition};

/// A look may take this long; so long may the end of the watch be held up.
const LOOK_WITHIN: Duration = Duration::from_secs(2);
const LOOK_EVERY_MIN: Duration = Duration::from_millis(500);

/// Looks at the output topics until it is dropped.
pub struct HangingWatch {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl HangingWatch {
    /// Begins to look at these topics; no transaction of this flow is open for longer than `timeout`.
    pub fn start(
        config: ConsumerConfig,
        topics: BTreeSet<String>,
        timeout: Duration,
    ) -> std::io::Result<HangingWatch> {
        let (stop, stopped) = channel::<()>();
        let begin = Instant::now();
        let thread = std::thread::Builder::new().name("hanging".into()).spawn(move || {
            let mut open = OpenTransactions::new(timeout * 2);
            while stopped.recv_timeout((timeout / 2).max(LOOK_EVERY_MIN)) == Err(RecvTimeoutError::Timeout) {
                match look(&config, &topics) {
                    Ok(ends) => open.look(&ends, begin.elapsed()).iter().for_each(warn),
                    Err(fault) => tracing::debug!(%fault, "the output topics could not be looked at"),
                }
            }
        })?;
        Ok(HangingWatch { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for HangingWatch {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that watched the output topics panicked");
        }
    }
}

fn look(config: &ConsumerConfig, topics: &BTreeSet<String>) -> Result<Vec<Ends>, crate::fault::Fault> {
    let mut lookup = Lookup::new(config, LOOK_WITHIN)?;
    let topics: Vec<String> = topics.iter().cloned().collect();
    let partitions = lookup.partitions(&topics)?;
    // In this order: what is stable is never behind an end that was asked for before.
    let ends = lookup.bounds(&partitions)?;
    let stable = lookup.stable_ends(&partitions)?;
    let of = |partition: TopicPartition| {
        let (stable, end) = (stable[&partition], ends[&partition].end);
        Ends { partition, stable, end }
    };
    Ok(partitions.into_iter().map(of).collect())
}

fn warn(open: &Open) {
    let Open { partition, at, lasted } = open;
    tracing::warn!(
        topic = &*partition.topic,
        partition = partition.partition,
        offset = at.0,
        seconds = lasted.as_secs(),
        "HANGING_TRANSACTION: a transaction that begins at offset {at} of the output {partition} has been open for {} s, longer than any of this flow may be: `read_committed` readers get nothing behind it; `kafka-transactions.sh find-hanging` and `abort` end one whose producer is gone",
        lasted.as_secs()
    );
}

/// The ends of an output partition's log.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Ends {
    partition: TopicPartition,
    /// Up to here `read_committed` readers get.
    stable: NextOffset,
    end: NextOffset,
}

/// A transaction that has been open for too long.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Open {
    partition: TopicPartition,
    at: NextOffset,
    lasted: Duration,
}

/// Where transactions are open, and since when.
struct OpenTransactions {
    too_long: Duration,
    /// The offset at which it begins, when it was seen first, and whether it was told.
    seen: BTreeMap<TopicPartition, (NextOffset, Duration, bool)>,
}

impl OpenTransactions {
    fn new(too_long: Duration) -> OpenTransactions {
        OpenTransactions { too_long, seen: BTreeMap::new() }
    }

    /// What is to be told after a look: each transaction once.
    fn look(&mut self, ends: &[Ends], now: Duration) -> Vec<Open> {
        let mut told = Vec::new();
        for Ends { partition, stable, end } in ends {
            if stable >= end {
                self.seen.remove(partition);
                continue;
            }
            let seen = self.seen.entry(partition.clone()).or_insert((*stable, now, false));
            if seen.0 != *stable {
                *seen = (*stable, now, false);
            }
            let lasted = now.saturating_sub(seen.1);
            if lasted >= self.too_long && !seen.2 {
                seen.2 = true;
                told.push(Open { partition: partition.clone(), at: *stable, lasted });
            }
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_that_stays_open_is_told_once_and_one_after_the_other_is_no_hanging_one() {
        // E14
        let seconds = Duration::from_secs;
        let mut open = OpenTransactions::new(seconds(120));
        let at = |stable, end| {
            let partition = TopicPartition::new("out", 0);
            [Ends { partition, stable: NextOffset(stable), end: NextOffset(end) }]
        };
        assert_eq!(open.look(&at(5, 9), seconds(0)), []);
        assert_eq!(open.look(&at(7, 12), seconds(60)), [], "the first one has ended, the next one is open");
        assert_eq!(open.look(&at(7, 20), seconds(179)), []);
        let told = open.look(&at(7, 30), seconds(180));
        assert_eq!(
            told.iter().map(|open| (open.at, open.lasted)).collect::<Vec<_>>(),
            [(NextOffset(7), seconds(120))]
        );
        assert_eq!(open.look(&at(7, 40), seconds(300)), [], "told once");
        assert_eq!(open.look(&at(40, 40), seconds(301)), []);
        assert_eq!(open.look(&at(40, 44), seconds(302)), []);
        assert_eq!(open.look(&at(40, 44), seconds(422)).len(), 1);
    }
}
