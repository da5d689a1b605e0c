//! The raw loops: what a person would write straight on librdkafka, with one thread and no care for crashes.
//!
//! They are the floor that flows are compared with, so they do the least that their task needs: no commits,
//! no retries beyond librdkafka's own, keys scanned out of the value instead of a JSON parser. Each checks the
//! number of records that it saw.

use std::io::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use hashbrown::HashMap;

use crate::error::{Error, Result};
use crate::librdkafka::{Consumer, Message, Producer};
use crate::workload::{OUT_OF_ORDER_MS, WINDOW_MS};

/// The raw loops' group.
const GROUP: &str = "tidegate-bench-raw";
/// How long a poll waits for its batch to become full; short, or the last one of a topic would idle.
const POLL_MS: i32 = 10;

/// Which loop runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Task {
    /// Read all records.
    Consume,
    /// Read all records and write each with its timestamp.
    CopySingly,
    /// Read all records and write them a batch at a time, which loses the timestamps.
    CopyBatched,
    /// Read all records and write each with its timestamp, in transactions that carry the offsets.
    CopySinglyInTransactions,
    /// The same a batch at a time, which loses the timestamps.
    CopyBatchedInTransactions,
    /// Count the records of each key.
    Count,
    /// Count the records of each key and minute, and write each count when its minute is over.
    Windows,
}

/// The arguments of a raw loop.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct LoopArgs {
    /// What the loop does.
    pub(crate) task: Task,
    /// Addresses of the brokers.
    #[arg(long)]
    pub(crate) brokers: String,
    /// The topic that is read, from its begin to its end.
    #[arg(long)]
    pub(crate) from: String,
    /// Partitions of that topic.
    #[arg(long)]
    pub(crate) partitions: i32,
    /// The topic that is written, for the tasks that write.
    #[arg(long, default_value = "")]
    pub(crate) to: String,
    /// How many records there are; another number is an error.
    #[arg(long)]
    pub(crate) records: u64,
    /// A further setting of the consumer, in librdkafka's words; may be given several times.
    #[arg(long, value_name = "NAME=VALUE", value_parser = setting)]
    pub(crate) consumer: Vec<(String, String)>,
    /// A further setting of the producer.
    #[arg(long, value_name = "NAME=VALUE", value_parser = setting)]
    pub(crate) producer: Vec<(String, String)>,
    /// How long a transaction takes, in milliseconds, for the tasks that have some.
    #[arg(long, default_value_t = 1_000)]
    pub(crate) transaction_ms: u64,
    /// Where `count` writes the number of its keys.
    #[arg(long)]
    pub(crate) keys_to: Option<PathBuf>,
}

/// Runs one loop over the whole topic.
pub(crate) fn run(args: &LoopArgs) -> Result<()> {
    let records = match args.task {
        Task::Consume => consume(args),
        Task::CopySingly => copy_singly(args),
        Task::CopyBatched => copy_batched(args),
        Task::CopySinglyInTransactions => copy_in_transactions(args, false),
        Task::CopyBatchedInTransactions => copy_in_transactions(args, true),
        Task::Count => count(args),
        Task::Windows => windows(args),
    }?;
    Error::expect(format!("records that the loop {:?} saw", args.task), args.records, records)
}

fn setting(text: &str) -> std::result::Result<(String, String), String> {
    let parts = text.split_once('=').ok_or_else(|| format!("{text} is not NAME=VALUE"))?;
    Ok((parts.0.to_owned(), parts.1.to_owned()))
}

