//! Output topics before the start: they are there, or they are made because the flow says so.
//!
//! These calls wait: they belong to the start of a process.

use super::config::{Connection, ConsumerConfig};
use super::reaper;
use super::start::Lookup;
use crate::fault::Fault;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::types::RDKafkaErrorCode;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};
use tidegate_recovery::ErrorClass;

/// A topic that a flow writes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputTopic {
    /// Its name.
    pub name: String,
    /// Make it with this many partitions and replicas when it is missing.
    pub create: Option<(i32, i32)>,
}

/// What is known of an output topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputFound {
    /// Its name.
    pub name: String,
    /// The largest batch that it takes, in bytes; a producer that makes none larger never has a record refused
    /// because of its neighbours. `None` where the broker does not tell.
    pub record_bytes_max: Option<usize>,
}

impl OutputTopic {
    /// A topic that must be there.
    pub fn existing(name: impl Into<String>) -> OutputTopic {
        OutputTopic { name: name.into(), create: None }
    }

    /// A topic that is made when it is missing.
    pub fn created(name: impl Into<String>, partitions: i32, replication: i32) -> OutputTopic {
        OutputTopic { name: name.into(), create: Some((partitions, replication)) }
    }
}

/// Sees to it that all topics are there. Those that are missing and not to be made are listed in one fault, and
/// then none is made.
pub fn check_outputs(
    connection: &Connection,
    topics: &[OutputTopic],
    deadline: Duration,
) -> Result<Vec<OutputFound>, Fault> {
    let end = Instant::now() + deadline;
    let config = ConsumerConfig { connection: connection.clone(), ..ConsumerConfig::default() };
    let names: Vec<String> = topics.iter().map(|topic| topic.name.clone()).collect();
    let missing = Lookup::new(&config, deadline)?.find(&names)?.missing;
    let (to_make, absent): (Vec<_>, Vec<_>) =
        topics.iter().filter(|topic| missing.contains(&topic.name)).partition(|topic| topic.create.is_some());
    if !absent.is_empty() {
        let names: Vec<&str> = absent.iter().map(|topic| topic.name.as_str()).collect();
        return Err(Fault::new(
            ErrorClass::Missing,
            format!(
                "these output topics do not exist on {}: {}; make them, or say `create: {{ partitions, replication }}`",
                connection.brokers.join(","),
                names.join(", ")
            ),
        ));
    }
    let admin = Admin::new(connection, end)?;
    if !to_make.is_empty() {
        admin.create(&to_make)?;
        let left = end.saturating_duration_since(Instant::now());
        // A new topic travels through the metadata; the producer must not find it missing.
        Lookup::new(&config, left)?.partitions(&names)?;
    }
    admin.describe(&names)
}

/// How long the cluster keeps the offsets of a group without members; `None` where it does not tell. A flow must
/// commit again sooner, also where nothing arrives (`commit_keepalive_ms`).
pub fn offsets_retention(connection: &Connection, deadline: Duration) -> Result<Option<Duration>, Fault> {
    let admin = Admin::new(connection, Instant::now() + deadline)?;
    let metadata = admin
        .client()
        .inner()
        .fetch_metadata(Some("__consumer_offsets"), deadline)
        .map_err(|error| admin.unavailable("the brokers", &error.to_string()))?;
    let Some(broker) = metadata.brokers().first().map(|broker| broker.id()) else { return Ok(None) };
    let answer = admin.configs(&[ResourceSpecifier::Broker(broker)], &admin.options())?;
    let minutes = answer
        .iter()
        .flatten()
        .find_map(|config| config.get("offsets.retention.minutes")?.value.as_ref()?.parse::<u64>().ok());
    Ok(minutes.map(|minutes| Duration::from_secs(minutes * 60)))
}

/// Warns when a group's offsets would be forgotten before an idle partition commits again.
pub fn warn_of_retention(keepalive: Duration, retention: Option<Duration>) {
    if let Some(retention) = retention.filter(|retention| keepalive >= *retention) {
        tracing::warn!(
            keepalive_ms = keepalive.as_millis() as u64,
            retention_ms = retention.as_millis() as u64,
            "the brokers forget the offsets of an idle group sooner than `commit_keepalive_ms` commits them again: make it smaller"
        );
    }
}

