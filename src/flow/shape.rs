//! What of a flow shapes its state, and what defines it.
//!
//! | | covers | who compares it |
//! |---|---|---|
//! | parameters of a step | what its rows mean: key, windows, aggregates, the expression of a state | the store, which refuses others and names the difference |
//! | fingerprint | the flow's name and all steps that keep rows | the handshake; a commit record names it |
//! | definition | all steps, their expressions and how they are connected, the topics | the handshake |
//!
//! So steps without rows may change from start to start, and never between the processes of one cluster.

use super::plan::{FlowPlan, Node};
use crate::config::flow_file::{FlowDescription, Input, StreamDescription};
use crate::config::steps::Operation;
use crate::config::units::show_duration;
use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Write as _};
use std::time::Duration;
use tidegate_operators::window::{WindowKind, WindowSpec};
use tidegate_recovery::{FlowFingerprint, KeyHash, StepId};

/// The parameters of one step, by name.
pub(super) type Parameters = BTreeMap<String, String>;

/// A hash of all that a flow is, as far as it is known: of a flow in Rust the code of the closures is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Definition(u64);

impl fmt::Display for Definition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FlowPlan {
    /// The hash over what shapes the state of the flow.
    pub(crate) fn fingerprint(&self) -> FlowFingerprint {
        let mut specs: Vec<_> =
            self.steps.iter().map(|step| &step.spec).filter(|spec| spec.keeps_rows).collect();
        specs.sort_by(|a, b| a.id.cmp(&b.id));
        let mut text = format!("tidegate flow 1\n{}\n", self.name);
        for spec in specs {
            let _ = write!(text, "{}\t{}\t{}", spec.id, spec.kind, spec.version);
            for (name, value) in &spec.parameters {
                let _ = write!(text, "\t{name}={value}");
            }
            text.push('\n');
        }
        FlowFingerprint(KeyHash::of(text.as_bytes()).0)
    }

    /// The hash over all that defines the flow.
    pub(crate) fn definition(&self) -> Definition {
        let mut text = format!("{}\n{:?}\n{:?}\n", self.name, self.input_topics, self.output_topics);
        for step in &self.steps {
            let inputs: Vec<usize> = step.inputs.iter().map(|Node(input)| *input).collect();
            let _ = writeln!(text, "{:?} {inputs:?}", step.spec);
        }
        text.push_str(&self.expressions);
        Definition(KeyHash::of(text.as_bytes()).0)
    }
}

/// The steps of a flow in YAML with all that stands in them, for [`FlowPlan::definition`].
pub(super) fn expressions(flow: &FlowDescription) -> String {
    let mut text = String::new();
    for (stream, step) in flow.steps() {
        let _ = writeln!(text, "{} {} {:?} {:?}", stream.name, step.id, step.operation, step.on_error);
    }
    text
}

/// The parameters that the steps of a flow in YAML have besides their windows.
pub(super) fn parameters(flow: &FlowDescription) -> HashMap<StepId, Parameters> {
    let mut found = HashMap::new();
    for stream in &flow.streams {
        for (at, step) in stream.steps.iter().enumerate().filter(|(_, step)| step.operation.needs_key()) {
            let mut parameters = Parameters::new();
            let mut put = |name: &str, value: String| parameters.insert(name.to_owned(), value);
            if let Some(key) = key_before(flow, stream, at) {
                put("key", key);
            }
            match &step.operation {
                Operation::Window(window) => {
                    let functions: Vec<String> = window
                        .aggregates
                        .iter()
                        .map(|(name, aggregate)| format!("{name}={}", aggregate.function))
                        .collect();
                    put("aggregate", functions.join(", "));
                }
                Operation::StatefulMap(map) => drop(put("state", map.state.source().to_owned())),
                _ => {}
            }
            found.insert(step.id.clone(), parameters);
        }
    }
    found
}

