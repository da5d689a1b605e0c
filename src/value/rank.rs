//! A total order over all values, for the smallest and largest of a window, and for ties.

use super::{Map, Value};
use std::cmp::Ordering;

/// Orders any two values; only values that are the same in every bit are equal. Numbers compare by what they stand
/// for, an integer before the double of the same value; null comes first, then truth values, numbers, text, bytes,
/// lists and maps.
pub fn rank(left: &Value, right: &Value) -> Ordering {
    match (left, right) {
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        (Value::Int(a), Value::Int(b)) => a.cmp(b),
        (Value::Double(a), Value::Double(b)) => a.total_cmp(b),
        (Value::Int(a), Value::Double(b)) => int_to_double(*a, *b),
        (Value::Double(a), Value::Int(b)) => int_to_double(*b, *a).reverse(),
        (Value::String(a), Value::String(b)) => a.cmp(b),
        (Value::Bytes(a), Value::Bytes(b)) => a.cmp(b),
        (Value::List(a), Value::List(b)) => ranked(a.iter(), b.iter()),
        (Value::Map(a), Value::Map(b)) => maps(a, b),
        _ => place(left).cmp(&place(right)),
    }
}

/// Compares without rounding the integer: beyond 2^53 a double cannot stand for every one.
fn int_to_double(int: i64, double: f64) -> Ordering {
    const BEYOND: f64 = 9_223_372_036_854_775_808.0;
    if double.is_nan() {
        return if double.is_sign_negative() { Ordering::Greater } else { Ordering::Less };
    }
    if double >= BEYOND {
        return Ordering::Less;
    }
    if double < -BEYOND {
        return Ordering::Greater;
    }
    // Within the range of i64 the whole part is exact.
    let whole = double.trunc() as i64;
    int.cmp(&whole).then_with(|| match double.fract() {
        part if part < 0.0 => Ordering::Greater,
        _ => Ordering::Less,
    })
}

fn ranked<'a>(
    mut left: impl Iterator<Item = &'a Value>,
    mut right: impl Iterator<Item = &'a Value>,
) -> Ordering {
    loop {
        match (left.next(), right.next()) {
            (None, None) => return Ordering::Equal,
            (None, Some(_)) => return Ordering::Less,
            (Some(_), None) => return Ordering::Greater,
            (Some(a), Some(b)) => match rank(a, b) {
                Ordering::Equal => {}
                decided => return decided,
            },
        }
    }
}

fn maps(left: &Map, right: &Map) -> Ordering {
    let names = left.iter().map(|(name, _)| name).cmp(right.iter().map(|(name, _)| name));
    names.then_with(|| ranked(left.iter().map(|(_, value)| value), right.iter().map(|(_, value)| value)))
}

fn place(value: &Value) -> u8 {
    match value {
        Value::Null => 0,
        Value::Bool(_) => 1,
        Value::Int(_) | Value::Double(_) => 2,
        Value::String(_) => 3,
        Value::Bytes(_) => 4,
        Value::List(_) => 5,
        Value::Map(_) => 6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_two_values_have_an_order_and_numbers_compare_by_what_they_stand_for() {
        let ascending = [
            Value::Null,
            Value::Bool(false),
            Value::Bool(true),
            Value::Double(f64::NEG_INFINITY),
            Value::Int(i64::MIN),
            Value::Double(-1.5),
            Value::Int(-1),
            Value::Double(-0.5),
            Value::Int(0),
            Value::Double(0.0),
            Value::Double(0.5),
            Value::Int(1),
            Value::Double(1.0),
            Value::Int(9_007_199_254_740_992),
            Value::Double(9_007_199_254_740_992.0),
            Value::Int(9_007_199_254_740_993),
            Value::Int(i64::MAX),
            Value::Double(9_223_372_036_854_775_808.0),
            Value::Double(f64::NAN),
            Value::string("a"),
            Value::string("b"),
            Value::Bytes(bytes::Bytes::from_static(b"a")),
            Value::list([]),
            Value::list([Value::Int(1)]),
            Value::map([("a", Value::Int(1))]),
            Value::map([("a", Value::Int(2))]),
        ];
        for (at, left) in ascending.iter().enumerate() {
            for (other, right) in ascending.iter().enumerate() {
                assert_eq!(rank(left, right), at.cmp(&other), "{left} and {right}");
            }
        }
    }
}
