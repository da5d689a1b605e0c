//! The named limits of a run, and the load of a process's sinks.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// A limit on everything that could grow. Defaults are those of design 16.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes that a worker's sources emitted and that have not passed the processing probe; at the limit they
    /// stop polling.
    pub in_flight_bytes: usize,
    /// The same in records.
    pub in_flight_records: usize,
    /// Commit epochs that are closed and not yet durable; at the limit sources stop polling.
    pub commits_in_flight: u64,
    /// Records that steps without a store may hold for a replay; at the limit batches are cut early, then
    /// sources stop polling.
    pub volatile_records_max: usize,
    /// Rows of state that a worker's step may keep: keys, or keys of open windows. More end the flow.
    pub state_rows_max: usize,
    /// Bytes that a process's sinks have taken and that are not acknowledged; above it, sources stop polling and steps
    /// that make more than they take wait.
    pub sink_in_flight_bytes: usize,
    /// Records of one poll.
    pub batch_records: usize,
    /// Bytes of one poll.
    pub batch_bytes: usize,
    /// How long a source sleeps after an empty poll.
    pub poll_backoff: Duration,
    /// Steps in which the event hand moves, in milliseconds of event time.
    pub watermark_step_ms: i64,
    /// A partition further than this ahead of the slowest one is not read, in milliseconds of event time.
    pub max_skew_ms: i64,
    /// Results that a step hands out at one activation when it makes more than it takes.
    pub slice_records: usize,
    /// How long a commit at a close may wait for the broker.
    pub commit_timeout: Duration,
    /// Below this age of its poll, a batch may still be handed on under `at_most_once`.
    pub peer_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            in_flight_bytes: 128 << 20,
            in_flight_records: 1_000_000,
            commits_in_flight: 4,
            volatile_records_max: 1_000_000,
            state_rows_max: 20_000_000,
            sink_in_flight_bytes: 16 << 20,
            batch_records: 500,
            batch_bytes: 4 << 20,
            poll_backoff: Duration::from_millis(50),
            watermark_step_ms: 100,
            max_skew_ms: 3_600_000,
            slice_records: 8192,
            commit_timeout: Duration::from_secs(10),
            peer_timeout: Duration::from_secs(10),
        }
    }
}

/// Bytes that the sinks of one process hold; all worker threads share it.
#[derive(Clone, Debug)]
pub struct SinkLoad {
    bytes: Arc<AtomicUsize>,
    limit: usize,
}

impl SinkLoad {
    /// No load, under this limit.
    pub fn new(limit: usize) -> SinkLoad {
        SinkLoad { bytes: Arc::default(), limit }
    }

    /// Bytes that are taken and not acknowledged.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether the sinks of this process hold more than their limit. A step in the middle of a slice waits
    /// then; a sink itself never looks at it, or one that is stuck could stop the others.
    pub fn is_over(&self) -> bool {
        self.bytes() > self.limit
    }

    /// One sink's part of the load.
    pub fn share(&self) -> SinkShare {
        SinkShare { load: self.clone(), mine: 0 }
    }
}

/// One sink's part of the load of its process; dropping it takes the part away.
#[derive(Debug)]
pub struct SinkShare {
    load: SinkLoad,
    mine: usize,
}

impl SinkShare {
    /// This sink now holds `bytes`.
    pub fn set(&mut self, bytes: usize) {
        if bytes >= self.mine {
            self.load.bytes.fetch_add(bytes - self.mine, Ordering::Relaxed);
        } else {
            self.load.bytes.fetch_sub(self.mine - bytes, Ordering::Relaxed);
        }
        self.mine = bytes;
    }
}

impl Drop for SinkShare {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_load_is_the_sum_of_the_shares_that_live() {
        let load = SinkLoad::new(100);
        let (mut one, mut two) = (load.share(), load.share());
        one.set(80);
        two.set(30);
        assert!(load.is_over());
        one.set(60);
        assert_eq!(load.bytes(), 90);
        drop(two);
        assert_eq!(load.bytes(), 60);
        assert!(!load.is_over());
    }
}
