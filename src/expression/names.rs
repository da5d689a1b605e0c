//! The names that an expression may use.

use std::fmt;

/// A name with a meaning in an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Name {
    /// The record's key.
    Key,
    /// The record's value.
    Value,
    /// The record's headers.
    Headers,
    /// The record's timestamp in milliseconds.
    Timestamp,
    /// The topic it was read from.
    Topic,
    /// The partition it was read from.
    Partition,
    /// Its offset there.
    Offset,
    /// The state of its key, in a `stateful_map`.
    State,
}

const ALL: [Name; 8] = [
    Name::Key,
    Name::Value,
    Name::Headers,
    Name::Timestamp,
    Name::Topic,
    Name::Partition,
    Name::Offset,
    Name::State,
];

impl Name {
    /// The name as it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Name::Key => "key",
            Name::Value => "value",
            Name::Headers => "headers",
            Name::Timestamp => "timestamp",
            Name::Topic => "topic",
            Name::Partition => "partition",
            Name::Offset => "offset",
            Name::State => "state",
        }
    }

    /// The name that is written so.
    pub fn parse(text: &str) -> Option<Name> {
        ALL.into_iter().find(|name| name.as_str() == text)
    }
}

/// A set of names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Names(u8);

impl Names {
    /// No name.
    pub const NONE: Names = Names(0);
    /// The names of a record.
    pub const RECORD: Names = Names(0b0111_1111);
    /// The names of a record, and `state`.
    pub const RECORD_AND_STATE: Names = Names(0b1111_1111);

    /// Whether `name` is in the set.
    pub fn contains(self, name: Name) -> bool {
        self.0 & (1 << name as u8) != 0
    }

    /// The set with `name` in it.
    pub fn with(self, name: Name) -> Names {
        Names(self.0 | 1 << name as u8)
    }

    /// The names in the set.
    pub fn iter(self) -> impl Iterator<Item = Name> {
        ALL.into_iter().filter(move |name| self.contains(*name))
    }
}

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, name) in self.iter().enumerate() {
            write!(f, "{}{}", if at > 0 { ", " } else { "" }, name.as_str())?;
        }
        Ok(())
    }
}
