//! Reading `/status` and `/metrics`: the one place that knows their shape.

use std::collections::BTreeSet;

use serde_json::Value;
use tidegate_harness::Cluster;

/// The partitions that the `n`-th process owns, by `/status`.
pub(crate) fn owned(cluster: &Cluster, n: usize) -> BTreeSet<i32> {
    let Some(status) = cluster.status(n) else { return BTreeSet::new() };
    partitions(&status).iter().filter_map(|entry| number(&entry["partition"])).collect()
}

/// The lag over all partitions of the `n`-th process; `None` when one of them has none yet.
pub(crate) fn lag(cluster: &Cluster, n: usize) -> Option<i64> {
    let status = cluster.status(n)?;
    partitions(&status).iter().map(|entry| entry["lag"].as_i64()).sum()
}

/// The end of a partition's log, as whoever reads it sees it.
pub(crate) fn log_end(cluster: &Cluster, partition: i32) -> Option<i64> {
    (0..cluster.len()).filter_map(|n| cluster.status(n)).find_map(|status| {
        let entries = partitions(&status);
        let entry = entries.iter().find(|entry| number(&entry["partition"]) == Some(partition))?;
        entry["log_end"].as_i64()
    })
}

/// What `/status` says of a partition, on whichever process reads it.
pub(crate) fn partition(cluster: &Cluster, topic: &str, number: i64) -> Option<Value> {
    (0..cluster.len()).filter_map(|n| cluster.status(n)).find_map(|status| {
        let is_it = |entry: &Value| entry["topic"] == topic && entry["partition"] == number;
        partitions(&status).into_iter().find(is_it)
    })
}

/// A figure of `/status` at the top level or below `counters`.
pub(crate) fn counter(cluster: &Cluster, n: usize, name: &str) -> Option<i64> {
    let status = cluster.status(n)?;
    status[name].as_i64().or_else(|| status["counters"][name].as_i64())
}

/// The sum of a metric over all its labels.
pub(crate) fn metric(cluster: &Cluster, n: usize, name: &str) -> Option<f64> {
    let (code, body) = cluster.get(n, "/metrics")?;
    assert_eq!(code, 200, "/metrics answers {code}");
    let mut found = None;
    for line in body.lines().filter(|line| !line.starts_with('#')) {
        let (series, value) = line.rsplit_once(' ')?;
        if series.split('{').next() == Some(name) {
            *found.get_or_insert(0.0) += value.parse::<f64>().unwrap_or_else(|e| panic!("{line}: {e}"));
        }
    }
    found
}

fn partitions(status: &Value) -> Vec<Value> {
    status["partitions"].as_array().cloned().unwrap_or_default()
}

fn number(value: &Value) -> Option<i32> {
    value.as_i64().and_then(|number| i32::try_from(number).ok())
}
