//! What of a flow shapes its state: the fingerprint, and the parameters that the store keeps per step.
//!
//! A store refuses a step whose shape has changed and names the difference; steps without rows may change
//! freely, and do not count for the fingerprint. [`definition_hash`] covers all of a flow: the processes of one
//! cluster must agree on it, a store need not.

use super::flow_file::{FlowDescription, Input, StreamDescription};
use super::settings::Settings;
use super::steps::{Operation, Step, WindowShape};
use super::units::show_duration;
use std::collections::BTreeMap;
use std::fmt::Write;
use tidegate_recovery::{FlowFingerprint, KeyHash, StepId};

/// The shape of one step's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepShape {
    /// The step.
    pub id: StepId,
    /// Its kind.
    pub kind: &'static str,
    /// Version of the rows that it writes.
    pub version: u16,
    /// Parameters that shape its rows, by name.
    pub parameters: BTreeMap<String, String>,
}

/// The shapes of all steps that keep rows, sorted by id.
pub fn shapes(flow: &FlowDescription) -> Vec<StepShape> {
    let mut shapes = Vec::new();
    for stream in &flow.streams {
        for (at, step) in stream.steps.iter().enumerate() {
            if step.operation.keeps_rows() {
                shapes.push(shape(flow, stream, at, step));
            }
        }
    }
    shapes.sort_by(|a: &StepShape, b: &StepShape| a.id.cmp(&b.id));
    shapes
}

fn shape(flow: &FlowDescription, stream: &StreamDescription, at: usize, step: &Step) -> StepShape {
    let mut parameters = BTreeMap::new();
    let mut put = |name: &str, value: String| {
        parameters.insert(name.to_string(), value);
    };
    if step.operation.needs_key()
        && let Some(key) = key_before(flow, stream, at)
    {
        put("key", key);
    }
    match &step.operation {
        Operation::Window(window) => {
            match window.shape {
                WindowShape::Tumbling { size, align } => {
                    put("window", "tumbling".into());
                    put("size", show_duration(size));
                    put("align", show_duration(align));
                }
                WindowShape::Sliding { size, every, align } => {
                    put("window", "sliding".into());
                    put("size", show_duration(size));
                    put("every", show_duration(every));
                    put("align", show_duration(align));
                }
                WindowShape::Session { gap } => {
                    put("window", "session".into());
                    put("gap", show_duration(gap));
                }
            }
            let functions: Vec<String> = window
                .aggregates
                .iter()
                .map(|(name, aggregate)| format!("{name}={}", aggregate.function))
                .collect();
            put("aggregate", functions.join(", "));
        }
        Operation::StatefulMap(map) => put("state", map.state.source().to_string()),
        _ => {}
    }
    StepShape { id: step.id.clone(), kind: step.operation.kind(), version: 1, parameters }
}

/// The expression by which the records at a place are grouped.
fn key_before(flow: &FlowDescription, stream: &StreamDescription, at: usize) -> Option<String> {
    let own = stream.steps[..at].iter().rev().find_map(|step| match &step.operation {
        Operation::KeyBy(key) => Some(key.source().to_string()),
        _ => None,
    });
    own.or_else(|| {
        let Input::Stream(name) = &stream.input else { return None };
        let before = flow.streams.iter().find(|other| other.name == *name)?;
        key_before(flow, before, before.steps.len())
    })
}

/// The fingerprint of a flow with these shapes: what the handshake and the store compare.
pub fn fingerprint(flow_name: &str, shapes: &[StepShape]) -> FlowFingerprint {
    let mut text = format!("tidegate flow 1\n{flow_name}\n");
    for shape in shapes {
        let _ = write!(text, "{}\t{}\t{}", shape.id, shape.kind, shape.version);
        for (name, value) in &shape.parameters {
            let _ = write!(text, "\t{name}={value}");
        }
        text.push('\n');
    }
    FlowFingerprint(KeyHash::of(text.as_bytes()).0)
}

/// A hash of everything that the processes of a cluster must have in common: the steps with their expressions,
/// the topics, and the settings that decide on epochs, delivery and limits.
pub fn definition_hash(flow: &FlowDescription, settings: &Settings) -> u64 {
    let mut text = format!("{}\n", flow.name);
    for stream in &flow.streams {
        let _ = writeln!(text, "{} {:?}", stream.name, stream.input);
        for step in &stream.steps {
            let _ = writeln!(text, "{} {:?} {:?}", step.id, step.operation, step.on_error);
        }
    }
    if let Some(consumer) = &settings.consumer {
        let _ = writeln!(text, "{} {:?} {:?}", consumer.group_id, consumer.delivery, consumer.tombstones);
    }
    let _ = writeln!(
        text,
        "{:?} {:?} {}",
        settings.epoch_interval, settings.recovery.commit_interval, settings.volatile_state
    );
    KeyHash::of(text.as_bytes()).0
}
