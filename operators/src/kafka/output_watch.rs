//! [`OutputWatch`]: what happens to output topics while they are written.
//!
//! **Partitions that are added.** The partition of a key depends on how many there are. From the moment at which the producers
//! learn of more, the records of a key go to another partition than before, and whoever reads the topic meets them in no order
//! between the two. No promise of the delivery is touched, but readers that count on the order must know: each growth is named once.
//!
//! **Transactions that stay open.** Readers with `read_committed` get nothing behind an open transaction, so one whose producer is
//! gone, and which the broker does not abort, hides every later result from them, although this flow goes on. No transaction of this
//! flow is open for longer than its timeout; what is open for twice as long is named in the log, once, with what to do about it.
//!
//! It looks with a thread of its own, and it is only advice: a look that fails is left out.

use super::config::ConsumerConfig;
use super::outputs::OutputFound;
use super::start::Lookup;
use crate::fault::Fault;
use std::collections::BTreeMap;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tidegate_recovery::{NextOffset, TopicPartition};

/// A look may take this long; so long may the end of the watch be held up.
const LOOK_WITHIN: Duration = Duration::from_secs(2);
const LOOK_EVERY_MIN: Duration = Duration::from_millis(500);

/// What an [`OutputWatch`] looks at.
#[derive(Clone, Debug)]
pub struct OutputWatchSettings {
    /// To the brokers of the output.
    pub config: ConsumerConfig,
    /// The topics, as the start found them.
    pub topics: Vec<OutputFound>,
    /// How often the producers look for new partitions.
    pub refresh: Duration,
    /// No transaction of this flow is open for longer; `None` for a flow that has none.
    pub transaction_timeout: Option<Duration>,
}

/// Looks at the output topics until it is dropped.
pub struct OutputWatch {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl OutputWatch {
    /// Begins to look.
    pub fn start(settings: OutputWatchSettings) -> std::io::Result<OutputWatch> {
        let (stop, stopped) = channel::<()>();
        let begin = Instant::now();
        let thread = std::thread::Builder::new().name("output-watch".into()).spawn(move || {
            let OutputWatchSettings { config, topics, refresh, transaction_timeout } = settings;
            let every = transaction_timeout.map_or(refresh, |timeout| refresh.min(timeout / 2));
            let names: Vec<String> = topics.iter().map(|topic| topic.name.clone()).collect();
            let mut known = PartitionCounts::new(&topics);
            let mut open = transaction_timeout.map(|timeout| OpenTransactions::new(timeout * 2));
            while stopped.recv_timeout(every.max(LOOK_EVERY_MIN)) == Err(RecvTimeoutError::Timeout) {
                match look(&config, &names, open.is_some()) {
                    Ok((partitions, ends)) => {
                        known.look(&partitions).iter().for_each(Grown::warn);
                        if let Some(open) = &mut open {
                            open.look(&ends, begin.elapsed()).iter().for_each(Open::warn);
                        }
                    }
                    Err(fault) => tracing::debug!(%fault, "the output topics could not be looked at"),
                }
            }
        })?;
        Ok(OutputWatch { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for OutputWatch {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that watched the output topics panicked");
        }
    }
}

/// The partitions that there are, and the ends of their logs where somebody wants to know them.
fn look(
    config: &ConsumerConfig,
    topics: &[String],
    with_ends: bool,
) -> Result<(Vec<TopicPartition>, Vec<Ends>), Fault> {
    let mut lookup = Lookup::new(config, LOOK_WITHIN)?;
    let partitions = lookup.partitions(topics)?;
    if !with_ends {
        return Ok((partitions, Vec::new()));
    }
    // In this order: what is stable is never behind an end that was asked for before.
    let ends = lookup.bounds(&partitions)?;
    let stable = lookup.stable_ends(&partitions)?;
    let of = |partition: &TopicPartition| {
        let (stable, end) = (stable[partition], ends[partition].end);
        Ends { partition: partition.clone(), stable, end }
    };
    let ends = partitions.iter().map(of).collect();
    Ok((partitions, ends))
}

/// How many partitions the output topics had when they were last seen.
struct PartitionCounts(BTreeMap<String, usize>);

/// An output topic that has more partitions than before.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Grown {
    topic: String,
    was: usize,
    is: usize,
}

impl PartitionCounts {
    fn new(topics: &[OutputFound]) -> PartitionCounts {
        PartitionCounts(topics.iter().map(|topic| (topic.name.clone(), topic.partitions)).collect())
    }

    /// What is to be told after a look: each growth once.
    fn look(&mut self, partitions: &[TopicPartition]) -> Vec<Grown> {
        let mut told = Vec::new();
        for (topic, known) in &mut self.0 {
            let is = partitions.iter().filter(|partition| *partition.topic == **topic).count();
            if is > *known {
                told.push(Grown { topic: topic.clone(), was: *known, is });
            }
            // One with fewer was made again.
            *known = is;
        }
        told
    }
}

impl Grown {
    fn warn(&self) {
        let Grown { topic, was, is } = self;
        tracing::warn!(
            topic,
            partitions = is,
            before = was,
            "OUTPUT_PARTITIONS_ADDED: output topic {topic} has {is} partitions and had {was}: keys are written to other partitions from now on, so readers get the records of a key from before and after the change from two partitions, in no order between them; nothing is lost or written twice. Where the order counts, read the old partitions to their ends first, or make a topic of the wanted size and replay the flow into it"
        );
    }
}

impl Open {
    fn warn(&self) {
        let Open { partition, at, lasted } = self;
        tracing::warn!(
            topic = &*partition.topic,
            partition = partition.partition,
            offset = at.0,
            seconds = lasted.as_secs(),
            "HANGING_TRANSACTION: a transaction that begins at offset {at} of the output {partition} has been open for {} s, longer than any of this flow may be: `read_committed` readers get nothing behind it; `kafka-transactions.sh find-hanging` and `abort` end one whose producer is gone",
            lasted.as_secs()
        );
    }
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
    use crate::sink::TopicLimits;

    #[test]
    fn an_output_that_grows_is_told_once_for_each_growth() {
        // K8
        let topic = |name: &str, partitions| OutputFound {
            name: name.to_owned(),
            partitions,
            limits: TopicLimits::default(),
        };
        let of = |name: &str, count| (0..count).map(|number| TopicPartition::new(name, number)).collect();
        let mut known = PartitionCounts::new(&[topic("a", 2), topic("b", 1)]);
        let mut look = |a: i32, b: i32| {
            let partitions: [Vec<TopicPartition>; 2] = [of("a", a), of("b", b)];
            let told = known.look(&partitions.concat()).into_iter();
            told.map(|grown| (grown.topic, grown.was, grown.is)).collect::<Vec<_>>()
        };
        assert_eq!(look(2, 1), []);
        assert_eq!(look(4, 1), [("a".to_owned(), 2, 4)]);
        assert_eq!(look(4, 1), [], "told once");
        assert_eq!(look(5, 2), [("a".to_owned(), 4, 5), ("b".to_owned(), 1, 2)]);
        assert_eq!(look(1, 2), [], "made again with fewer");
        assert_eq!(look(2, 2), [("a".to_owned(), 1, 2)]);
    }

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
