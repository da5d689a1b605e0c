//! What a process says of itself in the handshake.

use crate::error::ClusterError;
use rand::TryRngCore;
use rand::rngs::OsRng;
use std::collections::BTreeMap;
use std::fmt;
use tidegate_recovery::{FlowFingerprint, Generation, RunId};

/// Longest cluster id, in bytes.
pub const CLUSTER_ID_BYTES_MAX: usize = 255;
/// Longest build id, in bytes.
pub const BUILD_ID_BYTES_MAX: usize = 128;
/// Longest list of what else the processes must have in common, in bytes of its names and values.
pub const IN_COMMON_BYTES_MAX: usize = 2048;

/// A secret that all processes of a cluster share. It is never shown and never sent.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// A secret of these bytes; white space at the end (an editor's newline) does not count.
    pub fn new(bytes: impl AsRef<[u8]>) -> Secret {
        Secret(bytes.as_ref().trim_ascii_end().to_vec())
    }

    /// Whether nothing is left of it. Such a secret protects nothing: refuse it.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// What a process says of itself; its place and the cluster's shape are in [`crate::ClusterSpec`].
#[derive(Clone, Debug)]
pub struct Identity {
    /// The cluster's id: the flow's name.
    pub cluster_id: String,
    /// What shapes the flow's state and routing.
    pub fingerprint: FlowFingerprint,
    /// Which build of the program this is; processes exchange memory layouts that only one build shares.
    pub build: String,
    /// What else all processes must have in common, by names that a message can show: the flow's definition,
    /// settings. Values are shown to whoever disagrees, so no secret is among them.
    pub in_common: BTreeMap<String, String>,
    /// This start of this process.
    pub run_id: RunId,
    /// The highest generation that this process was part of or has read of; 0 if none.
    pub known_generation: Generation,
    /// The cluster's secret, if it has one.
    pub secret: Option<Secret>,
}

/// How much of a hello the list of what is in common takes; two lengths of two bytes frame each entry.
pub(crate) fn in_common_bytes(in_common: &BTreeMap<String, String>) -> usize {
    in_common.iter().map(|(name, value)| name.len() + value.len() + 4).sum()
}

/// Draws the id of a new run.
///
/// # Errors
/// [`ClusterError::System`] when the system has no random numbers.
pub fn new_run_id() -> Result<RunId, ClusterError> {
    let mut bytes = [0; 16];
    fill_random(&mut bytes)?;
    Ok(RunId(u128::from_be_bytes(bytes)))
}

pub(crate) fn fill_random(bytes: &mut [u8]) -> Result<(), ClusterError> {
    OsRng.try_fill_bytes(bytes).map_err(|error| ClusterError::System {
        what: "draw random numbers",
        source: std::io::Error::other(error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_does_not_show_and_ignores_an_editors_newline() {
        let secret = Secret::new("hush\n");
        assert_eq!(secret, Secret::new("hush"));
        assert_eq!(format!("{secret:?}"), "Secret(…)");
        assert!(Secret::new(" \n").is_empty());
    }

    #[test]
    fn two_runs_have_two_ids() {
        assert_ne!(new_run_id().unwrap(), new_run_id().unwrap());
    }
}
