//! What stands in the partitions, and what must come of it.

use proptest::prelude::*;
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::time::Duration;
use tidegate_operators::window::{
    AggregateError, Number, Scalar, Session, Sliding, Tumbling, WindowKind, WindowSpec,
};

/// A record of a case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Rec {
    /// Key; 0 is the null key, 1 the empty one.
    pub(crate) key: u8,
    pub(crate) event: i64,
    pub(crate) amount: Option<i64>,
    pub(crate) weight: f64,
    /// Unique in the case.
    pub(crate) id: i64,
}

impl Rec {
    pub(crate) fn key_bytes(&self) -> Option<Vec<u8>> {
        match self.key {
            0 => None,
            1 => Some(Vec::new()),
            key => Some(format!("key-{key}").into_bytes()),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) partitions: Vec<Vec<Rec>>,
    /// A partition's watermark is its highest event time less this.
    pub(crate) out_of_order: i64,
    pub(crate) spec: WindowSpec,
}

impl Case {
    /// Watermark of a partition just before each of its records, and after the last.
    pub(crate) fn watermarks(&self, partition: usize) -> Vec<i64> {
        let mut watermark = i64::MIN;
        let mut all = vec![watermark];
        for rec in &self.partitions[partition] {
            watermark = watermark.max(rec.event - self.out_of_order);
            all.push(watermark);
        }
        all
    }
}

fn specs() -> impl Strategy<Value = WindowSpec> {
    let kinds = prop_oneof![
        (1u64..40).prop_map(|size| WindowSpec::from(Tumbling::of(Duration::from_millis(size)))),
        (1u64..40, 1u64..40).prop_map(|(a, b)| {
            let (size, every) = (Duration::from_millis(a.max(b)), Duration::from_millis(a.min(b)));
            WindowSpec::from(Sliding::of(size, every))
        }),
        (1u64..25).prop_map(|gap| WindowSpec::from(Session::gap(Duration::from_millis(gap)))),
    ];
    (kinds, 0u64..20, 0u64..15).prop_map(|(spec, align, lateness)| {
        spec.align(Duration::from_millis(align)).lateness(Duration::from_millis(lateness))
    })
}

pub(crate) fn cases() -> impl Strategy<Value = Case> {
    let rec = (0u8..5, -60i64..120, prop::option::weighted(0.9, -9i64..9), -40i32..40);
    let partition = prop::collection::vec(rec, 0..25);
    (prop::collection::vec(partition, 1..4), 0i64..30, specs()).prop_map(
        |(partitions, out_of_order, spec)| {
            let mut id = 0;
            let mut to_rec = |(key, event, amount, eighths): (u8, i64, Option<i64>, i32)| {
                id += 1;
                Rec { key, event, amount, weight: f64::from(eighths) / 8.0, id }
            };
            // Event times rise along a partition, so that watermarks do.
            let mut rising = |partition: Vec<_>| {
                let partition = partition.into_iter().enumerate();
                partition
                    .map(|(index, (key, event, amount, eighths))| {
                        to_rec((key, event / 3 + 4 * index as i64, amount, eighths))
                    })
                    .collect()
            };
            Case { partitions: partitions.into_iter().map(&mut rising).collect(), out_of_order, spec }
        },
    )
}

/// Key, start, end → the result.
pub(crate) type Results<O> = BTreeMap<(Option<Vec<u8>>, i64, i64), O>;

pub(crate) struct Expected {
    pub(crate) results: Results<Vec<Value>>,
    pub(crate) late: usize,
}

/// A record with its event time, partition and offset.
type Placed<'a> = (i64, usize, usize, &'a Rec);

