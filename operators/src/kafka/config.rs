//! What a user may say about the Kafka clients, and what they get.
//!
//! Three layers, later ones win: what librdkafka does by default, what measurements recommend, what the user
//! puts into `extra`. Above them stand the properties that the runtime owns, because a guarantee hangs on
//! each: they are refused in `extra`, all at once, each with its reason.

use super::raw::{Client, Isolation, Properties};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// How to reach a cluster.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Connection {
    /// `host:port` of some brokers of the cluster.
    pub brokers: Vec<String>,
    /// Name under which the brokers see the clients; `-w<worker>` is added. Empty: `tidegate`.
    pub client_id: String,
    /// Further properties in librdkafka's words (`security.protocol`, `sasl.mechanism`, `linger.ms` …).
    pub extra: BTreeMap<String, String>,
}

/// Which records a source sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IsolationLevel {
    /// Records of committed transactions and of none.
    #[default]
    ReadCommitted,
    /// All records, also of transactions that are open or were aborted.
    ReadUncommitted,
}

/// A consumer of one worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerConfig {
    /// How to reach the cluster.
    pub connection: Connection,
    /// The group, which is an offset store and nothing else.
    pub group_id: String,
    /// Which records are seen.
    pub isolation: IsolationLevel,
    /// Bytes that one worker fetches ahead of what it hands out. One fetch response more may be on its way.
    pub prefetch_bytes: usize,
}

/// A producer of one worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProducerConfig {
    /// How to reach the cluster.
    pub connection: Connection,
    /// Bytes that were taken and are not acknowledged, at most.
    pub in_flight_bytes: usize,
    /// Records that were taken and are not acknowledged, at most.
    pub in_flight_records: usize,
    /// The largest batch that its topics take, where that is known (`max.message.bytes`): a larger record
    /// is refused here, and no batch is larger, so that no record is refused because of its neighbours.
    pub record_bytes_max: Option<usize>,
    /// No batch is larger, but one that is a single record: set where one client writes to topics of which one takes less
    /// than [`ProducerConfig::record_bytes_max`].
    pub batch_bytes_max: Option<usize>,
}

/// Default of [`ConsumerConfig::prefetch_bytes`].
pub const PREFETCH_BYTES: usize = 32 << 20;
/// Default of [`ProducerConfig::in_flight_bytes`].
pub const PRODUCER_IN_FLIGHT_BYTES: usize = 32 << 20;
/// Default of [`ProducerConfig::in_flight_records`]. A deep queue is dear: the library walks its messages several times, and
/// what does not fit the processor's cache costs a third more CPU per record (measured with 10 000 to 500 000).
pub const PRODUCER_IN_FLIGHT_RECORDS: usize = 20_000;

/// A partition prefetches at least this much, however many share a worker: a fetch must be worth its round trip.
const PREFETCH_BYTES_PER_PARTITION_MIN: usize = 256 << 10;
/// Largest part of one fetch response for one partition; measured: more gains little and costs memory.
const FETCH_BYTES_PER_PARTITION_MAX: usize = 1 << 20;

/// Below a topic's limit by this much, for the frame of a batch.
const BATCH_MARGIN_BYTES: usize = 512;

impl Default for ConsumerConfig {
    fn default() -> ConsumerConfig {
        ConsumerConfig {
            connection: Connection::default(),
            group_id: String::new(),
            isolation: IsolationLevel::default(),
            prefetch_bytes: PREFETCH_BYTES,
        }
    }
}

impl Default for ProducerConfig {
    fn default() -> ProducerConfig {
        ProducerConfig {
            connection: Connection::default(),
            in_flight_bytes: PRODUCER_IN_FLIGHT_BYTES,
            in_flight_records: PRODUCER_IN_FLIGHT_RECORDS,
            record_bytes_max: None,
            batch_bytes_max: None,
        }
    }
}

