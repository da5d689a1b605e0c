//! From the text of an expression to its tree: parsing by `cel`, and the choice between our tree and the interpreter for each part.

use super::bridge::Interpreted;
use super::node::{Comparison, Fold, FoldKind, Node};
use super::operations::{Arithmetic, Function};
use super::{EXPRESSION_BYTES_MAX, ExpressionError, Name};
use crate::value::{Type, Value};
use cel::common::ast::{
    CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue, SelectExpr, SourceInfo, operators,
};
use std::sync::{Arc, LazyLock};

/// Makes a node of two operands.
type Binary = fn(Box<[Node; 2]>) -> Node;

/// Deepest nesting of an expression, so that no recursion over it ends a thread.
const DEPTH_MAX: usize = 128;

/// The functions and types of CEL, built once.
pub(super) static ENVIRONMENT: LazyLock<Arc<cel::Env>> = LazyLock::new(|| Arc::new(cel::Env::stdlib()));

/// A parsed expression with the places of its parts.
pub(super) struct Parsed {
    pub(super) root: IdedExpr,
    pub(super) places: SourceInfo,
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
        Ok((root, places)) => Ok(Parsed { root, places }),
        Err(errors) => Err(errors
            .errors
            .into_iter()
            .map(|error| ExpressionError {
                offset: offset_of(text, error.pos),
                message: plain_message(&error.msg),
                advice: foreign_operator(text)
                    .map(|ours| format!("did you mean `{ours}`?"))
                    .unwrap_or_default(),
            })
            .collect()),
    }
}

/// The first operator of another language in a text that is no expression, in the words of this one.
fn foreign_operator(text: &str) -> Option<&'static str> {
    const FOREIGN: [(&str, &str); 5] = [("and", "&&"), ("or", "||"), ("not", "!"), ("=", "=="), ("<>", "!=")];
    let mut quote = None;
    let plain: String = text
        .chars()
        .map(|letter| match (quote, letter) {
            (None, '\'' | '"') => {
                quote = Some(letter);
                '_'
            }
            (Some(open), _) => {
                quote = (letter != open).then_some(open);
                '_'
            }
            (None, letter) => letter,
        })
        .collect();
    let class = |letter: char| match letter {
        '=' | '<' | '>' | '!' => 1,
        letter if letter.is_alphanumeric() || letter == '_' => 2,
        _ => 0,
    };
    let letters: Vec<char> = plain.chars().collect();
    let mut words =
        letters.chunk_by(|a, b| class(*a) == class(*b)).map(|word| word.iter().collect::<String>());
    words.find_map(|word| {
        FOREIGN.iter().find(|(foreign, _)| word.eq_ignore_ascii_case(foreign)).map(|(_, ours)| *ours)
    })
}

/// An upper bound of the nesting that the text can have, before anything recursive sees it.
fn operator_depth(text: &str) -> usize {
    const OPERATORS_PER_LEVEL: usize = 4;
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
        depth = depth.max(open + run / OPERATORS_PER_LEVEL);
    }
    depth
}

/// Byte offset of a line and column (1-based) of the parser.
fn offset_of(text: &str, (line, column): (isize, isize)) -> usize {
    let start: usize = text.split_inclusive('\n').take(line.max(1) as usize - 1).map(str::len).sum();
    let offset = start + (column.max(1) - 1) as usize;
    (0..=offset.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

/// The parser's message in our words.
fn plain_message(message: &str) -> String {
    let message = message.trim().strip_prefix("Syntax error:").unwrap_or(message).trim();
    let quoted = |text: &str| {
        let text = text.split(" expecting ").next().unwrap_or(text).trim().trim_matches('\'');
        if text.is_empty() || text.ends_with("<EOF>") { "the end".to_string() } else { format!("`{text}`") }
    };
    for (theirs, ours) in [
        ("no viable alternative at input ", "something is missing or out of place near "),
        ("mismatched input ", "something is missing or out of place at "),
        ("extraneous input ", "this does not belong here: "),
        ("token recognition error at: ", "this begins nothing that is known: "),
    ] {
        if let Some(rest) = message.strip_prefix(theirs) {
            return format!("{ours}{}", quoted(rest));
        }
    }
    let mut letters = message.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
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
        let node: Option<Binary> = match name {
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
