//! The compiled tree of an expression, and its evaluation over a record.

use super::bridge::Interpreted;
use super::operations::{self, Arithmetic, Function};
use super::{EvaluationError, Name, Scope};
use crate::value::{Map, Type, Value};
use std::borrow::Cow;
use std::cmp::Ordering;
use std::sync::Arc;
use tidegate_operators::element::Headers;

type Outcome<T> = Result<T, EvaluationError>;

/// A part of a compiled expression.
#[derive(Debug)]
pub(super) enum Node {
    /// A literal.
    Constant(Value),
    /// A name of the record.
    Name(Name),
    /// A variable of a comprehension: how many comprehensions further out it belongs to.
    Local(usize),
    /// Fields from a name that stands for a value: the commonest expression.
    Path(Name, Box<[Arc<str>]>),
    /// The last header of a name.
    Header(Arc<str>),
    /// Whether there is a header of a name.
    HasHeader(Arc<str>),
    /// `x.name`
    Field(Box<Node>, Arc<str>),
    /// `has(x.name)`
    Has(Box<Node>, Arc<str>),
    /// `x[i]`
    Index(Box<[Node; 2]>),
    /// `!x`
    Not(Box<Node>),
    /// `-x`
    Negate(Box<Node>),
    /// `x && y`: false decides whatever the other says, even an error.
    And(Box<[Node; 2]>),
    /// `x || y`: true decides whatever the other says, even an error.
    Or(Box<[Node; 2]>),
    /// `x ? y : z`
    If(Box<[Node; 3]>),
    /// `+ - * / %`
    Arithmetic(Arithmetic, Box<[Node; 2]>),
    /// `< <= > >=`
    Compare(Comparison, Box<[Node; 2]>),
    /// `==`
    Equal(Box<[Node; 2]>),
    /// `!=`
    NotEqual(Box<[Node; 2]>),
    /// `x in y`
    In(Box<[Node; 2]>),
    /// `[x, y]`
    List(Vec<Node>),
    /// `{"x": y}`, with constant names
    Map(Vec<(Arc<str>, Node)>),
    /// A function of one or two operands.
    Call(Function, Vec<Node>),
    /// `x.matches(..)` with a constant pattern.
    Matches(Box<Node>, Box<regex::Regex>),
    /// `all`, `exists`, `exists_one`, `map`, `filter`.
    Fold(Box<Fold>),
    /// What the interpreter does.
    Interpreted(Box<Interpreted>),
}

/// An operator of comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Comparison {
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// A comprehension.
#[derive(Debug)]
pub(super) struct Fold {
    pub(super) range: Node,
    pub(super) kind: FoldKind,
}

/// What a comprehension makes of its items.
#[derive(Debug)]
pub(super) enum FoldKind {
    All(Node),
    Exists(Node),
    ExistsOne(Node),
    Collect { guard: Option<Node>, item: Node },
}

/// Variables of the comprehensions around a node, the innermost first.
#[derive(Clone, Copy)]
pub(super) struct Locals<'a> {
    value: &'a Value,
    outer: Option<&'a Locals<'a>>,
}

impl Locals<'_> {
    fn get(&self, depth: usize) -> &Value {
        let mut at = self;
        for _ in 0..depth {
            at = at.outer.expect("a local is compiled only inside its comprehension");
        }
        at.value
    }
}

