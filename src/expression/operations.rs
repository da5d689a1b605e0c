//! Arithmetic, comparison and functions on values, with the meaning that CEL gives them.

use super::EvaluationError;
use crate::value::{Map, Type, Value};
use std::cmp::Ordering;
use std::sync::Arc;

type Outcome<T> = Result<T, EvaluationError>;

/// A binary operator of arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arithmetic {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
}

impl Arithmetic {
    fn symbol(self) -> &'static str {
        match self {
            Arithmetic::Add => "+",
            Arithmetic::Subtract => "-",
            Arithmetic::Multiply => "*",
            Arithmetic::Divide => "/",
            Arithmetic::Remainder => "%",
        }
    }

    /// The result's type, where the operands' types fix it.
    pub(super) fn static_type(self, left: Option<Type>, right: Option<Type>) -> Option<Type> {
        let operand = left.or(right)?;
        matches!(operand, Type::Int | Type::Double | Type::String | Type::Bytes | Type::List)
            .then_some(operand)
    }

    pub(super) fn apply(self, left: &Value, right: &Value) -> Outcome<Value> {
        match (left, right) {
            (Value::Int(a), Value::Int(b)) => self.integers(*a, *b).map(Value::Int),
            (Value::Double(a), Value::Double(b)) => match self {
                Arithmetic::Add => Ok(Value::Double(a + b)),
                Arithmetic::Subtract => Ok(Value::Double(a - b)),
                Arithmetic::Multiply => Ok(Value::Double(a * b)),
                Arithmetic::Divide => Ok(Value::Double(a / b)),
                Arithmetic::Remainder => Err(self.does_not_fit(left, right)),
            },
            (Value::String(a), Value::String(b)) if self == Arithmetic::Add => {
                Ok(Value::String(Arc::from([&**a, &**b].concat())))
            }
            (Value::Bytes(a), Value::Bytes(b)) if self == Arithmetic::Add => {
                Ok(Value::Bytes([&**a, &**b].concat().into()))
            }
            (Value::List(a), Value::List(b)) if self == Arithmetic::Add => {
                Ok(Value::List(Arc::new([&***a, &***b].concat())))
            }
            _ => Err(self.does_not_fit(left, right)),
        }
    }

    fn integers(self, a: i64, b: i64) -> Outcome<i64> {
        let result = match self {
            Arithmetic::Add => a.checked_add(b),
            Arithmetic::Subtract => a.checked_sub(b),
            Arithmetic::Multiply => a.checked_mul(b),
            Arithmetic::Divide | Arithmetic::Remainder if b == 0 => {
                return Err(EvaluationError::new(format!("division by zero in {a} {} 0", self.symbol())));
            }
            Arithmetic::Divide => a.checked_div(b),
            Arithmetic::Remainder => a.checked_rem(b),
        };
        result.ok_or_else(|| {
            EvaluationError::new(format!("{a} {} {b} is beyond the range of an int", self.symbol()))
        })
    }

    fn does_not_fit(self, left: &Value, right: &Value) -> EvaluationError {
        let (a, b) = (left.type_of(), right.type_of());
        let advice = match (a, b) {
            (Type::Int, Type::Double) | (Type::Double, Type::Int) => "; convert one with double() or int()",
            _ => "",
        };
        EvaluationError::new(format!("{} does not work on {a} and {b}{advice}", self.symbol()))
    }
}

/// `-x`
pub(super) fn negate(value: &Value) -> Outcome<Value> {
    match value {
        Value::Int(number) => number
            .checked_neg()
            .map(Value::Int)
            .ok_or_else(|| EvaluationError::new(format!("-({number}) is beyond the range of an int"))),
        Value::Double(number) => Ok(Value::Double(-number)),
        other => Err(EvaluationError::new(format!("- does not work on {}", other.type_of()))),
    }
}

