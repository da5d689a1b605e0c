//! [`Row`]: what travels between the steps of a flow in YAML, and how expressions see it.

use super::stream::Stream;
use crate::config::steps::Codec;
use crate::expression::{Aggregate, AggregateFunction, Expression, Scope};
use crate::value::{Value, json};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tidegate_operators::element::{Data, Element, Headers, Keyed, Record};
use tidegate_operators::inputs::InputTable;
use tidegate_operators::record;
use tidegate_operators::window::{
    AggregateError, Aggregator, Column, ColumnKind, Columns, Number, Scalar, Windowed,
};

/// Key and value of a record, as values.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Row {
    pub(super) key: Value,
    pub(super) value: Value,
}

impl Row {
    /// Decodes value and key; what is absent stays null. After an error the row is as it was.
    pub(super) fn decode(&mut self, value: Codec, key: Codec) -> Result<(), String> {
        let value = decode(value, &self.value).map_err(|reason| format!("the value {reason}"))?;
        let key = decode(key, &self.key).map_err(|reason| format!("the key {reason}"))?;
        self.value = value.unwrap_or_else(|| std::mem::take(&mut self.value));
        self.key = key.unwrap_or_else(|| std::mem::take(&mut self.key));
        Ok(())
    }

    /// One line of JSON, for stdout and files.
    pub(super) fn line(&self) -> Option<Bytes> {
        match &self.value {
            Value::Bytes(bytes) => Some(bytes.clone()),
            value => Some(Bytes::from(json::encode(value))),
        }
    }
}

/// The value of bytes; `None` leaves what is there.
fn decode(codec: Codec, value: &Value) -> Result<Option<Value>, String> {
    let Value::Bytes(bytes) = value else { return Ok(None) };
    match codec {
        Codec::Bytes => Ok(None),
        Codec::Text => std::str::from_utf8(bytes)
            .map(|text| Some(Value::string(text)))
            .map_err(|error| format!("is no UTF-8 text: {error}")),
        Codec::Json => json::decode(bytes).map(Some).map_err(|error| format!("is no JSON: {error}")),
    }
}

/// Something that carries a row: the row itself, or a row with its key's bytes.
pub(super) trait Rowed: Data {
    fn row(&self) -> &Row;
    fn row_mut(&mut self) -> &mut Row;
    /// The key that a sink writes.
    fn key_bytes(&self) -> Option<Bytes>;
    /// What an expression calls `key`.
    fn key(&self) -> std::borrow::Cow<'_, Value>;
    /// What a dead letter has of it where the record as it was read is not kept: what a sink would write.
    fn record(&self) -> Result<Record, String> {
        Ok(Record { key: self.key_bytes(), value: self.row().value.output_bytes() })
    }
}

impl Rowed for Row {
    fn row(&self) -> &Row {
        self
    }
    fn row_mut(&mut self) -> &mut Row {
        self
    }
    fn key_bytes(&self) -> Option<Bytes> {
        self.key.key_bytes()
    }
    fn key(&self) -> std::borrow::Cow<'_, Value> {
        std::borrow::Cow::Borrowed(&self.key)
    }
}

impl Rowed for Keyed<Row> {
    fn row(&self) -> &Row {
        &self.value
    }
    fn row_mut(&mut self) -> &mut Row {
        &mut self.value
    }
    fn key_bytes(&self) -> Option<Bytes> {
        self.key.clone()
    }
    fn key(&self) -> std::borrow::Cow<'_, Value> {
        std::borrow::Cow::Owned(keyed_row(self.key.as_ref()))
    }
}

/// The key of a grouped row as a value: text where its bytes are text.
pub(super) fn keyed_row(key: Option<&Bytes>) -> Value {
    match key {
        None => Value::Null,
        Some(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => Value::string(text),
            Err(_) => Value::Bytes(bytes.clone()),
        },
    }
}

/// Expressions with what they need beside the row: the names of the partitions.
#[derive(Clone)]
pub(super) struct Bound {
    inputs: Arc<InputTable>,
}

impl Bound {
    pub(super) fn new(inputs: InputTable) -> Bound {
        Bound { inputs: Arc::new(inputs) }
    }