/// The windows of a case, from scratch.
pub(crate) fn oracle<'a>(case: &'a Case) -> Expected {
    let mut late = 0;
    let mut windows: BTreeMap<(Option<Vec<u8>>, i64, i64), Vec<Placed<'a>>> = BTreeMap::new();
    let mut sessions: BTreeMap<Option<Vec<u8>>, Vec<Placed<'a>>> = BTreeMap::new();
    let lateness = case.spec.lateness;
    for (number, partition) in case.partitions.iter().enumerate() {
        let watermarks = case.watermarks(number);
        for (offset, rec) in partition.iter().enumerate() {
            let watermark = watermarks[offset];
            let place = (rec.event, number, offset, rec);
            let mut taken = false;
            let borders = match case.spec.kind {
                WindowKind::Tumbling { size } => Some((size, size)),
                WindowKind::Sliding { size, every } => Some((size, every)),
                WindowKind::Session { .. } => None,
            };
            if let Some((size, every)) = borders {
                // Every start in reach, by trial.
                for start in rec.event - size..=rec.event {
                    let aligned = (start - case.spec.align).rem_euclid(every) == 0;
                    let end = start + size;
                    if aligned && rec.event < end && end.saturating_add(lateness) > watermark {
                        windows.entry((rec.key_bytes(), start, end)).or_default().push(place);
                        taken = true;
                    }
                }
            } else if rec.event + lateness >= watermark {
                sessions.entry(rec.key_bytes()).or_default().push(place);
                taken = true;
            }
            late += usize::from(!taken);
        }
    }
    if let WindowKind::Session { gap } = case.spec.kind {
        for (key, mut records) in sessions {
            records.sort_by_key(|(event, ..)| *event);
            let mut open: Vec<Placed<'a>> = Vec::new();
            let mut close = |open: &mut Vec<Placed<'a>>| {
                if let (Some(first), Some(last)) = (open.first(), open.last()) {
                    windows.insert((key.clone(), first.0, last.0 + gap), std::mem::take(open));
                }
            };
            for record in records {
                if open.last().is_some_and(|last| record.0 - last.0 > gap) {
                    close(&mut open);
                }
                open.push(record);
            }
            close(&mut open);
        }
    }
    let results = windows.into_iter().map(|(window, records)| (window, aggregate(records))).collect();
    Expected { results, late }
}

fn aggregate(mut records: Vec<Placed<'_>>) -> Vec<Value> {
    records.sort_by_key(|(event, partition, offset, _)| (*event, *partition, *offset));
    let amounts: Vec<i64> = records.iter().filter_map(|record| record.3.amount).collect();
    let int = |value: Option<&i64>| value.map_or(Value::Null, |value| Value::Int(*value));
    let total: i64 = amounts.iter().sum();
    let mean =
        if amounts.is_empty() { Value::Null } else { Value::Double(total as f64 / amounts.len() as f64) };
    vec![
        Value::Int(records.len() as i64),
        Value::Int(total),
        // Eighths of small numbers: every order of additions is exact.
        Value::Double(records.iter().map(|record| record.3.weight).sum::<f64>() + 0.0),
        int(amounts.iter().min()),
        int(amounts.iter().max()),
        mean,
        Value::Int(records.first().expect("no empty window").3.id),
        Value::Int(records.last().expect("no empty window").3.id),
    ]
}

/// A dynamic value like that of a flow file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) enum Value {
    #[default]
    Null,
    Int(i64),
    Double(f64),
}

impl Scalar for Value {
    fn number(&self) -> Result<Option<Number>, AggregateError> {
        Ok(match self {
            Value::Null => None,
            Value::Int(int) => Some(Number::Int(*int)),
            Value::Double(double) => Some(Number::Double(*double)),
        })
    }

    fn is_null(&self) -> bool {
        *self == Value::Null
    }

    fn rank(&self, other: &Value) -> Ordering {
        match (self, other) {
            (Value::Int(left), Value::Int(right)) => left.cmp(right),
            (Value::Double(left), Value::Double(right)) => left.total_cmp(right),
            (left, right) => panic!("columns of one type only: {left:?} {right:?}"),
        }
    }

    fn from_number(number: Number) -> Value {
        match number {
            Number::Int(int) => Value::Int(int),
            Number::Double(double) => Value::Double(double),
        }
    }

    fn null() -> Value {
        Value::Null
    }
}
