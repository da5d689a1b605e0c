//! The name of a result, by which a consumer tells a repetition from something new (`idempotency_key: header`).
//!
//! Whether a name may be given is checked with the flow: see `config::idempotency`.

use bytes::Bytes;
use std::sync::Arc;
use tidegate_operators::element::{Header, Headers, Meta};
use tidegate_operators::inputs::InputTable;

/// The header that holds the name.
pub(super) const HEADER: &str = "idempotency-key";

/// Headers with the name of what was made of one record; a name that is there already stays.
pub(super) fn of_record(meta: &Meta, inputs: &InputTable) -> Result<Headers, String> {
    if meta.headers.as_slice().iter().any(|header| *header.name == *HEADER) {
        return Ok(meta.headers.clone());
    }
    let name = inputs.name(meta.partition).ok_or("the record that this was made of is not known")?;
    Ok(with(&meta.headers, format!("{}-{}-{}", name.topic, name.partition, meta.offset)))
}

/// Headers with the name of a window's result.
pub(super) fn of_window(step: &str, key: Option<&Bytes>, start_ms: i64) -> Headers {
    with(&Headers::default(), format!("{step}-{}-{start_ms}", written(key.map(|key| &key[..]))))
}

fn with(headers: &Headers, name: String) -> Headers {
    let mut all = headers.as_slice().to_vec();
    all.push(Header { name: Arc::from(HEADER), value: Some(Bytes::from(name)) });
    Headers::new(all)
}

/// A key as text, so that no two keys look alike: what is no text, and `%`, are percent-encoded; no key is `%null`.
fn written(key: Option<&[u8]>) -> String {
    let Some(key) = key else { return "%null".to_owned() };
    let mut text = String::with_capacity(key.len());
    for chunk in key.utf8_chunks() {
        for letter in chunk.valid().chars() {
            match letter {
                '%' => text.push_str("%25"),
                letter if letter.is_control() => {
                    let mut bytes = [0; 4];
                    letter.encode_utf8(&mut bytes).bytes().for_each(|byte| push_encoded(&mut text, byte));
                }
                letter => text.push(letter),
            }
        }
        chunk.invalid().iter().for_each(|byte| push_encoded(&mut text, *byte));
    }
    text
}

fn push_encoded(text: &mut String, byte: u8) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    text.push('%');
    text.push(char::from(DIGITS[usize::from(byte >> 4)]));
    text.push(char::from(DIGITS[usize::from(byte & 15)]));
}

#[cfg(test)]
mod tests {
    use super::written;

    #[test] // A44
    fn no_two_keys_look_alike() {
        let keys: [Option<&[u8]>; 8] = [
            None,
            Some(b""),
            Some(b"%null"),
            Some(b"a b"),
            Some(b"\xff"),
            Some(b"%FF"),
            Some(b"\0"),
            Some("\u{e9}".as_bytes()),
        ];
        let found: Vec<String> = keys.iter().map(|key| written(*key)).collect();
        assert_eq!(found, ["%null", "", "%25null", "a b", "%FF", "%25FF", "%00", "\u{e9}"]);
    }
}