/// `<`, `<=`, `>`, `>=`: numbers with numbers, text with text, bytes with bytes, truth values with each other.
pub(super) fn compare(left: &Value, right: &Value) -> Outcome<Ordering> {
    let ordering = match (left, right) {
        (Value::Int(a), Value::Int(b)) => Some(a.cmp(b)),
        (Value::Double(a), Value::Double(b)) => a.partial_cmp(b),
        (Value::Int(a), Value::Double(b)) => (*a as f64).partial_cmp(b),
        (Value::Double(a), Value::Int(b)) => a.partial_cmp(&(*b as f64)),
        (Value::String(a), Value::String(b)) => Some(a.cmp(b)),
        (Value::Bytes(a), Value::Bytes(b)) => Some(a.cmp(b)),
        (Value::Bool(a), Value::Bool(b)) => Some(a.cmp(b)),
        _ => None,
    };
    ordering.ok_or_else(|| {
        EvaluationError::new(format!("{} cannot be compared with {}", left.type_of(), right.type_of()))
    })
}

/// `x in y`: an element of a list, or the name of a field.
pub(super) fn contained(item: &Value, container: &Value) -> Outcome<bool> {
    match (container, item) {
        (Value::List(items), _) => Ok(items.iter().any(|other| other == item)),
        (Value::Map(map), Value::String(name)) => Ok(map.get(name).is_some()),
        (Value::Map(_), Value::Int(_) | Value::Double(_) | Value::Bool(_)) => Ok(false),
        _ => Err(EvaluationError::new(format!(
            "in does not work on {} and {}",
            item.type_of(),
            container.type_of()
        ))),
    }
}

/// `x[i]`
pub(super) fn index<'v>(container: &'v Value, index: &Value) -> Outcome<&'v Value> {
    match (container, index) {
        (Value::Map(map), Value::String(name)) => map.get(name).ok_or_else(|| no_field(name, map)),
        (Value::Map(map), Value::Int(_) | Value::Double(_) | Value::Bool(_)) => {
            Err(no_field(&index.to_string(), map))
        }
        (Value::List(items), Value::Int(_) | Value::Double(_)) => {
            let place = match index {
                Value::Int(place) => *place,
                Value::Double(place) if place.fract() == 0.0 && place.abs() < i64::MAX as f64 => {
                    *place as i64
                }
                _ => return Err(EvaluationError::new("a list has no fractional places")),
            };
            usize::try_from(place).ok().and_then(|place| items.get(place)).ok_or_else(|| {
                EvaluationError::new(format!("place {place} is outside a list of {} items", items.len()))
            })
        }
        _ => Err(EvaluationError::new(format!(
            "[] does not work on {} with {}",
            container.type_of(),
            index.type_of()
        ))),
    }
}

/// `x.name`
#[inline]
pub(super) fn field<'v>(operand: &'v Value, name: &str) -> Outcome<&'v Value> {
    match operand {
        Value::Map(map) => map.get(name).ok_or_else(|| no_field(name, map)),
        other => Err(no_fields(name, other)),
    }
}

/// `has(x.name)`
pub(super) fn has(operand: &Value, name: &str) -> Outcome<bool> {
    match operand {
        Value::Map(map) => Ok(map.get(name).is_some()),
        other => Err(no_fields(name, other)),
    }
}

#[cold]
fn no_field(name: &str, map: &Map) -> EvaluationError {
    const LISTED_MAX: usize = 12;
    let mut known: Vec<&str> = map.iter().take(LISTED_MAX).map(|(name, _)| &**name).collect();
    if map.len() > LISTED_MAX {
        known.push("…");
    }
    EvaluationError::new(format!("there is no field `{name}` among [{}]", known.join(", ")))
}

#[cold]
fn no_fields(name: &str, value: &Value) -> EvaluationError {
    let advice = match value {
        Value::Bytes(_) => "; put a decode step before",
        _ => "",
    };
    EvaluationError::new(format!("there is no field `{name}` in {}{advice}", value.type_of()))
}

/// A function that the tree knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Function {
    Size,
    Contains,
    StartsWith,
    EndsWith,
    Int,
    Double,
    String,
    Bytes,
}

