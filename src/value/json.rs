//! JSON in and out: decoded straight into [`Value`], encoded with the fields in their declared order.
//!
//! Integers that fit stay `i64`; other numbers become doubles. Bytes have no JSON of their own: they are written
//! as text when they are UTF-8, else as base64 does it. Field names recur in every record, so a decoded name
//! is shared with the one before through a small table.

use super::{Map, Value};
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use std::cell::RefCell;
use std::fmt;
use std::io::Write;
use std::sync::Arc;

/// Number of field names that a thread remembers; a name that collides replaces the older one.
const NAMES: usize = 512;

thread_local! {
    static NAME_TABLE: RefCell<Vec<Option<Arc<str>>>> = RefCell::new(vec![None; NAMES]);
}

/// Decodes one JSON document; whatever follows it is an error.
///
/// # Errors
/// A message that names the line and column in the document.
pub fn decode(bytes: &[u8]) -> Result<Value, String> {
    NAME_TABLE.with_borrow_mut(|names| {
        let mut deserializer = serde_json::Deserializer::from_slice(bytes);
        let value = Seed { names }.deserialize(&mut deserializer).map_err(|error| error.to_string())?;
        deserializer.end().map_err(|error| error.to_string())?;
        Ok(value)
    })
}

/// JSON with the fields in their declared order and no spaces.
pub fn encode(value: &Value) -> Vec<u8> {
    let mut out = Vec::with_capacity(128);
    write_value(&mut out, value, false);
    out
}

/// Appends what [`encode`] gives.
pub fn encode_into(out: &mut Vec<u8>, value: &Value) {
    write_value(out, value, false);
}

/// JSON with the fields sorted by name: equal maps have equal bytes.
pub fn encode_canonical(value: &Value) -> Vec<u8> {
    let mut out = Vec::with_capacity(64);
    write_value(&mut out, value, true);
    out
}

struct Seed<'n> {
    names: &'n mut Vec<Option<Arc<str>>>,
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Int(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(i64::try_from(value).map_or(Value::Double(value as f64), Value::Int))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Double(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::string(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(Seed { names: &mut *self.names })? {
            list.push(item);
        }
        Ok(Value::List(Arc::new(list)))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut map = Map::with_room(8);
        while let Some(name) = fields.next_key_seed(NameSeed { names: &mut *self.names })? {
            let value = fields.next_value_seed(Seed { names: &mut *self.names })?;
            map.insert(name, value);
        }
        Ok(Value::Map(Arc::new(map)))
    }
}

struct NameSeed<'n> {
    names: &'n mut Vec<Option<Arc<str>>>,
}

impl<'de> DeserializeSeed<'de> for NameSeed<'_> {
    type Value = Arc<str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Arc<str>, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for NameSeed<'_> {
    type Value = Arc<str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field name")
    }

    fn visit_str<E>(self, name: &str) -> Result<Arc<str>, E> {
        let slot = &mut self.names[slot_of(name)];
        match slot {
            Some(known) if **known == *name => Ok(known.clone()),
            _ => {
                let fresh: Arc<str> = Arc::from(name);
                *slot = Some(fresh.clone());
                Ok(fresh)
            }
        }
    }
}

/// Place of a name in the table: its length, first and last bytes tell the fields of one record apart.
fn slot_of(name: &str) -> usize {
    let mut hash = name.len() as u64;
    for byte in name.bytes().take(16).chain(name.bytes().rev().take(4)) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    ((hash ^ (hash >> 29)) as usize) % NAMES
}

fn write_value(out: &mut Vec<u8>, value: &Value, sorted: bool) {
    match value {
        Value::Null => out.extend_from_slice(b"null"),
        Value::Bool(true) => out.extend_from_slice(b"true"),
        Value::Bool(false) => out.extend_from_slice(b"false"),
        Value::Int(number) => write_fragment(out, number),
        // JSON has neither NaN nor infinities; serde_json writes null for them.
        Value::Double(number) => write_fragment(out, number),
        Value::String(text) => write_fragment(out, &**text),
        Value::Bytes(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => write_fragment(out, text),
            Err(_) => write_base64(out, bytes),
        },
        Value::List(items) => {
            out.push(b'[');
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                write_value(out, item, sorted);
            }
            out.push(b']');
        }
        Value::Map(map) => {
            out.push(b'{');
            if sorted {
                let mut fields: Vec<_> = map.iter().collect();
                fields.sort_unstable_by(|a, b| a.0.cmp(b.0));
                write_fields(out, fields.into_iter(), sorted);
            } else {
                write_fields(out, map.iter(), sorted);
            }
            out.push(b'}');
        }
    }
}

