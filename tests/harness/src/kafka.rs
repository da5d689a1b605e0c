//! A Kafka cluster seen from outside: topics, log ends, and a group's offsets, read without joining the group.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use rdkafka::admin::{
    AdminClient, AdminOptions, AlterConfig, NewPartitions, NewTopic, ResourceSpecifier, TopicReplication,
};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::error::KafkaResult;
use rdkafka::{Offset, TopicPartitionList};

use crate::{process, wait};

/// As many replicas as the brokers give a topic by themselves.
const BY_DEFAULT: TopicReplication<'static> = TopicReplication::Fixed(-1);

/// How long one request to the broker may take.
pub(crate) const REQUEST: Duration = Duration::from_secs(20);
/// The same for a question that is asked again.
const ATTEMPT: Duration = Duration::from_secs(5);
/// The group that a client names which asks for nothing of a group.
const PROBE: &str = "harness-probe";

/// The address list of a Kafka cluster; cheap to clone.
#[derive(Clone, Debug)]
pub struct Kafka {
    bootstrap: Arc<str>,
}

impl Kafka {
    /// The cluster behind `host:port[,host:port…]`; nothing is contacted.
    pub fn at(bootstrap: &str) -> Kafka {
        Kafka { bootstrap: bootstrap.into() }
    }

    /// The addresses, as a client's `bootstrap.servers`.
    pub fn bootstrap(&self) -> &str {
        &self.bootstrap
    }

