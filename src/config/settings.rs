//! Everything but the steps: how the flow runs.

use super::exactly_once::ExactlyOnceSettings;
use super::kafka::{ConsumerSettings, DeliveryGuarantee, ProducerSettings};
use super::kafka_reader::check_address;
use super::layers::Environment;
use super::problems::code;
use super::section::Section;
use super::units::show_duration;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Text that is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Hides a text.
    pub fn new(text: impl Into<String>) -> Secret {
        Secret(text.into())
    }

    /// The text, for whoever must send it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("********")
    }
}

/// The section `recovery`.
#[derive(Clone, Debug, PartialEq)]
pub struct RecoverySettings {
    /// The store; `None` means that nothing survives the process but the group's offsets.
    pub directory: Option<PathBuf>,
    /// Time between two commit epochs; a multiple of the epoch.
    pub commit_interval: Duration,
    /// Commit epochs that are closed and not yet durable and published; at the limit sources stop polling.
    pub commits_in_flight: u64,
    /// How long a store that fails or is full is tried again.
    pub store_timeout: Duration,
}

/// What a process does when a peer is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerLoss {
    /// It ends with 75: the orchestrator starts it again.
    Exit,
}

/// The section `cluster`.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterSettings {
    /// Where each process listens, in the order of their indices; one process needs none.
    pub addresses: Vec<String>,
    /// This process's place in the list.
    pub process_index: u32,
    /// Worker threads of each process.
    pub workers_per_process: u32,
    /// What all processes must know to join.
    pub secret: Option<Secret>,
    /// Silence after which a peer is lost.
    pub peer_timeout: Duration,
    /// How long a lost peer is waited for.
    pub rejoin_timeout: Duration,
    /// How long worker threads may take to end.
    pub unwind_timeout: Duration,
    /// Age at which an open epoch is called stalled.
    pub stall_timeout: Duration,
    /// How long a stop may take.
    pub shutdown_timeout: Duration,
    /// How long a start may take.
    pub startup_timeout: Duration,
    /// What to do when a peer is lost.
    pub on_peer_loss: PeerLoss,
}

impl ClusterSettings {
    /// Number of processes.
    pub fn processes(&self) -> usize {
        self.addresses.len().max(1)
    }
}

/// How logs look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Text on a terminal, JSON elsewhere.
    #[default]
    Auto,
    /// Text.
    Text,
    /// One JSON object per line.
    Json,
}

/// The section `log`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// How logs look.
    pub format: LogFormat,
    /// Which are written: a level, or a filter such as `info,tidegate_cluster=debug`.
    pub level: String,
}

impl Default for LogSettings {
    fn default() -> LogSettings {
        LogSettings { format: LogFormat::Auto, level: "info".into() }
    }
}

/// How a flow runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The section `kafka.consumer`, where the flow reads from Kafka.
    pub consumer: Option<ConsumerSettings>,
    /// The section `kafka.producer`; its brokers are those of the consumer when it names none.
    pub producer: ProducerSettings,
    /// The section `recovery`.
    pub recovery: RecoverySettings,
    /// The section `exactly_once`.
    pub exactly_once: ExactlyOnceSettings,
    /// The section `cluster`.
    pub cluster: ClusterSettings,
    /// Time between two epochs.
    pub epoch_interval: Duration,
    /// Whether keyed state may live without a store (`volatile_state: allow`).
    pub volatile_state: bool,
    /// Records that steps without a store may hold.
    pub volatile_records_max: u64,
    /// Rows of state that a step may keep on one worker.
    pub state_rows_max: u64,
    /// Where HTTP is served.
    pub http: Option<SocketAddr>,
    /// Logs.
    pub log: LogSettings,
}

impl Settings {
    /// Epochs per commit epoch.
    pub fn commit_every(&self) -> u64 {
        let epoch = self.epoch_interval.as_millis().max(1);
        (self.recovery.commit_interval.as_millis() / epoch).max(1) as u64
    }

    /// The guarantee; a flow that reads no Kafka has none to give.
    pub fn delivery(&self) -> DeliveryGuarantee {
        self.consumer.as_ref().map_or(DeliveryGuarantee::AtLeastOnce, |consumer| consumer.delivery)
    }