impl Node {
    /// The value of the node for a record.
    pub(super) fn evaluate<'a>(
        &'a self,
        scope: &'a Scope<'a>,
        locals: Option<&'a Locals<'a>>,
    ) -> Outcome<Cow<'a, Value>> {
        let borrowed = |value: &'a Value| Ok(Cow::Borrowed(value));
        let owned = |value: Value| Ok(Cow::Owned(value));
        match self {
            Node::Constant(value) => borrowed(value),
            Node::Name(name) => Ok(name_value(*name, scope)),
            Node::Local(depth) => {
                borrowed(locals.expect("a local is compiled only inside a comprehension").get(*depth))
            }
            Node::Path(name, fields) => {
                let mut value = match name {
                    Name::Key => scope.key,
                    Name::State => scope.state,
                    _ => scope.value,
                };
                for field in fields {
                    value = operations::field(value, field)?;
                }
                borrowed(value)
            }
            Node::Header(name) => header(scope.headers, name)
                .map(Cow::Owned)
                .ok_or_else(|| EvaluationError::new(format!("there is no header `{name}`"))),
            Node::HasHeader(name) => owned(Value::Bool(header(scope.headers, name).is_some())),
            Node::Field(operand, name) => match operand.evaluate(scope, locals)? {
                Cow::Borrowed(value) => operations::field(value, name).map(Cow::Borrowed),
                Cow::Owned(value) => operations::field(&value, name).cloned().map(Cow::Owned),
            },
            Node::Has(operand, name) => operations::has(&*operand.evaluate(scope, locals)?, name)
                .map(|truth| Cow::Owned(truth.into())),
            Node::Index(operands) => {
                let container = operands[0].evaluate(scope, locals)?;
                let place = operands[1].evaluate(scope, locals)?;
                match container {
                    Cow::Borrowed(container) => operations::index(container, &place).map(Cow::Borrowed),
                    Cow::Owned(container) => operations::index(&container, &place).cloned().map(Cow::Owned),
                }
            }
            Node::If(operands) => {
                let branch = if operands[0].truth(scope, locals)? { &operands[1] } else { &operands[2] };
                branch.evaluate(scope, locals)
            }
            Node::Negate(operand) => operations::negate(&*operand.evaluate(scope, locals)?).map(Cow::Owned),
            Node::Arithmetic(operator, operands) => {
                let left = operands[0].evaluate(scope, locals)?;
                operator.apply(&left, &*operands[1].evaluate(scope, locals)?).map(Cow::Owned)
            }
            Node::List(items) => {
                let items: Outcome<Vec<Value>> =
                    items.iter().map(|item| item.evaluate(scope, locals).map(Cow::into_owned)).collect();
                owned(Value::List(Arc::new(items?)))
            }
            Node::Map(fields) => {
                let mut map = Map::with_room(fields.len());
                for (name, value) in fields {
                    map.insert(name.clone(), value.evaluate(scope, locals)?.into_owned());
                }
                owned(Value::Map(Arc::new(map)))
            }
            Node::Call(function, operands) => {
                let first = operands[0].evaluate(scope, locals)?;
                match operands.get(1) {
                    None => function.apply(&first, None).map(Cow::Owned),
                    Some(second) => {
                        function.apply(&first, Some(&*second.evaluate(scope, locals)?)).map(Cow::Owned)
                    }
                }
            }
            Node::Fold(fold) => fold.evaluate(scope, locals).map(Cow::Owned),
            Node::Interpreted(part) => part.evaluate(scope, locals).map(Cow::Owned),
            Node::Not(_)
            | Node::And(_)
            | Node::Or(_)
            | Node::Compare(..)
            | Node::Equal(_)
            | Node::NotEqual(_)
            | Node::In(_)
            | Node::Matches(..) => owned(Value::Bool(self.truth(scope, locals)?)),
        }
    }

    /// The value of the node as a truth value.
    pub(super) fn truth<'a>(&'a self, scope: &'a Scope<'a>, locals: Option<&'a Locals<'a>>) -> Outcome<bool> {
        match self {
            Node::Not(operand) => Ok(!operand.truth(scope, locals)?),
            Node::And(operands) => decide(false, operands, scope, locals),
            Node::Or(operands) => decide(true, operands, scope, locals),
            Node::Compare(comparison, operands) => {
                let left = operands[0].evaluate(scope, locals)?;
                let ordering = operations::compare(&left, &*operands[1].evaluate(scope, locals)?)?;
                Ok(match comparison {
                    Comparison::Less => ordering == Ordering::Less,
                    Comparison::LessOrEqual => ordering != Ordering::Greater,
                    Comparison::Greater => ordering == Ordering::Greater,
                    Comparison::GreaterOrEqual => ordering != Ordering::Less,
                })
            }
            Node::Equal(operands) => {
                Ok(operands[0].evaluate(scope, locals)? == operands[1].evaluate(scope, locals)?)
            }
            Node::NotEqual(operands) => {
                Ok(operands[0].evaluate(scope, locals)? != operands[1].evaluate(scope, locals)?)
            }
            Node::In(operands) => {
                let item = operands[0].evaluate(scope, locals)?;
                operations::contained(&item, &*operands[1].evaluate(scope, locals)?)
            }
            Node::Matches(operand, pattern) => match &*operand.evaluate(scope, locals)? {
                Value::String(text) => Ok(pattern.is_match(text)),
                other => Err(EvaluationError::new(format!("matches() does not work on {}", other.type_of()))),
            },
            other => match &*other.evaluate(scope, locals)? {
                Value::Bool(truth) => Ok(*truth),
                value => Err(EvaluationError::new(format!(
                    "a truth value is needed here, not {}",
                    value.type_of()
                ))),
            },
        }
    }

    /// The type of the result, where it does not depend on the record.
    pub(super) fn static_type(&self) -> Option<Type> {
        match self {
            Node::Constant(value) => Some(value.type_of()),
            Node::Name(Name::Headers) => Some(Type::Map),
            Node::Name(_) | Node::Local(_) | Node::Path(..) | Node::Header(_) => None,
            Node::Field(..) | Node::Index(_) => None,
            Node::HasHeader(_)
            | Node::Has(..)
            | Node::Not(_)
            | Node::And(_)
            | Node::Or(_)
            | Node::Compare(..)
            | Node::Equal(_)
            | Node::NotEqual(_)
            | Node::In(_)
            | Node::Matches(..) => Some(Type::Bool),
            Node::Negate(operand) => {
                operand.static_type().filter(|operand| matches!(operand, Type::Int | Type::Double))
            }
            Node::If(operands) => {
                operands[1].static_type().filter(|branch| operands[2].static_type() == Some(*branch))
            }
            Node::Arithmetic(operator, operands) => {
                operator.static_type(operands[0].static_type(), operands[1].static_type())
            }
            Node::List(_) => Some(Type::List),
            Node::Map(_) => Some(Type::Map),
            Node::Call(function, _) => Some(function.static_type()),
            Node::Fold(fold) => Some(match fold.kind {
                FoldKind::All(_) | FoldKind::Exists(_) | FoldKind::ExistsOne(_) => Type::Bool,
                FoldKind::Collect { .. } => Type::List,
            }),
            Node::Interpreted(part) => part.static_type(),
        }
    }

    /// Whether a part of the node runs in the interpreter.
    pub(super) fn is_interpreted(&self) -> bool {
        match self {
            Node::Interpreted(_) => true,
            Node::Constant(_) | Node::Name(_) | Node::Local(_) | Node::Path(..) => false,
            Node::Header(_) | Node::HasHeader(_) => false,
            Node::Field(operand, _) | Node::Has(operand, _) | Node::Matches(operand, _) => {
                operand.is_interpreted()
            }
            Node::Not(operand) | Node::Negate(operand) => operand.is_interpreted(),
            Node::Index(operands)
            | Node::And(operands)
            | Node::Or(operands)
            | Node::Arithmetic(_, operands)
            | Node::Compare(_, operands)
            | Node::Equal(operands)
            | Node::NotEqual(operands)
            | Node::In(operands) => operands.iter().any(Node::is_interpreted),
            Node::If(operands) => operands.iter().any(Node::is_interpreted),
            Node::List(items) | Node::Call(_, items) => items.iter().any(Node::is_interpreted),
            Node::Map(fields) => fields.iter().any(|(_, value)| value.is_interpreted()),
            Node::Fold(fold) => {
                fold.range.is_interpreted()
                    || match &fold.kind {
                        FoldKind::All(test) | FoldKind::Exists(test) | FoldKind::ExistsOne(test) => {
                            test.is_interpreted()
                        }
                        FoldKind::Collect { guard, item } => {
                            guard.as_ref().is_some_and(Node::is_interpreted) || item.is_interpreted()
                        }
                    }
            }
        }
    }
}

