//! What brokers of different lines do differently, on the oldest line that is supported: Kafka 3.9.
//!
//! Its transactions are of version 1: the client registers the partitions of each by itself, and a producer keeps its epoch from
//! one to the next, so that more depends on who initialises it when. The bodies are those of the tests on the newest line.

use tidegate_harness::{Line, SecureBroker, witness};

use crate::exactly_once_direct::copy_once;
use crate::exactly_once_expiry::ENDS_SOON;
use crate::restore::kills;
use crate::zombies::{ONE_TO_THREE, TWO_TO_ONE};
use crate::{
    exactly_once, exactly_once_answers, exactly_once_brokers, exactly_once_direct, exactly_once_expiry,
    fidelity, group_members, out_of_range, security, topics, zombies, zombies_direct,
};

/// So many answers are lost that each kind of loss is among them.
const EACH_KIND_ONCE: u64 = 4;

// P28: or all that follows would say nothing.
#[test]
fn the_older_broker_is_one_of_3_9_and_has_neither_the_newer_transactions_nor_the_newer_groups() {
    let features = witness::features(Line::Older.shared().kafka());
    let metadata = features.get("metadata.version");
    assert!(metadata.is_some_and(|version| version.starts_with("3.9")), "{features:?}");
    for newer in ["transaction.version", "group.version"] {
        assert!(!features.contains_key(newer), "{features:?}");
    }
}

// P28
#[test]
fn two_processes_killed_at_random_publish_each_window_once_on_the_older_line() {
    exactly_once::killed_at_random(Line::Older.shared(), "older-kill", &[(2, 2)], kills());
}

// P28
#[test]
fn two_processes_killed_at_random_copy_each_record_once_on_the_older_line() {
    exactly_once_direct::killed_at_random(Line::Older.shared(), "older-direct-kill", &[(2, 2)]);
}

// P28
#[test]
fn a_cluster_frozen_in_a_transaction_loses_when_it_is_thawed_on_the_older_line() {
    let shapes = [ONE_TO_THREE, TWO_TO_ONE];
    zombies::overtaken_at(Line::Older.shared(), "older-zombie", "publication.sent", 1, &shapes);
}

// P28
#[test]
fn an_owner_frozen_in_a_transaction_is_fenced_by_the_next_one_of_its_partitions_on_the_older_line() {
    let shapes = [TWO_TO_ONE, ONE_TO_THREE];
    zombies_direct::overtaken_at(Line::Older.shared(), "direct.sent", 2, &shapes, copy_once, true);
}

// P28
#[test]
fn an_end_of_a_transaction_that_happened_and_was_never_confirmed_repeats_nothing_on_the_older_line() {
    exactly_once_answers::lose_the_ends_of_transactions(Line::Older.shared(), EACH_KIND_ONCE, true);
}

// P28
#[test]
fn an_end_of_a_transaction_that_never_reached_the_broker_loses_nothing_on_the_older_line() {
    exactly_once_answers::lose_the_ends_of_transactions(Line::Older.shared(), EACH_KIND_ONCE, false);
}

// P28
#[test]
fn a_frozen_process_whose_transaction_has_expired_goes_on_when_it_is_thawed_on_the_older_line() {
    exactly_once_expiry::freeze_until_expired(&Line::Older.start(&[ENDS_SOON]), 1);
}

// P28
#[test]
fn an_older_broker_frozen_bounced_and_killed_with_a_transaction_open_is_waited_for() {
    exactly_once_brokers::disturb_with_transactions_open(&Line::Older.start(&[]));
}

// P28
#[test]
fn a_topic_that_was_made_again_is_refused_by_its_id_on_the_older_line() {
    topics::refuse_a_topic_that_was_made_again(Line::Older.shared());
}

// P28
#[test]
fn a_start_beside_a_live_member_of_the_group_is_refused_on_the_older_line() {
    group_members::start_beside_a_member(Line::Older.shared());
}

// P28
#[test]
fn records_that_retention_takes_from_a_running_flow_end_it_with_65_on_the_older_line() {
    out_of_range::end_when_overtaken(Line::Older.shared());
}

// P28
#[test]
fn a_flow_runs_over_tls_with_each_kind_of_login_on_the_older_line() {
    security::log_in_each_way(&SecureBroker::start(Line::Older));
}

// P28
#[test]
fn records_and_their_timestamps_come_out_as_they_came_in_on_the_older_line() {
    fidelity::copy_odd_records(Line::Older.shared());
    fidelity::copy_append_time(Line::Older.shared());
}