    /// Reads all sections but the flow's own.
    pub(super) fn read(root: &Section<'_, '_>, environment: &Environment) -> Settings {
        let kafka = root.section("kafka");
        let consumer_node = kafka.section("consumer");
        let has_consumer = kafka.has("consumer");
        if !has_consumer {
            root.error(
                code::INVALID_VALUE,
                "kafka",
                "`kafka.consumer` is missing",
                "write kafka: { consumer: { brokers: [\"host:9092\"], group_id: …, topics: […], delivery: at_least_once } }",
            );
        }
        let consumer = if has_consumer { ConsumerSettings::read(consumer_node, environment) } else { None };
        let producer = ProducerSettings::read(kafka.section("producer"), consumer.as_ref());
        kafka.finish();
        let epoch_interval = root.duration(
            "epoch_interval",
            Duration::from_millis(100),
            Duration::from_millis(1)..=Duration::from_secs(60),
        );
        let recovery = read_recovery(root.section("recovery"), epoch_interval);
        let exactly_once = ExactlyOnceSettings::read(root.section("exactly_once"));
        let cluster = read_cluster(root.section("cluster"));
        let volatile_state = root.choice("volatile_state", false, &[("refuse", false), ("allow", true)]);
        let volatile_records_max = root.integer("volatile_records_max", 1_000_000, 1..=1_000_000_000);
        let state_rows_max = root.integer("state_rows_max", 20_000_000, 1..=4_000_000_000);
        let http = root.text("http").and_then(|address| match parse_listen_address(&address) {
            Ok(address) => Some(address),
            Err(message) => {
                root.error(code::INVALID_VALUE, "http", message, "write a port, :port or address:port");
                None
            }
        });
        let log = read_log(root.section("log"));
        Settings {
            consumer,
            producer,
            recovery,
            exactly_once,
            cluster,
            epoch_interval,
            volatile_state,
            volatile_records_max,
            state_rows_max,
            http,
            log,
        }
    }
}

fn read_recovery(section: Section<'_, '_>, epoch_interval: Duration) -> RecoverySettings {
    let directory = section.text("directory").and_then(|directory| {
        if directory.contains("://") {
            section.error(
                code::INVALID_VALUE,
                "directory",
                format!("`{directory}` is an object store, and those are not available in this version"),
                "name a directory that all processes see",
            );
            return None;
        }
        Some(PathBuf::from(directory))
    });
    let day = Duration::from_secs(86_400);
    let commit_interval =
        section.duration("commit_interval", Duration::from_secs(1).max(epoch_interval), epoch_interval..=day);
    if !commit_interval.as_millis().is_multiple_of(epoch_interval.as_millis().max(1)) {
        section.error(
            code::INVALID_VALUE,
            "commit_interval",
            format!(
                "{} is not a multiple of epoch_interval, which is {}",
                show_duration(commit_interval),
                show_duration(epoch_interval)
            ),
            "a commit happens at the end of an epoch",
        );
    }
    let commits_in_flight = section.integer("commits_in_flight", 4, 1..=1024);
    let store_timeout = section.duration("store_timeout", Duration::from_secs(60), Duration::ZERO..=day);
    section.finish();
    RecoverySettings { directory, commit_interval, commits_in_flight, store_timeout }
}

