//! Steps that look at one record at a time: filter, map, flat map, inspect, key by. They keep no state and pass a
//! record's event time and watermark on.

mod error;
mod filter;
mod flat_map;
mod inspect;
mod key_by;
mod map;
mod test_steps;

pub use error::{ErrorPolicy, OnError, Place, Unfinished};
pub use filter::{filter, try_filter};
pub use flat_map::{flat_map, try_flat_map};
pub use inspect::inspect;
pub use key_by::{JsonKey, KeyBytes, exchange_by_key, hash_of_key, key_by, try_key_by};
pub use map::{map, try_map};
pub use test_steps::{FailHow, delay, fail_on, gate};
