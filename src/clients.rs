//! The settings of the Kafka clients, in the clients' words.

use crate::config::kafka::{Extra, Isolation, SecuritySettings};
use crate::config::settings::Settings;
use crate::flow::plan::FlowPlan;
use std::collections::BTreeMap;
use std::time::Duration;
use tidegate_operators::fault::Fault;
use tidegate_operators::kafka::{
    Connection, ConsumerConfig, IsolationLevel, ProducerConfig, TokenSource, fit_to_topics, reaper,
};
use tidegate_operators::process::DeliveryGuarantee;
use tidegate_recovery::ErrorClass;

/// How the clients of a run reach their brokers.
pub(crate) struct Clients {
    pub(crate) consumer: ConsumerConfig,
    pub(crate) producer: ProducerConfig,
    /// To the producer's brokers, for questions about topics.
    pub(crate) outputs: Connection,
}

/// The consumer's and the producer's configuration; properties that the runtime owns are refused, all at once.
pub(crate) fn configs(settings: &Settings) -> Result<Clients, Fault> {
    let consumer = settings.consumer.as_ref().ok_or_else(|| {
        Fault::new(ErrorClass::Config, "kafka.consumer is missing: name brokers, group_id and topics")
    })?;
    let consumer_config = ConsumerConfig {
        connection: connection(
            &consumer.brokers,
            consumer.client_id.as_deref(),
            &consumer.security,
            &consumer.extra,
        ),
        group_id: consumer.group_id.clone(),
        isolation: match consumer.isolation {
            Isolation::ReadCommitted => IsolationLevel::ReadCommitted,
            Isolation::ReadUncommitted => IsolationLevel::ReadUncommitted,
        },
        ..ConsumerConfig::default()
    };
    let producer = &settings.producer;
    let reaching =
        Extra(producer.extra.0.iter().filter(|(name, _)| is_about_reaching(name)).cloned().collect());
    let admin = connection(&producer.brokers, producer.client_id.as_deref(), &producer.security, &reaching);
    let mut producer_connection =
        connection(&producer.brokers, producer.client_id.as_deref(), &producer.security, &producer.extra);
    let mut preset = |name: &str, value: String| {
        producer_connection.extra.entry(name.to_owned()).or_insert(value);
    };
    preset("compression.type", producer.compression.to_owned());
    preset("linger.ms", producer.linger.as_millis().to_string());
    if settings.delivery() == DeliveryGuarantee::ExactlyOnce {
        preset("transaction.timeout.ms", settings.exactly_once.transaction_timeout.as_millis().to_string());
    }
    let producer_config = ProducerConfig { connection: producer_connection, ..ProducerConfig::default() };
    let mut problems = consumer_config.problems();
    problems.extend(producer_config.problems());
    if problems.is_empty() {
        return Ok(Clients { consumer: consumer_config, producer: producer_config, outputs: admin });
    }
    Err(Fault::new(ErrorClass::Config, problems.join("; ")).code("INVALID_VALUE"))
}

impl Clients {
    /// Makes the producer one that can write to all topics of the flow, as a transaction must.
    pub(crate) fn fit_to_outputs(&mut self, plan: &FlowPlan, within: Duration) -> Result<(), Fault> {
        let topics: Vec<String> = plan.output_topics.iter().map(|output| output.topic.clone()).collect();
        fit_to_topics(&mut self.producer, &self.outputs, &topics, within)
    }
}

/// How long the clients may take to close; librdkafka may wait for ever while its broker is away.
const CLOSE_DEADLINE: Duration = Duration::from_secs(3);

/// Waits for the clients that are being closed; false when some of them are not.
pub(crate) fn close() -> bool {
    let open = reaper::wait(CLOSE_DEADLINE);
    for client in &open {
        tracing::warn!(client, "a client did not close in time");
    }
    open.is_empty()
}

/// Whether a property is about how brokers are reached: then whoever asks them needs it too, not only the producer.
fn is_about_reaching(property: &str) -> bool {
    ["broker.address.", "client.dns.", "enable.sasl.", "enable.ssl.", "sasl.", "security.", "socket.", "ssl."]
        .iter()
        .any(|prefix| property.starts_with(prefix))
}

fn connection(
    brokers: &[String],
    client_id: Option<&str>,
    security: &SecuritySettings,
    extra: &Extra,
) -> Connection {
    let mut properties: BTreeMap<String, String> = extra.0.iter().cloned().collect();
    let mut set = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            properties.entry(name.to_owned()).or_insert(value);
        }
    };
    let path = |path: &std::path::PathBuf| path.display().to_string();
    set("security.protocol", Some(security.protocol.as_str().to_owned()));
    set("sasl.mechanism", security.mechanism.map(str::to_owned));
    set("sasl.username", security.username.clone());
    set("sasl.password", security.password.as_ref().map(|secret| secret.reveal().to_owned()));
    set("sasl.oauthbearer.config", security.token.as_ref().map(TokenSource::to_property));
    // The OpenSSL inside this program does not know where the system keeps its certificates; the client looks for them.
    let own_ca = extra.0.iter().any(|(name, _)| name == "ssl.ca.pem");
    let system_ca = || (security.protocol.is_tls() && !own_ca).then(|| "probe".to_owned());
    set("ssl.ca.location", security.ca_file.as_ref().map(path).or_else(system_ca));
    set("ssl.certificate.location", security.certificate_file.as_ref().map(path));
    set("ssl.key.location", security.key_file.as_ref().map(path));
    set("ssl.key.password", security.key_password.as_ref().map(|secret| secret.reveal().to_owned()));
    set("ssl.endpoint.identification.algorithm", (!security.verify_hostname).then(|| "none".to_owned()));
    Connection {
        brokers: brokers.to_vec(),
        client_id: client_id.unwrap_or_default().to_owned(),
        extra: properties,
    }
}

/// The host's name, for messages; it is no identity.
pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
