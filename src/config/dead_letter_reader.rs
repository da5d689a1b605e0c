//! Reads what becomes of records that a step does not take: `on_error`, `late`, `ahead`.

use super::kafka_reader::check_topic;
use super::problems::code;
use super::section::Section;
use super::sink_reader::read_create;
use super::steps::{DeadLetters, OnError};
use super::yaml::Data;

/// Whether a record is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attempts {
    /// It is, as often as `attempts` says.
    Several,
    /// What the step says of it is final.
    One,
}

/// Attempts that nobody needs more of: they follow each other at once.
const ATTEMPTS_MAX: u64 = 1_000;

/// `on_error: fail | drop | { dead_letter: TOPIC, attempts: N }`.
pub(super) fn read_on_error(section: &Section<'_, '_>) -> OnError {
    match read_dead_letters(section, "on_error", Attempts::Several) {
        Some(letters) => letters.map_or_else(OnError::default, OnError::DeadLetter),
        None => match section.choice("on_error", "fail", &[("fail", "fail"), ("drop", "drop")]) {
            "drop" => OnError::Drop,
            _ => OnError::Fail,
        },
    }
}

/// The form `key: { dead_letter: TOPIC, … }`. `None` when the key has no options: then it is a word. `Some(None)` when
/// they are wrong, which is reported.
pub(super) fn read_dead_letters(
    section: &Section<'_, '_>,
    key: &'static str,
    attempts: Attempts,
) -> Option<Option<DeadLetters>> {
    section.also(key, "{ dead_letter: TOPIC }");
    let node = section.get(key)?;
    let Data::Map(_) = &node.data else { return None };
    let inner = section.section(key);
    let topic = inner.text("dead_letter");
    match &topic {
        None if inner.get("dead_letter").is_none() => {
            inner.missing("dead_letter", "name the topic for records that the step does not take");
        }
        None => {}
        Some(topic) => {
            if let Err((message, advice)) = check_topic(topic) {
                inner.error(code::INVALID_VALUE, "dead_letter", message, advice);
            }
        }
    }
    let tried = match attempts {
        Attempts::Several => inner.optional_integer("attempts", 1..=ATTEMPTS_MAX),
        Attempts::One => None,
    };
    let create = read_create(&inner);
    inner.finish();
    Some(topic.map(|topic| {
        let letters = DeadLetters::to(topic);
        let letters = match tried {
            Some(tried) => letters.attempts(u32::try_from(tried).unwrap_or(u32::MAX)),
            None => letters,
        };
        match create {
            Some(create) => letters.create(create.partitions, create.replication),
            None => letters,
        }
    }))
}