    /// A client configuration with the addresses set and librdkafka's log kept to errors.
    pub fn client(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &*self.bootstrap);
        config.set("broker.address.family", "v4");
        config.set_log_level(RDKafkaLogLevel::Emerg);
        config
    }

    /// A consumer that names `group` and never joins it.
    pub(crate) fn reader(&self, group: &str, isolation: &str) -> BaseConsumer {
        self.client()
            .set("group.id", group)
            .set("isolation.level", isolation)
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("enable.partition.eof", "true")
            .set("auto.offset.reset", "error")
            .set("fetch.wait.max.ms", "20")
            .create()
            .unwrap_or_else(|e| panic!("create a consumer for {}: {e}", self.bootstrap))
    }

    /// Waits until the broker answers and its group coordinator has loaded.
    ///
    /// The first question for a group's offsets creates the topic that holds them; until it is loaded a client may
    /// be told anything, so it is asked here, once, before a test depends on it.
    pub fn wait_ready(&self, deadline: Duration) {
        wait::until(&format!("the broker at {} answers", self.bootstrap), deadline, || {
            // A new client each time: one that could not connect waits longer and longer before it tries again.
            let reader = self.reader(PROBE, "read_committed");
            reader.fetch_metadata(None, Duration::from_secs(1)).ok().map(drop)
        });
        wait::until(&format!("the group coordinator of {} answers", self.bootstrap), deadline, || {
            let reader = self.reader(PROBE, "read_committed");
            let mut asked = TopicPartitionList::new();
            asked.add_partition("harness-probe", 0);
            reader.committed_offsets(asked, Duration::from_secs(5)).ok().map(drop)
        });
    }

    /// Creates a topic and waits until its partitions have leaders.
    pub fn create_topic(&self, name: &str, partitions: i32) {
        self.create_topic_with(name, partitions, &[]);
    }

    /// Creates a topic with settings such as `("cleanup.policy", "compact")`.
    pub fn create_topic_with(&self, name: &str, partitions: i32, settings: &[(&str, &str)]) {
        self.create(NewTopic::new(name, partitions, BY_DEFAULT), settings);
    }

    /// Creates a topic of one partition with copies on these brokers, of which the first is to lead it.
    pub fn create_topic_on(&self, name: &str, nodes: &[i32], settings: &[(&str, &str)]) {
        self.create(NewTopic::new(name, 1, TopicReplication::Variable(&[nodes])), settings);
    }

    fn create<'a>(&self, mut topic: NewTopic<'a>, settings: &[(&'a str, &'a str)]) {
        for (key, value) in settings {
            topic = topic.set(key, value);
        }
        let results = block_on(self.admin().create_topics([&topic], &admin_options()))
            .unwrap_or_else(|e| panic!("create topic {}: {e}", topic.name));
        for result in results {
            if let Err((topic, code)) = result {
                panic!("create topic {topic}: {code}");
            }
        }
        self.wait_partitions(topic.name, topic.num_partitions);
    }

    /// Sets some settings of a topic; all others go back to the broker's.
    pub fn set_topic(&self, name: &str, settings: &[(&str, &str)]) {
        let mut asked = AlterConfig::new(ResourceSpecifier::Topic(name));
        for (key, value) in settings {
            asked = asked.set(key, value);
        }
        let results = block_on(self.admin().alter_configs([&asked], &admin_options()))
            .unwrap_or_else(|e| panic!("set topic {name}: {e}"));
        for result in results {
            if let Err((what, code)) = result {
                panic!("set {what:?}: {code}");
            }
        }
    }

    /// Deletes a topic and waits until the broker no longer knows it.
    pub fn delete_topic(&self, name: &str) {
        let results = block_on(self.admin().delete_topics(&[name], &admin_options()))
            .unwrap_or_else(|e| panic!("delete topic {name}: {e}"));
        for result in results {
            if let Err((topic, code)) = result {
                panic!("delete topic {topic}: {code}");
            }
        }
        wait::until(&format!("topic {name} is gone"), REQUEST, || {
            let metadata = self.reader(PROBE, "read_committed").fetch_metadata(None, REQUEST).ok()?;
            metadata.topics().iter().all(|topic| topic.name() != name).then_some(())
        });
    }

    /// Raises the number of partitions of a topic to `total`.
    pub fn add_partitions(&self, name: &str, total: i32) {
        let count = usize::try_from(total).unwrap_or_else(|e| panic!("{total} partitions: {e}"));
        let results =
            block_on(self.admin().create_partitions([&NewPartitions::new(name, count)], &admin_options()))
                .unwrap_or_else(|e| panic!("add partitions to {name}: {e}"));
        for result in results {
            if let Err((topic, code)) = result {
                panic!("add partitions to {topic}: {code}");
            }
        }
        self.wait_partitions(name, total);
    }

    /// Allows the principal the use of transactional ids with a prefix. Where an authorizer lets everybody do what no rule is
    /// about, nobody else may use them from then on.
    pub fn allow_transactions(&self, principal: &str, prefix: &str) {
        let acl =
            ["--add", "--allow-principal", principal, "--operation", "Describe", "--operation", "Write"];
        let resource = ["--transactional-id", prefix, "--resource-pattern-type", "prefixed"];
        self.acls(&[&acl[..], &resource].concat());
    }

    /// Allows everybody everything, so that a right that is taken away is the only one that is missing.
    pub fn allow_everything(&self) {
        let all = ["--operation", "All", "--topic", "*", "--group", "*", "--transactional-id", "*"];
        self.acls(&[&["--add", "--allow-principal", "User:*"], &all[..]].concat());
    }

    /// Takes a right from everybody, such as `Write` on `["--topic", name]`.
    pub fn take_right(&self, operation: &str, resource: [&str; 2]) {
        let rule = ["--deny-principal", "User:*", "--operation", operation];
        self.acls(&[&["--add"], &rule[..], &resource].concat());
    }

    /// Gives all rights back that were taken on these resources.
    pub fn give_rights_back(&self, resources: &[[&str; 2]]) {
        self.acls(&[&["--remove", "--force"], resources.as_flattened()].concat());
    }

    fn acls(&self, arguments: &[&str]) {
        let at = ["--bootstrap-server", self.bootstrap()];
        tool("org.apache.kafka.tools.AclCommand", &[&at, arguments].concat());
    }

    /// Deletes the records of a partition below `before`.
    pub fn delete_records(&self, topic: &str, partition: i32, before: i64) {
        let list = offsets_list(topic, [(partition, before)]);
        block_on(self.admin().delete_records(&list, &admin_options()))
            .unwrap_or_else(|e| panic!("delete records of {topic}:{partition} below {before}: {e}"));
    }

    /// The group's committed offsets of a topic, asked of its coordinator without joining; partitions without one are left out.
    pub fn group_offsets(&self, group: &str, topic: &str) -> BTreeMap<i32, i64> {
        self.offsets_by(group, topic, "read_committed")
    }

    /// The same as they are now: those of a transaction that is open, or on its way to its end, are not waited for.
    pub fn group_offsets_now(&self, group: &str, topic: &str) -> BTreeMap<i32, i64> {
        self.offsets_by(group, topic, "read_uncommitted")
    }

    /// Sets the group's offsets as an outsider; the group must have no members.
    pub fn set_group_offsets(&self, group: &str, topic: &str, offsets: impl IntoIterator<Item = (i32, i64)>) {
        let list = offsets_list(topic, offsets);
        self.reader(group, "read_committed")
            .commit(&list, CommitMode::Sync)
            .unwrap_or_else(|e| panic!("commit offsets of group {group}: {e}"));
    }

    /// Makes the brokers forget a group and its offsets, as they do when it was silent for longer than their retention; it
    /// must have no members.
    pub fn forget_group(&self, group: &str) {
        let results = block_on(self.admin().delete_groups(&[group], &admin_options()))
            .unwrap_or_else(|e| panic!("delete group {group}: {e}"));
        for result in results {
            if let Err((group, code)) = result {
                panic!("delete group {group}: {code}");
            }
        }
    }

    /// Log start and high watermark of every partition, open transactions included.
    pub fn log_bounds(&self, topic: &str) -> BTreeMap<i32, (i64, i64)> {
        self.bounds(topic, "read_uncommitted")
    }

    /// Log start and last stable offset of every partition: the end that a `read_committed` reader can reach.
    pub fn stable_bounds(&self, topic: &str) -> BTreeMap<i32, (i64, i64)> {
        self.bounds(topic, "read_committed")
    }

    /// What is between the group's offsets and the stable log ends, over all partitions. A partition without an
    /// offset counts from its log start.
    pub fn lag(&self, group: &str, topic: &str) -> i64 {
        let committed = self.group_offsets(group, topic);
        self.stable_bounds(topic)
            .into_iter()
            .map(|(partition, (start, end))| end - committed.get(&partition).copied().unwrap_or(start))
            .sum()
    }

    /// Waits until the group has committed the end of every partition of `topic`.
    #[track_caller]
    pub fn wait_lag_zero(&self, group: &str, topic: &str, deadline: Duration) {
        wait::until(&format!("group {group} reaches the end of {topic}"), deadline, || {
            (self.lag(group, topic) == 0).then_some(())
        });
    }

    /// The number of partitions of a topic.
    pub fn partitions(&self, topic: &str) -> i32 {
        let metadata = self.ask(&format!("describe topic {topic}"), PROBE, "read_committed", |reader| {
            reader.fetch_metadata(Some(topic), ATTEMPT)
        });
        let count = metadata.topics().first().map_or(0, |topic| topic.partitions().len());
        assert!(count > 0, "topic {topic} has no partitions");
        i32::try_from(count).unwrap_or_else(|e| panic!("{count} partitions of {topic}: {e}"))
    }

    /// The node id of the broker that leads a partition; `None` while there is none.
    pub fn leader(&self, topic: &str, partition: i32) -> Option<i32> {
        let metadata = self.reader(PROBE, "read_committed").fetch_metadata(Some(topic), REQUEST).ok()?;
        let found = metadata.topics().first()?.partitions().iter().find(|found| found.id() == partition)?;
        (found.leader() >= 0).then(|| found.leader())
    }

    /// The node ids of the brokers whose copies of a partition are in step; none when nobody answers.
    pub fn in_sync(&self, topic: &str, partition: i32) -> Vec<i32> {
        let reader = self.reader(PROBE, "read_committed");
        let Ok(metadata) = reader.fetch_metadata(Some(topic), REQUEST) else { return Vec::new() };
        let mut partitions = metadata.topics().iter().flat_map(|topic| topic.partitions());
        partitions.find(|found| found.id() == partition).map_or_else(Vec::new, |found| found.isr().to_vec())
    }

    /// Waits until every partition of every topic has all its replicas in step.
    #[track_caller]
    pub fn wait_in_sync(&self, deadline: Duration) {
        wait::until("all replicas of everything are in step", deadline, || {
            let metadata = self.reader(PROBE, "read_committed").fetch_metadata(None, REQUEST).ok()?;
            let mut partitions = metadata.topics().iter().flat_map(|topic| topic.partitions());
            partitions
                .all(|found| found.isr().len() == found.replicas().len() && found.leader() >= 0)
                .then_some(())
        });
    }

    /// I8: no transaction is left open, that is, a `read_committed` reader reaches the end of the log.
    #[track_caller]
    pub fn wait_nothing_open(&self, topic: &str, deadline: Duration) {
        wait::until(&format!("I8 liveness: no transaction is open in {topic}"), deadline, || {
            (self.stable_bounds(topic) == self.log_bounds(topic)).then_some(())
        });
    }

    /// Waits until a transaction is open in the topic.
    #[track_caller]
    pub fn wait_something_open(&self, topic: &str, deadline: Duration) {
        wait::until(&format!("a transaction is open in {topic}"), deadline, || {
            (self.log_bounds(topic) != self.stable_bounds(topic)).then_some(())
        });
    }

    fn offsets_by(&self, group: &str, topic: &str, isolation: &str) -> BTreeMap<i32, i64> {
        let partitions = self.partitions(topic);
        self.ask(&format!("offsets of group {group}"), group, isolation, |reader| {
            committed_within(reader, topic, partitions, ATTEMPT)
        })
    }

    fn bounds(&self, topic: &str, isolation: &str) -> BTreeMap<i32, (i64, i64)> {
        let partitions = 0..self.partitions(topic);
        self.ask(&format!("log ends of {topic}"), PROBE, isolation, |reader| {
            let bounds = |partition| Ok((partition, reader.fetch_watermarks(topic, partition, ATTEMPT)?));
            partitions.clone().map(bounds).collect()
        })
    }

    /// Asks until there is an answer. Each time with a new client: one that was made while a broker went away may hold on to
    /// what it learnt then.
    fn ask<T>(
        &self,
        what: &str,
        group: &str,
        isolation: &str,
        question: impl Fn(&BaseConsumer) -> KafkaResult<T>,
    ) -> T {
        let begin = Instant::now();
        loop {
            match question(&self.reader(group, isolation)) {
                Ok(answer) => return answer,
                Err(error) if begin.elapsed() > 2 * REQUEST => panic!("{what}: {error}"),
                Err(_) => {}
            }
        }
    }

    fn wait_partitions(&self, topic: &str, count: i32) {
        wait::until(&format!("topic {topic} has {count} partitions with leaders"), REQUEST, || {
            let reader = self.reader(PROBE, "read_committed");
            let metadata = reader.fetch_metadata(Some(topic), REQUEST).ok()?;
            let found = metadata.topics().first()?;
            let led = found.partitions().iter().filter(|partition| partition.leader() >= 0).count();
            (i32::try_from(led) == Ok(count)).then_some(())
        });
    }

    fn admin(&self) -> AdminClient<DefaultClientContext> {
        self.client()
            .create()
            .unwrap_or_else(|e| panic!("create an admin client for {}: {e}", self.bootstrap))
    }
}

