//! What a simulated run is made of, and what it came to.

use crate::flows::Flow;
use std::time::Duration;
use tidegate_operators::limits::Limits;
use tidegate_operators::process::{DeliveryGuarantee, Sabotage};

/// What a run is made of; the rest is up to the seed.
#[derive(Clone)]
pub(crate) struct Plan {
    pub(crate) flow: Flow,
    pub(crate) store: bool,
    pub(crate) delivery: DeliveryGuarantee,
    /// Generations before the last.
    pub(crate) generations: usize,
    pub(crate) partitions: i32,
    pub(crate) records: usize,
    pub(crate) sabotage: Sabotage,
    pub(crate) limits: Limits,
    /// Whether sinks, store and commits may freeze or fail for a while, and transactions stay open.
    pub(crate) trouble: bool,
    /// Whether a generation may end with a stop, or with an end.
    pub(crate) stops: bool,
    pub(crate) ends: bool,
    pub(crate) peers_max: usize,
    /// Records arrive in rounds on all partitions at once, with silence in between.
    pub(crate) rounds: bool,
    /// The first partition is far ahead of the others in event time.
    pub(crate) skewed: bool,
    /// Before the last generation, one runs until a window has fired by itself.
    pub(crate) must_fire: bool,
    /// How far apart the watermarks of two partitions may be, in milliseconds.
    pub(crate) spread_max_ms: Option<i64>,
    /// How long a partition is silent before it counts as idle.
    pub(crate) idle: Duration,
    /// Out-of-orderness of the flow's event times, in milliseconds.
    pub(crate) out_of_order_ms: i64,
}

impl Plan {
    pub(crate) fn new(flow: Flow) -> Plan {
        Plan {
            flow,
            store: true,
            delivery: DeliveryGuarantee::AtLeastOnce,
            generations: 3,
            partitions: 3,
            records: 240,
            sabotage: Sabotage::default(),
            limits: Limits { batch_records: 7, slice_records: 16, watermark_step_ms: 1, ..Limits::default() },
            trouble: true,
            stops: true,
            ends: false,
            peers_max: 4,
            rounds: false,
            skewed: false,
            must_fire: false,
            spread_max_ms: None,
            idle: Duration::from_secs(100_000),
            out_of_order_ms: 50,
        }
    }
}

/// What a run came to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) actions: usize,
    pub(crate) kills: usize,
    pub(crate) stops: usize,
    pub(crate) records: u64,
    pub(crate) late: u64,
}
