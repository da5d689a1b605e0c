//! From the text of an expression to its tree: parsing by `cel`, the check of names and functions with their
//! places, and the choice between our tree and the interpreter for each part.

use super::bridge::Interpreted;
use super::node::{Comparison, Fold, FoldKind, Node};
use super::operations::{Arithmetic, Function};
use super::{EXPRESSION_BYTES_MAX, ExpressionError, Name, Names};
use crate::config::nearest;
use crate::value::{Type, Value};
use cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue, SelectExpr, SourceInfo, operators,
};
use std::sync::{Arc, LazyLock};

/// Deepest nesting of an expression, so that no recursion over it ends a thread.
const DEPTH_MAX: usize = 128;

/// The functions and types of CEL, built once.
pub(super) static ENVIRONMENT: LazyLock<Arc<cel::Env>> = LazyLock::new(|| Arc::new(cel::Env::stdlib()));

/// A parsed expression with the places of its parts.
pub(super) struct Parsed {
    pub(super) root: IdedExpr,
    pub(super) places: SourceInfo,
    pub(super) text: String,
}

/// Parses an expression.
pub(super) fn parse(text: &str) -> Result<Parsed, Vec<ExpressionError>> {
    let error =
        |offset, message: String| Err(vec![ExpressionError { offset, message, advice: String::new() }]);
    if text.trim().is_empty() {
        return error(0, "there is no expression".into());
    }
    if text.len() > EXPRESSION_BYTES_MAX {
        return error(
            0,
            format!("the expression has {} bytes, at most {EXPRESSION_BYTES_MAX} are allowed", text.len()),
        );
    }
    if operator_depth(text) > DEPTH_MAX {
        return error(0, format!("the expression is nested more than {DEPTH_MAX} deep"));
    }
    match ENVIRONMENT.parser().parse_with_source_info(text) {
        Ok((root, places)) => Ok(Parsed { root, places, text: text.to_string() }),
        Err(errors) => Err(errors
            .errors
            .into_iter()
            .map(|error| ExpressionError {
                offset: offset_of(text, error.pos),
                message: plain_message(&error.msg),
                advice: String::new(),
            })
            .collect()),
    }
}

/// An upper bound of the nesting that the text can have, before anything recursive sees it.
fn operator_depth(text: &str) -> usize {
    let mut open = 0_usize;
    let mut depth = 0_usize;
    let mut run = 0_usize;
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => open += 1,
            b')' | b']' | b'}' => open = open.saturating_sub(1),
            b'+' | b'-' | b'*' | b'/' | b'%' | b'!' | b'?' | b'.' | b'=' | b'<' | b'>' => run += 1,
            b',' => run = 0,
            _ => {}
        }
        depth = depth.max(open + run / 4);
    }
    depth
}

