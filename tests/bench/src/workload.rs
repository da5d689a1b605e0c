//! The records that are measured with: a function of their number, so that every run sees the same topic.
//!
//! A value is a JSON object of exactly [`VALUE_BYTES`] bytes with a customer (the key), a time and an amount. Event
//! time moves [`RECORDS_PER_MINUTE`] records a minute, each up to [`JITTER_MS`] late, whatever the number of
//! records: a longer run has more windows, not fuller ones.

use std::fmt::Write as _;
use std::io::Write as _;

use hashbrown::HashSet;

/// Length of every value.
pub(crate) const VALUE_BYTES: usize = 200;
/// Length of a window.
pub(crate) const WINDOW_MS: i64 = 60_000;
/// How far behind its place in the topic a record's event time may lie.
pub(crate) const JITTER_MS: i64 = 2_000;
/// How much the flows and the raw loop allow for; more than [`JITTER_MS`], so that no record is late.
pub(crate) const OUT_OF_ORDER_MS: i64 = 5_000;
/// How many records make one minute of event time.
pub(crate) const RECORDS_PER_MINUTE: u64 = 300_000;
/// Event time of record 0 without its jitter; the begin of a minute.
const FIRST_MS: i64 = 1_700_000_040_000;

/// What is in the topic.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Workload {
    /// Number of records.
    pub(crate) records: u64,
    /// Number of different customers.
    pub(crate) keys: u64,
    /// Number of partitions.
    pub(crate) partitions: i32,
}

/// One record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    /// Its number, from 0.
    pub(crate) number: u64,
    /// Its key.
    pub(crate) customer: u64,
    /// Its event time, which is its Kafka timestamp too.
    pub(crate) at_ms: i64,
    /// Where it stands.
    pub(crate) partition: i32,
}

/// What `windows` must come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WindowTotals {
    /// Different (customer, minute) pairs: the number of results.
    pub(crate) results: u64,
    /// Sum of all counts: the number of records.
    pub(crate) records: u64,
}

impl Workload {
    /// The record with this number.
    pub(crate) fn order(&self, number: u64) -> Order {
        let random = mix(number);
        let customer = random % self.keys;
        let jitter = i64::try_from((random >> 32) % JITTER_MS.unsigned_abs()).unwrap_or(0);
        let since =
            i64::try_from(number * WINDOW_MS.unsigned_abs() / RECORDS_PER_MINUTE).unwrap_or(i64::MAX / 2);
        let partition = mix(customer ^ 0x5bd1_e995) % u64::from(self.partitions.unsigned_abs());
        Order {
            number,
            customer,
            at_ms: FIRST_MS + since - jitter,
            partition: i32::try_from(partition).unwrap_or(0),
        }
    }

    /// All records, in order.
    pub(crate) fn orders(&self) -> impl Iterator<Item = Order> + '_ {
        (0..self.records).map(|number| self.order(number))
    }

    /// Counts the results that the windows must have.
    pub(crate) fn window_totals(&self) -> WindowTotals {
        let pairs: HashSet<(u64, i64)> =
            self.orders().map(|order| (order.customer, order.at_ms.div_euclid(WINDOW_MS))).collect();
        WindowTotals { results: pairs.len() as u64, records: self.records }
    }
}

impl Order {
    /// Writes the key's bytes into `key`, which is cleared.
    pub(crate) fn write_key(&self, key: &mut String) {
        key.clear();
        // Writing to a string cannot fail.
        let _infallible = write!(key, "c{:07}", self.customer);
    }

    /// Writes the value's bytes into `value`, which is cleared.
    pub(crate) fn write_value(&self, value: &mut Vec<u8>) {
        value.clear();
        let _infallible = write!(
            value,
            r#"{{"order":{},"customer":"c{:07}","at_ms":{},"amount":{},"note":""#,
            1_000_000_000 + self.number,
            self.customer,
            self.at_ms,
            mix(self.number) % 10_000
        );
        let mut random = self.number;
        while value.len() < VALUE_BYTES - 2 {
            random = mix(random);
            for byte in random.to_le_bytes() {
                if value.len() < VALUE_BYTES - 2 {
                    value.push(b'a' + byte % 26);
                }
            }
        }
        value.extend_from_slice(b"\"}");
    }
}

/// A well mixed function of `x` (splitmix64).
pub(crate) fn mix(x: u64) -> u64 {
    let mut z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Workload = Workload { records: 20_000, keys: 100, partitions: 4 };

    #[test]
    fn every_value_is_json_of_200_bytes_that_says_what_the_order_says() {
        let mut value = Vec::new();
        let mut key = String::new();
        for order in SMALL.orders() {
            order.write_value(&mut value);
            order.write_key(&mut key);
            assert_eq!(value.len(), VALUE_BYTES);
            let parsed: serde_json::Value = serde_json::from_slice(&value).expect("the value is JSON");
            assert_eq!(parsed["customer"].as_str(), Some(key.as_str()));
            assert_eq!(parsed["at_ms"].as_i64(), Some(order.at_ms));
        }
    }

    #[test]
    fn a_customer_stays_on_one_partition_and_no_record_is_late() {
        let mut partition_of = hashbrown::HashMap::new();
        let mut highest = [i64::MIN; 4];
        for order in SMALL.orders() {
            assert_eq!(*partition_of.entry(order.customer).or_insert(order.partition), order.partition);
            let place = usize::try_from(order.partition).expect("partitions are not negative");
            assert!(highest[place].saturating_sub(OUT_OF_ORDER_MS) <= order.at_ms);
            highest[place] = highest[place].max(order.at_ms);
        }
    }
}
