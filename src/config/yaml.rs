//! YAML as nodes that know where they stand.
//!
//! Reads one document of YAML 1.2 (core schema). Aliases are copied; the limits below bound what a small file
//! can grow to. Keys are plain text and stand once in a map. Any text gives nodes or problems, never a panic.

use super::problems::{Problem, code};
use saphyr_parser::{Event, Marker, Parser, ScalarStyle, Span};
use std::collections::HashMap;
use std::fmt;

/// Largest file, in bytes.
pub const FILE_BYTES_MAX: usize = 1 << 20;
/// Deepest nesting.
pub const DEPTH_MAX: usize = 48;
/// Most nodes, copies by aliases included.
pub const NODES_MAX: usize = 100_000;

/// A place in the file; lines and columns count from 1, columns in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// Line.
    pub line: u32,
    /// Column.
    pub column: u32,
}

impl From<Marker> for Position {
    fn from(marker: Marker) -> Position {
        Position { line: marker.line() as u32, column: marker.col() as u32 + 1 }
    }
}

/// Where a value came from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Origin {
    /// The flow file.
    File(Position),
    /// An environment variable, by its name.
    Environment(String),
    /// A flag, as it is written.
    Flag(String),
    /// Nobody gave it: the default.
    #[default]
    Default,
}

impl Origin {
    /// `flow.yaml:3:5`, `-w` or `TIDEGATE__…`; empty for a default.
    pub fn describe(&self, file: &str) -> String {
        match self {
            Origin::File(position) => format!("{file}:{}:{}", position.line, position.column),
            Origin::Environment(name) => format!("environment {name}"),
            Origin::Flag(flag) => format!("flag {flag}"),
            Origin::Default => String::new(),
        }
    }
}

/// The text of a file and the name by which messages call it.
#[derive(Clone, Debug, Default)]
pub struct Source {
    name: String,
    text: String,
}

impl Source {
    /// A file's text.
    pub fn new(name: impl Into<String>, text: impl Into<String>) -> Source {
        Source { name: name.into(), text: text.into() }
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// A line, counted from 1.
    pub fn line(&self, number: u32) -> Option<&str> {
        self.text.lines().nth((number as usize).checked_sub(1)?)
    }
}

/// A scalar as it was written.
#[derive(Clone, Debug, PartialEq)]
pub struct Scalar {
    /// Its text, escapes resolved.
    pub text: String,
    /// Whether it was written without quotes: only then may it be a number, a truth value or null.
    pub plain: bool,
    /// Where the text's first character stands when the text stands in the file as it is, on one line.
    pub verbatim: Option<Position>,
    /// Where the lines of a literal block stand: the first line's number, and the indentation.
    pub block: Option<(u32, u32)>,
}

/// What a node is.
#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    /// One value.
    Scalar(Scalar),
    /// Nodes in their order.
    List(Vec<Node>),
    /// Fields in their order; names stand once.
    Map(Vec<Field>),
}

/// A node and where it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Where it came from.
    pub origin: Origin,
    /// What it is.
    pub data: Data,
}

/// A field of a map.
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    /// Its name.
    pub name: String,
    /// Where the name stands.
    pub origin: Origin,
    /// Its value.
    pub node: Node,
}

/// A scalar by the core schema.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Plain<'t> {
    /// `null`, `~` or nothing.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// Any other number.
    Double(f64),
    /// Anything else, and all that was quoted.
    Text(&'t str),
}

impl fmt::Display for Plain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Plain::Null => f.write_str("nothing"),
            Plain::Bool(truth) => write!(f, "{truth}"),
            Plain::Int(number) => write!(f, "{number}"),
            Plain::Double(number) => write!(f, "{number}"),
            Plain::Text(text) => write!(f, "`{text}`"),
        }
    }
}

impl Scalar {
    /// A scalar that nobody wrote in the file.
    pub fn plain(text: impl Into<String>) -> Scalar {
        Scalar { text: text.into(), plain: true, verbatim: None, block: None }
    }

