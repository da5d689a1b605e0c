//! Settings that all processes of a cluster must have in common.
//!
//! Each process reads its own file, environment and flags. Where the cluster acts as one (which epochs are commit
//! epochs, whether there is state to save, what a lost offset leads to), two answers would be two clusters: the
//! handshake compares these settings and names the one that differs. Limits, addresses and paths may differ from
//! host to host.

use super::flow_file::Loaded;
use std::collections::BTreeMap;
use tidegate_recovery::KeyHash;

/// Paths of these settings whose values are compared as they are.
const PATHS: [&str; 11] = [
    "kafka.consumer.group_id",
    "kafka.consumer.topics",
    "kafka.consumer.auto_offset_reset",
    "kafka.consumer.on_out_of_range",
    "kafka.consumer.tombstones",
    "kafka.consumer.isolation",
    "epoch_interval",
    "recovery.commit_interval",
    "exactly_once.control_topic",
    "volatile_state",
    "cluster.peer_timeout",
];

/// A longer value is shown by its beginning and its hash: a hello has a limit.
const SHOWN_BYTES_MAX: usize = 96;

impl Loaded {
    /// The effective values of the settings that all processes must have in common, by path.
    pub fn in_common(&self) -> BTreeMap<String, String> {
        let mut found: BTreeMap<String, String> = self
            .provenance
            .iter()
            .filter(|setting| PATHS.contains(&setting.path.as_str()))
            .map(|setting| (setting.path.clone(), shown(&setting.value)))
            .collect();
        if let Some(settings) = &self.settings {
            // However it was said: also an old enable_auto_commit decides on it.
            found.insert("kafka.consumer.delivery".into(), settings.delivery().as_str().into());
            let store = settings.recovery.directory.as_ref().map_or("not set", |_| "set");
            found.insert("recovery.directory".into(), store.into());
        }
        found
    }
}

fn shown(value: &str) -> String {
    if value.len() <= SHOWN_BYTES_MAX {
        return value.to_owned();
    }
    const BEGINNING_BYTES_MAX: usize = 64;
    let starts = value.char_indices().map(|(at, _)| at);
    let end = starts.take_while(|at| *at <= BEGINNING_BYTES_MAX).last().unwrap_or(0);
    format!("{}… (hash {:016x})", &value[..end], KeyHash::of(value.as_bytes()).0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::{AT_LEAST_ONCE, SINK, flow_with, load_text};

    fn in_common(consumer: &str, rest: &str) -> BTreeMap<String, String> {
        load_text(&flow_with(consumer, &format!("{SINK}{rest}"))).in_common()
    }

    #[test]
    fn every_setting_of_the_list_is_there_and_says_what_is_effective() {
        let found = in_common(AT_LEAST_ONCE, "");
        for path in PATHS {
            assert!(found.contains_key(path), "{path} is no setting");
        }
        assert_eq!(found.len(), PATHS.len() + 2);
        assert_eq!(found["epoch_interval"], "100ms");
        assert_eq!(
            found,
            in_common(AT_LEAST_ONCE, "epoch_interval: 0.1s\ncluster: { workers_per_process: 9 }\n")
        );
        let by_the_old_word = in_common("    enable_auto_commit: false", "");
        assert_eq!(by_the_old_word["kafka.consumer.delivery"], "at_least_once");
        let with_a_store =
            |directory| in_common(AT_LEAST_ONCE, &format!("recovery: {{ directory: {directory} }}\n"));
        assert_ne!(found, with_a_store("/a"), "a process without a store would save nothing");
        assert_eq!(with_a_store("/a"), with_a_store("/b"), "a mount point may differ");
    }

    #[test]
    fn long_values_differ_where_they_differ_and_fit_into_a_hello() {
        let (one, other) = (format!("{}é1", "t".repeat(300)), format!("{}é2", "t".repeat(300)));
        assert_ne!(shown(&one), shown(&other));
        assert!(shown(&one).len() <= SHOWN_BYTES_MAX, "{}", shown(&one));
        let longest: usize = PATHS.iter().map(|path| path.len() + SHOWN_BYTES_MAX + 4).sum();
        assert!(longest + 512 <= tidegate_cluster::IN_COMMON_BYTES_MAX);
    }
}
