//! Reads a `window` step.

use super::dead_letter_reader::{Attempts, read_dead_letters};
use super::layers::join;
use super::problems::{Problem, code};
use super::section::Section;
use super::step_reader::{ANY, POSITIVE, StepReader};
use super::steps::{LatePolicy, Operation, WindowShape, WindowStep};
use super::units::show_duration;
use super::yaml::Data;
use crate::expression::Names;
use std::sync::Arc;
use std::time::Duration;

/// Most windows that one record may fall into.
const WINDOWS_PER_RECORD_MAX: u128 = 10_000;

impl<'n> StepReader<'_, 'n> {
    pub(super) fn window(&self, section: &Section<'_, 'n>) -> Option<Operation> {
        let align = section.optional_duration("align", ANY);
        let shape = self.window_shape(section, align.unwrap_or_default());
        let lateness = section.duration("lateness", Duration::ZERO, ANY);
        let late = match read_dead_letters(section, "late", Attempts::One) {
            Some(letters) => letters.map_or_else(LatePolicy::default, LatePolicy::DeadLetter),
            None => {
                section.choice("late", (), &[("drop", ())]);
                LatePolicy::Drop
            }
        };
        if section.get("emit").is_some_and(|node| node.describe() == "`changes`") {
            section.error(
                code::INVALID_VALUE,
                "emit",
                "`emit: changes` is not available in this version",
                "take it out: a window's result is given once, when it is closed",
            );
        } else {
            section.choice("emit", (), &[("final", ())]);
        }
        for zone in ["zone", "timezone", "time_zone"] {
            if section.has(zone) {
                section.error(
                    code::INVALID_VALUE,
                    zone,
                    "windows are in UTC, a zone is refused",
                    "shift all borders with align: and a duration",
                );
                return None;
            }
        }
        let aggregates = self.aggregates(section);
        let shape = shape?;
        if let (WindowShape::Session { .. }, Some(_)) = (shape, align) {
            section.error(
                code::INVALID_VALUE,
                "align",
                "a session has no borders to shift",
                "take align out",
            );
            return None;
        }
        Some(Operation::Window(WindowStep { shape, lateness, late, aggregates: aggregates? }))
    }

    fn window_shape(&self, section: &Section<'_, 'n>, align: Duration) -> Option<WindowShape> {
        section.later("count", "a window by count");
        let found: Vec<&str> =
            ["tumbling", "sliding", "session"].into_iter().filter(|kind| section.has(kind)).collect();
        let [tumbling, sliding, session] = ["tumbling", "sliding", "session"].map(|kind| section.get(kind));
        match found.as_slice() {
            ["tumbling"] => {
                let size = match tumbling.map(|node| &node.data) {
                    Some(Data::Map(_)) => {
                        let inner = section.section("tumbling");
                        let size = self.needed_duration(&inner, "size", POSITIVE);
                        inner.finish();
                        size?
                    }
                    _ => self.needed_duration(section, "tumbling", POSITIVE)?,
                };
                self.check_align(section, align, size)?;
                Some(WindowShape::Tumbling { size, align })
            }
            ["sliding"] => {
                sliding?;
                let inner = section.section("sliding");
                let size = self.needed_duration(&inner, "size", POSITIVE);
                let every = self.needed_duration(&inner, "every", POSITIVE);
                inner.finish();
                let (size, every) = (size?, every?);
                if every > size {
                    section.error(
                        code::INVALID_VALUE,
                        "sliding",
                        format!("every ({}) is above size ({})", show_duration(every), show_duration(size)),
                        "records between the windows would be lost: make every at most size",
                    );
                    return None;
                }
                if size.as_millis() / every.as_millis() > WINDOWS_PER_RECORD_MAX {
                    section.error(
                        code::INVALID_VALUE,
                        "sliding",
                        format!("each record would fall into more than {WINDOWS_PER_RECORD_MAX} windows"),
                        "make every larger",
                    );
                    return None;
                }
                self.check_align(section, align, every)?;
                Some(WindowShape::Sliding { size, every, align })
            }
            ["session"] => {
                session?;
                let inner = section.section("session");
                let gap = self.needed_duration(&inner, "gap", POSITIVE);
                inner.finish();
                Some(WindowShape::Session { gap: gap? })
            }
            [] => {
                section.error(
                    code::INVALID_VALUE,
                    "",
                    "the window has no shape",
                    "write tumbling: 60s, or sliding: { size: 60s, every: 10s }, or session: { gap: 60s }",
                );
                None
            }
            several => {
                let message = format!("a window has one shape, and here are {}", several.join(" and "));
                section.error(code::INVALID_VALUE, several[1], message, "take all but one out");
                None
            }
        }
    }

    fn check_align(&self, section: &Section<'_, 'n>, align: Duration, below: Duration) -> Option<()> {
        if align < below {
            return Some(());
        }
        let message = format!("{} is not below {}", show_duration(align), show_duration(below));
        section.error(code::INVALID_VALUE, "align", message, "borders repeat: a smaller shift says the same");
        None
    }

    fn aggregates(&self, section: &Section<'_, 'n>) -> Option<Vec<(Arc<str>, crate::expression::Aggregate)>> {
        let Some(node) = section.get("aggregate") else {
            section
                .missing("aggregate", "name what the window gives, such as aggregate: { orders: count() }");
            return None;
        };
        let path = section.at("aggregate");
        let Data::Map(fields) = &node.data else {
            self.reader.invalid(node, &path, "a map of names and aggregates, such as { orders: count() },");
            return None;
        };
        let mut aggregates = Vec::new();
        for field in fields {
            let path = join(&path, &field.name);
            if ["window_start", "window_end"].contains(&field.name.as_str()) {
                let message = format!("`{}` is set by the window itself", field.name);
                self.reader.report(
                    Problem::error(code::INVALID_VALUE, &path, &field.origin, message)
                        .advise("use another name"),
                );
            }
            if let Some(aggregate) = self.reader.aggregate(&field.node, &path, Names::RECORD) {
                aggregates.push((Arc::from(field.name.as_str()), aggregate));
            }
        }
        if fields.is_empty() {
            self.reader.invalid(node, &path, "at least one aggregate");
        }
        (!fields.is_empty() && aggregates.len() == fields.len()).then_some(aggregates)
    }
}
