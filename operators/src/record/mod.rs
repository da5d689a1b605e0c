//! Steps that look at one record at a time: filter, map, flat map, inspect, key by. They keep no state and pass a
//! record's event time and watermark on.

mod dead_letter;
mod error;
mod filter;
mod flat_map;
mod inspect;
mod key_by;
mod map;
mod test_steps;
mod transform;

pub(crate) use dead_letter::LetterBox;
pub use dead_letter::{
    ATTEMPTS, DeadLetters, FailureClass, HEADERS, MESSAGE_BYTES_MAX, as_record, is_diagnostic, keep_original,
};
pub(crate) use error::ErrorPolicy;
pub use error::{ErrorHandling, OnError, Place, RecordOf, Unfinished};
pub use filter::{filter, try_filter};
pub use flat_map::{flat_map, try_flat_map};
pub use inspect::inspect;
pub use key_by::{
    JsonKey, KeyBytes, Originals, Unprojected, exchange_by_key, hash_of_key, key_by, try_key_by,
    try_key_by_projected,
};
pub use map::{map, try_map, try_map_ref, try_update};
pub use test_steps::{FailHow, delay, fail_on, gate};
