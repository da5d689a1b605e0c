//! Expressions of a YAML flow: CEL over [`Value`]s, compiled once and evaluated per record.
//!
//! Field paths, comparisons, logic, arithmetic, literals, the common functions and the comprehension macros run
//! on a tree of Tidegate's own that walks the values where they lie; whatever it does not know is handed to the
//! `cel` interpreter, with only the parts of the record that the expression mentions converted. Both mean the
//! same: a property test compares them. Where they must differ, ours is the stricter: maps keep the order of
//! their fields, and `+` joins lists with lists only.
//!
//! Results leave CEL's types: `uint` becomes an integer (an error beyond `i64`), a timestamp its RFC 3339 text,
//! a duration its text in seconds, an absent optional null.
//!
//! A missing field, a type that does not fit, an overflow: the record's error, never a panic.

mod aggregate;
mod bridge;
mod compile;
mod names;
mod node;
mod operations;
#[cfg(test)]
mod tests;
mod validate;

pub use aggregate::{Aggregate, AggregateFunction};
pub use names::{Name, Names};

use crate::value::{Type, Value};
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use tidegate_operators::element::Headers;

/// Longest expression, in bytes.
pub const EXPRESSION_BYTES_MAX: usize = 8 * 1024;

/// A compiled expression; cheap to clone, and every worker may share it.
#[derive(Clone)]
pub struct Expression {
    source: Arc<str>,
    root: Arc<node::Node>,
    uses: Names,
}

/// What the names of an expression stand for: one record, and the state of its key where there is one.
#[derive(Clone, Copy, Debug)]
pub struct Scope<'a> {
    /// `key`
    pub key: &'a Value,
    /// `value`
    pub value: &'a Value,
    /// `headers`: a map from each name to its last value, as text when it is UTF-8, else as bytes.
    pub headers: &'a Headers,
    /// `timestamp`: the record's, in milliseconds; null when there is none.
    pub timestamp: Option<i64>,
    /// `topic`; null for a result made of several records.
    pub topic: Option<&'a str>,
    /// `partition`; null for a result made of several records.
    pub partition: Option<i32>,
    /// `offset`; null for a result made of several records.
    pub offset: Option<i64>,
    /// `state`, in a `stateful_map`.
    pub state: &'a Value,
}

/// What is wrong with an expression, and where in its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpressionError {
    /// Byte offset in the expression's text.
    pub offset: usize,
    /// What is wrong.
    pub message: String,
    /// What to do, such as the near match; may be empty.
    pub advice: String,
}

impl fmt::Display for ExpressionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if !self.advice.is_empty() {
            write!(f, "; {}", self.advice)?;
        }
        Ok(())
    }
}

impl std::error::Error for ExpressionError {}

/// Why an expression has no value for a record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct EvaluationError {
    message: String,
}

impl EvaluationError {
    fn new(message: impl Into<String>) -> EvaluationError {
        EvaluationError { message: message.into() }
    }
}

impl Expression {
    /// Compiles an expression that may use `names`.
    ///
    /// # Errors
    /// Everything that is wrong with it, each with its place in the text.
    pub fn compile(source: &str, names: Names) -> Result<Expression, Vec<ExpressionError>> {
        let parsed = compile::parse(source)?;
        Expression::from_parsed(source, &parsed, names)
    }

    fn from_parsed(
        source: &str,
        parsed: &compile::Parsed,
        names: Names,
    ) -> Result<Expression, Vec<ExpressionError>> {
        let uses = validate::validate(parsed, names)?;
        Ok(Expression { source: Arc::from(source.trim()), root: Arc::new(compile::compile(parsed)), uses })
    }

    /// The expression as it was written, without the space around it.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The names that the expression mentions.
    pub fn uses(&self) -> Names {
        self.uses
    }

    /// The type of the result, where it does not depend on the record.
    pub fn result_type(&self) -> Option<Type> {
        self.root.static_type()
    }

    /// The value for a record; borrowed from it where the expression is a path.
    ///
    /// # Errors
    /// The record's error.
    #[inline]
    pub fn evaluate<'a>(&'a self, scope: &'a Scope<'a>) -> Result<Cow<'a, Value>, EvaluationError> {
        self.root.evaluate(scope, None)
    }

    /// The value for a record as a truth value.
    ///
    /// # Errors
    /// The record's error; also when the value is not a truth value.
    #[inline]
    pub fn test(&self, scope: &Scope<'_>) -> Result<bool, EvaluationError> {
        self.root.truth(scope, None)
    }

    /// The value, where it is the same for every record.
    pub fn constant(&self) -> Option<Value> {
        let empty = Headers::default();
        let nothing = Scope {
            key: Value::NULL,
            value: Value::NULL,
            headers: &empty,
            timestamp: None,
            topic: None,
            partition: None,
            offset: None,
            state: Value::NULL,
        };
        let value = (self.uses == Names::NONE).then(|| self.evaluate(&nothing)).and_then(Result::ok);
        value.map(Cow::into_owned)
    }

    /// Whether a part of it runs in the `cel` interpreter, which costs more per record.
    pub fn is_interpreted(&self) -> bool {
        self.root.is_interpreted()
    }
}

impl fmt::Debug for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Expression({})", self.source)
    }
}

impl PartialEq for Expression {
    fn eq(&self, other: &Expression) -> bool {
        self.source == other.source
    }
}