/// Properties that are refused in `extra` on both sides, and why.
const OWNED: &[(&str, &str)] = &[
    ("bootstrap.servers", "it is `brokers`"),
    ("metadata.broker.list", "it is `brokers`"),
    ("client.id", "it is `client_id`; the worker's number is added to it"),
    ("allow.auto.create.topics", "a misspelt topic must be an error and never an empty new topic"),
    ("enable.partition.eof", "positions step over control records by it"),
    ("log_level", "the log is filtered by the runtime (RUST_LOG)"),
    ("log.queue", "the log is the runtime's"),
    ("enabled_events", "the runtime serves its queues itself"),
    (
        "enable.sasl.oauthbearer.unsecure.jwt",
        "a token that the client makes for itself proves nothing; a `token_command` may print one for a test",
    ),
    ("statistics.interval.ms", "nobody reads the statistics; they only cost time"),
    ("plugin.library.paths", "foreign code in the client could break every guarantee"),
    ("test.mock.num.brokers", "a flow would write to a cluster that does not exist; `demo` has its own"),
];

/// Properties that are refused in a consumer's `extra`, and why.
const OWNED_CONSUMER: &[(&str, &str)] = &[
    ("group.id", "it is `group_id`"),
    ("group.protocol", "the runtime assigns partitions itself and never joins the group: always `classic`"),
    ("group.instance.id", "the runtime never joins the group, so there is no member to name"),
    ("group.remote.assignor", "the runtime never joins the group"),
    ("partition.assignment.strategy", "the runtime assigns partitions itself"),
    ("session.timeout.ms", "the runtime never joins the group; a lost peer is found by `peer_timeout`"),
    ("heartbeat.interval.ms", "the runtime never joins the group; a lost peer is found by `peer_timeout`"),
    ("max.poll.interval.ms", "the runtime never joins the group, so it is never evicted"),
    ("enable.auto.commit", "offsets are committed only when their work is done; it is `delivery`"),
    ("auto.commit.interval.ms", "offsets are committed by the epochs' clock (`commit_interval`)"),
    ("enable.auto.offset.store", "offsets are stored only when their work is done"),
    ("auto.offset.reset", "it is `auto_offset_reset`, and counts only where no offset is known"),
    ("topic.auto.offset.reset", "it is `auto_offset_reset`, and counts only where no offset is known"),
    ("isolation.level", "it is `isolation_level`"),
    ("check.crcs", "a damaged batch must be found"),
    ("queued.max.messages.kbytes", "memory is bounded by `in_flight_bytes`"),
    ("consume.callback.max.messages", "the runtime fetches in batches"),
    ("enable.background.thread", "the runtime serves its queues itself"),
];

/// Properties that are refused in a producer's `extra`, and why.
const OWNED_PRODUCER: &[(&str, &str)] = &[
    ("enable.idempotence", "retries would write twice and out of order"),
    ("enable.gapless.guarantee", "the order of retries is kept by idempotence"),
    ("acks", "a record counts as written only when all replicas in sync have it: always `all`"),
    ("request.required.acks", "a record counts as written only when all replicas in sync have it"),
    ("message.timeout.ms", "the client must never give a record up by itself: the epoch stays open"),
    ("delivery.timeout.ms", "the client must never give a record up by itself: the epoch stays open"),
    ("message.send.max.retries", "the client must never give a record up by itself: the epoch stays open"),
    ("retries", "the client must never give a record up by itself: the epoch stays open"),
    ("max.in.flight.requests.per.connection", "the order of retries hangs on it"),
    ("max.in.flight", "the order of retries hangs on it"),
    ("log.connection.close", "a transaction must know of every connection that broke"),
    ("transactional.id", "transactions are the runtime's (`delivery: exactly_once`)"),
    ("delivery.report.only.error", "an epoch waits for every acknowledgement"),
    ("queue.buffering.max.messages", "memory is bounded by `in_flight_records`"),
    ("queue.buffering.max.kbytes", "memory is bounded by `in_flight_bytes`"),
    ("queuing.strategy", "records of a partition are sent in their order"),
    ("dr_cb", "the runtime serves the delivery reports"),
    ("dr_msg_cb", "the runtime serves the delivery reports"),
];

