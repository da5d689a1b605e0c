//! Between our values and the `cel` interpreter: which parts of a record an interpreted part needs, and the
//! conversion there and back.

use super::compile::{self, ENVIRONMENT};
use super::node::{Locals, Node};
use super::{EvaluationError, Name, Scope};
use crate::value::{Map, Type, Value};
use cel::common::ast::{EntryExpr, Expr, IdedExpr};
use cel::common::types::{
    CelBool, CelBytes, CelDouble, CelInt, CelList, CelMap, CelMapKey, CelNull, CelString,
};
use cel::common::value::Val;
use cel::objects::{Key, OptionalValue};
use cel::{Context, ExecutionError};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// A part of an expression that the interpreter evaluates.
pub(super) struct Interpreted {
    expression: IdedExpr,
    /// Variables of the interpreted expression, and what each stands for.
    inputs: Vec<(String, Node)>,
    result: Option<Type>,
}

impl fmt::Debug for Interpreted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Interpreted({:?})", self.inputs)
    }
}

impl Interpreted {
    /// The part, inside comprehensions of ours with these variables.
    ///
    /// A path into the record becomes one variable, so that only what it leads to is converted.
    pub(super) fn new(expression: &IdedExpr, locals: &mut Vec<String>) -> Interpreted {
        let mut expression = expression.clone();
        let result = compile::interpreted_type(&expression);
        let mut inputs = Vec::new();
        let mut bound = Vec::new();
        extract_paths(&mut expression, &mut bound, locals, &mut inputs);
        Interpreted { expression, inputs, result }
    }

    pub(super) fn static_type(&self) -> Option<Type> {
        self.result
    }

    pub(super) fn evaluate<'a>(
        &'a self,
        scope: &'a Scope<'a>,
        locals: Option<&'a Locals<'a>>,
    ) -> Result<Value, EvaluationError> {
        let values: Vec<_> = self.inputs.iter().map(|(_, node)| node.evaluate(scope, locals)).collect();
        let mut context = Context::with_env(ENVIRONMENT.clone());
        for ((name, _), value) in self.inputs.iter().zip(&values) {
            // An input that has no value fails only if the expression comes to need it.
            if let Ok(value) = value {
                context.add_variable_as_val(name.as_str(), to_interpreter(value));
            }
        }
        let result = cel::Value::resolve(&self.expression, &context).map_err(|error| match &error {
            ExecutionError::UndeclaredReference(name) => self
                .inputs
                .iter()
                .zip(&values)
                .find(|((input, _), value)| input == name.as_str() && value.is_err())
                .and_then(|(_, value)| value.as_ref().err().cloned())
                .unwrap_or_else(|| plain(&error)),
            _ => plain(&error),
        })?;
        from_interpreter(&result)
    }
}

fn plain(error: &ExecutionError) -> EvaluationError {
    let message = match error {
        ExecutionError::NoSuchKey(name) => format!("there is no field `{name}`"),
        ExecutionError::FunctionError { function, message } => format!("{function}(): {message}"),
        other => {
            let text = other.to_string();
            let mut letters = text.chars();
            letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
        }
    };
    EvaluationError::new(message)
}

/// Replaces names of the record, paths into it and variables of our comprehensions by inputs.
fn extract_paths(
    part: &mut IdedExpr,
    bound: &mut Vec<String>,
    locals: &mut Vec<String>,
    inputs: &mut Vec<(String, Node)>,
) {
    if let Some(root) = path_root(part)
        && !bound.contains(root)
        && (locals.contains(root) || Name::parse(root).is_some())
    {
        let is_test = matches!(&part.expr, Expr::Select(select) if select.test);
        if !is_test && let Some(node) = compile::compile_path(part, locals) {
            let name = input_name(part);
            if !inputs.iter().any(|(known, _)| *known == name) {
                inputs.push((name.clone(), node));
            }
            part.expr = Expr::Ident(name);
            return;
        }
    }
    match &mut part.expr {
        Expr::Unspecified | Expr::Literal(_) | Expr::Ident(_) | Expr::Struct(_) => {}
        Expr::Select(select) => extract_paths(&mut select.operand, bound, locals, inputs),
        Expr::List(list) => {
            list.elements.iter_mut().for_each(|element| extract_paths(element, bound, locals, inputs));
        }
        Expr::Map(map) => {
            for entry in &mut map.entries {
                if let EntryExpr::MapEntry(entry) = &mut entry.expr {
                    extract_paths(&mut entry.key, bound, locals, inputs);
                    extract_paths(&mut entry.value, bound, locals, inputs);
                }
            }
        }
        Expr::Call(call) => {
            if let Some(target) = &mut call.target {
                extract_paths(target, bound, locals, inputs);
            }
            call.args.iter_mut().for_each(|argument| extract_paths(argument, bound, locals, inputs));
        }
        Expr::Comprehension(fold) => {
            extract_paths(&mut fold.iter_range, bound, locals, inputs);
            extract_paths(&mut fold.accu_init, bound, locals, inputs);
            let outer = bound.len();
            bound.push(fold.accu_var.clone());
            bound.push(fold.iter_var.clone());
            bound.extend(fold.iter_var2.clone());
            for inner in [&mut fold.loop_cond, &mut fold.loop_step, &mut fold.result] {
                extract_paths(inner, bound, locals, inputs);
            }
            bound.truncate(outer);
        }
    }
}