fn consumer(args: &LoopArgs) -> Result<Consumer> {
    let mut settings = vec![
        ("bootstrap.servers", args.brokers.as_str()),
        ("broker.address.family", "v4"),
        ("group.id", GROUP),
        ("enable.auto.commit", "false"),
        ("auto.offset.reset", "error"),
        // By default a consumer that is slower than its fetches pauses them for a second at a time.
        ("fetch.queue.backoff.ms", "10"),
    ];
    settings.extend(args.consumer.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    Consumer::assign(&settings, &args.from, args.partitions)
}

fn producer(args: &LoopArgs) -> Result<Producer> {
    let mut settings = vec![
        ("bootstrap.servers", args.brokers.as_str()),
        ("broker.address.family", "v4"),
        ("partitioner", "murmur2_random"),
        ("acks", "all"),
        // What fits the processor's cache: the default of 100 000 messages costs a third more CPU per record.
        ("queue.buffering.max.messages", "10000"),
    ];
    settings.extend(args.producer.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    Producer::new(&settings, &args.to)
}

/// What is left to read: the ends that the partitions had at start.
struct Ends {
    /// By partition.
    ends: Vec<i64>,
    open: usize,
}

impl Ends {
    fn ask(consumer: &Consumer, args: &LoopArgs) -> Result<Ends> {
        let ends: Vec<i64> = (0..args.partitions)
            .map(|partition| consumer.end(&args.from, partition))
            .collect::<Result<_>>()?;
        let open = ends.iter().filter(|&&end| end > 0).count();
        Ok(Ends { ends, open })
    }

    fn saw(&mut self, message: Message<'_>) {
        let end = usize::try_from(message.partition()).ok().and_then(|place| self.ends.get(place));
        if end == Some(&(message.offset() + 1)) {
            self.open -= 1;
        }
    }
}

/// Polls until every partition was read to the end that it had at start, and gives every record to `each`.
fn for_each(args: &LoopArgs, mut each: impl FnMut(Message<'_>) -> Result<()>) -> Result<u64> {
    let mut consumer = consumer(args)?;
    let mut ends = Ends::ask(&consumer, args)?;
    let mut records = 0;
    while ends.open > 0 {
        let batch = consumer.poll(POLL_MS)?;
        for message in batch.iter() {
            let message = message?;
            records += 1;
            ends.saw(message);
            each(message)?;
        }
    }
    Ok(records)
}

fn consume(args: &LoopArgs) -> Result<u64> {
    let mut bytes = 0;
    let records = for_each(args, |message| {
        bytes += message.value().map_or(0, <[u8]>::len);
        Ok(())
    })?;
    std::hint::black_box(bytes);
    Ok(records)
}

fn copy_singly(args: &LoopArgs) -> Result<u64> {
    let mut producer = producer(args)?;
    let mut served = 0_u32;
    for_each(args, |message| {
        served += 1;
        if served.is_multiple_of(1_000) {
            producer.serve(0);
        }
        producer.send(None, message.key(), message.value(), message.timestamp())
    })?;
    producer.finish()
}

fn copy_batched(args: &LoopArgs) -> Result<u64> {
    let mut producer = producer(args)?;
    let mut consumer = consumer(args)?;
    let mut ends = Ends::ask(&consumer, args)?;
    while ends.open > 0 {
        let batch = consumer.poll(POLL_MS)?;
        for message in batch.iter() {
            ends.saw(message?);
        }
        producer.send_batch(&batch)?;
        producer.serve(0);
    }
    producer.finish()
}

fn copy_in_transactions(args: &LoopArgs, batched: bool) -> Result<u64> {
    let mut consumer = consumer(args)?;
    let mut producer = producer(args)?;
    producer.init_transactions()?;
    producer.begin()?;
    let mut ends = Ends::ask(&consumer, args)?;
    let mut next = vec![0; ends.ends.len()];
    let every = Duration::from_millis(args.transaction_ms);
    let mut began = Instant::now();
    while ends.open > 0 {
        let batch = consumer.poll(POLL_MS)?;
        for message in batch.iter() {
            let message = message?;
            ends.saw(message);
            if let Some(next) =
                usize::try_from(message.partition()).ok().and_then(|place| next.get_mut(place))
            {
                *next = message.offset() + 1;
            }
            if !batched {
                producer.send(None, message.key(), message.value(), message.timestamp())?;
            }
        }
        if batched {
            producer.send_batch(&batch)?;
        }
        producer.serve(0);
        if began.elapsed() >= every {
            producer.commit(GROUP, &args.from, &next)?;
            producer.begin()?;
            began = Instant::now();
        }
    }
    producer.commit(GROUP, &args.from, &next)?;
    producer.finish()
}

fn count(args: &LoopArgs) -> Result<u64> {
    let mut counts: HashMap<Vec<u8>, u64> = HashMap::new();
    for_each(args, |message| {
        let key = text_field(value(message)?, b"\"customer\":\"")?;
        *counts.entry_ref(key).or_insert(0) += 1;
        Ok(())
    })?;
    if let Some(path) = &args.keys_to {
        std::fs::write(path, counts.len().to_string())
            .map_err(|source| Error::File { path: path.clone(), source })?;
    }
    Ok(counts.values().sum())
}

/// One minute's counts.
type Minute = HashMap<Vec<u8>, u64>;

fn windows(args: &LoopArgs) -> Result<u64> {
    let mut producer = producer(args)?;
    let mut minutes: HashMap<i64, Minute> = HashMap::new();
    let places = usize::try_from(args.partitions).map_err(|e| Error::system("count the partitions", e))?;
    let mut highest = vec![i64::MIN; places];
    let mut closed = 0;
    let mut next_look = 0_u32;
    for_each(args, |message| {
        let value = value(message)?;
        let key = text_field(value, b"\"customer\":\"")?;
        let at_ms = number_field(value, b"\"at_ms\":")?;
        let start = at_ms.div_euclid(WINDOW_MS) * WINDOW_MS;
        *minutes.entry(start).or_default().entry_ref(key).or_insert(0) += 1;
        if let Some(highest) =
            usize::try_from(message.partition()).ok().and_then(|place| highest.get_mut(place))
        {
            *highest = at_ms.max(*highest);
        }
        next_look += 1;
        if next_look == 1_000 {
            next_look = 0;
            let watermark = highest.iter().copied().min().unwrap_or(i64::MIN).saturating_sub(OUT_OF_ORDER_MS);
            let over: Vec<i64> =
                minutes.keys().copied().filter(|start| start + WINDOW_MS <= watermark).collect();
            for start in over {
                if let Some(minute) = minutes.remove(&start) {
                    closed += write_minute(&mut producer, start, &minute)?;
                }
            }
            producer.serve(0);
        }
        Ok(())
    })?;
    for (start, minute) in minutes.drain() {
        closed += write_minute(&mut producer, start, &minute)?;
    }
    producer.finish()?;
    Ok(closed)
}

/// Writes the results of a minute and returns how many records they count.
fn write_minute(producer: &mut Producer, start: i64, minute: &Minute) -> Result<u64> {
    let end = start + WINDOW_MS;
    let mut records = 0;
    let mut line = Vec::with_capacity(128);
    for (number, (key, count)) in minute.iter().enumerate() {
        records += count;
        line.clear();
        write!(line, r#"{{"window_start":{start},"window_end":{end},"orders":{count}}}"#)
            .map_err(|e| Error::system("write a result", e))?;
        producer.send(None, Some(key), Some(&line), end - 1)?;
        if number % 1_000 == 0 {
            producer.serve(0);
        }
    }
    Ok(records)
}

fn value(message: Message<'_>) -> Result<&[u8]> {
    message.value().ok_or_else(|| Error::system("read a record", "it has no value"))
}

/// What stands between `tag`, which ends with a quote, and the next quote.
fn text_field<'a>(value: &'a [u8], tag: &[u8]) -> Result<&'a [u8]> {
    let rest = after(value, tag)?;
    let end = rest.iter().position(|&byte| byte == b'"');
    end.map(|end| &rest[..end]).ok_or_else(|| malformed(tag))
}

/// The digits behind `tag`, as a number.
fn number_field(value: &[u8], tag: &[u8]) -> Result<i64> {
    let rest = after(value, tag)?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit());
    Ok(digits.fold(0, |number, digit| number * 10 + i64::from(digit - b'0')))
}

fn after<'a>(value: &'a [u8], tag: &[u8]) -> Result<&'a [u8]> {
    let mut rest = value;
    while let Some(quote) = rest.iter().position(|&byte| byte == b'"') {
        rest = &rest[quote..];
        if let Some(found) = rest.strip_prefix(tag) {
            return Ok(found);
        }
        rest = &rest[1..];
    }
    Err(malformed(tag))
}

fn malformed(tag: &[u8]) -> Error {
    Error::system("read a record", format!("no {} in it", String::from_utf8_lossy(tag)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Workload;

    #[test]
    fn the_scanner_reads_what_the_workload_wrote() {
        let mut bytes = Vec::new();
        let mut key = String::new();
        for order in (Workload { records: 1_000, keys: 77, partitions: 3 }).orders() {
            order.write_value(&mut bytes);
            order.write_key(&mut key);
            assert_eq!(text_field(&bytes, b"\"customer\":\"").ok(), Some(key.as_bytes()));
            assert_eq!(number_field(&bytes, b"\"at_ms\":").ok(), Some(order.at_ms));
        }
        assert!(number_field(b"{}", b"\"at_ms\":").is_err());
    }
}