/// The expression by which the records at a place are grouped.
fn key_before(flow: &FlowDescription, stream: &StreamDescription, at: usize) -> Option<String> {
    let own = stream.steps[..at].iter().rev().find_map(|step| match &step.operation {
        Operation::KeyBy(key) => Some(key.source().to_owned()),
        _ => None,
    });
    own.or_else(|| {
        let Input::Stream(name) = &stream.input else { return None };
        let before = flow.streams.iter().find(|other| other.name == *name)?;
        key_before(flow, before, before.steps.len())
    })
}

/// Adds what of the windows shapes their rows.
pub(super) fn put_windows(spec: &WindowSpec, parameters: &mut Parameters) {
    let mut put = |name: &str, value: String| parameters.insert(name.to_owned(), value);
    let time = |ms: i64| match u64::try_from(ms) {
        Ok(ms) => show_duration(Duration::from_millis(ms)),
        Err(_) => format!("{ms}ms"),
    };
    match spec.kind {
        WindowKind::Tumbling { size } => {
            put("window", "tumbling".into());
            put("size", time(size));
            put("align", time(spec.align));
        }
        WindowKind::Sliding { size, every } => {
            put("window", "sliding".into());
            put("size", time(size));
            put("every", time(every));
            put("align", time(spec.align));
        }
        WindowKind::Session { gap } => {
            put("window", "session".into());
            put("gap", time(gap));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::{AT_LEAST_ONCE, flow_with, load_text};
    use crate::flow::{Flow, described};

    /// The plan of a flow with this window, this filter and this key.
    fn plan(window: &str, filter: &str, key: &str) -> FlowPlan {
        let steps = format!(
            "steps:\n  - event_time: {{ from: timestamp, out_of_order: 1s }}\n  - filter: {filter}\n  \
             - key_by: {key}\n  - window: {{ {window}, aggregate: {{ n: count() }} }}\n  - sink: stdout\n\
             recovery: {{ directory: /r }}\n"
        );
        let flow = load_text(&flow_with(AT_LEAST_ONCE, &steps)).flow.unwrap();
        Flow::plan(&flow.name, &[], |planned| described::describe(planned, &flow))
    }

    #[test]
    fn the_fingerprint_knows_what_shapes_state_and_nothing_else() {
        let base = plan("tumbling: 60s", "value.paid", "value.k");
        let table = base.table().unwrap();
        let kept: Vec<_> = table.table().iter().map(|step| (step.id.to_string(), &*step.kind)).collect();
        assert_eq!(kept, [("event_time".into(), "event_time"), ("window".into(), "window")]);
        let window = &table.get(&StepId::new("window")).unwrap().parameters;
        let window: Vec<_> = window.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(window, ["aggregate=n=count", "align=0s", "key=value.k", "size=1m", "window=tumbling"]);
        let same = [
            plan("tumbling: 1m", "value.paid", "value.k"),
            // Steps without rows are free to change.
            plan("tumbling: 60s", "value.open", "value.k"),
        ];
        for other in same {
            assert_eq!(base.fingerprint(), other.fingerprint());
        }
        let others = [
            plan("tumbling: 61s", "value.paid", "value.k"),
            plan("session: { gap: 60s }", "value.paid", "value.k"),
            plan("sliding: { size: 60s, every: 30s }", "value.paid", "value.k"),
            plan("tumbling: 60s", "value.paid", "value.other"),
        ];
        for other in others {
            assert_ne!(base.fingerprint(), other.fingerprint());
        }
    }

    #[test] // C6
    fn the_definition_knows_every_expression_and_not_how_it_is_written() {
        let base = plan("tumbling: 60s", "value.paid", "value.k");
        assert_eq!(base.definition(), plan("tumbling: 1m", "value.paid", "value.k").definition());
        assert_ne!(base.definition(), plan("tumbling: 60s", "value.open", "value.k").definition());
        assert_ne!(base.definition(), plan("tumbling: 61s", "value.paid", "value.k").definition());
    }
}
