//! Reads the sections `kafka.consumer` and `kafka.producer`.

use super::kafka::{
    ConsumerSettings, DeliveryGuarantee, DeliveryReason, Extra, Isolation, OffsetReset, OutOfRange,
    ProducerSettings, SecurityProtocol, SecuritySettings, Tombstones,
};
use super::problems::{Problem, code};
use super::section::Section;
use super::yaml::{Data, Origin};
use std::path::PathBuf;
use std::time::Duration;
use tidegate_operators::kafka::{TokenSource, refusal};

const BROKER_ADVICE: &str = "write brokers: [\"host:9092\"]";

impl ConsumerSettings {
    /// Reads the section; `None` when it cannot be used at all (the problems say why).
    pub(super) fn read(
        section: Section<'_, '_>,
        environment: &super::layers::Environment,
    ) -> Option<ConsumerSettings> {
        let brokers = read_brokers(&section);
        if brokers.is_empty() && !section.has("brokers") {
            section.missing("brokers", BROKER_ADVICE);
        }
        let group_id = section.text("group_id");
        match &group_id {
            None if !section.has("group_id") => section.missing(
                "group_id",
                "name the group that stores the offsets: one name per service, never per pod",
            ),
            None => {}
            Some(group_id) => check_group_id(&section, group_id, environment),
        }
        let topics = read_topics(&section, "topics");
        let (delivery, delivery_reason) = read_delivery(&section);
        let auto_offset_reset = section.choice(
            "auto_offset_reset",
            OffsetReset::Earliest,
            &[
                ("earliest", OffsetReset::Earliest),
                ("latest", OffsetReset::Latest),
                ("error", OffsetReset::Error),
            ],
        );
        let on_out_of_range = section.choice(
            "on_out_of_range",
            OutOfRange::Fail,
            &[("fail", OutOfRange::Fail), ("earliest", OutOfRange::Earliest), ("latest", OutOfRange::Latest)],
        );
        let tombstones = section.choice(
            "tombstones",
            Tombstones::Skip,
            &[("skip", Tombstones::Skip), ("deliver", Tombstones::Deliver)],
        );
        let isolation = section.choice(
            "isolation",
            Isolation::ReadCommitted,
            &[("read_committed", Isolation::ReadCommitted), ("read_uncommitted", Isolation::ReadUncommitted)],
        );
        let batch_size = section.integer("batch_size", 500, 1..=1_000_000) as usize;
        let poll_backoff = section.millis("poll_backoff_ms", 50, 0..=60_000);
        let commit_keepalive = section.millis("commit_keepalive_ms", 1_800_000, 1..=u64::from(u32::MAX));
        if section.has("poll_timeout_ms") {
            section.optional_integer("poll_timeout_ms", 0..=u64::MAX);
            warn_deprecated(
                &section,
                "poll_timeout_ms",
                "it is ignored, for a worker never waits in a poll",
                "take it out",
            );
        }
        let in_flight_bytes = section.size("in_flight_bytes", 128 << 20, 1 << 10..=1 << 40);
        let in_flight_records = section.integer("in_flight_records", 1_000_000, 1..=1_000_000_000);
        let client_id = section.text("client_id");
        let security = read_security(section.section("security"));
        let extra = read_extra(section.section("extra"));
        section.finish();
        Some(ConsumerSettings {
            brokers,
            group_id: group_id?,
            topics,
            delivery,
            delivery_reason,
            auto_offset_reset,
            on_out_of_range,
            tombstones,
            isolation,
            batch_size,
            poll_backoff,
            commit_keepalive,
            in_flight_bytes,
            in_flight_records,
            client_id,
            security,
            extra,
        })
    }
}