/// How long a start waits for the settings of its output topics.
const SETTINGS_WITHIN: Duration = Duration::from_secs(2);

struct Admin {
    client: Option<AdminClient<DefaultClientContext>>,
    brokers: String,
    end: Instant,
}

impl Admin {
    fn new(connection: &Connection, end: Instant) -> Result<Admin, Fault> {
        let mut config = ClientConfig::new();
        for (name, value) in connection.admin_properties() {
            config.set(name, value);
        }
        let client = config
            .create()
            .map_err(|error| Fault::new(ErrorClass::Config, format!("the kafka admin client: {error}")))?;
        Ok(Admin { client: Some(client), brokers: connection.brokers.join(","), end })
    }

    fn client(&self) -> &AdminClient<DefaultClientContext> {
        self.client.as_ref().expect("the client is there until the admin is dropped")
    }

    fn options(&self) -> AdminOptions {
        let left = self.end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        AdminOptions::new().request_timeout(Some(left)).operation_timeout(Some(left))
    }

    fn unavailable(&self, what: &str, error: &str) -> Fault {
        Fault::new(
            ErrorClass::Unavailable,
            format!("kafka at {} did not answer in time for {what} ({error})", self.brokers),
        )
    }

    fn create(&self, topics: &[&OutputTopic]) -> Result<(), Fault> {
        let topics: Vec<NewTopic<'_>> = topics
            .iter()
            .map(|topic| {
                let (partitions, replication) = topic.create.unwrap_or((-1, -1));
                NewTopic::new(&topic.name, partitions, TopicReplication::Fixed(replication))
            })
            .collect();
        let results = block_on(self.client().create_topics(&topics, &self.options()))
            .map_err(|error| self.unavailable("making topics", &error.to_string()))?;
        for result in results {
            match result {
                Ok(topic) => tracing::info!(topic, "output topic made"),
                // Another process of the cluster was faster.
                Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => {}
                Err((topic, code)) => {
                    return Err(Fault::new(
                        ErrorClass::Config,
                        format!("output topic `{topic}` cannot be made (operation Create): {code}"),
                    ));
                }
            }
        }
        Ok(())
    }

    fn describe(&self, names: &[String]) -> Result<Vec<OutputFound>, Fault> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let asked: Vec<_> = names.iter().map(|name| ResourceSpecifier::Topic(name)).collect();
        // Some brokers never answer this. Without it the run is right as well: a batch that is refused for its size
        // is tried again record by record.
        let options = AdminOptions::new()
            .request_timeout(Some(SETTINGS_WITHIN))
            .operation_timeout(Some(SETTINGS_WITHIN));
        let answer = self.configs(&asked, &options).unwrap_or_else(|fault| {
            tracing::debug!(%fault, "the size limits of the output topics are not known");
            names.iter().map(|_| None).collect()
        });
        Ok(names
            .iter()
            .zip(answer)
            .map(|(name, config)| OutputFound {
                name: name.clone(),
                record_bytes_max: config
                    .and_then(|config| config.get("max.message.bytes")?.value.as_ref()?.parse().ok()),
            })
            .collect())
    }

    /// The settings of each; `None` where this client may not see them.
    fn configs(
        &self,
        asked: &[ResourceSpecifier<'_>],
        options: &AdminOptions,
    ) -> Result<Vec<Option<rdkafka::admin::ConfigResource>>, Fault> {
        let answer = block_on(self.client().describe_configs(asked, options))
            .map_err(|error| self.unavailable("the settings", &error.to_string()))?;
        Ok(answer
            .into_iter()
            .map(|result| result.inspect_err(|error| tracing::debug!(%error, "settings were not told")).ok())
            .collect())
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        let client = self.client.take();
        reaper::close("admin client".to_owned(), move || drop(client));
    }
}

/// Runs a request on this thread; the library answers every request itself when its time is over.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
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