/// Asks `reader`'s coordinator for the offsets of partitions `0..count`.
pub(crate) fn committed(reader: &BaseConsumer, topic: &str, count: i32) -> KafkaResult<BTreeMap<i32, i64>> {
    committed_within(reader, topic, count, REQUEST)
}

fn committed_within(
    reader: &BaseConsumer,
    topic: &str,
    count: i32,
    timeout: Duration,
) -> KafkaResult<BTreeMap<i32, i64>> {
    let mut asked = TopicPartitionList::new();
    asked.add_partition_range(topic, 0, count - 1);
    let answer = reader.committed_offsets(asked, timeout)?;
    let mut offsets = BTreeMap::new();
    for element in answer.elements() {
        element.error()?;
        if let Offset::Offset(offset) = element.offset() {
            offsets.insert(element.partition(), offset);
        }
    }
    Ok(offsets)
}

fn offsets_list(topic: &str, offsets: impl IntoIterator<Item = (i32, i64)>) -> TopicPartitionList {
    let mut list = TopicPartitionList::new();
    for (partition, offset) in offsets {
        list.add_partition_offset(topic, partition, Offset::Offset(offset))
            .unwrap_or_else(|e| panic!("offset {offset} of {topic}:{partition}: {e}"));
    }
    list
}

fn admin_options() -> AdminOptions {
    AdminOptions::new().operation_timeout(Some(REQUEST)).request_timeout(Some(REQUEST))
}

/// Runs an admin request on this thread.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}

/// A name that no other test of this or an earlier run has used on the broker: `base-<process id>-<number>`.
pub fn unique(base: &str) -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{base}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Runs one of Kafka's own command line tools and returns what it wrote to stdout.
pub(crate) fn tool(class: &str, arguments: &[&str]) -> String {
    let output = process::run(crate::broker::java(&crate::Line::Newest.jars()).arg(class).args(arguments));
    assert!(
        output.status.success(),
        "{class} {arguments:?}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}
