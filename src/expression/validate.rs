//! Whether the names and functions of an expression exist, with the near match for those that do not.

use super::compile::Parsed;
use super::{ExpressionError, Name, Names};
use crate::config::nearest;
use cel::common::ast::{CallExpr, EntryExpr, Expr, IdedExpr};

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
                if !self.visit_function(expression, call) {
                    return;
                }
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

    /// Returns whether the arguments are worth a look.
    fn visit_function(&mut self, at: &IdedExpr, call: &CallExpr) -> bool {
        let name = call.func_name.as_str();
        if name.starts_with(['_', '@', '!', '-']) {
            return true;
        }
        if let Some(Expr::Ident(namespace)) = call.target.as_deref().map(|target| &target.expr)
            && namespace == "optional"
            && ["of", "ofNonZeroValue", "none"].contains(&name)
        {
            return true;
        }
        if let Some((_, form)) = MACROS.iter().find(|(known, _)| *known == name) {
            self.error(at, format!("this is not how {name} is called"), format!("write {form}"));
            return false;
        }
        let Some((_, global, member)) = FUNCTIONS.iter().find(|(known, ..)| *known == name) else {
            let known =
                FUNCTIONS.iter().map(|(known, ..)| *known).chain(MACROS.iter().map(|(known, _)| *known));
            let advice = nearest(name, known).map_or_else(
                || "the functions are those of CEL: https://github.com/google/cel-spec".into(),
                |near| format!("did you mean `{near}`?"),
            );
            self.error(at, format!("there is no function `{name}`"), advice);
            return true;
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
        true
    }
}
