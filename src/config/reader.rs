//! What a reading of a configuration collects: problems, and where each setting came from.

use super::problems::{Problem, Problems, code};
use super::provenance::Provenance;
use super::yaml::{Data, Node, Origin, Plain, Scalar};
use crate::expression::{Aggregate, Expression, ExpressionError, Names};
use std::cell::RefCell;

/// What a reading collects.
#[derive(Default)]
pub(super) struct Reader {
    problems: RefCell<Problems>,
    provenance: RefCell<Provenance>,
    /// Values that have a problem already: what else is wrong with them follows from it.
    settled: RefCell<Vec<Origin>>,
}

impl Reader {
    pub(super) fn report(&self, problem: Problem) {
        if !self.settled.borrow().contains(&problem.origin) {
            self.problems.borrow_mut().push(problem);
        }
    }

    /// Reports a problem that makes the value useless: nothing else is said about it.
    pub(super) fn report_and_settle(&self, problem: Problem) {
        let origin = problem.origin.clone();
        self.report(problem);
        self.settled.borrow_mut().push(origin);
    }

    pub(super) fn finish(self) -> (Problems, Provenance) {
        (self.problems.into_inner(), self.provenance.into_inner())
    }

    /// A list as it is, or one value alone; a list from a flag or the environment may be split at `separators`.
    pub(super) fn texts(&self, node: &Node, path: &str, separators: &[char]) -> Vec<(String, Origin)> {
        match &node.data {
            Data::List(items) => items
                .iter()
                .enumerate()
                .filter_map(|(at, item)| {
                    Some((self.text_of(item, &format!("{path}[{at}]"))?, item.origin.clone()))
                })
                .collect(),
            Data::Scalar(scalar) if !matches!(node.origin, Origin::File(_)) => scalar
                .text
                .split(separators)
                .map(str::trim)
                .filter(|part| !part.is_empty())
                .map(|part| (part.to_string(), node.origin.clone()))
                .collect(),
            _ => self.text_of(node, path).map(|text| (text, node.origin.clone())).into_iter().collect(),
        }
    }

    /// The text of a scalar; a number written without quotes is text too where text is needed.
    pub(super) fn text_of(&self, node: &Node, path: &str) -> Option<String> {
        match &node.data {
            Data::Scalar(scalar) if scalar.resolve() != Plain::Null => Some(scalar.text.clone()),
            _ => {
                self.invalid(node, path, "text");
                None
            }
        }
    }

    pub(super) fn invalid(&self, node: &Node, path: &str, needed: &str) {
        let found = node.describe();
        let message = format!("found {found} where {needed} is needed");
        self.report(Problem::error(code::INVALID_VALUE, path, &node.origin, message));
    }

    pub(super) fn note(&self, path: String, value: String, origin: Origin) {
        self.provenance.borrow_mut().note(path, value, origin);
    }

    /// Compiles the expression that a scalar holds.
    pub(super) fn expression(&self, node: &Node, path: &str, names: Names) -> Option<Expression> {
        let scalar = self.expression_text(node, path)?;
        Expression::compile(&scalar.text, names)
            .map_err(|errors| self.bad_expression(errors, scalar, node, path))
            .ok()
    }

    /// Compiles the aggregate that a scalar holds.
    pub(super) fn aggregate(&self, node: &Node, path: &str, names: Names) -> Option<Aggregate> {
        let scalar = self.expression_text(node, path)?;
        Aggregate::compile(&scalar.text, names)
            .map_err(|errors| self.bad_expression(errors, scalar, node, path))
            .ok()
    }

    fn expression_text<'n>(&self, node: &'n Node, path: &str) -> Option<&'n Scalar> {
        match &node.data {
            Data::Scalar(scalar) if !(scalar.plain && scalar.text.is_empty()) => Some(scalar),
            Data::Map(_) => {
                let message = "found a map where an expression is needed";
                self.report(
                    Problem::error(code::INVALID_VALUE, path, &node.origin, message)
                        .advise("put an expression that begins with { in quotes"),
                );
                None
            }
            _ => {
                self.invalid(node, path, "an expression");
                None
            }
        }
    }

    fn bad_expression(&self, errors: Vec<ExpressionError>, scalar: &Scalar, node: &Node, path: &str) {
        for error in errors {
            let origin = scalar.position_of(error.offset, &node.origin);
            let mut message = error.message;
            if origin == node.origin && error.offset > 0 {
                let character = scalar.text[..error.offset].chars().count() + 1;
                message = format!("{message} (at character {character} of the expression)");
            }
            self.report(Problem::error(code::BAD_EXPRESSION, path, &origin, message).advise(error.advice));
        }
    }
}
