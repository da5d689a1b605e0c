//! Compares what came out with what had to come out, and names the invariant that is broken:
//! I1 no loss · I2 repeats are equal · I4 order of durability (see [`crate::watch`]) · I5 order per key ·
//! I10 diagnosis · I12 stdout belongs to the user.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::drain::Received;
use crate::oracle::{Aggregates, Windows};
use crate::workload::Event;

/// How many differences a failure lists.
const SHOWN: usize = 10;

/// Compares the rows of a window step with the oracle's windows, key by key and window by window.
///
/// A window may come out more than once if all its rows are equal, which is what at-least-once promises.
/// Returns how many rows were repeats.
#[track_caller]
pub fn assert_windows(rows: &[Received], expected: &Windows) -> usize {
    let (problems, repeats) = compare_windows(rows, expected);
    report("windows", &problems);
    repeats
}

/// The same as [`assert_windows`], as a list of what is wrong.
pub fn compare_windows(rows: &[Received], expected: &Windows) -> (Vec<String>, usize) {
    let mut problems = Vec::new();
    let mut seen: BTreeMap<(String, i64), Value> = BTreeMap::new();
    let mut repeats = 0;
    for row in rows {
        let value = row.json();
        let Some(start) = value["window_start"].as_i64() else {
            problems.push(format!("a row without window_start: {value}"));
            continue;
        };
        let id = (row.key_text(), start);
        if let Some(before) = seen.get(&id) {
            repeats += 1;
            if *before != value {
                problems.push(format!("I2 repeats are equal: {id:?} came out as {before} and as {value}"));
            }
            continue;
        }
        match expected.get(&id) {
            None => problems.push(format!("a window that must not be: {id:?} {value}")),
            Some((end, aggregates)) => {
                check_row(&id, &value, *end, aggregates, row.timestamp, &mut problems);
            }
        }
        seen.insert(id, value);
    }
    for (id, (_, aggregates)) in expected {
        if !seen.contains_key(id) {
            problems.push(format!("I1 no loss: window {id:?} is missing, expected {aggregates:?}"));
        }
    }
    (problems, repeats)
}

fn check_row(
    id: &(String, i64),
    value: &Value,
    end: i64,
    expected: &Aggregates,
    timestamp: Option<i64>,
    problems: &mut Vec<String>,
) {
    let mut check = |name: &str, expected: Value| {
        // A flow that asks for some of the aggregates only is compared by those.
        let found = &value[name];
        if !found.is_null() && *found != expected {
            problems.push(format!("wrong window: {id:?} has {name} {found}, expected {expected} in {value}"));
        }
    };
    check("window_end", end.into());
    check("count", expected.count.into());
    check("sum", expected.sum.into());
    check("min", expected.min.into());
    check("max", expected.max.into());
    check("mean", expected.mean.into());
    check("first", expected.first.into());
    check("last", expected.last.into());
    if value["window_end"].is_null() || value["count"].is_null() {
        problems.push(format!("a row without window_end or count: {id:?} {value}"));
    }
    // A record with a timestamp of 0 cannot be written: librdkafka writes "now" for it.
    if timestamp != Some(end - 1) && end != 1 {
        problems.push(format!("wrong timestamp: {id:?} has {timestamp:?}, expected {}", end - 1));
    }
}

/// How often each id came out, from rows whose value has an `id`.
#[track_caller]
pub fn ids(rows: &[Received]) -> BTreeMap<u64, usize> {
    let mut ids = BTreeMap::new();
    for row in rows {
        let id = row.json()["id"].as_u64().unwrap_or_else(|| panic!("a row without an id: {row:?}"));
        *ids.entry(id).or_default() += 1;
    }
    ids
}

/// Every expected id came out (I1), and nothing else did. Returns the number of repeats.
#[track_caller]
pub fn assert_no_loss(rows: &[Received], expected: impl IntoIterator<Item = u64>) -> usize {
    let expected: BTreeSet<u64> = expected.into_iter().collect();
    let found = ids(rows);
    let mut problems = Vec::new();
    for id in &expected {
        if !found.contains_key(id) {
            problems.push(format!("I1 no loss: id {id} is missing"));
        }
    }
    for id in found.keys() {
        if !expected.contains(id) {
            problems.push(format!("id {id} came out and must not"));
        }
    }
    report("ids", &problems);
    rows.len() - found.len()
}

/// Every expected id came out exactly once.
#[track_caller]
pub fn assert_exactly(rows: &[Received], expected: impl IntoIterator<Item = u64>) {
    let repeats = assert_no_loss(rows, expected);
    assert_eq!(repeats, 0, "I2: {repeats} rows came out again");
}

