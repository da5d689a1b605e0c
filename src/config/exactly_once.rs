//! The section `exactly_once`: what transactions need besides the steps.

use super::kafka_reader::check_topic;
use super::problems::code;
use super::section::Section;
use super::units::show_duration;
use std::time::Duration;

/// The section `exactly_once`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExactlyOnceSettings {
    /// Where the markers stand; `None` means `<flow>.tidegate`.
    pub control_topic: Option<String>,
    /// Replicas of a control topic that is missing; `None` refuses a missing one.
    pub create_replication: Option<i32>,
    /// After this time the broker aborts a transaction that nobody ended.
    pub transaction_timeout: Duration,
    /// How long an answer is waited for before its transaction counts as one of unknown outcome.
    pub request_timeout: Duration,
}

impl ExactlyOnceSettings {
    /// The control topic of this flow.
    pub fn control_topic(&self, flow: &str) -> String {
        self.control_topic.clone().unwrap_or_else(|| format!("{flow}.tidegate"))
    }

    pub(super) fn read(section: Section<'_, '_>) -> ExactlyOnceSettings {
        let control_topic = section.text("control_topic").filter(|topic| {
            check_topic(topic)
                .map_err(|(message, advice)| {
                    section.error(code::INVALID_VALUE, "control_topic", message, advice)
                })
                .is_ok()
        });
        if control_topic.is_none() {
            section.note_derived("control_topic", "<flow>.tidegate");
        }
        let create_replication = section.get("create").map(|_| {
            let inner = section.section("create");
            let replication = inner.integer("replication", 1, 1..=1000) as i32;
            inner.finish();
            replication
        });
        let transaction_timeout = section.duration(
            "transaction_timeout",
            Duration::from_secs(60),
            Duration::from_secs(1)..=Duration::from_secs(86_400),
        );
        let request_timeout = section.duration(
            "request_timeout",
            Duration::from_secs(30).min(transaction_timeout),
            Duration::from_millis(100)..=Duration::from_secs(86_400),
        );
        if request_timeout > transaction_timeout {
            section.error(
                code::INVALID_VALUE,
                "request_timeout",
                format!(
                    "{} is longer than transaction_timeout, which is {}",
                    show_duration(request_timeout),
                    show_duration(transaction_timeout)
                ),
                "an answer that comes later would be about a transaction that the broker has ended",
            );
        }
        section.finish();
        ExactlyOnceSettings { control_topic, create_replication, transaction_timeout, request_timeout }
    }
}