impl ProducerSettings {
    pub(super) fn read(section: Section<'_, '_>, consumer: Option<&ConsumerSettings>) -> ProducerSettings {
        let mut brokers = read_brokers(&section);
        let own_brokers = section.has("brokers");
        let own_security = section.has("security");
        let mut security = read_security(section.section("security"));
        if let Some(consumer) = consumer.filter(|_| !own_brokers) {
            brokers = consumer.brokers.clone();
            section.note_derived("brokers", format!("those of kafka.consumer: [{}]", brokers.join(", ")));
            if !own_security {
                security = consumer.security.clone();
            }
        }
        let compression = section.choice(
            "compression",
            "none",
            &[("none", "none"), ("gzip", "gzip"), ("snappy", "snappy"), ("lz4", "lz4"), ("zstd", "zstd")],
        );
        let linger =
            section.duration("linger", Duration::from_millis(5), Duration::ZERO..=Duration::from_secs(60));
        let client_id = section.text("client_id");
        let extra = read_extra(section.section("extra"));
        section.finish();
        ProducerSettings { brokers, client_id, security, compression, linger, extra }
    }
}

fn warn_deprecated(section: &Section<'_, '_>, key: &'static str, message: &str, advice: &str) {
    let origin = section.fields().iter().find(|field| field.name == key).map(|field| field.origin.clone());
    section.reader.report(
        Problem::warning(
            code::DEPRECATED_OPTION,
            section.at(key),
            &origin.unwrap_or_default(),
            format!("`{key}` is deprecated: {message}"),
        )
        .advise(advice),
    );
}

fn read_brokers(section: &Section<'_, '_>) -> Vec<String> {
    let brokers = section.texts("brokers", &[',']);
    for (broker, origin) in &brokers {
        if let Err(message) = check_address(broker) {
            let problem = Problem::error(code::INVALID_VALUE, section.at("brokers"), origin, message);
            section.reader.report(problem.advise(BROKER_ADVICE));
        }
    }
    if section.has("brokers") && brokers.is_empty() {
        section.error(code::INVALID_VALUE, "brokers", "no broker is named", BROKER_ADVICE);
    }
    brokers.into_iter().map(|(broker, _)| broker).collect()
}

/// Checks `host:port`.
pub(super) fn check_address(address: &str) -> Result<(), String> {
    let fits = address.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty()
            && !host.contains(char::is_whitespace)
            && port.parse::<u16>().is_ok_and(|port| port > 0)
    });
    if fits { Ok(()) } else { Err(format!("`{address}` is not host:port")) }
}

/// Reads and checks names of topics.
pub(super) fn read_topics(section: &Section<'_, '_>, key: &'static str) -> Vec<String> {
    let topics = section.texts(key, &[',']);
    let mut names: Vec<String> = Vec::new();
    for (topic, origin) in topics {
        match check_topic(&topic) {
            Err((message, advice)) => section.reader.report(
                Problem::error(code::INVALID_VALUE, section.at(key), &origin, message).advise(advice),
            ),
            Ok(()) if names.contains(&topic) => section.reader.report(Problem::error(
                code::INVALID_VALUE,
                section.at(key),
                &origin,
                format!("the topic `{topic}` is named twice"),
            )),
            Ok(()) => names.push(topic),
        }
    }
    names
}

/// Checks the name of a topic; the error is a message and an advice.
pub(super) fn check_topic(topic: &str) -> Result<(), (String, &'static str)> {
    const LONGEST: usize = 249;
    let legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if topic.starts_with('^') || topic.contains(['*', '?', '[', '(', '|', '+', '\\']) {
        let advice = "name each topic: a topic that joins by itself would start at a place that nobody chose";
        return Err((format!("`{topic}` is a pattern, and patterns of topics are refused"), advice));
    }
    if topic.is_empty() || topic.len() > LONGEST || !topic.chars().all(legal) || [".", ".."].contains(&topic)
    {
        let advice = "a topic has 1 to 249 letters, digits, dots, underscores and dashes";
        return Err((format!("`{topic}` is no name of a topic"), advice));
    }
    Ok(())
}

