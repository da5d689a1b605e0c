//! What a person wrote, read into what it means: the flow file, the environment and the flags.
//!
//! Reading never stops at the first mistake: every problem is collected with its code, the key's path, the line
//! and the column, what was found, what is allowed and what to do. Nothing here contacts a broker or changes a
//! file; a flow that is read without an error can be built.
//!
//! The order of a reading: [`yaml`] gives nodes with positions; [`layers`] puts environment and flags over
//! them; [`settings`] and [`flow_file`] read them into types and note where each value came from
//! ([`provenance`]); [`guards`] looks at the whole, and `agreement` at what all processes must have in common.

mod agreement;
mod dead_letter_reader;
pub mod exactly_once;
pub mod flow_file;
pub mod guards;
mod idempotency;
pub mod kafka;
mod kafka_reader;
pub mod layers;
pub mod problems;
pub mod provenance;
mod reader;
mod section;
pub mod settings;
mod sink_reader;
mod step_reader;
pub mod steps;
mod topology;
pub mod units;
mod window_reader;
pub mod yaml;

pub use flow_file::{FlowDescription, Input, Loaded, StreamDescription, load};
pub use problems::{Problem, Problems, Severity};
pub use settings::Settings;
pub use step_reader::TEST_STEPS_VARIABLE;

/// The candidate that was most likely meant by `text`; `None` when nothing is near.
pub fn nearest<'c>(text: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
    const NEAR: f64 = 0.75;
    let lower = text.to_lowercase();
    candidates
        .into_iter()
        .map(|candidate| (strsim::jaro_winkler(&lower, &candidate.to_lowercase()), candidate))
        .filter(|(likeness, candidate)| {
            *likeness >= NEAR && strsim::damerau_levenshtein(&lower, candidate) <= 2 + text.len() / 4
        })
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
pub(crate) mod tests;

#[cfg(test)]
mod nearest_tests {
    use super::nearest;

    #[test]
    fn the_nearest_candidate_is_a_likely_misspelling_and_nothing_else() {
        let keys = ["brokers", "group_id", "topics", "batch_size", "delivery"];
        assert_eq!(nearest("group_idd", keys), Some("group_id"));
        assert_eq!(nearest("groupid", keys), Some("group_id"));
        assert_eq!(nearest("broker", keys), Some("brokers"));
        assert_eq!(nearest("Topic", keys), Some("topics"));
        assert_eq!(nearest("compression", keys), None);
    }
}