fn read_cluster(section: Section<'_, '_>) -> ClusterSettings {
    let addresses = section.texts("addresses", &[';', ',']);
    let mut names: Vec<String> = Vec::new();
    for (address, origin) in addresses {
        let wrong = match check_address(&address) {
            Err(message) => Some(message),
            Ok(()) if names.contains(&address) => Some(format!("the address {address} stands there twice")),
            Ok(()) => None,
        };
        if let Some(message) = wrong {
            let problem =
                super::Problem::error(code::INVALID_VALUE, section.at("addresses"), &origin, message);
            section
                .reader
                .report(problem.advise("write one host:port per process, in the order of their indices"));
        }
        names.push(address);
    }
    let process_index = section.integer("process_index", 0, 0..=65_535) as u32;
    if names.len() > 1 && !section.has("process_index") {
        section.missing("process_index", "tell each process its place in the address list: -i 0, -i 1, …");
    } else if process_index as usize >= names.len().max(1) {
        let message = match names.len() {
            0 => format!("there is no process {process_index}: no addresses are given"),
            count => {
                format!("there is no process {process_index}: the address list has {count}, counted from 0")
            }
        };
        section.error(
            code::INVALID_VALUE,
            "process_index",
            message,
            "give all processes the same list with -a",
        );
    }
    let workers_per_process = section.integer("workers_per_process", 1, 1..=1024) as u32;
    let secret_file = section.text("secret_file");
    let secret = secret_file.and_then(|file| read_secret_file(&section, "secret_file", &file));
    let timeout = |key, seconds, shortest: u64| {
        section.duration(
            key,
            Duration::from_secs(seconds),
            Duration::from_millis(shortest)..=Duration::from_secs(86_400),
        )
    };
    let peer_timeout = timeout("peer_timeout", 10, 500);
    let rejoin_timeout = timeout("rejoin_timeout", 60, 0);
    let unwind_timeout = timeout("unwind_timeout", 10, 100);
    let stall_timeout = timeout("stall_timeout", 60, 100);
    let shutdown_timeout = timeout("shutdown_timeout", 30, 0);
    let startup_timeout = timeout("startup_timeout", 60, 100);
    let on_peer_loss = match section.get("on_peer_loss").map(|node| node.describe()) {
        Some(word) if word == "`rejoin`" => {
            section.error(
                code::INVALID_VALUE,
                "on_peer_loss",
                "rejoining in place is not available in this version",
                "write exit: the process ends with 75 and is started again from outside",
            );
            PeerLoss::Exit
        }
        _ => section.choice("on_peer_loss", PeerLoss::Exit, &[("exit", PeerLoss::Exit)]),
    };
    section.finish();
    ClusterSettings {
        addresses: names,
        process_index,
        workers_per_process,
        secret,
        peer_timeout,
        rejoin_timeout,
        unwind_timeout,
        stall_timeout,
        shutdown_timeout,
        startup_timeout,
        on_peer_loss,
    }
}

fn read_log(section: Section<'_, '_>) -> LogSettings {
    let format = section.choice(
        "format",
        LogFormat::Auto,
        &[("auto", LogFormat::Auto), ("text", LogFormat::Text), ("json", LogFormat::Json)],
    );
    let level = section.text("level").unwrap_or_else(|| {
        section.note_derived("level", "info");
        "info".into()
    });
    if let Err(message) = crate::telemetry::check_level(&level) {
        section.error(code::INVALID_VALUE, "level", message, "write error, warn, info, debug or trace");
    }
    section.finish();
    LogSettings { format, level }
}

/// Reads a secret that stands there, or in a file.
pub(super) fn read_secret(
    section: &Section<'_, '_>,
    key: &'static str,
    file_key: &'static str,
) -> Option<Secret> {
    let direct = section.secret(key);
    let file = section.text(file_key);
    if direct.is_some() && file.is_some() {
        let message = format!("`{key}` and `{file_key}` are both given");
        section.error(code::INVALID_VALUE, file_key, message, "give one of them");
    }
    match (direct, file) {
        (_, Some(file)) => read_secret_file(section, file_key, &file),
        (direct, None) => direct.map(Secret),
    }
}

fn read_secret_file(section: &Section<'_, '_>, key: &'static str, file: &str) -> Option<Secret> {
    const BYTES_MAX: usize = 64 * 1024;
    match std::fs::read_to_string(file) {
        Ok(text) if text.trim().is_empty() => {
            section.error(code::INVALID_VALUE, key, format!("the file {file} is empty"), "");
            None
        }
        Ok(text) if text.len() > BYTES_MAX => {
            section.error(code::INVALID_VALUE, key, format!("the file {file} is too large for a secret"), "");
            None
        }
        Ok(text) => Some(Secret(text.trim_end_matches(['\n', '\r']).to_string())),
        Err(error) => {
            section.error(code::INVALID_VALUE, key, format!("the file {file} cannot be read: {error}"), "");
            None
        }
    }
}

/// `8080` is on this host only, `:8080` on all of its addresses.
fn parse_listen_address(text: &str) -> Result<SocketAddr, String> {
    let full = match text.strip_prefix(':') {
        Some(port) => format!("0.0.0.0:{port}"),
        None if text.bytes().all(|byte| byte.is_ascii_digit()) => format!("127.0.0.1:{text}"),
        None => text.replacen("localhost:", "127.0.0.1:", 1),
    };
    full.parse().map_err(|_| format!("`{text}` is no address to listen on"))
}
