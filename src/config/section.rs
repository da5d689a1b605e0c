//! Reads the options of a section one by one, and knows at the end which keys nobody asked for.

use super::layers::join;
use super::nearest;
use super::problems::{Problem, code};
use super::reader::Reader;
use super::units;
use super::yaml::{Data, Field, Node, Origin, Plain};
use crate::expression::{Expression, Names};
use std::cell::RefCell;
use std::ops::RangeInclusive;
use std::time::Duration;

/// A section of the configuration. Each key that is asked for is known; [`Section::finish`] reports the rest.
pub(super) struct Section<'r, 'n> {
    pub(super) reader: &'r Reader,
    pub(super) path: String,
    fields: &'n [Field],
    origin: Origin,
    known: RefCell<Vec<&'static str>>,
    later: RefCell<Vec<(&'static str, &'static str)>>,
    also: RefCell<Vec<(&'static str, &'static str)>>,
    missing: RefCell<Vec<(&'static str, Problem)>>,
}

impl<'r, 'n> Section<'r, 'n> {
    /// Opens a node as a section; an absent or empty one has no keys.
    pub(super) fn open(
        reader: &'r Reader,
        node: Option<&'n Node>,
        path: impl Into<String>,
    ) -> Section<'r, 'n> {
        let path = path.into();
        let (fields, origin) = match node {
            None => (&[][..], Origin::Default),
            Some(node) => match &node.data {
                Data::Map(fields) => (fields.as_slice(), node.origin.clone()),
                _ if node.is_null() => (&[][..], node.origin.clone()),
                _ => {
                    reader.invalid(node, &path, "a map of options");
                    (&[][..], node.origin.clone())
                }
            },
        };
        Section {
            reader,
            path,
            fields,
            origin,
            known: RefCell::default(),
            later: RefCell::default(),
            also: RefCell::default(),
            missing: RefCell::default(),
        }
    }

    /// Where the section stands.
    pub(super) fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Path of a key of this section.
    pub(super) fn at(&self, key: &str) -> String {
        join(&self.path, key)
    }