/// Why a property may not be set, whichever side it is meant for; `None` when it may.
pub fn refusal(property: &str) -> Option<&'static str> {
    let mut owned = OWNED.iter().chain(OWNED_CONSUMER).chain(OWNED_PRODUCER);
    owned.find(|(name, _)| *name == property).map(|(_, why)| *why)
}

/// How often a client looks for new leaders and partitions …
const TOPIC_REFRESH_MS: &str = "topic.metadata.refresh.interval.ms";
/// … and how often it is looked for it where the client is told not to.
const TOPIC_REFRESH: Duration = Duration::from_secs(30);

/// What measurements recommend for both sides (a user may choose otherwise).
const RECOMMENDED: &[(&str, &str)] = &[
    (TOPIC_REFRESH_MS, "30000"),
    ("socket.keepalive.enable", "true"),
    ("enable.metrics.push", "false"),
    ("reconnect.backoff.max.ms", "2000"),
];

/// For consumers. A fetcher looks every 10 ms whether its queue has room again (by default every second, and
/// draining a queue wakes nobody).
const RECOMMENDED_CONSUMER: &[(&str, &str)] =
    &[("fetch.queue.backoff.ms", "10"), ("fetch.max.bytes", "16777216")];

/// For producers. Java's partitioner, so that a key lies where JVM applications put it.
const RECOMMENDED_PRODUCER: &[(&str, &str)] = &[
    ("partitioner", "murmur2_random"),
    ("linger.ms", "20"),
    ("batch.num.messages", "100000"),
    ("retry.backoff.ms", "50"),
    // While two requests are on their way the next batches grow by themselves. With the five that idempotence allows,
    // the client sends many small ones instead, which costs it and the broker up to half as much again.
    ("max.in.flight", "3"),
];

impl fmt::Debug for Connection {
    /// Any property may hold a secret: their values are left out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("brokers", &self.brokers)
            .field("client_id", &self.client_id)
            .field("extra", &self.extra.keys())
            .finish()
    }
}

impl Connection {
    fn properties(&self, suffix: &str) -> Properties {
        let client_id = if self.client_id.is_empty() { "tidegate" } else { &self.client_id };
        let mut properties = Properties::new();
        let mut set = |name: &str, value: String| properties.insert(name.to_owned(), value);
        set("bootstrap.servers", self.brokers.join(","));
        set("client.id", format!("{client_id}{suffix}"));
        set("allow.auto.create.topics", "false".into());
        for (name, value) in RECOMMENDED {
            set(name, (*value).into());
        }
        properties
    }

    /// For a client that asks and administers.
    pub(super) fn admin_properties(&self) -> Properties {
        self.extend(self.properties("-admin"))
    }

    /// What is wrong with this part, by key; `owned` are the properties that this side refuses.
    fn problems(&self, owned: &[(&str, &str)]) -> Vec<String> {
        let mut problems = Vec::new();
        if self.brokers.iter().all(|broker| broker.trim().is_empty()) {
            problems.push("`brokers` is empty: name at least one `host:port`".to_owned());
        }
        for name in self.extra.keys() {
            if let Some((_, why)) = OWNED.iter().chain(owned).find(|(owned, _)| owned == name) {
                problems.push(format!("`extra.{name}` is owned by the runtime: {why}"));
            }
        }
        problems
    }

    /// Adds `extra` to `properties`, so that only values of the user are tried when no broker is asked.
    fn extend(&self, mut properties: Properties) -> Properties {
        properties.extend(self.extra.clone());
        properties
    }
}