    /// What the scalar stands for.
    pub fn resolve(&self) -> Plain<'_> {
        let text = self.text.as_str();
        if !self.plain {
            return Plain::Text(text);
        }
        match text {
            "" | "~" | "null" | "Null" | "NULL" => return Plain::Null,
            "true" | "True" | "TRUE" => return Plain::Bool(true),
            "false" | "False" | "FALSE" => return Plain::Bool(false),
            _ => {}
        }
        let digits = |text: &str| text.bytes().next().is_some_and(|byte| byte.is_ascii_digit());
        let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
        if let Some(hex) = text.strip_prefix("0x")
            && let Ok(number) = i64::from_str_radix(hex, 16)
        {
            return Plain::Int(number);
        }
        if digits(unsigned)
            && let Ok(number) = text.parse()
        {
            return Plain::Int(number);
        }
        if (digits(unsigned) || unsigned.starts_with('.'))
            && unsigned.bytes().any(|byte| byte.is_ascii_digit())
            && let Ok(number) = text.parse()
        {
            return Plain::Double(number);
        }
        Plain::Text(text)
    }

    /// Where a byte of the text stands, as near as is known.
    pub fn position_of(&self, offset: usize, origin: &Origin) -> Origin {
        let before = &self.text[..offset.min(self.text.len())];
        if let Some(start) = self.verbatim {
            let column = start.column + before.chars().count() as u32;
            return Origin::File(Position { line: start.line, column });
        }
        if let Some((first_line, indent)) = self.block {
            let line = first_line + before.matches('\n').count() as u32;
            let column = before.rsplit('\n').next().map_or(0, |last| last.chars().count()) as u32;
            return Origin::File(Position { line, column: indent + column + 1 });
        }
        origin.clone()
    }
}

impl Node {
    /// A scalar that nobody wrote in the file.
    pub fn scalar(text: impl Into<String>, origin: Origin) -> Node {
        Node { origin, data: Data::Scalar(Scalar::plain(text)) }
    }

    /// The field of a map.
    pub fn get(&self, name: &str) -> Option<&Node> {
        match &self.data {
            Data::Map(fields) => fields.iter().find(|field| field.name == name).map(|field| &field.node),
            _ => None,
        }
    }

    /// What the node is, for a message.
    pub fn describe(&self) -> String {
        match &self.data {
            Data::Scalar(scalar) => scalar.resolve().to_string(),
            Data::List(_) => "a list".into(),
            Data::Map(_) => "a map".into(),
        }
    }

    /// Whether the node is there but empty.
    pub fn is_null(&self) -> bool {
        matches!(&self.data, Data::Scalar(scalar) if scalar.resolve() == Plain::Null)
    }
}

/// Reads a document; an empty file is an empty map.
///
/// # Errors
/// The problems: what is no YAML, a second document, a repeated key, a limit.
pub fn parse(source: &Source) -> Result<Node, Vec<Problem>> {
    let fail = |position: Position, message: String| {
        Err(vec![Problem::error(code::INVALID_VALUE, "", &Origin::File(position), message)])
    };
    let start = Position { line: 1, column: 1 };
    if source.text.len() > FILE_BYTES_MAX {
        let size = source.text.len();
        return fail(start, format!("the file has {size} bytes, at most {FILE_BYTES_MAX} are read"));
    }
    let lines: Vec<&str> = source.text.lines().collect();
    let mut loader = Loader {
        lines: &lines,
        stack: Vec::new(),
        root: None,
        anchors: HashMap::new(),
        nodes: 0,
        problems: Vec::new(),
    };
    let mut documents = 0;
    for event in Parser::new_from_str(&source.text) {
        match event {
            Err(error) => {
                let message = format!("this is no YAML: {}", error.info());
                loader.problems.push(Problem::error(
                    code::INVALID_VALUE,
                    "",
                    &Origin::File((*error.marker()).into()),
                    message,
                ));
                return Err(loader.problems);
            }
            Ok((Event::DocumentStart(_), span)) => {
                documents += 1;
                if documents > 1 {
                    return fail(
                        span.start.into(),
                        "a file holds one flow, and here a second document begins".into(),
                    );
                }
            }
            Ok((event, span)) => {
                if let Err(message) = loader.take(event, span) {
                    return fail(span.start.into(), message);
                }
            }
        }
    }
    if !loader.problems.is_empty() {
        return Err(loader.problems);
    }
    Ok(loader.root.unwrap_or(Node { origin: Origin::File(start), data: Data::Map(Vec::new()) }))
}

enum Open {
    List { origin: Origin, anchor: usize, items: Vec<Node> },
    Map { origin: Origin, anchor: usize, fields: Vec<Field>, name: Option<(String, Origin)> },
}

struct Loader<'l> {
    lines: &'l [&'l str],
    stack: Vec<Open>,
    root: Option<Node>,
    /// Anchored nodes with their size and depth.
    anchors: HashMap<usize, (Node, usize, usize)>,
    nodes: usize,
    problems: Vec<Problem>,
}