    /// The value of a key; an empty one counts as absent.
    pub(super) fn get(&self, key: &'static str) -> Option<&'n Node> {
        self.known.borrow_mut().push(key);
        self.fields
            .iter()
            .find(|field| field.name == key)
            .map(|field| &field.node)
            .filter(|node| !node.is_null())
    }

    /// Whether the key is there, empty or not.
    pub(super) fn has(&self, key: &str) -> bool {
        self.fields.iter().any(|field| field.name == key)
    }

    /// A section below this one.
    pub(super) fn section(&self, key: &'static str) -> Section<'r, 'n> {
        Section::open(self.reader, self.get(key), self.at(key))
    }

    /// A key that a later version brings: refused with a plain word instead of being unknown.
    pub(super) fn later(&self, key: &'static str, what: &'static str) {
        self.later.borrow_mut().push((key, what));
    }

    /// What `key` may also be, besides the words of its choice.
    pub(super) fn also(&self, key: &'static str, form: &'static str) {
        self.also.borrow_mut().push((key, form));
    }

    /// Reports an error at a key, or at the section where the key is absent.
    pub(super) fn error(
        &self,
        code: &'static str,
        key: &str,
        message: impl Into<String>,
        advice: impl Into<String>,
    ) {
        let node = self.fields.iter().find(|field| field.name == key).map(|field| &field.node.origin);
        let path = if key.is_empty() { self.path.clone() } else { self.at(key) };
        self.reader.report(Problem::error(code, path, node.unwrap_or(&self.origin), message).advise(advice));
    }

    /// Notes that a key is missing; [`Section::finish`] reports it, unless it is there but misspelt.
    pub(super) fn missing(&self, key: &'static str, advice: impl Into<String>) {
        let problem =
            Problem::error(code::INVALID_VALUE, self.at(key), &self.origin, format!("`{key}` is missing"))
                .advise(advice);
        self.missing.borrow_mut().push((key, problem));
    }

    fn note(&self, key: &str, value: impl Into<String>, node: Option<&Node>) {
        let origin = node.map_or(Origin::Default, |node| node.origin.clone());
        self.reader.note(self.at(key), value.into(), origin);
    }

    /// Notes a setting that is derived from others.
    pub(super) fn note_derived(&self, key: &'static str, value: impl Into<String>) {
        let node = self.fields.iter().find(|field| field.name == key).map(|field| &field.node);
        self.note(key, value, node);
    }

    /// Text.
    pub(super) fn text(&self, key: &'static str) -> Option<String> {
        let node = self.get(key)?;
        let text = self.reader.text_of(node, &self.at(key))?;
        self.note(key, &text, Some(node));
        Some(text)
    }

    /// Text that is never shown.
    pub(super) fn secret(&self, key: &'static str) -> Option<String> {
        let node = self.get(key)?;
        let text = match &node.data {
            Data::Scalar(scalar) => scalar.text.clone(),
            // The message would show what was found: a secret is never shown.
            _ => {
                self.error(code::INVALID_VALUE, key, "text is needed", "");
                return None;
            }
        };
        self.note(key, "********", Some(node));
        Some(text)
    }

    /// A list of texts; one alone may stand without brackets.
    pub(super) fn texts(&self, key: &'static str, separators: &[char]) -> Vec<(String, Origin)> {
        let Some(node) = self.get(key) else { return Vec::new() };
        let texts = self.reader.texts(node, &self.at(key), separators);
        let shown: Vec<&str> = texts.iter().map(|(text, _)| text.as_str()).collect();
        self.note(key, format!("[{}]", shown.join(", ")), Some(node));
        texts
    }

    /// A whole number in a range.
    pub(super) fn integer(&self, key: &'static str, default: u64, range: RangeInclusive<u64>) -> u64 {
        let value = self.optional_integer(key, range).unwrap_or(default);
        if !self.has(key) {
            self.note(key, value.to_string(), None);
        }
        value
    }

    /// A whole number in a range, if it is given.
    pub(super) fn optional_integer(&self, key: &'static str, range: RangeInclusive<u64>) -> Option<u64> {
        let node = self.get(key)?;
        let needed = || match *range.end() {
            u64::MAX => format!("a whole number of at least {}", range.start()),
            end => format!("a whole number from {} to {end}", range.start()),
        };
        let value = match &node.data {
            Data::Scalar(scalar) => match scalar.resolve() {
                Plain::Int(number) => u64::try_from(number).ok().filter(|number| range.contains(number)),
                _ => None,
            },
            _ => None,
        };
        match value {
            Some(value) => self.note(key, value.to_string(), Some(node)),
            None => self.reader.invalid(node, &self.at(key), &needed()),
        }
        value
    }

    /// A number of bytes.
    pub(super) fn size(&self, key: &'static str, default: u64, range: RangeInclusive<u64>) -> u64 {
        let Some(node) = self.get(key) else {
            self.note(key, units::show_size(default), None);
            return default;
        };
        let parsed = match &node.data {
            Data::Scalar(scalar) => units::parse_size(&scalar.text),
            _ => Err(format!("found {}", node.describe())),
        };
        match parsed {
            Ok(bytes) if range.contains(&bytes) => {
                self.note(key, units::show_size(bytes), Some(node));
                bytes
            }
            Ok(bytes) => {
                let bounds = format!(
                    "{} is not between {} and {}",
                    units::show_size(bytes),
                    units::show_size(*range.start()),
                    units::show_size(*range.end())
                );
                self.error(code::INVALID_VALUE, key, bounds, "");
                default
            }
            Err(message) => {
                self.error(code::INVALID_VALUE, key, message, format!("write {}", units::SIZE_FORM));
                default
            }
        }
    }

    /// A duration with a default.
    pub(super) fn duration(
        &self,
        key: &'static str,
        default: Duration,
        range: RangeInclusive<Duration>,
    ) -> Duration {
        let value = self.optional_duration(key, range).unwrap_or(default);
        if !self.has(key) {
            self.note(key, units::show_duration(value), None);
        }
        value
    }

    /// A duration, if it is given.
    pub(super) fn optional_duration(
        &self,
        key: &'static str,
        range: RangeInclusive<Duration>,
    ) -> Option<Duration> {
        let node = self.get(key)?;
        let parsed = match &node.data {
            Data::Scalar(scalar) => units::parse_duration(&scalar.text),
            _ => Err(format!("found {}", node.describe())),
        };
        match parsed {
            Ok(duration) if range.contains(&duration) => {
                self.note(key, units::show_duration(duration), Some(node));
                Some(duration)
            }
            Ok(duration) => {
                let message = format!(
                    "{} is not between {} and {}",
                    units::show_duration(duration),
                    units::show_duration(*range.start()),
                    units::show_duration(*range.end())
                );
                self.error(code::INVALID_VALUE, key, message, "");
                None
            }
            Err(message) => {
                self.error(code::INVALID_VALUE, key, message, format!("write {}", units::DURATION_FORM));
                None
            }
        }
    }

    /// Milliseconds under a legacy key, whose value is a plain integer.
    pub(super) fn millis(&self, key: &'static str, default: u64, range: RangeInclusive<u64>) -> Duration {
        let number = self.get(key).map(|node| &node.data);
        if let Some(Data::Scalar(scalar)) = number
            && units::parse_duration(&scalar.text).is_ok_and(|duration| duration > Duration::ZERO)
        {
            let message =
                format!("found {} where a plain number of milliseconds is needed", scalar.resolve());
            self.error(code::INVALID_VALUE, key, message, "this legacy option has its unit in its name");
            return Duration::from_millis(default);
        }
        Duration::from_millis(self.integer(key, default, range))
    }

    /// A truth value, if it is given.
    pub(super) fn optional_truth(&self, key: &'static str) -> Option<bool> {
        let node = self.get(key)?;
        let value = match &node.data {
            Data::Scalar(scalar) => match scalar.resolve() {
                Plain::Bool(truth) => Some(truth),
                _ => None,
            },
            _ => None,
        };
        match value {
            Some(truth) => self.note(key, truth.to_string(), Some(node)),
            None => self.reader.invalid(node, &self.at(key), "true or false"),
        }
        value
    }

    /// One of some words, if it is given.
    pub(super) fn optional_choice<T: Copy>(
        &self,
        key: &'static str,
        choices: &[(&'static str, T)],
    ) -> Option<T> {
        let node = self.get(key)?;
        let found = match &node.data {
            Data::Scalar(scalar) => Some(scalar.text.as_str()),
            _ => None,
        };
        if let Some((word, value)) = choices.iter().find(|(word, _)| Some(*word) == found) {
            self.note(key, *word, Some(node));
            return Some(*value);
        }
        let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
        let near = found.and_then(|found| nearest(found, words.iter().copied()));
        let also = self.also.borrow();
        let forms = also.iter().filter(|(of, _)| *of == key).map(|(_, form)| *form);
        let allowed = words.into_iter().chain(forms).collect::<Vec<_>>().join(", ");
        let advice = near.map_or_else(
            || format!("allowed are {allowed}"),
            |near| format!("did you mean `{near}`? allowed are {allowed}"),
        );
        self.error(code::INVALID_VALUE, key, format!("{} is not allowed here", node.describe()), advice);
        None
    }

    /// One of some words; the first of the given default counts when the key is absent.
    pub(super) fn choice<T: Copy + PartialEq>(
        &self,
        key: &'static str,
        default: T,
        choices: &[(&'static str, T)],
    ) -> T {
        let value = self.optional_choice(key, choices);
        if !self.has(key)
            && let Some((word, _)) = choices.iter().find(|(_, value)| *value == default)
        {
            self.note(key, *word, None);
        }
        value.unwrap_or(default)
    }

    /// An expression, if it is given.
    pub(super) fn expression(&self, key: &'static str, names: Names) -> Option<Expression> {
        let node = self.get(key)?;
        self.reader.expression(node, &self.at(key), names)
    }

    /// The fields of this section that nobody asked for, for a map whose keys the user chooses.
    pub(super) fn fields(&self) -> &'n [Field] {
        self.fields
    }

    /// Reports every key that nobody asked for.
    pub(super) fn finish(self) {
        let known = self.known.borrow();
        let later = self.later.borrow();
        let mut misspelt = Vec::new();
        for field in self.fields {
            if known.contains(&field.name.as_str()) {
                continue;
            }
            let path = self.at(&field.name);
            if let Some((_, what)) = later.iter().find(|(key, _)| *key == field.name) {
                self.reader.report(
                    Problem::error(
                        code::UNKNOWN_OPTION,
                        path,
                        &field.origin,
                        format!("{what} is not available in this version"),
                    )
                    .advise("take it out"),
                );
                continue;
            }
            let allowed = || {
                let mut keys: Vec<&str> = known.clone();
                keys.sort_unstable();
                keys.dedup();
                format!("the options here are {}", keys.join(", "))
            };
            let near = nearest(&field.name, known.iter().copied());
            misspelt.extend(near);
            let advice = match near {
                Some(near) => format!("did you mean `{near}`?"),
                None if known.is_empty() => "there are no options here".into(),
                None => allowed(),
            };
            self.reader.report(
                Problem::error(
                    code::UNKNOWN_OPTION,
                    path,
                    &field.origin,
                    format!("there is no option `{}`", field.name),
                )
                .advise(advice),
            );
        }
        for (key, problem) in self.missing.take() {
            if !misspelt.contains(&key) {
                self.reader.report(problem);
            }
        }
    }
}