/// `delivery` and the deprecated `enable_auto_commit` (L11–L15).
fn read_delivery(section: &Section<'_, '_>) -> (DeliveryGuarantee, DeliveryReason) {
    use DeliveryGuarantee::{AtLeastOnce, AtMostOnce, ExactlyOnce};
    let chosen = section.optional_choice(
        "delivery",
        &[("at_most_once", AtMostOnce), ("at_least_once", AtLeastOnce), ("exactly_once", ExactlyOnce)],
    );
    let auto_commit = section.optional_truth("enable_auto_commit");
    if let (Some(chosen), Some(auto_commit)) = (chosen, auto_commit) {
        let conflict = match chosen {
            AtMostOnce => !auto_commit,
            AtLeastOnce | ExactlyOnce => auto_commit,
        };
        if conflict {
            section.error(
                code::DELIVERY_CONFLICT,
                "enable_auto_commit",
                format!("enable_auto_commit: {auto_commit} contradicts delivery: {}", chosen.as_str()),
                "take enable_auto_commit out: delivery alone decides",
            );
        }
    }
    if auto_commit.is_some() {
        warn_deprecated(section, "enable_auto_commit", "`delivery` decides when offsets are committed", {
            match (chosen, auto_commit) {
                (Some(_), _) => "take it out",
                (None, Some(false)) => "write delivery: at_least_once instead, which it means",
                (None, _) => {
                    "write delivery: at_most_once instead, which it means; at_least_once loses nothing"
                }
            }
        });
    }
    let (delivery, reason) = match (chosen, auto_commit) {
        (Some(chosen), _) => (chosen, DeliveryReason::Chosen),
        (None, Some(false)) => (AtLeastOnce, DeliveryReason::AutoCommit(false)),
        (None, Some(true)) => (AtMostOnce, DeliveryReason::AutoCommit(true)),
        (None, None) => (AtMostOnce, DeliveryReason::Unset),
    };
    if reason == DeliveryReason::Unset && !section.has("delivery") {
        section.reader.report(
            Problem::warning(
                code::DELIVERY_UNSET,
                section.at("delivery"),
                section.origin(),
                "delivery is not set, and that means at_most_once: a crash loses records",
            )
            .advise("write delivery: at_least_once, or at_most_once if that is what you want"),
        );
    }
    if chosen.is_none() && !section.has("delivery") {
        section.note_derived("delivery", delivery.as_str());
    }
    (delivery, reason)
}

/// Warns of a group that is another one at the next start (L3).
fn check_group_id(section: &Section<'_, '_>, group_id: &str, environment: &super::layers::Environment) {
    const SHORTEST_HOST: usize = 4;
    let hostname = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let hosts = [
        hostname.trim(),
        environment.get("HOSTNAME").unwrap_or(""),
        environment.get("POD_NAME").unwrap_or(""),
    ];
    let pid = std::process::id().to_string();
    let parts: Vec<&str> = group_id.split(['-', '_', '.']).collect();
    let random = |part: &&str| {
        part.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit())
            && part.chars().any(|c| c.is_ascii_digit())
    };
    let pod_like = matches!(parts.as_slice(), [.., set, pod]
        if (8..=10).contains(&set.len()) && pod.len() == 5 && random(set) && random(pod));
    let found = if let Some(host) = hosts
        .into_iter()
        .find(|host| host.len() >= SHORTEST_HOST && *host != "localhost" && group_id.contains(*host))
    {
        format!("it contains the name of this host, `{host}`")
    } else if pid.len() >= 3 && parts.contains(&pid.as_str()) {
        format!("it contains the id of this process, {pid}")
    } else if group_id.contains(['{', '}', '%']) || group_id.contains("$(") {
        "it contains a template".to_string()
    } else if pod_like {
        "it ends like the name of a pod".to_string()
    } else {
        return;
    };
    let node = section.get("group_id").map_or_else(Origin::default, |node| node.origin.clone());
    section.reader.report(
        Problem::warning(
            code::GROUP_ID_UNSTABLE,
            section.at("group_id"),
            &node,
            format!("the group `{group_id}` may have another name at the next start: {found}"),
        )
        .advise("give the group one name per service: a group with a new name knows no offsets"),
    );
}

