//! Real processes of the real binary on a real Kafka broker.
//!
//! All modules are one test binary, so that one process owns the broker that they share. A test that stops, freezes
//! or reconfigures a broker starts its own. `tests/README.md` says which test shows which row of the requirements.
//!
//! `TIDEGATE_TEST_LONG=1` runs the long forms of the searches, `TIDEGATE_TEST_SEED=n` repeats one of their seeds.

mod case;
mod feed;
mod status;

mod advice;
mod bounded;
mod brokers;
mod commit_floor;
mod commits;
mod dead_letters;
mod delivery;
mod exactly_once;
mod exactly_once_answers;
mod exactly_once_brokers;
mod exactly_once_direct;
mod exactly_once_expiry;
mod exactly_once_watched;
mod fidelity;
mod formation;
mod group_members;
mod idempotency;
mod idle;
mod keys;
mod limits;
mod log_gaps;
mod markers;
mod mistakes;
mod older_line;
mod open_transactions;
mod out_of_range;
mod output_topics;
mod ownership;
mod pass_through;
mod poison;
mod precedence;
mod producer;
mod readme_flows;
mod record_times;
mod replay;
mod replicas;
mod restore;
mod security;
mod signals;
mod silence;
mod stale_writer;
mod standing;
mod store;
mod store_and_group;
mod tokens;
mod topics;
mod two_sinks;
mod volatile_state;
mod window_kinds;
mod zombies;
mod zombies_direct;