/// Byte offset of a line and column (1-based) of the parser.
fn offset_of(text: &str, (line, column): (isize, isize)) -> usize {
    let start: usize = text.split_inclusive('\n').take(line.max(1) as usize - 1).map(str::len).sum();
    let offset = start + (column.max(1) - 1) as usize;
    (0..=offset.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

/// The parser's message in our style: lower case, no prefix.
fn plain_message(message: &str) -> String {
    let message = message.trim().strip_prefix("Syntax error:").unwrap_or(message).trim();
    let message = match message.split_once(" expecting ") {
        Some((before, expected)) if expected.matches(',').count() > 3 => before,
        _ => message,
    };
    let message = message.replace("'<EOF>'", "the end").replace("<EOF>", "the end");
    let mut letters = message.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}

/// Functions by name, with the numbers of arguments that they take after the target (`None`: no such form).
type Arity = &'static [usize];
const FUNCTIONS: &[(&str, Option<Arity>, Option<Arity>)] = &[
    ("size", Some(&[1]), Some(&[0])),
    ("contains", None, Some(&[1])),
    ("startsWith", None, Some(&[1])),
    ("endsWith", None, Some(&[1])),
    ("matches", Some(&[2]), Some(&[1])),
    ("int", Some(&[1]), None),
    ("uint", Some(&[1]), None),
    ("double", Some(&[1]), None),
    ("string", Some(&[1]), None),
    ("bytes", Some(&[1]), None),
    ("bool", Some(&[1]), None),
    ("dyn", Some(&[1]), None),
    ("type", Some(&[1]), None),
    ("timestamp", Some(&[1]), None),
    ("duration", Some(&[1]), None),
    ("getFullYear", None, Some(&[0, 1])),
    ("getMonth", None, Some(&[0, 1])),
    ("getDate", None, Some(&[0, 1])),
    ("getDayOfMonth", None, Some(&[0, 1])),
    ("getDayOfWeek", None, Some(&[0, 1])),
    ("getDayOfYear", None, Some(&[0, 1])),
    ("getHours", None, Some(&[0, 1])),
    ("getMinutes", None, Some(&[0, 1])),
    ("getSeconds", None, Some(&[0, 1])),
    ("getMilliseconds", None, Some(&[0, 1])),
    ("hasValue", None, Some(&[0])),
    ("value", None, Some(&[0])),
    ("or", None, Some(&[1])),
    ("orValue", None, Some(&[1])),
];

/// Macros: a call of theirs that is still a call after parsing has the wrong form.
const MACROS: &[(&str, &str)] = &[
    ("has", "has(x.field)"),
    ("all", "list.all(x, test)"),
    ("exists", "list.exists(x, test)"),
    ("exists_one", "list.exists_one(x, test)"),
    ("existsOne", "list.existsOne(x, test)"),
    ("map", "list.map(x, expression) or list.map(x, test, expression)"),
    ("filter", "list.filter(x, test)"),
];

/// Names of types, which an expression may compare with.
const TYPES: &[&str] = &[
    "bool",
    "bytes",
    "double",
    "int",
    "list",
    "map",
    "null_type",
    "optional_type",
    "string",
    "type",
    "uint",
];

/// Checks names and functions; returns the names in use.
pub(super) fn validate(parsed: &Parsed, allowed: Names) -> Result<Names, Vec<ExpressionError>> {
    let mut validator =
        Validator { parsed, allowed, bound: Vec::new(), uses: Names::NONE, errors: Vec::new() };
    validator.visit(&parsed.root);
    if validator.errors.is_empty() { Ok(validator.uses) } else { Err(validator.errors) }
}

struct Validator<'p> {
    parsed: &'p Parsed,
    allowed: Names,
    bound: Vec<&'p str>,
    uses: Names,
    errors: Vec<ExpressionError>,
}

impl<'p> Validator<'p> {
    fn error(&mut self, at: &IdedExpr, message: String, advice: String) {
        let offset = self.parsed.places.offset_for(at.id).map_or(0, |(start, _)| start as usize);
        let offset = self.parsed.byte_offset(offset);
        self.errors.push(ExpressionError { offset, message, advice });
    }

    fn visit(&mut self, expression: &'p IdedExpr) {
        match &expression.expr {
            Expr::Unspecified | Expr::Literal(_) => {}
            Expr::Ident(name) => self.visit_name(expression, name),
            Expr::Select(select) => self.visit(&select.operand),
            Expr::List(list) => list.elements.iter().for_each(|element| self.visit(element)),
            Expr::Map(map) => {
                for entry in &map.entries {
                    if let EntryExpr::MapEntry(entry) = &entry.expr {
                        self.visit(&entry.key);
                        self.visit(&entry.value);
                    }
                }
            }
            Expr::Struct(message) => self.error(
                expression,
                format!("there are no message types such as `{}`", message.type_name),
                "write a map: {\"field\": value}".into(),
            ),
            Expr::Comprehension(fold) => {
                self.visit(&fold.iter_range);
                self.visit(&fold.accu_init);
                let outer = self.bound.len();
                self.bound.push(&fold.accu_var);
                self.bound.push(&fold.iter_var);
                self.bound.extend(fold.iter_var2.as_deref());
                for part in [&fold.loop_cond, &fold.loop_step, &fold.result] {
                    self.visit(part);
                }
                self.bound.truncate(outer);
            }
            Expr::Call(call) => {
                self.visit_function(expression, call);
                let namespace =
                    |target: &IdedExpr| matches!(&target.expr, Expr::Ident(name) if name == "optional");
                if let Some(target) = call.target.as_deref().filter(|target| !namespace(target)) {
                    self.visit(target);
                }
                call.args.iter().for_each(|argument| self.visit(argument));
            }
        }
    }

    fn visit_name(&mut self, at: &IdedExpr, name: &'p str) {
        if self.bound.contains(&name) {
            return;
        }
        match Name::parse(name) {
            Some(known) if self.allowed.contains(known) => self.uses = self.uses.with(known),
            _ if TYPES.contains(&name) => {}
            Some(_) => self.error(
                at,
                format!("`{name}` has no meaning here"),
                format!("the names here are {}", self.allowed),
            ),
            None => {
                let known: Vec<&str> = self.allowed.iter().map(Name::as_str).collect();
                let locals = self.bound.iter().copied().filter(|name| !name.starts_with('@'));
                let advice = match nearest(name, known.iter().copied().chain(locals)) {
                    Some(near) => format!("did you mean `{near}`? the names here are {}", self.allowed),
                    None => {
                        format!("the names here are {}; a field of the value is value.{name}", self.allowed)
                    }
                };
                self.error(at, format!("there is no name `{name}`"), advice);
            }
        }
    }

    fn visit_function(&mut self, at: &IdedExpr, call: &CallExpr) {
        let name = call.func_name.as_str();
        if name.starts_with(['_', '@', '!', '-']) {
            return;
        }
        if let Some(Expr::Ident(namespace)) = call.target.as_deref().map(|target| &target.expr)
            && namespace == "optional"
            && ["of", "ofNonZeroValue", "none"].contains(&name)
        {
            return;
        }
        if let Some((_, form)) = MACROS.iter().find(|(known, _)| *known == name) {
            return self.error(at, format!("this is not how {name} is called"), format!("write {form}"));
        }
        let Some((_, global, member)) = FUNCTIONS.iter().find(|(known, ..)| *known == name) else {
            let known =
                FUNCTIONS.iter().map(|(known, ..)| *known).chain(MACROS.iter().map(|(known, _)| *known));
            let advice = nearest(name, known).map_or_else(
                || "the functions are those of CEL: https://github.com/google/cel-spec".into(),
                |near| format!("did you mean `{near}`?"),
            );
            return self.error(at, format!("there is no function `{name}`"), advice);
        };
        let (arity, form) = match call.target {
            Some(_) => (member, "x."),
            None => (global, ""),
        };
        match arity {
            None if call.target.is_some() => {
                self.error(at, format!("{name} is not called on a value"), format!("write {name}(x)"));
            }
            None => self.error(at, format!("{name} is called on a value"), format!("write x.{name}(..)")),
            Some(counts) if !counts.contains(&call.args.len()) => self.error(
                at,
                format!("{form}{name}() does not take {} arguments", call.args.len()),
                format!("it takes {}", counts.iter().map(usize::to_string).collect::<Vec<_>>().join(" or ")),
            ),
            Some(_) => {}
        }
    }
}

impl Parsed {
    /// The parser counts characters; a place in a text is a byte.
    fn byte_offset(&self, characters: usize) -> usize {
        self.text.char_indices().nth(characters).map_or(self.text.len(), |(at, _)| at)
    }
}

/// Compiles a validated expression.
pub(super) fn compile(parsed: &Parsed) -> Node {
    let mut locals = Vec::new();
    compile_part(&parsed.root, &mut locals).node
}

/// A node, and whether its values are exactly CEL's: only then may an operator of ours work on them. (A
/// timestamp that the interpreter made has become text.)
struct Part {
    node: Node,
    exact: bool,
}

fn exact(node: Node) -> Option<Part> {
    Some(Part { node, exact: true })
}

/// Compiles a part for the interpreter where our tree does not know it.
fn compile_part(expression: &IdedExpr, locals: &mut Vec<String>) -> Part {
    known_part(expression, locals).unwrap_or_else(|| {
        let part = Interpreted::new(expression, locals);
        let exact = part.static_type().is_some();
        Part { node: Node::Interpreted(Box::new(part)), exact }
    })
}

/// The node of a part that is bound to no interpreter: for the inputs of an interpreted part.
pub(super) fn compile_path(expression: &IdedExpr, locals: &mut Vec<String>) -> Option<Node> {
    known_part(expression, locals).map(|part| part.node)
}

fn known_part(expression: &IdedExpr, locals: &mut Vec<String>) -> Option<Part> {
    match &expression.expr {
        Expr::Unspecified | Expr::Struct(_) => None,
        Expr::Literal(literal) => exact(Node::Constant(constant(literal)?)),
        Expr::Ident(name) => match locals.iter().rev().position(|local| local == name) {
            Some(depth) => exact(Node::Local(depth)),
            None => exact(Node::Name(Name::parse(name)?)),
        },
        Expr::Select(select) => known_select(select, locals),
        Expr::List(list) if list.optional_indices.is_empty() => {
            let parts: Vec<Part> =
                list.elements.iter().map(|element| compile_part(element, locals)).collect();
            let exact = parts.iter().all(|part| part.exact);
            Some(Part { node: Node::List(parts.into_iter().map(|part| part.node).collect()), exact })
        }
        Expr::List(_) => None,
        Expr::Map(map) => {
            let mut fields: Vec<(Arc<str>, Node)> = Vec::new();
            let mut exact = true;
            for entry in &map.entries {
                let EntryExpr::MapEntry(entry) = &entry.expr else { return None };
                let Expr::Literal(LiteralValue::String(name)) = &entry.key.expr else { return None };
                // A repeated name is an error of CEL's at evaluation: the interpreter reports it.
                if entry.optional || fields.iter().any(|(known, _)| **known == *name.inner()) {
                    return None;
                }
                let part = compile_part(&entry.value, locals);
                exact &= part.exact;
                fields.push((Arc::from(name.inner()), part.node));
            }
            Some(Part { node: Node::Map(fields), exact })
        }
        Expr::Call(call) => known_call(call, locals),
        Expr::Comprehension(fold) => known_fold(fold, locals),
    }
}

fn constant(literal: &LiteralValue) -> Option<Value> {
    Some(match literal {
        LiteralValue::Null => Value::Null,
        LiteralValue::Boolean(truth) => Value::Bool(*truth.inner()),
        LiteralValue::Int(number) => Value::Int(*number.inner()),
        LiteralValue::Double(number) => Value::Double(*number.inner()),
        LiteralValue::String(text) => Value::string(text.inner()),
        LiteralValue::Bytes(bytes) => Value::Bytes(bytes.inner().to_vec().into()),
        LiteralValue::UInt(_) => return None,
    })
}

fn known_select(select: &SelectExpr, locals: &mut Vec<String>) -> Option<Part> {
    let operand = known_part(&select.operand, locals).filter(|operand| operand.exact)?.node;
    let name: Arc<str> = Arc::from(select.field.as_str());
    exact(match (operand, select.test) {
        (Node::Name(Name::Headers), true) => Node::HasHeader(name),
        (Node::Name(Name::Headers), false) => Node::Header(name),
        (operand, true) => Node::Has(Box::new(operand), name),
        (Node::Name(root @ (Name::Key | Name::Value | Name::State)), false) => {
            Node::Path(root, Box::new([name]))
        }
        (Node::Path(root, fields), false) => {
            Node::Path(root, fields.iter().cloned().chain(std::iter::once(name)).collect())
        }
        (operand, false) => Node::Field(Box::new(operand), name),
    })
}

fn known_call(call: &CallExpr, locals: &mut Vec<String>) -> Option<Part> {
    let name = call.func_name.as_str();
    // Logic needs truth values only: whatever gives them will do.
    match (name, call.args.as_slice()) {
        (operators::LOGICAL_NOT, [operand]) => {
            return exact(Node::Not(Box::new(compile_part(operand, locals).node)));
        }
        (operators::LOGICAL_AND, [left, right]) => return exact(Node::And(pair(left, right, locals))),
        (operators::LOGICAL_OR, [left, right]) => return exact(Node::Or(pair(left, right, locals))),
        (operators::CONDITIONAL, [test, then, otherwise]) => {
            let [test, then, otherwise] = [test, then, otherwise].map(|part| compile_part(part, locals));
            let exact = then.exact && otherwise.exact;
            return Some(Part { node: Node::If(Box::new([test.node, then.node, otherwise.node])), exact });
        }
        _ => {}
    }
    // Everything else works on values, which must be CEL's.
    let mut operands = Vec::new();
    for operand in call.target.as_deref().into_iter().chain(&call.args) {
        let part = compile_part(operand, locals);
        if !part.exact {
            return None;
        }
        operands.push(part.node);
    }
    if call.target.is_none() && operands.len() == 1 && name == operators::NEGATE {
        return exact(Node::Negate(Box::new(operands.pop()?)));
    }
    if call.target.is_none() && operands.len() == 2 {
        let node: Option<fn(Box<[Node; 2]>) -> Node> = match name {
            operators::EQUALS => Some(Node::Equal),
            operators::NOT_EQUALS => Some(Node::NotEqual),
            operators::IN => Some(Node::In),
            operators::INDEX => Some(Node::Index),
            operators::ADD => Some(|pair| Node::Arithmetic(Arithmetic::Add, pair)),
            operators::SUBSTRACT => Some(|pair| Node::Arithmetic(Arithmetic::Subtract, pair)),
            operators::MULTIPLY => Some(|pair| Node::Arithmetic(Arithmetic::Multiply, pair)),
            operators::DIVIDE => Some(|pair| Node::Arithmetic(Arithmetic::Divide, pair)),
            operators::MODULO => Some(|pair| Node::Arithmetic(Arithmetic::Remainder, pair)),
            operators::LESS => Some(|pair| Node::Compare(Comparison::Less, pair)),
            operators::LESS_EQUALS => Some(|pair| Node::Compare(Comparison::LessOrEqual, pair)),
            operators::GREATER => Some(|pair| Node::Compare(Comparison::Greater, pair)),
            operators::GREATER_EQUALS => Some(|pair| Node::Compare(Comparison::GreaterOrEqual, pair)),
            _ => None,
        };
        if let Some(node) = node {
            let right = operands.pop()?;
            let left = operands.pop()?;
            return exact(match (name, left, right) {
                (operators::INDEX, Node::Name(Name::Headers), Node::Constant(Value::String(header))) => {
                    Node::Header(header)
                }
                (_, left, right) => node(Box::new([left, right])),
            });
        }
    }
    if name == "matches"
        && let [_, Node::Constant(Value::String(pattern))] = operands.as_slice()
        && let Ok(pattern) = regex::Regex::new(pattern)
    {
        return exact(Node::Matches(Box::new(operands.swap_remove(0)), Box::new(pattern)));
    }
    let function = Function::find(name, operands.len(), call.target.is_some())?;
    exact(Node::Call(function, operands))
}

fn pair(left: &IdedExpr, right: &IdedExpr, locals: &mut Vec<String>) -> Box<[Node; 2]> {
    Box::new([compile_part(left, locals).node, compile_part(right, locals).node])
}

/// The comprehensions that the macros of CEL make, told apart by their loop step.
fn known_fold(fold: &ComprehensionExpr, locals: &mut Vec<String>) -> Option<Part> {
    let accumulator = |part: &IdedExpr| matches!(&part.expr, Expr::Ident(name) if *name == fold.accu_var);
    let range = compile_part(&fold.iter_range, locals);
    if !range.exact || fold.iter_var2.is_some() {
        return None;
    }
    let Expr::Call(step) = &fold.loop_step.expr else { return None };
    let appended = |part: &'_ IdedExpr| -> Option<IdedExpr> {
        let Expr::Call(add) = &part.expr else { return None };
        let [left, right] = add.args.as_slice() else { return None };
        let Expr::List(list) = &right.expr else { return None };
        let [item] = list.elements.as_slice() else { return None };
        (add.func_name == operators::ADD && accumulator(left) && list.optional_indices.is_empty())
            .then(|| item.clone())
    };
    let inside = |part: &IdedExpr, locals: &mut Vec<String>| {
        locals.push(fold.iter_var.clone());
        let part = compile_part(part, locals);
        locals.pop();
        part
    };
    let (kind, exact) = match (step.func_name.as_str(), step.args.as_slice()) {
        (operators::LOGICAL_AND, [left, test]) if accumulator(left) => {
            (FoldKind::All(inside(test, locals).node), true)
        }
        (operators::LOGICAL_OR, [left, test]) if accumulator(left) => {
            (FoldKind::Exists(inside(test, locals).node), true)
        }
        (operators::CONDITIONAL, [test, then, otherwise]) if accumulator(otherwise) => match appended(then) {
            Some(item) => {
                let item = inside(&item, locals);
                (FoldKind::Collect { guard: Some(inside(test, locals).node), item: item.node }, item.exact)
            }
            None if matches!(&fold.result.expr, Expr::Call(call) if call.func_name == operators::EQUALS) => {
                (FoldKind::ExistsOne(inside(test, locals).node), true)
            }
            None => return None,
        },
        (operators::ADD, _) => {
            let item = inside(&appended(&fold.loop_step)?, locals);
            (FoldKind::Collect { guard: None, item: item.node }, item.exact)
        }
        _ => return None,
    };
    Some(Part { node: Node::Fold(Box::new(Fold { range: range.node, kind })), exact })
}

/// The type that the interpreter gives for this call, whatever its arguments.
pub(super) fn interpreted_type(expression: &IdedExpr) -> Option<Type> {
    let Expr::Call(call) = &expression.expr else { return None };
    Some(match call.func_name.as_str() {
        operators::EQUALS | operators::NOT_EQUALS | operators::IN | operators::LOGICAL_NOT => Type::Bool,
        operators::LESS | operators::LESS_EQUALS | operators::GREATER | operators::GREATER_EQUALS => {
            Type::Bool
        }
        operators::LOGICAL_AND | operators::LOGICAL_OR => Type::Bool,
        "bool" | "contains" | "startsWith" | "endsWith" | "matches" | "hasValue" => Type::Bool,
        "int" | "size" => Type::Int,
        name if name.starts_with("get") => Type::Int,
        "double" => Type::Double,
        "string" => Type::String,
        "bytes" => Type::Bytes,
        _ => return None,
    })
}