fn read_security(section: Section<'_, '_>) -> SecuritySettings {
    use SecurityProtocol::{Plaintext, SaslPlaintext, SaslSsl, Ssl};
    let path = |key| section.text(key).map(PathBuf::from);
    let username = section.text("username");
    let password = super::settings::read_secret(&section, "password", "password_file");
    let ca_file = path("ca_file");
    let certificate_file = path("certificate_file");
    let key_file = path("key_file");
    let key_password = super::settings::read_secret(&section, "key_password", "key_password_file");
    let mechanism = section.optional_choice(
        "mechanism",
        &[
            ("PLAIN", "PLAIN"),
            ("SCRAM-SHA-256", "SCRAM-SHA-256"),
            ("SCRAM-SHA-512", "SCRAM-SHA-512"),
            (OAUTHBEARER, OAUTHBEARER),
        ],
    );
    let token = read_token(&section);
    let protocol = section.choice(
        "protocol",
        Plaintext,
        &[("plaintext", Plaintext), ("ssl", Ssl), ("sasl_plaintext", SaslPlaintext), ("sasl_ssl", SaslSsl)],
    );
    let verify_hostname = section.optional_truth("verify_hostname").unwrap_or(true);
    let by_token = mechanism == Some(OAUTHBEARER);
    if protocol.is_sasl() {
        let needed: &[(&str, bool)] = match by_token {
            true => &[("mechanism", true)],
            false => &[
                ("mechanism", mechanism.is_some()),
                ("username", username.is_some()),
                ("password", password.is_some()),
            ],
        };
        for (key, present) in needed {
            let wrong_but_there = section.has(key) || (*key == "password" && section.has("password_file"));
            if !present && !wrong_but_there {
                section.missing(key, format!("the protocol {} needs it", protocol.as_str()));
            }
        }
    } else if mechanism.is_some() || username.is_some() {
        section.error(
            code::INVALID_VALUE,
            "protocol",
            format!("the protocol {} does not log in", protocol.as_str()),
            "write protocol: sasl_ssl or sasl_plaintext",
        );
    }
    let has_token = section.has(TOKEN_COMMAND) || section.has(TOKEN_FILE);
    if by_token && !has_token {
        section.missing(TOKEN_COMMAND, "OAUTHBEARER needs it, or token_file: it says where tokens come from");
    }
    for key in [TOKEN_COMMAND, TOKEN_FILE].into_iter().filter(|key| !by_token && section.has(key)) {
        section.error(
            code::INVALID_VALUE,
            key,
            "only the mechanism OAUTHBEARER logs in with a token",
            "write mechanism: OAUTHBEARER, or take it out",
        );
    }
    for key in ["username", "password", "password_file"] {
        if by_token && section.has(key) {
            section.error(code::INVALID_VALUE, key, "OAUTHBEARER logs in with a token alone", "take it out");
        }
    }
    for (key, file) in
        [("ca_file", &ca_file), ("certificate_file", &certificate_file), ("key_file", &key_file)]
    {
        if let Some(file) = file
            && !file.is_file()
        {
            section.error(code::INVALID_VALUE, key, format!("there is no file {}", file.display()), "");
        }
    }
    section.finish();
    SecuritySettings {
        protocol,
        mechanism,
        username,
        password,
        token,
        ca_file,
        certificate_file,
        key_file,
        key_password,
        verify_hostname,
    }
}

const OAUTHBEARER: &str = "OAUTHBEARER";
const TOKEN_COMMAND: &str = "token_command";
const TOKEN_FILE: &str = "token_file";

