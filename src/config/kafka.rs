//! The sections `kafka.consumer` and `kafka.producer`.

use super::settings::Secret;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

pub use tidegate_operators::kafka::TokenSource;
pub use tidegate_operators::process::DeliveryGuarantee;

/// What decided on the delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryReason {
    /// The option `delivery`.
    Chosen,
    /// The deprecated `enable_auto_commit`.
    AutoCommit(bool),
    /// Neither: what old configurations expect.
    Unset,
}

/// Where a partition starts that neither the store nor the group knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffsetReset {
    /// At the start of its log.
    Earliest,
    /// At its end, made durable before reading.
    Latest,
    /// Nowhere: the start fails.
    Error,
}

/// What to do when the offset to go on from is not in the log any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutOfRange {
    /// Stop, and say how much is gone.
    Fail,
    /// Go on at the start of the log, with a warning and a count.
    Earliest,
    /// Go on at its end, with a warning and a count.
    Latest,
}

/// What becomes of a record without a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tombstones {
    /// Stepped over.
    Skip,
    /// Delivered, with a null value.
    Deliver,
}

/// Which records of transactions a consumer sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// Those that are committed.
    ReadCommitted,
    /// All.
    ReadUncommitted,
}

/// How a client reaches the brokers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecurityProtocol {
    /// In the clear.
    Plaintext,
    /// TLS.
    Ssl,
    /// SASL in the clear.
    SaslPlaintext,
    /// SASL over TLS.
    SaslSsl,
}

impl SecurityProtocol {
    /// The value of librdkafka's `security.protocol`.
    pub fn as_str(self) -> &'static str {
        match self {
            SecurityProtocol::Plaintext => "plaintext",
            SecurityProtocol::Ssl => "ssl",
            SecurityProtocol::SaslPlaintext => "sasl_plaintext",
            SecurityProtocol::SaslSsl => "sasl_ssl",
        }
    }

    /// Whether the connection is encrypted.
    pub fn is_tls(self) -> bool {
        matches!(self, SecurityProtocol::Ssl | SecurityProtocol::SaslSsl)
    }

    pub(super) fn is_sasl(self) -> bool {
        matches!(self, SecurityProtocol::SaslPlaintext | SecurityProtocol::SaslSsl)
    }
}

/// Options of librdkafka by name. Any of them may hold a secret, so they are not shown with their values.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Extra(pub Vec<(String, String)>);

impl Extra {
    /// Whether the option is a secret by its name.
    pub fn is_secret(name: &str) -> bool {
        ["password", "secret", "token", "pem", "jaas", "oauthbearer.config"]
            .iter()
            .any(|part| name.to_ascii_lowercase().contains(part))
    }
}

impl fmt::Debug for Extra {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

/// How a client proves who it is, and how it trusts the brokers.
#[derive(Clone, Debug, PartialEq)]
pub struct SecuritySettings {
    /// How the brokers are reached.
    pub protocol: SecurityProtocol,
    /// SASL mechanism: `PLAIN`, `SCRAM-SHA-256`, `SCRAM-SHA-512` or `OAUTHBEARER`.
    pub mechanism: Option<&'static str>,
    /// SASL user.
    pub username: Option<String>,
    /// SASL password.
    pub password: Option<Secret>,
    /// Where the tokens of `OAUTHBEARER` come from.
    pub token: Option<TokenSource>,
    /// Certificates that are trusted (PEM); `None` means those of the system.
    pub ca_file: Option<PathBuf>,
    /// Own certificate (PEM).
    pub certificate_file: Option<PathBuf>,
    /// Own private key (PEM).
    pub key_file: Option<PathBuf>,
    /// Password of the private key.
    pub key_password: Option<Secret>,
    /// Whether the broker's certificate must name the host; on unless switched off.
    pub verify_hostname: bool,
}

impl Default for SecuritySettings {
    fn default() -> SecuritySettings {
        SecuritySettings {
            protocol: SecurityProtocol::Plaintext,
            mechanism: None,
            username: None,
            password: None,
            token: None,
            ca_file: None,
            certificate_file: None,
            key_file: None,
            key_password: None,
            verify_hostname: true,
        }
    }
}

/// The section `kafka.consumer`.
#[derive(Clone, Debug, PartialEq)]
pub struct ConsumerSettings {
    /// Brokers to begin with.
    pub brokers: Vec<String>,
    /// The group that stores the offsets.
    pub group_id: String,
    /// Topics to read, where the flow does not name its streams.
    pub topics: Vec<String>,
    /// The effective guarantee.
    pub delivery: DeliveryGuarantee,
    /// What decided on it.
    pub delivery_reason: DeliveryReason,
    /// Where an unknown partition starts.
    pub auto_offset_reset: OffsetReset,
    /// What to do when an offset is gone.
    pub on_out_of_range: OutOfRange,
    /// Records without a value.
    pub tombstones: Tombstones,
    /// Records of transactions.
    pub isolation: Isolation,
    /// Records of one poll.
    pub batch_size: usize,
    /// Pause after an empty poll.
    pub poll_backoff: Duration,
    /// How often an idle partition's offset is committed again.
    pub commit_keepalive: Duration,
    /// Bytes that one worker has emitted and the flow has not passed.
    pub in_flight_bytes: u64,
    /// Records that one worker has emitted and the flow has not passed.
    pub in_flight_records: u64,
    /// `client.id`; `None` means the flow's name.
    pub client_id: Option<String>,
    /// How the brokers are reached.
    pub security: SecuritySettings,
    /// Further options of librdkafka.
    pub extra: Extra,
}

/// The section `kafka.producer`.
#[derive(Clone, Debug, PartialEq)]
pub struct ProducerSettings {
    /// Brokers to begin with; those of the consumer when the section names none.
    pub brokers: Vec<String>,
    /// `client.id`; `None` means the flow's name.
    pub client_id: Option<String>,
    /// How the brokers are reached; as the consumer does when the section names no brokers.
    pub security: SecuritySettings,
    /// Compression of what is written.
    pub compression: &'static str,
    /// How long a record waits for company.
    pub linger: Duration,
    /// Further options of librdkafka.
    pub extra: Extra,
}
