//! What stands on the control topic: markers, and the tokens that prove a reader to be up to date.
//!
//! Keys and values are lines of text, so that any consumer shows what they say:
//!
//! | key | value |
//! |---|---|
//! | `<store id>/<slot>` | `1 generation=<n> epoch=<n>` |
//! | `<store id>/<slot>/token` | `1 nonce=<n> count=<n>` |
//!
//! The first number of a value is the version of its format.

use crate::{Epoch, Generation, Slot, StoreId};
use std::fmt;

/// A slot has published everything up to an epoch. It is part of the transaction that made this true.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Marker {
    /// Who published it.
    pub generation: Generation,
    /// The newest epoch that is published; all older ones are too.
    pub epoch: Epoch,
}

/// A marker and whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SeenMarker {
    /// The store.
    pub store: StoreId,
    /// The slot.
    pub slot: Slot,
    /// What it says.
    pub marker: Marker,
}

/// Written to the control topic by somebody who then reads until it comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token {
    /// Drawn at random for the machine that wrote it.
    pub nonce: u64,
    /// Which of that machine's tokens it is.
    pub count: u64,
}

/// The key of a record of the control topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ControlKey {
    /// The slot's marker.
    Marker(StoreId, Slot),
    /// The slot's token.
    Token(StoreId, Slot),
}

impl fmt::Display for ControlKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ControlKey::Marker(store, slot) => write!(f, "{store}/{slot}"),
            ControlKey::Token(store, slot) => write!(f, "{store}/{slot}/token"),
        }
    }
}

impl ControlKey {
    /// Reads a key; `None` when it is none of ours.
    pub fn parse(key: &[u8]) -> Option<ControlKey> {
        let text = std::str::from_utf8(key).ok()?;
        let mut parts = text.split('/');
        let store = StoreId(u128::from_str_radix(parts.next()?, 16).ok()?);
        let slot = Slot(parts.next()?.parse().ok()?);
        let key = match parts.next() {
            None => ControlKey::Marker(store, slot),
            Some(_) => ControlKey::Token(store, slot),
        };
        // One spelling only.
        (key.to_string() == text).then_some(key)
    }
}

impl fmt::Display for Marker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "1 generation={} epoch={}", self.generation, self.epoch)
    }
}

impl Marker {
    /// Reads a value; `None` when it is no marker that this build understands.
    pub fn parse(value: &[u8]) -> Option<Marker> {
        let [generation, epoch] = numbers(value, ["generation=", "epoch="])?;
        let marker = Marker { generation: Generation(generation), epoch: Epoch(epoch) };
        (marker.to_string().as_bytes() == value).then_some(marker)
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "1 nonce={} count={}", self.nonce, self.count)
    }
}

impl Token {
    /// Reads a value; `None` when it is no token that this build understands.
    pub fn parse(value: &[u8]) -> Option<Token> {
        let [nonce, count] = numbers(value, ["nonce=", "count="])?;
        let token = Token { nonce, count };
        (token.to_string().as_bytes() == value).then_some(token)
    }
}

fn numbers(value: &[u8], names: [&str; 2]) -> Option<[u64; 2]> {
    let text = std::str::from_utf8(value).ok()?;
    let mut words = text.strip_prefix("1 ")?.split(' ');
    let mut number = |name| words.next()?.strip_prefix(name)?.parse().ok();
    Some([number(names[0])?, number(names[1])?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_on_the_control_topic_is_as_it_was() {
        let store = StoreId(0xfeed_0000_0000_0000_0000_0000_0000_0001);
        let marker = Marker { generation: Generation(7), epoch: Epoch(300) };
        let token = Token { nonce: u64::MAX, count: 2 };
        for (key, text) in [
            (ControlKey::Marker(store, Slot(3)), "feed0000000000000000000000000001/3"),
            (ControlKey::Token(store, Slot(0)), "feed0000000000000000000000000001/0/token"),
        ] {
            assert_eq!(key.to_string(), text);
            assert_eq!(ControlKey::parse(text.as_bytes()), Some(key));
        }
        assert_eq!(marker.to_string(), "1 generation=7 epoch=300");
        assert_eq!(Marker::parse(b"1 generation=7 epoch=300"), Some(marker));
        assert_eq!(token.to_string(), "1 nonce=18446744073709551615 count=2");
        assert_eq!(Token::parse(token.to_string().as_bytes()), Some(token));
    }

    #[test]
    fn what_is_spelled_otherwise_is_not_ours() {
        for key in
            ["", "feed/0", "feed0000000000000000000000000001/03", "feed0000000000000000000000000001/0/"]
        {
            assert_eq!(ControlKey::parse(key.as_bytes()), None, "{key}");
        }
        for value in [
            "2 generation=7 epoch=300",
            "1 generation=7",
            "1 generation=7 epoch=300 ",
            "1 epoch=1 generation=2",
        ] {
            assert_eq!(Marker::parse(value.as_bytes()), None, "{value}");
        }
    }
}