/// Where the tokens of `OAUTHBEARER` come from. Of a command only the program is shown: its arguments may be secrets.
fn read_token(section: &Section<'_, '_>) -> Option<TokenSource> {
    let words: Vec<String> = section.texts(TOKEN_COMMAND, &[' ']).into_iter().map(|(word, _)| word).collect();
    let words: Vec<String> = match words.as_slice() {
        [line] => line.split_whitespace().map(str::to_owned).collect(),
        _ => words,
    };
    let file = section.text(TOKEN_FILE).map(PathBuf::from);
    if section.has(TOKEN_COMMAND) {
        match words.first() {
            Some(program) => section.note_derived(TOKEN_COMMAND, format!("{program} ********")),
            None => section.error(
                code::INVALID_VALUE,
                TOKEN_COMMAND,
                "the command has no words",
                "name a program that prints a token: token_command: [\"/usr/local/bin/kafka-token\"]",
            ),
        }
        if section.has(TOKEN_FILE) {
            let message = format!("`{TOKEN_COMMAND}` and `{TOKEN_FILE}` are both given");
            section.error(code::INVALID_VALUE, TOKEN_FILE, message, "give one of them");
        }
    }
    match words.is_empty() {
        true => file.map(TokenSource::File),
        false => Some(TokenSource::Command(words)),
    }
}

/// Keys of librdkafka that have an option of their own. What else is not for `extra` the clients know:
/// [`refusal`].
const OPTIONS: &[(&str, &str)] = &[
    ("bootstrap.servers", "write brokers"),
    ("metadata.broker.list", "write brokers"),
    ("group.id", "write group_id"),
    ("client.id", "write client_id"),
    (
        "auto.commit.interval.ms",
        "see recovery.commit_interval: offsets are committed at the end of commit epochs",
    ),
    (
        "auto.offset.reset",
        "write auto_offset_reset: it applies only where neither store nor group knows an offset",
    ),
    ("isolation.level", "write isolation"),
    ("transaction.timeout.ms", "write exactly_once: { transaction_timeout: … }"),
    ("linger.ms", "write linger"),
    ("queue.buffering.max.ms", "write linger"),
    ("compression.type", "write compression"),
    ("compression.codec", "write compression"),
    ("partitioner", "it is that of the Java client (murmur2_random), so that a key stays on its partition"),
    ("security.protocol", "write security: { protocol: … }"),
    ("sasl.mechanism", "write security: { mechanism: … }"),
    ("sasl.mechanisms", "write security: { mechanism: … }"),
    ("sasl.username", "write security: { username: … }"),
    ("sasl.password", "write security: { password_file: … }, which is not shown anywhere"),
    ("sasl.oauthbearer.config", "write security: { token_command: … } or { token_file: … }"),
    ("sasl.oauthbearer.method", "write security: { token_command: … } or { token_file: … }"),
    ("ssl.ca.location", "write security: { ca_file: … }"),
    ("ssl.certificate.location", "write security: { certificate_file: … }"),
    ("ssl.key.location", "write security: { key_file: … }"),
    ("ssl.key.password", "write security: { key_password_file: … }, which is not shown anywhere"),
    ("ssl.endpoint.identification.algorithm", "write security: { verify_hostname: … }"),
];

fn read_extra(section: Section<'_, '_>) -> Extra {
    let mut extra = Vec::new();
    for field in section.fields() {
        let path = section.at(&field.name);
        let option = OPTIONS.iter().find(|(key, _)| *key == field.name).map(|(_, why)| *why);
        if let Some(why) = option.or_else(|| refusal(&field.name)) {
            section.reader.report(
                Problem::error(
                    code::INVALID_VALUE,
                    path,
                    &field.origin,
                    format!("`{}` is not for extra: Tidegate decides on it", field.name),
                )
                .advise(why),
            );
            continue;
        }
        match &field.node.data {
            Data::Scalar(scalar) => {
                let shown = if Extra::is_secret(&field.name) { "********" } else { &scalar.text };
                section.reader.note(path, shown.to_owned(), field.node.origin.clone());
                extra.push((field.name.clone(), scalar.text.clone()));
            }
            // The message would show what was found: a secret is never shown.
            _ if Extra::is_secret(&field.name) => {
                let message = format!("`{}` needs text", field.name);
                section.reader.report(Problem::error(code::INVALID_VALUE, path, &field.origin, message));
            }
            _ => section.reader.invalid(&field.node, &path, "text or a number"),
        }
    }
    Extra(extra)
}