impl Loader<'_> {
    fn take(&mut self, event: Event<'_>, span: Span) -> Result<(), String> {
        let origin = Origin::File(span.start.into());
        match event {
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(_)
            | Event::DocumentEnd => Ok(()),
            Event::Scalar(text, style, anchor, tag) => {
                let quoted = style != ScalarStyle::Plain || tag.is_some_and(|tag| tag.suffix == "str");
                let scalar = self.scalar(text.into_owned(), style, quoted, span);
                self.place(Node { origin, data: Data::Scalar(scalar) }, anchor, 1)
            }
            Event::Alias(anchor) => match self.anchors.get(&anchor) {
                Some((_, _, depth)) if self.stack.len() + depth > DEPTH_MAX => {
                    Err(format!("nested more than {DEPTH_MAX} deep"))
                }
                Some((node, size, _)) => {
                    let (node, size) = (node.clone(), *size);
                    self.place(node, 0, size)
                }
                None => Err("this alias stands inside of what it names".into()),
            },
            Event::SequenceStart(anchor, _) => self.open(Open::List { origin, anchor, items: Vec::new() }),
            Event::MappingStart(anchor, _) => {
                self.open(Open::Map { origin, anchor, fields: Vec::new(), name: None })
            }
            Event::SequenceEnd | Event::MappingEnd => match self.stack.pop() {
                Some(Open::List { origin, anchor, items }) => {
                    self.place(Node { origin, data: Data::List(items) }, anchor, 1)
                }
                Some(Open::Map { origin, anchor, fields, .. }) => {
                    self.place(Node { origin, data: Data::Map(fields) }, anchor, 1)
                }
                None => Err("an end without a beginning".into()),
            },
        }
    }

    fn open(&mut self, open: Open) -> Result<(), String> {
        if self.stack.len() >= DEPTH_MAX {
            return Err(format!("nested more than {DEPTH_MAX} deep"));
        }
        self.stack.push(open);
        Ok(())
    }

    fn place(&mut self, node: Node, anchor: usize, size: usize) -> Result<(), String> {
        self.nodes += size;
        if self.nodes > NODES_MAX {
            return Err(format!("more than {NODES_MAX} values"));
        }
        if anchor > 0 {
            let (size, depth) = measure(&node);
            self.anchors.insert(anchor, (node.clone(), size, depth));
        }
        match self.stack.last_mut() {
            None => self.root = Some(node),
            Some(Open::List { items, .. }) => items.push(node),
            Some(Open::Map { fields, name, .. }) => match name.take() {
                Some((name, origin)) => match fields.iter().find(|field| field.name == name) {
                    None => fields.push(Field { name, origin, node }),
                    Some(first) => self.problems.push(Problem::error(
                        code::INVALID_VALUE,
                        name.clone(),
                        &origin,
                        format!("`{name}` stands here for the second time{}", first_place(first)),
                    )),
                },
                None => match node.data {
                    Data::Scalar(scalar) => *name = Some((scalar.text, node.origin)),
                    _ => return Err("a key must be plain text".into()),
                },
            },
        }
        Ok(())
    }

    /// Finds where the text of a scalar stands, so that a place in an expression can be shown.
    fn scalar(&self, text: String, style: ScalarStyle, quoted: bool, span: Span) -> Scalar {
        let mut scalar = Scalar { text, plain: !quoted, verbatim: None, block: None };
        let start = Position::from(span.start);
        let quote = u32::from(matches!(style, ScalarStyle::SingleQuoted | ScalarStyle::DoubleQuoted));
        let Some(line) = self.lines.get((start.line as usize).wrapping_sub(1)) else { return scalar };
        if style == ScalarStyle::Literal {
            // The node's own position is that of the `|`, or of the first line; the text's first line tells.
            let first = scalar.text.split('\n').next().unwrap_or_default();
            let found =
                self.lines.iter().enumerate().skip(start.line as usize - 1).take(8).find_map(|(at, line)| {
                    let indent = line.len() - line.trim_start().len();
                    (!first.is_empty() && line.get(indent..)? == first.trim_start())
                        .then_some((at as u32 + 1, indent))
                });
            let inner = (first.len() - first.trim_start().len()) as u32;
            scalar.block = found.map(|(line, indent)| (line, indent as u32 - inner.min(indent as u32)));
            return scalar;
        }
        let column = start.column + quote;
        let rest: String = line.chars().skip(column as usize - 1).collect();
        if !scalar.text.is_empty() && !scalar.text.contains('\n') && rest.starts_with(&scalar.text) {
            scalar.verbatim = Some(Position { line: start.line, column });
        }
        scalar
    }
}

fn first_place(field: &Field) -> String {
    match field.origin {
        Origin::File(position) => format!("; the first is on line {}", position.line),
        _ => String::new(),
    }
}

/// Number of nodes, and how deep they are nested.
fn measure(node: &Node) -> (usize, usize) {
    let inner = |children: &mut dyn Iterator<Item = &Node>| {
        children
            .map(measure)
            .fold((1, 1), |(size, depth), (more, deeper)| (size + more, depth.max(deeper + 1)))
    };
    match &node.data {
        Data::Scalar(_) => (1, 1),
        Data::List(items) => inner(&mut items.iter()),
        Data::Map(fields) => inner(&mut fields.iter().map(|field| &field.node)),
    }
}
