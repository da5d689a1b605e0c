//! What a window makes of its records: `count()`, `sum(value.amount)` and the like.

use super::compile::{self, Parsed};
use super::{Expression, ExpressionError, Names};
use crate::config::nearest;
use cel::common::ast::Expr;
use std::fmt;

/// A function over the records of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AggregateFunction {
    /// Number of records.
    Count,
    /// Sum; null is skipped, integers stay integers, overflow is the record's error.
    Sum,
    /// The smallest; null is skipped.
    Min,
    /// The largest; null is skipped.
    Max,
    /// Mean as a double; null is skipped.
    Mean,
    /// Of the record that is first by (event time, topic, partition, offset).
    First,
    /// Of the record that is last by (event time, topic, partition, offset).
    Last,
}

const FUNCTIONS: [AggregateFunction; 7] = [
    AggregateFunction::Count,
    AggregateFunction::Sum,
    AggregateFunction::Min,
    AggregateFunction::Max,
    AggregateFunction::Mean,
    AggregateFunction::First,
    AggregateFunction::Last,
];

/// What other languages call them.
const OTHER_NAMES: [(&str, &str); 3] = [("avg", "mean"), ("average", "mean"), ("total", "sum")];

/// Aggregates that a later version brings.
const LATER: [&str; 6] = ["variance", "reduce", "collect", "top_k", "distinct", "quantiles"];

impl fmt::Display for AggregateFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl AggregateFunction {
    /// The function's name.
    pub fn as_str(self) -> &'static str {
        match self {
            AggregateFunction::Count => "count",
            AggregateFunction::Sum => "sum",
            AggregateFunction::Min => "min",
            AggregateFunction::Max => "max",
            AggregateFunction::Mean => "mean",
            AggregateFunction::First => "first",
            AggregateFunction::Last => "last",
        }
    }
}

/// A function and what it is applied to.
#[derive(Clone, Debug, PartialEq)]
pub struct Aggregate {
    /// The function.
    pub function: AggregateFunction,
    /// Of what; `None` for `count()`.
    pub of: Option<Expression>,
}

impl fmt::Display for Aggregate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.function, self.of.as_ref().map_or("", Expression::source))
    }
}

impl Aggregate {
    /// Compiles an aggregate.
    ///
    /// # Errors
    /// Everything that is wrong with it, each with its place in the text.
    pub fn compile(source: &str, names: Names) -> Result<Aggregate, Vec<ExpressionError>> {
        let parsed = compile::parse(source)?;
        let known = || FUNCTIONS.iter().map(|function| function.as_str());
        let error = |message: String, advice: String| {
            let offset = source.len() - source.trim_start().len();
            Err(vec![ExpressionError { offset, message, advice }])
        };
        let listed =
            "the aggregates are count(), sum(x), min(x), max(x), mean(x), first(x), last(x)".to_string();
        let Expr::Call(call) = &parsed.root.expr else {
            return error("an aggregate is needed here".into(), listed);
        };
        let name = call.func_name.as_str();
        let operator = !name.starts_with(|letter: char| letter.is_alphabetic());
        let Some(function) = FUNCTIONS.into_iter().find(|function| function.as_str() == name) else {
            if LATER.contains(&name) {
                return error(format!("the aggregate `{name}` is not available in this version"), listed);
            }
            if operator || call.target.is_some() {
                let advice = "give the parts names of their own, and put a map step behind the window".into();
                return error("an aggregate stands alone: it cannot be part of an expression".into(), advice);
            }
            let meant =
                OTHER_NAMES.iter().find(|(other, _)| name.eq_ignore_ascii_case(other)).map(|(_, ours)| *ours);
            let advice = match meant.or_else(|| nearest(name, known())) {
                Some(near) => format!("did you mean `{near}`? {listed}"),
                None => listed,
            };
            return error(format!("there is no aggregate `{name}`"), advice);
        };
        match (function, call.args.as_slice()) {
            (AggregateFunction::Count, []) => Ok(Aggregate { function, of: None }),
            (AggregateFunction::Count, _) => error(
                "count() counts records and takes nothing".into(),
                "to count some of them, write sum(test ? 1 : 0)".into(),
            ),
            (_, [argument]) => {
                let inner = Parsed { root: argument.clone(), ..parsed };
                let text = argument_text(source, name);
                let of = Expression::from_parsed(text, &inner, names)?;
                Ok(Aggregate { function, of: Some(of) })
            }
            (_, arguments) => error(
                format!("{name}() takes one expression, not {}", arguments.len()),
                format!("write {name}(value.field)"),
            ),
        }
    }
}

/// The text between the parentheses of `name(…)`.
fn argument_text<'s>(source: &'s str, name: &str) -> &'s str {
    let text = source.trim();
    let text = text.strip_prefix(name).unwrap_or(text).trim();
    text.strip_prefix('(').and_then(|text| text.strip_suffix(')')).unwrap_or(text)
}
