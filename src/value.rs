//! The values of a YAML flow: JSON-like, cheap to clone, with the fields of a map in their declared order.
//!
//! Integers stay `i64`; a number that is no `i64` is a double. Lists, maps, strings and bytes are shared, so a
//! clone costs a counter. The serde form is what travels between processes and what state rows hold: it is
//! part of the format of the store, and pinned by a golden test.

pub mod json;
mod map;
mod rank;
pub mod time;

pub use map::Map;
pub use rank::rank;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// A value of a YAML flow.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub enum Value {
    /// Nothing; also the key or the value that a record does not have.
    #[default]
    Null,
    /// A truth value.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// Any other number.
    Double(f64),
    /// Text.
    String(Arc<str>),
    /// Bytes, as they came from Kafka.
    Bytes(Bytes),
    /// Values in their order.
    List(Arc<Vec<Value>>),
    /// Fields in their declared order.
    Map(Arc<Map>),
}

/// The type of a [`Value`], by the name that a message uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Type {
    /// [`Value::Null`].
    Null,
    /// [`Value::Bool`].
    Bool,
    /// [`Value::Int`].
    Int,
    /// [`Value::Double`].
    Double,
    /// [`Value::String`].
    String,
    /// [`Value::Bytes`].
    Bytes,
    /// [`Value::List`].
    List,
    /// [`Value::Map`].
    Map,
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Type::Null => "null",
            Type::Bool => "bool",
            Type::Int => "int",
            Type::Double => "double",
            Type::String => "string",
            Type::Bytes => "bytes",
            Type::List => "list",
            Type::Map => "map",
        })
    }
}

impl Value {
    /// Null, for whoever needs a reference to one.
    pub const NULL: &'static Value = &Value::Null;

    /// Text.
    pub fn string(text: impl AsRef<str>) -> Value {
        Value::String(Arc::from(text.as_ref()))
    }

    /// A list.
    pub fn list(items: impl IntoIterator<Item = Value>) -> Value {
        Value::List(Arc::new(items.into_iter().collect()))
    }

    /// A map with these fields in this order; of two fields with one name the later value counts, at the place
    /// of the earlier.
    pub fn map<N: Into<Arc<str>>>(fields: impl IntoIterator<Item = (N, Value)>) -> Value {
        Value::Map(Arc::new(Map::from_fields(fields.into_iter().map(|(name, value)| (name.into(), value)))))
    }

    /// The bytes of a record's key or value; an absent one is null.
    pub fn from_bytes(bytes: Option<Bytes>) -> Value {
        bytes.map_or(Value::Null, Value::Bytes)
    }

    /// The value's type.
    pub fn type_of(&self) -> Type {
        match self {
            Value::Null => Type::Null,
            Value::Bool(_) => Type::Bool,
            Value::Int(_) => Type::Int,
            Value::Double(_) => Type::Double,
            Value::String(_) => Type::String,
            Value::Bytes(_) => Type::Bytes,
            Value::List(_) => Type::List,
            Value::Map(_) => Type::Map,
        }
    }

    /// Whether the value is null.
    pub fn is_null(&self) -> bool {
        matches!(self, Value::Null)
    }

    /// The field of a map; `None` when there is no such field, or when this is no map.
    pub fn field(&self, name: &str) -> Option<&Value> {
        match self {
            Value::Map(map) => map.get(name),
            _ => None,
        }
    }

    /// The key bytes for output, routing and state: bytes and strings as they are, everything else canonical
    /// JSON; null is no key.
    pub fn key_bytes(&self) -> Option<Bytes> {
        match self {
            Value::Null => None,
            Value::Bytes(bytes) => Some(bytes.clone()),
            Value::String(text) => Some(Bytes::copy_from_slice(text.as_bytes())),
            other => Some(Bytes::from(json::encode_canonical(other))),
        }
    }

    /// The bytes that a sink writes: null is an absent value, bytes and strings are written as they are, and
    /// everything else as JSON with its fields in the declared order.
    pub fn output_bytes(&self) -> Option<Bytes> {
        match self {
            Value::Null => None,
            Value::Bytes(bytes) => Some(bytes.clone()),
            Value::String(text) => Some(Bytes::copy_from_slice(text.as_bytes())),
            other => Some(Bytes::from(json::encode(other))),
        }
    }
}