impl Function {
    /// The function of this name for this number of operands (the target of a method call is the first).
    pub(super) fn find(name: &str, operands: usize, method: bool) -> Option<Function> {
        Some(match (name, operands, method) {
            ("size", 1, _) => Function::Size,
            ("contains", 2, true) => Function::Contains,
            ("startsWith", 2, true) => Function::StartsWith,
            ("endsWith", 2, true) => Function::EndsWith,
            ("int", 1, false) => Function::Int,
            ("double", 1, false) => Function::Double,
            ("string", 1, false) => Function::String,
            ("bytes", 1, false) => Function::Bytes,
            _ => return None,
        })
    }

    pub(super) fn static_type(self) -> Type {
        match self {
            Function::Size | Function::Int => Type::Int,
            Function::Contains | Function::StartsWith | Function::EndsWith => Type::Bool,
            Function::Double => Type::Double,
            Function::String => Type::String,
            Function::Bytes => Type::Bytes,
        }
    }

    pub(super) fn apply(self, operand: &Value, argument: Option<&Value>) -> Outcome<Value> {
        if let Some(argument) = argument {
            return match (operand, argument) {
                (Value::String(text), Value::String(part)) => Ok(Value::Bool(match self {
                    Function::Contains => text.contains(&**part),
                    Function::StartsWith => text.starts_with(&**part),
                    _ => text.ends_with(&**part),
                })),
                _ => Err(EvaluationError::new(format!(
                    "{self:?} does not work on {} and {}",
                    operand.type_of(),
                    argument.type_of()
                ))),
            };
        }
        match self {
            Function::Size => size(operand),
            Function::Int => to_int(operand),
            Function::Double => to_double(operand),
            Function::String => to_text(operand),
            Function::Bytes => match operand {
                Value::Bytes(bytes) => Ok(Value::Bytes(bytes.clone())),
                Value::String(text) => Ok(Value::Bytes(text.as_bytes().to_vec().into())),
                other => Err(EvaluationError::new(format!("bytes() does not take {}", other.type_of()))),
            },
            Function::Contains | Function::StartsWith | Function::EndsWith => {
                Err(EvaluationError::new("a text function needs an argument"))
            }
        }
    }
}

fn size(value: &Value) -> Outcome<Value> {
    let size = match value {
        Value::String(text) => text.chars().count(),
        Value::Bytes(bytes) => bytes.len(),
        Value::List(items) => items.len(),
        Value::Map(map) => map.len(),
        other => return Err(EvaluationError::new(format!("size() does not take {}", other.type_of()))),
    };
    Ok(Value::Int(size as i64))
}

fn to_int(value: &Value) -> Outcome<Value> {
    match value {
        Value::Int(number) => Ok(Value::Int(*number)),
        // The bounds of CEL: both ends are excluded, for they are no exact doubles.
        Value::Double(number) if *number > i64::MIN as f64 && *number < i64::MAX as f64 => {
            Ok(Value::Int(*number as i64))
        }
        Value::Double(number) => Err(EvaluationError::new(format!("{number} is beyond the range of an int"))),
        Value::String(text) => {
            text.parse().map(Value::Int).map_err(|_| EvaluationError::new(format!("`{text}` is no int")))
        }
        other => Err(EvaluationError::new(format!("int() does not take {}", other.type_of()))),
    }
}

fn to_double(value: &Value) -> Outcome<Value> {
    match value {
        Value::Int(number) => Ok(Value::Double(*number as f64)),
        Value::Double(number) => Ok(Value::Double(*number)),
        Value::String(text) => text
            .parse()
            .map(Value::Double)
            .map_err(|_| EvaluationError::new(format!("`{text}` is no double"))),
        other => Err(EvaluationError::new(format!("double() does not take {}", other.type_of()))),
    }
}

fn to_text(value: &Value) -> Outcome<Value> {
    match value {
        Value::String(text) => Ok(Value::String(text.clone())),
        Value::Bool(truth) => Ok(Value::string(truth.to_string())),
        Value::Int(number) => Ok(Value::string(number.to_string())),
        Value::Double(number) => Ok(Value::string(number.to_string())),
        Value::Bytes(bytes) => std::str::from_utf8(bytes)
            .map(Value::string)
            .map_err(|_| EvaluationError::new("the bytes are no UTF-8 text")),
        other => Err(EvaluationError::new(format!("string() does not take {}", other.type_of()))),
    }
}