fn path_root(part: &IdedExpr) -> Option<&String> {
    match &part.expr {
        Expr::Ident(name) => Some(name),
        Expr::Select(select) => path_root(&select.operand),
        _ => None,
    }
}

/// A variable's name that no expression can write.
fn input_name(part: &IdedExpr) -> String {
    match &part.expr {
        Expr::Select(select) => format!("{}/{}", input_name(&select.operand), select.field),
        Expr::Ident(name) => format!("@{name}"),
        _ => String::new(),
    }
}

fn to_interpreter(value: &Value) -> Box<dyn Val + '_> {
    match value {
        Value::Null => Box::new(CelNull),
        Value::Bool(truth) => Box::new(CelBool::from(*truth)),
        Value::Int(number) => Box::new(CelInt::from(*number)),
        Value::Double(number) => Box::new(CelDouble::from(*number)),
        Value::String(text) => Box::new(CelString::from(&**text)),
        Value::Bytes(bytes) => Box::new(CelBytes::from(bytes.to_vec())),
        Value::List(items) => Box::new(CelList::from(items.iter().map(to_interpreter).collect::<Vec<_>>())),
        Value::Map(map) => {
            let fields: HashMap<CelMapKey<'_>, Box<dyn Val + '_>> =
                map.iter().map(|(name, value)| (CelMapKey::from(&**name), to_interpreter(value))).collect();
            Box::new(CelMap::from(fields))
        }
    }
}

fn from_interpreter(value: &cel::Value) -> Result<Value, EvaluationError> {
    Ok(match value {
        cel::Value::Null => Value::Null,
        cel::Value::Bool(truth) => Value::Bool(*truth),
        cel::Value::Int(number) => Value::Int(*number),
        cel::Value::UInt(number) => i64::try_from(*number)
            .map(Value::Int)
            .map_err(|_| EvaluationError::new(format!("{number} is beyond the range of an int")))?,
        cel::Value::Float(number) => Value::Double(*number),
        cel::Value::String(text) => Value::string(text.as_str()),
        cel::Value::Bytes(bytes) => Value::Bytes(bytes.to_vec().into()),
        cel::Value::List(items) => {
            let items: Result<Vec<Value>, _> = items.iter().map(from_interpreter).collect();
            Value::List(Arc::new(items?))
        }
        cel::Value::Map(map) => {
            // The interpreter keeps no order: the names' own order is at least always the same.
            let mut fields: Vec<(String, &cel::Value)> =
                map.map.iter().map(|(key, value)| (field_name(key), value)).collect();
            fields.sort_by(|a, b| a.0.cmp(&b.0));
            let mut result = Map::with_room(fields.len());
            for (name, value) in fields {
                result.insert(Arc::from(name), from_interpreter(value)?);
            }
            Value::Map(Arc::new(result))
        }
        cel::Value::Timestamp(time) => Value::string(time.to_rfc3339()),
        cel::Value::Duration(duration) => {
            Value::string(seconds(duration.num_seconds(), duration.subsec_nanos()))
        }
        cel::Value::Opaque(opaque) => match opaque.downcast_ref::<OptionalValue>() {
            Some(optional) => optional.value().map_or(Ok(Value::Null), from_interpreter)?,
            None => return Err(EvaluationError::new("the result is no value")),
        },
        cel::Value::Function(..) | cel::Value::Struct(_) => {
            return Err(EvaluationError::new("the result is no value"));
        }
    })
}

fn field_name(key: &Key) -> String {
    match key {
        Key::String(name) => name.to_string(),
        other => other.to_string(),
    }
}

/// A duration as protobuf's JSON has it: seconds with a fraction where there is one.
fn seconds(seconds: i64, nanos: i32) -> String {
    let sign = if seconds < 0 || nanos < 0 { "-" } else { "" };
    let (seconds, nanos) = (seconds.unsigned_abs(), nanos.unsigned_abs());
    if nanos == 0 {
        return format!("{sign}{seconds}s");
    }
    let fraction = format!("{nanos:09}");
    format!("{sign}{seconds}.{}s", fraction.trim_end_matches('0'))
}

/// What the interpreter alone says, for the comparison with our tree.
#[cfg(test)]
pub(super) fn evaluate_in_interpreter(source: &str, variables: &[(&str, &Value)]) -> Result<Value, String> {
    let program = ENVIRONMENT.compile(source).map_err(|errors| errors.to_string())?;
    let mut context = Context::with_env(ENVIRONMENT.clone());
    for (name, value) in variables {
        context.add_variable_as_val(*name, to_interpreter(value));
    }
    let result = program.execute(&context).map_err(|error| error.to_string())?;
    from_interpreter(&result).map_err(|error| error.to_string())
}