impl ConsumerConfig {
    /// What is wrong, all at once; no broker is contacted.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = self.connection.problems(OWNED_CONSUMER);
        if self.group_id.is_empty() {
            problems.push("`group_id` is empty: name the group that keeps the offsets".to_owned());
        }
        if self.prefetch_bytes == 0 {
            problems.push("`prefetch_bytes` is 0: nothing could be fetched".to_owned());
        }
        if problems.is_empty() {
            problems.extend(Client::check(&self.properties("", 1)));
        }
        problems
    }

    /// The effective properties of a worker's client that reads this many partitions; secrets included.
    pub fn properties(&self, suffix: &str, partitions: usize) -> BTreeMap<String, String> {
        let mut properties = self.connection.properties(suffix);
        // Each partition has a queue of its own (see `consume`), and the limit counts per queue.
        let share = (self.prefetch_bytes / partitions.max(1)).max(PREFETCH_BYTES_PER_PARTITION_MIN);
        let mut set = |name: &str, value: String| properties.insert(name.to_owned(), value);
        for (name, value) in RECOMMENDED_CONSUMER {
            set(name, (*value).into());
        }
        set("queued.min.messages", "1000000".into());
        set("fetch.message.max.bytes", share.min(FETCH_BYTES_PER_PARTITION_MAX).to_string());
        let mut properties = self.connection.extend(properties);
        let mut own = |name: &str, value: String| properties.insert(name.to_owned(), value);
        own("queued.max.messages.kbytes", (share >> 10).max(1).to_string());
        if !self.group_id.is_empty() {
            own("group.id", self.group_id.clone());
        }
        own("group.protocol", "classic".into());
        own("enable.auto.commit", "false".into());
        own("enable.auto.offset.store", "false".into());
        own("auto.offset.reset", "error".into());
        own("enable.partition.eof", "true".into());
        own("check.crcs", "true".into());
        own(
            "isolation.level",
            match self.isolation {
                IsolationLevel::ReadCommitted => "read_committed".into(),
                IsolationLevel::ReadUncommitted => "read_uncommitted".into(),
            },
        );
        properties
    }
}

impl ProducerConfig {
    /// What is wrong, all at once; no broker is contacted.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = self.connection.problems(OWNED_PRODUCER);
        for (name, value) in
            [("in_flight_bytes", self.in_flight_bytes), ("in_flight_records", self.in_flight_records)]
        {
            if value == 0 {
                problems.push(format!("`{name}` is 0: nothing could be written"));
            }
        }
        if problems.is_empty() {
            problems.extend(Client::check(&self.properties("")));
        }
        problems
    }

    /// The effective properties of a worker's client; secrets included.
    pub fn properties(&self, suffix: &str) -> BTreeMap<String, String> {
        let mut properties = self.connection.properties(suffix);
        for (name, value) in RECOMMENDED_PRODUCER {
            properties.insert((*name).to_owned(), (*value).to_owned());
        }
        if let Some(bytes) = self.record_bytes_max {
            // The library's range; a batch may come a few bytes above its own estimate.
            let bytes = bytes.saturating_sub(BATCH_MARGIN_BYTES).clamp(1_000, 1_000_000_000);
            properties.insert("message.max.bytes".to_owned(), bytes.to_string());
        }
        if let Some(bytes) = self.batch_bytes_max {
            let bytes = bytes.saturating_sub(BATCH_MARGIN_BYTES).clamp(1, 1_000_000_000);
            properties.insert("batch.size".to_owned(), bytes.to_string());
        }
        let mut properties = self.connection.extend(properties);
        let mut own = |name: &str, value: String| properties.insert(name.to_owned(), value);
        own("enable.idempotence", "true".into());
        own("acks", "all".into());
        own("message.timeout.ms", "0".into());
        // The library's own limits stand above ours, so that it refuses nothing that we allow.
        own(
            "queue.buffering.max.messages",
            self.in_flight_records.saturating_mul(2).clamp(1, 10_000_000).to_string(),
        );
        own("queue.buffering.max.kbytes", (self.in_flight_bytes >> 9).clamp(1 << 14, 2_097_151).to_string());
        properties
    }

    /// How often a client looks whether its topics have more partitions.
    pub fn topic_refresh(&self) -> Duration {
        let every = self.properties("").get(TOPIC_REFRESH_MS).and_then(|ms| ms.parse().ok());
        every.map_or(TOPIC_REFRESH, Duration::from_millis)
    }

    /// The effective properties of a client with transactions; secrets included.
    pub(super) fn transactional_properties(&self, id: &str) -> Properties {
        let mut properties = self.properties("-transactions");
        // A transaction ends with the last of its records, so that nothing is gained by waiting for more.
        if !self.connection.extra.contains_key("linger.ms") {
            properties.insert("linger.ms".to_owned(), "5".to_owned());
        }
        properties.insert("transactional.id".to_owned(), id.to_owned());
        // The end of a transaction says that all is written, so only what is not is reported.
        properties.insert("delivery.report.only.error".to_owned(), "true".to_owned());
        // More would only wait, and not be in the cache any more when it is sent.
        properties.insert("queue.buffering.max.messages".to_owned(), self.in_flight_records.to_string());
        // The producer must hear of every connection that broke (see `transaction`).
        properties.insert("log.connection.close".to_owned(), "true".to_owned());
        properties
    }
}