/// `&&` and `||`: the deciding value absorbs an error of the other side; otherwise the error stands.
fn decide<'a>(
    deciding: bool,
    operands: &'a [Node; 2],
    scope: &'a Scope<'a>,
    locals: Option<&'a Locals<'a>>,
) -> Outcome<bool> {
    let left = operands[0].truth(scope, locals);
    if left == Ok(deciding) {
        return left;
    }
    let right = operands[1].truth(scope, locals)?;
    if right == deciding { Ok(right) } else { left }
}

impl Fold {
    fn evaluate<'a>(&'a self, scope: &'a Scope<'a>, locals: Option<&'a Locals<'a>>) -> Outcome<Value> {
        let range = self.range.evaluate(scope, locals)?;
        let names: Vec<Value>;
        let items: &[Value] = match &*range {
            Value::List(items) => items,
            Value::Map(map) => {
                names = map.iter().map(|(name, _)| Value::String(name.clone())).collect();
                &names
            }
            other => {
                return Err(EvaluationError::new(format!("{} has no items to go through", other.type_of())));
            }
        };
        match &self.kind {
            FoldKind::All(test) => quantify(false, test, items, scope, locals).map(Value::Bool),
            FoldKind::Exists(test) => quantify(true, test, items, scope, locals).map(Value::Bool),
            FoldKind::ExistsOne(test) => {
                let mut found = 0;
                for value in items {
                    found += usize::from(test.truth(scope, Some(&Locals { value, outer: locals }))?);
                }
                Ok(Value::Bool(found == 1))
            }
            FoldKind::Collect { guard, item } => {
                let mut list = Vec::with_capacity(items.len());
                for value in items {
                    let locals = Locals { value, outer: locals };
                    if let Some(guard) = guard
                        && !guard.truth(scope, Some(&locals))?
                    {
                        continue;
                    }
                    list.push(item.evaluate(scope, Some(&locals))?.into_owned());
                }
                Ok(Value::List(Arc::new(list)))
            }
        }
    }
}