/// No id came out twice (`at_most_once`).
#[track_caller]
pub fn assert_no_repeats(rows: &[Received]) {
    let problems: Vec<String> = ids(rows)
        .into_iter()
        .filter(|(_, times)| *times > 1)
        .map(|(id, times)| format!("I2 no duplicates: id {id} came out {times} times"))
        .collect();
    report("ids", &problems);
}

/// I5: the first time that each record of a key came out is in the order in which its partition had them.
///
/// The input may hold a key on several partitions: order is promised per key and input partition.
#[track_caller]
pub fn assert_key_order(rows: &[Received], events: &[Event]) {
    let input: BTreeMap<u64, &Event> = events.iter().map(|event| (event.id, event)).collect();
    let mut last: BTreeMap<(&str, i32), (i64, u64)> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    let mut problems = Vec::new();
    for row in rows {
        let Some(id) = row.json()["id"].as_u64() else { continue };
        let Some(event) = input.get(&id) else { continue };
        if !seen.insert(id) {
            continue;
        }
        let place = (event.customer.as_str(), event.partition);
        if let Some((offset, before)) = last.get(&place)
            && *offset > event.offset
        {
            problems.push(format!("I5 order per key: {place:?}: id {id} came out after id {before}, which follows it in the input"));
        }
        last.insert(place, (event.offset, id));
    }
    report("order", &problems);
}

#[track_caller]
fn report(what: &str, problems: &[String]) {
    if problems.is_empty() {
        return;
    }
    let shown: Vec<&str> = problems.iter().take(SHOWN).map(String::as_str).collect();
    panic!("{} problems with the {what}:\n  {}", problems.len(), shown.join("\n  "));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::{Oracle, WindowKind};
    use crate::workload::Workload;

    fn row(key: &str, value: &Value, timestamp: i64) -> Received {
        Received {
            partition: 0,
            offset: 0,
            timestamp: Some(timestamp),
            key: Some(key.as_bytes().to_vec()),
            value: Some(value.to_string().into_bytes()),
            headers: Vec::new(),
        }
    }

    fn rows(expected: &Windows) -> Vec<Received> {
        expected
            .iter()
            .map(|((key, start), (end, window))| {
                let value = serde_json::json!({"window_start": start, "window_end": end, "count": window.count, "sum": window.sum});
                row(key, &value, end - 1)
            })
            .collect()
    }

    fn expected() -> Windows {
        let workload = Workload { records: 200, keys: 3, ..Workload::default() };
        let oracle =
            Oracle { kind: WindowKind::Tumbling { size: 1000 }, out_of_order_ms: 2000, lateness_ms: 0 };
        oracle.paid(&workload.events()).windows
    }

    #[test]
    fn equal_rows_and_equal_repeats_pass() {
        let expected = expected();
        let mut rows = rows(&expected);
        rows.push(rows[0].clone());
        assert_eq!(assert_windows(&rows, &expected), 1);
    }

    #[test]
    fn a_missing_a_wrong_an_unequal_and_an_unexpected_row_are_each_named() {
        let expected = expected();
        let mut rows = rows(&expected);
        let mut other = rows[1].json();
        other["count"] = 1_000_000.into();
        let unequal = row(&rows[1].key_text(), &other, rows[1].timestamp.unwrap_or(0));
        let wrong = row(
            &rows[2].key_text(),
            &{
                let mut value = rows[2].json();
                value["sum"] = 123_456.into();
                value
            },
            rows[2].timestamp.unwrap_or(0),
        );
        rows[2] = wrong;
        rows.push(unequal);
        rows.push(row("stranger", &serde_json::json!({"window_start": 0, "window_end": 1, "count": 1}), 0));
        rows.remove(0);
        let (problems, _) = compare_windows(&rows, &expected);
        for sign in ["I1 no loss", "I2 repeats are equal", "must not be", "wrong window"] {
            assert!(problems.iter().any(|problem| problem.contains(sign)), "{sign} is not in {problems:?}");
        }
    }

    #[test]
    fn order_is_judged_per_key_by_first_appearance() {
        let events = Workload { records: 100, keys: 2, ..Workload::default() }.events();
        let mut rows: Vec<Received> = events
            .iter()
            .map(|event| row(&event.customer, &serde_json::json!({"id": event.id}), 0))
            .collect();
        rows.push(rows[0].clone());
        assert_key_order(&rows, &events);
        rows.reverse();
        assert!(std::panic::catch_unwind(|| assert_key_order(&rows[..100], &events)).is_err());
    }
}