impl From<IsolationLevel> for Isolation {
    fn from(level: IsolationLevel) -> Isolation {
        match level {
            IsolationLevel::ReadCommitted => Isolation::Committed,
            IsolationLevel::ReadUncommitted => Isolation::Uncommitted,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn consumer(extra: &[(&str, &str)]) -> ConsumerConfig {
        ConsumerConfig {
            connection: Connection {
                brokers: vec!["b0:9092".into(), "b1:9092".into()],
                client_id: "svc".into(),
                extra: extra.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect(),
            },
            group_id: "g".into(),
            ..ConsumerConfig::default()
        }
    }

    // P10: and the settings of P53 and P33, which have no other meaning here.
    #[test]
    fn all_owned_properties_are_refused_at_once_each_with_its_reason() {
        let problems = consumer(&[
            ("group.protocol", "consumer"),
            ("enable.auto.commit", "true"),
            ("auto.offset.reset", "latest"),
            ("fetch.wait.max.ms", "50"),
        ])
        .problems();
        assert_eq!(problems.len(), 3, "{problems:?}");
        assert!(problems.iter().any(|p| p.contains("`extra.group.protocol`") && p.contains("never joins")));
        assert!(
            problems.iter().any(|p| p.contains("`extra.enable.auto.commit`") && p.contains("`delivery`"))
        );
    }

    #[test]
    fn a_property_that_the_library_does_not_know_is_refused_without_a_broker() {
        let problems = consumer(&[("fetch.wait.max", "50"), ("linger.ms", "many")]).problems();
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert!(problems[0].contains("fetch.wait.max"));
    }

    // P10 P16 P34
    #[test]
    fn the_runtime_has_the_last_word_on_what_it_owns() {
        let mut config = consumer(&[("enable.auto.commit", "true"), ("fetch.queue.backoff.ms", "3")]);
        config.isolation = IsolationLevel::ReadUncommitted;
        let properties = config.properties("-w3", 4);
        let get = |name: &str| properties[name].as_str();
        assert_eq!(get("client.id"), "svc-w3");
        assert_eq!(get("bootstrap.servers"), "b0:9092,b1:9092");
        assert_eq!(get("enable.auto.commit"), "false");
        assert_eq!(get("fetch.queue.backoff.ms"), "3");
        assert_eq!(get("isolation.level"), "read_uncommitted");
        assert_eq!(get("queued.max.messages.kbytes"), "8192");
        assert_eq!(get("auto.offset.reset"), "error");
        assert_eq!(consumer(&[]).properties("", 1)["isolation.level"], "read_committed");
    }

    #[test]
    fn every_recommended_and_owned_value_is_one_that_the_library_takes() {
        assert_eq!(consumer(&[]).problems(), Vec::<String>::new());
        let producer = ProducerConfig { connection: consumer(&[]).connection, ..ProducerConfig::default() };
        assert_eq!(producer.problems(), Vec::<String>::new());
        assert_eq!(producer.properties("")["partitioner"], "murmur2_random");
        assert_eq!(Client::check(&producer.transactional_properties("id")), Vec::<String>::new());
    }

    #[test]
    fn a_producer_cannot_be_told_to_give_a_record_up() {
        let mut config = ProducerConfig { connection: consumer(&[]).connection, ..ProducerConfig::default() };
        for name in ["acks", "message.timeout.ms", "enable.idempotence", "retries"] {
            config.connection.extra.insert(name.into(), "1".into());
        }
        assert_eq!(config.problems().len(), 4);
    }
}