/// `exists` (deciding value true) and `all` (false): an item that decides absorbs the errors of the others.
fn quantify(
    deciding: bool,
    test: &Node,
    items: &[Value],
    scope: &Scope<'_>,
    locals: Option<&Locals<'_>>,
) -> Outcome<bool> {
    let mut first_error = None;
    for value in items {
        match test.truth(scope, Some(&Locals { value, outer: locals })) {
            Ok(truth) if truth == deciding => return Ok(deciding),
            Ok(_) => {}
            Err(error) => first_error = first_error.or(Some(error)),
        }
    }
    first_error.map_or(Ok(!deciding), Err)
}

fn name_value<'a>(name: Name, scope: &'a Scope<'a>) -> Cow<'a, Value> {
    match name {
        Name::Key => Cow::Borrowed(scope.key),
        Name::Value => Cow::Borrowed(scope.value),
        Name::State => Cow::Borrowed(scope.state),
        Name::Timestamp => Cow::Owned(scope.timestamp.map_or(Value::Null, Value::Int)),
        Name::Offset => Cow::Owned(scope.offset.map_or(Value::Null, Value::Int)),
        Name::Partition => {
            Cow::Owned(scope.partition.map_or(Value::Null, |partition| Value::Int(partition.into())))
        }
        Name::Topic => Cow::Owned(scope.topic.map_or(Value::Null, Value::string)),
        Name::Headers => {
            let mut map = Map::default();
            for header in scope.headers.as_slice() {
                map.insert(header.name.clone(), header_value(header.value.as_ref()));
            }
            Cow::Owned(Value::Map(Arc::new(map)))
        }
    }
}

fn header(headers: &Headers, name: &str) -> Option<Value> {
    let header = headers.as_slice().iter().rev().find(|header| &*header.name == name)?;
    Some(header_value(header.value.as_ref()))
}

fn header_value(bytes: Option<&bytes::Bytes>) -> Value {
    match bytes {
        None => Value::Null,
        Some(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => Value::string(text),
            Err(_) => Value::Bytes(bytes.clone()),
        },
    }
}