    fn with_scope<R: Rowed, O>(&self, element: &Element<R>, use_scope: impl FnOnce(&Scope<'_>) -> O) -> O {
        let origin = self.inputs.name(element.meta.partition);
        let key = element.value.key();
        use_scope(&Scope {
            key: &key,
            value: &element.value.row().value,
            headers: &element.meta.headers,
            timestamp: element.meta.timestamp,
            topic: origin.map(|origin| &*origin.topic),
            partition: origin.map(|origin| origin.partition),
            offset: origin.map(|_| element.meta.offset),
            state: Value::NULL,
        })
    }

    /// The expression's value.
    pub(super) fn value<R: Rowed>(
        &self,
        expression: &Expression,
        element: &Element<R>,
    ) -> Result<Value, String> {
        self.with_scope(element, |scope| {
            expression.evaluate(scope).map(std::borrow::Cow::into_owned).map_err(|error| error.to_string())
        })
    }

    /// Whether the expression holds.
    pub(super) fn test<R: Rowed>(
        &self,
        expression: &Expression,
        element: &Element<R>,
    ) -> Result<bool, String> {
        self.with_scope(element, |scope| expression.test(scope).map_err(|error| error.to_string()))
    }

    /// Whether it holds; a test step passes by what it cannot judge.
    pub(super) fn holds<R: Rowed>(&self, expression: &Expression, element: &Element<R>) -> bool {
        self.test(expression, element).unwrap_or(false)
    }

    /// The items of the list that the expression gives.
    pub(super) fn list<R: Rowed>(
        &self,
        expression: &Expression,
        element: &Element<R>,
    ) -> Result<Vec<Value>, String> {
        match self.value(expression, element)? {
            Value::List(items) => Ok(Arc::unwrap_or_clone(items)),
            Value::Null => Ok(Vec::new()),
            other => Err(format!("`{}` gives {} and not a list", expression.source(), other.type_of())),
        }
    }

    /// An event time: integer milliseconds or an RFC 3339 text.
    pub(super) fn event_time<R: Rowed>(
        &self,
        expression: &Expression,
        element: &Element<R>,
    ) -> Result<i64, String> {
        match self.value(expression, element)? {
            Value::Int(ms) => Ok(ms),
            Value::String(text) => crate::value::time::parse_rfc3339_ms(&text)
                .map_err(|reason| format!("`{}` gives {text:?}: {reason}", expression.source())),
            other => {
                let advice = match other {
                    Value::Double(_) => format!(": write `int({})`", expression.source()),
                    _ => String::new(),
                };
                Err(format!(
                    "`{}` gives {} and not integer milliseconds or an RFC 3339 text{advice}",
                    expression.source(),
                    other.type_of()
                ))
            }
        }
    }

    /// The wall clock.
    pub(super) fn arrival(&self) -> Result<i64, String> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).map_err(|error| error.to_string())?;
        i64::try_from(since.as_millis()).map_err(|error| error.to_string())
    }

    /// The value of an expression over a row and the state of its key, without the record's metadata.
    pub(super) fn of_row(&self, expression: &Expression, row: &Row, state: &Value) -> Result<Value, String> {
        let headers = Headers::default();
        let scope = Scope {
            key: &row.key,
            value: &row.value,
            headers: &headers,
            timestamp: None,
            topic: None,
            partition: None,
            offset: None,
            state,
        };
        expression.evaluate(&scope).map(std::borrow::Cow::into_owned).map_err(|error| error.to_string())
    }
}

impl<'s> Stream<'s, Record> {
    /// Records as rows of bytes.
    pub(super) fn rows(self) -> Stream<'s, Row> {
        let as_read = self.as_read;
        let rows = self.untracked_map(|record: Record| Row {
            key: Value::from_bytes(record.key),
            value: Value::from_bytes(record.value),
        });
        rows.unchanged(as_read)
    }
}

impl<'s> Stream<'s, Keyed<Row>> {
    /// Rows that are not grouped any more; their key is the one that they were grouped by.
    pub(super) fn rows(self) -> Stream<'s, Row> {
        self.untracked_map(|Keyed { key, value, .. }: Keyed<Row>| Row {
            key: keyed_row(key.as_ref()),
            ..value
        })
    }
}

impl<'s, T: Data> Stream<'s, T> {
    /// A map that is no step of the user's.
    pub(super) fn untracked_map<U: Data>(self, f: impl Fn(T) -> U + 'static) -> Stream<'s, U> {
        self.untracked(move |build, id, elements| record::map(build, id, elements, f))
    }
}

impl Scalar for Value {
    fn number(&self) -> Result<Option<Number>, AggregateError> {
        match self {
            Value::Null => Ok(None),
            Value::Int(number) => Ok(Some(Number::Int(*number))),
            Value::Double(number) => Ok(Some(Number::Double(*number))),
            other => Err(AggregateError::NotANumber(other.to_string())),
        }
    }

    fn is_null(&self) -> bool {
        matches!(self, Value::Null)
    }

    fn rank(&self, other: &Value) -> Ordering {
        crate::value::rank(self, other)
    }

    fn from_number(number: Number) -> Value {
        match number {
            Number::Int(number) => Value::Int(number),
            Number::Double(number) => Value::Double(number),
        }
    }

    fn null() -> Value {
        Value::Null
    }
}

/// The aggregates of a window over rows whose value is the list of what each aggregate takes.
pub(super) fn columns(
    names: &[Arc<str>],
    aggregates: &[&Aggregate],
) -> impl Aggregator<Row, Out = Vec<Value>> + use<> {
    let columns: Vec<Column> = names
        .iter()
        .zip(aggregates)
        .map(|(name, aggregate)| Column {
            name: name.clone(),
            kind: match aggregate.function {
                AggregateFunction::Count => ColumnKind::Count,
                AggregateFunction::Sum => ColumnKind::Sum,
                AggregateFunction::Min => ColumnKind::Min,
                AggregateFunction::Max => ColumnKind::Max,
                AggregateFunction::Mean => ColumnKind::Mean,
                AggregateFunction::First => ColumnKind::First,
                AggregateFunction::Last => ColumnKind::Last,
            },
        })
        .collect();
    Columns::new(columns, |row: &Row, values: &mut Vec<Value>| {
        match &row.value {
            Value::List(taken) => values.extend(taken.iter().cloned()),
            other => unreachable!("a window's input is a list, not {}", other.type_of()),
        }
        Ok(())
    })
}

/// The row of a window's result: its key, and `{"window_start", "window_end", aggregates by name}`.
pub(super) fn window_row(names: &[Arc<str>], result: Keyed<Windowed<Vec<Value>>>) -> Row {
    let Keyed { key, value: Windowed { start, end, value }, .. } = result;
    let borders = [("window_start".into(), Value::Int(start.0)), ("window_end".into(), Value::Int(end.0))];
    let fields = borders.into_iter().chain(names.iter().cloned().zip(value));
    Row { key: keyed_row(key.as_ref()), value: Value::map::<Arc<str>>(fields) }
}