/// Equality as CEL has it: numbers compare by what they stand for, maps without regard to the order of their
/// fields, and values of different types are different. (Not an equivalence: no NaN equals itself.)
impl PartialEq for Value {
    fn eq(&self, other: &Value) -> bool {
        match (self, other) {
            (Value::Null, Value::Null) => true,
            (Value::Bool(a), Value::Bool(b)) => a == b,
            (Value::Int(a), Value::Int(b)) => a == b,
            (Value::Double(a), Value::Double(b)) => a == b,
            (Value::Int(a), Value::Double(b)) | (Value::Double(b), Value::Int(a)) => *a as f64 == *b,
            (Value::String(a), Value::String(b)) => a == b,
            (Value::Bytes(a), Value::Bytes(b)) => a == b,
            (Value::List(a), Value::List(b)) => a == b,
            (Value::Map(a), Value::Map(b)) => a == b,
            _ => false,
        }
    }
}

impl fmt::Display for Value {
    /// JSON, cut short: it is for messages.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN_BYTES_MAX: usize = 120;
        let text = String::from_utf8_lossy(&json::encode(self)).into_owned();
        match text.char_indices().map(|(at, _)| at).find(|at| *at >= SHOWN_BYTES_MAX) {
            Some(end) => write!(f, "{}…", &text[..end]),
            None => f.write_str(&text),
        }
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Value {
        Value::Bool(value)
    }
}

impl From<i64> for Value {
    fn from(value: i64) -> Value {
        Value::Int(value)
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Value {
        Value::Double(value)
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Value {
        Value::string(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_takes_five_words() {
        assert!(size_of::<Value>() <= 40, "{}", size_of::<Value>());
    }

    #[test]
    fn key_bytes_are_plain_for_text_and_canonical_json_for_the_rest() {
        let key = |value: Value| value.key_bytes().map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        assert_eq!(key(Value::Null), None);
        assert_eq!(key(Value::string("a b")), Some("a b".into()));
        assert_eq!(key(Value::Bytes(Bytes::from_static(b"\x01"))), Some("\u{1}".into()));
        assert_eq!(key(Value::Int(7)), Some("7".into()));
        assert_eq!(
            key(Value::map([("b", Value::Int(1)), ("a", Value::list([Value::Null, Value::Bool(true)]))])),
            Some(r#"{"a":[null,true],"b":1}"#.into())
        );
    }

    #[test]
    fn numbers_are_equal_when_they_stand_for_the_same() {
        assert_eq!(Value::Int(1), Value::Double(1.0));
        assert_ne!(Value::Int(1), Value::string("1"));
        assert_ne!(Value::Double(f64::NAN), Value::Double(f64::NAN));
    }

    #[test]
    fn a_map_equals_another_with_the_same_fields_in_another_order() {
        let one = Value::map([("a", Value::Int(1)), ("b", Value::Int(2))]);
        let two = Value::map([("b", Value::Int(2)), ("a", Value::Int(1))]);
        assert_eq!(one, two);
        assert_ne!(json::encode(&one), json::encode(&two));
    }

    /// Values stand in state rows: their bytes are part of the format of the store.
    #[test]
    fn golden_bytes_of_a_value() {
        let value = Value::map([
            ("n", Value::Null),
            ("b", Value::Bool(true)),
            ("i", Value::Int(-3)),
            ("d", Value::Double(0.5)),
            ("s", Value::string("é")),
            ("y", Value::Bytes(Bytes::from_static(b"\xff\x00"))),
            ("l", Value::list([Value::Int(1)])),
        ]);
        let golden = "0707\
                      016e00\
                      01620101\
                      01690205\
                      016403000000000000e03f\
                      01730402c3a9\
                      01790502ff00\
                      016c06010202";
        let encoded = postcard::to_allocvec(&value).unwrap();
        assert_eq!(encoded.iter().map(|byte| format!("{byte:02x}")).collect::<String>(), golden);
        let decoded: Value = postcard::from_bytes(&encoded).unwrap();
        assert_eq!(json::encode(&decoded), json::encode(&value));
    }
}