fn write_fields<'v>(
    out: &mut Vec<u8>,
    fields: impl Iterator<Item = (&'v Arc<str>, &'v Value)>,
    sorted: bool,
) {
    for (at, (name, value)) in fields.enumerate() {
        if at > 0 {
            out.push(b',');
        }
        write_fragment(out, &**name);
        out.push(b':');
        write_value(out, value, sorted);
    }
}

fn write_fragment<T: serde::Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) {
    serde_json::to_writer(out, value).expect("a number or a text is written to memory without fail");
}

fn write_base64(out: &mut Vec<u8>, bytes: &[u8]) {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    out.push(b'"');
    for chunk in bytes.chunks(3) {
        let word =
            chunk.iter().fold(0_u32, |word, byte| word << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for place in 0..4 {
            let sextet = (word >> (18 - 6 * place)) & 0x3f;
            out.push(if place <= chunk.len() { ALPHABET[sextet as usize] } else { b'=' });
        }
    }
    out.push(b'"');
}

/// Writes one value as a line of JSON: what the stdout and file sinks write.
///
/// # Errors
/// What the writer says.
pub fn write_line(writer: &mut impl Write, value: &Value) -> std::io::Result<()> {
    let mut line = encode(value);
    line.push(b'\n');
    writer.write_all(&line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use proptest::prelude::*;

    fn text(bytes: Vec<u8>) -> String {
        String::from_utf8(bytes).expect("JSON is text")
    }

    #[test]
    fn fields_keep_their_order_and_integers_stay_integers() {
        let value = decode(br#" {"z": 1, "a": [1.0, -3, true, null], "m": {"x": "q\n"}} "#).unwrap();
        assert_eq!(text(encode(&value)), r#"{"z":1,"a":[1.0,-3,true,null],"m":{"x":"q\n"}}"#);
        assert_eq!(text(encode_canonical(&value)), r#"{"a":[1.0,-3,true,null],"m":{"x":"q\n"},"z":1}"#);
        assert!(matches!(value.field("z"), Some(Value::Int(1))));
    }

    #[test]
    fn a_number_beyond_i64_is_a_double() {
        assert!(matches!(decode(b"9223372036854775807"), Ok(Value::Int(i64::MAX))));
        assert!(matches!(decode(b"9223372036854775808"), Ok(Value::Double(_))));
    }

    #[test]
    fn what_is_no_json_is_an_error_that_says_where() {
        for bad in [&b""[..], b"{", b"{}x", b"\xff", b"{\"a\":}", b"nul"] {
            let error = decode(bad).unwrap_err();
            assert!(error.contains("line 1"), "{error}");
        }
    }

    #[test]
    fn deep_nesting_is_an_error_and_not_a_crash() {
        assert!(decode(&vec![b'['; 100_000]).is_err());
    }

    #[test]
    fn bytes_that_are_no_text_are_written_as_base64() {
        assert_eq!(text(encode(&Value::Bytes(Bytes::from_static(b"\xff\xfe\xfd")))), "\"//79\"");
        assert_eq!(text(encode(&Value::Bytes(Bytes::from_static(b"\xff")))), "\"/w==\"");
        assert_eq!(text(encode(&Value::Bytes(Bytes::from_static(b"ok")))), "\"ok\"");
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::Bool),
            any::<i64>().prop_map(Value::Int),
            any::<f64>().prop_filter("finite", |number| number.is_finite()).prop_map(Value::Double),
            ".{0,8}".prop_map(Value::string),
        ];
        leaf.prop_recursive(4, 32, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::list),
                prop::collection::vec((".{0,4}", inner), 0..5).prop_map(Value::map),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded_again(value in any_json()) {
            let encoded = encode(&value);
            let decoded = decode(&encoded).unwrap();
            prop_assert_eq!(&decoded, &value);
            prop_assert_eq!(encode(&decoded), encoded);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = decode(&bytes);
        }
    }
}
