//! Flags over environment over file: the layers above the file are put into its nodes, so that everything is
//! read, checked and explained in one way.
//!
//! `TIDEGATE__KAFKA__CONSUMER__GROUP_ID` sets `kafka.consumer.group_id`. A value that begins with `[` or `{` is
//! YAML; of any other, what it stands for is for the option to say (a list takes commas). `${VAR}` in a
//! scalar of the file is replaced after parsing, so that a value can never add a key; `$${` is a plain `${`.

use super::problems::{Problem, code};
use super::yaml::{self, Data, Field, Node, Origin, Source};
use std::collections::BTreeMap;

/// Prefix of the environment variables that set options.
pub const PREFIX: &str = "TIDEGATE__";

/// Sections that describe the flow itself: they come from the file only.
const FILE_ONLY: [&str; 2] = ["steps", "streams"];

/// The environment of the process, or what a test puts in its place.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    variables: BTreeMap<String, String>,
}

impl Environment {
    /// That of the process; variables that are no UTF-8 are left out.
    pub fn of_process() -> Environment {
        let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        Environment { variables: std::env::vars_os().filter_map(text).collect() }
    }

    /// The variable of this name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str)
    }
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for Environment {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(variables: I) -> Environment {
        Environment {
            variables: variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect(),
        }
    }
}

/// An option that a flag sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlagSetting {
    /// The flag as it is written, such as `-w`.
    pub flag: &'static str,
    /// Path of the option.
    pub path: &'static str,
    /// The value as it was typed.
    pub value: String,
}

/// Replaces `${VAR}` in every scalar of the file.
pub fn substitute(node: &mut Node, environment: &Environment, problems: &mut Vec<Problem>) {
    substitute_at(node, "", environment, problems);
}

fn substitute_at(node: &mut Node, path: &str, environment: &Environment, problems: &mut Vec<Problem>) {
    match &mut node.data {
        Data::Scalar(scalar) if scalar.text.contains("${") => {
            match replaced(&scalar.text, environment) {
                Ok(text) => {
                    scalar.verbatim = None;
                    scalar.block = None;
                    scalar.text = text;
                }
                Err(message) => problems.push(
                    Problem::error(code::INVALID_VALUE, path, &node.origin, message)
                        .advise("set the variable, or write $${ for a plain ${"),
                ),
            };
        }
        Data::Scalar(_) => {}
        Data::List(items) => {
            for (at, item) in items.iter_mut().enumerate() {
                substitute_at(item, &format!("{path}[{at}]"), environment, problems);
            }
        }
        Data::Map(fields) => {
            for field in fields {
                let path = join(path, &field.name);
                substitute_at(&mut field.node, &path, environment, problems);
            }
        }
    }
}

fn replaced(text: &str, environment: &Environment) -> Result<String, String> {
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        if rest[..at].ends_with('$') {
            result.push_str(&rest[..at - 1]);
            result.push_str("${");
            rest = &rest[at + 2..];
            continue;
        }
        result.push_str(&rest[..at]);
        let Some(end) = rest[at..].find('}') else {
            return Err("`${` without its `}`".into());
        };
        let name = &rest[at + 2..at + end];
        let proper = !name.is_empty()
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
            && !name.starts_with(|c: char| c.is_ascii_digit());
        if !proper {
            return Err(format!("`${{{name}}}` names no variable"));
        }
        match environment.get(name) {
            Some(value) => result.push_str(value),
            None => return Err(format!("the environment variable `{name}` is not set")),
        }
        rest = &rest[at + end + 1..];
    }
    result.push_str(rest);
    Ok(result)
}

/// Puts the environment, then the flags, over the file.
pub fn overlay(
    root: &mut Node,
    environment: &Environment,
    flags: &[FlagSetting],
    problems: &mut Vec<Problem>,
) {
    for (name, value) in &environment.variables {
        let Some(path) = name.strip_prefix(PREFIX) else { continue };
        let origin = Origin::Environment(name.clone());
        let path: Vec<String> = path.split("__").map(str::to_lowercase).collect();
        if path.iter().any(String::is_empty) || FILE_ONLY.contains(&path[0].as_str()) {
            problems.push(
                Problem::error(code::UNKNOWN_OPTION, path.join("."), &origin, "no option has this name")
                    .advise(
                        "a variable is TIDEGATE__SECTION__KEY; steps and streams come from the file only",
                    ),
            );
            continue;
        }
        match value_node(value, origin.clone()) {
            Ok(node) => set(root, &path, node, &origin),
            Err(problem) => problems.push(Problem { path: path.join("."), origin, ..*problem }),
        }
    }
    for flag in flags {
        let origin = Origin::Flag(flag.flag.to_string());
        let path: Vec<String> = flag.path.split('.').map(str::to_string).collect();
        set(root, &path, Node::scalar(flag.value.clone(), origin.clone()), &origin);
    }
}

fn value_node(value: &str, origin: Origin) -> Result<Node, Box<Problem>> {
    if !value.starts_with(['[', '{']) {
        return Ok(Node::scalar(value, origin));
    }
    let mut node =
        yaml::parse(&Source::new("", value)).map_err(|mut problems| Box::new(problems.swap_remove(0)))?;
    stamp(&mut node, &origin);
    Ok(node)
}

/// Everything below a node comes from where the node comes from.
fn stamp(node: &mut Node, origin: &Origin) {
    node.origin = origin.clone();
    match &mut node.data {
        Data::Scalar(scalar) => {
            scalar.verbatim = None;
            scalar.block = None;
        }
        Data::List(items) => items.iter_mut().for_each(|item| stamp(item, origin)),
        Data::Map(fields) => {
            for field in fields {
                field.origin = origin.clone();
                stamp(&mut field.node, origin);
            }
        }
    }
}

fn set(at: &mut Node, path: &[String], value: Node, origin: &Origin) {
    let Some((name, rest)) = path.split_first() else {
        *at = value;
        return;
    };
    if !matches!(at.data, Data::Map(_)) {
        // A section that is empty in the file, or a scalar where a section belongs: the layer above wins.
        *at = Node { origin: origin.clone(), data: Data::Map(Vec::new()) };
    }
    let Data::Map(fields) = &mut at.data else { return };
    let place = fields.iter().position(|field| field.name == *name).unwrap_or_else(|| {
        let node = Node { origin: origin.clone(), data: Data::Map(Vec::new()) };
        fields.push(Field { name: name.clone(), origin: origin.clone(), node });
        fields.len() - 1
    });
    set(&mut fields[place].node, rest, value, origin);
}

/// The path of a key below another.
pub(super) fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_string() } else { format!("{path}.{key}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment() -> Environment {
        [("HOST", "b1:9092"), ("N", "5"), ("EMPTY", "")].into_iter().collect()
    }

    #[test]
    fn variables_are_replaced_inside_scalars_only() {
        let source = Source::new("f", "a: ${HOST}\nb: [\"x-${N}\", '${N}', \"$${N}\"]\n${N}: 1\n");
        let mut node = yaml::parse(&source).unwrap();
        let mut problems = Vec::new();
        substitute(&mut node, &environment(), &mut problems);
        assert_eq!(problems, []);
        assert_eq!(node.get("a").unwrap().describe(), "`b1:9092`");
        let Data::List(items) = &node.get("b").unwrap().data else { panic!("a list") };
        assert_eq!(items.iter().map(Node::describe).collect::<Vec<_>>(), ["`x-5`", "`5`", "`${N}`"]);
        assert!(node.get("${N}").is_some(), "keys are left alone");
    }

    #[test]
    fn a_variable_that_is_not_set_is_a_problem_with_its_place() {
        let source = Source::new("f", "a:\n  - ${NOPE}\n");
        let mut node = yaml::parse(&source).unwrap();
        let mut problems = Vec::new();
        substitute(&mut node, &environment(), &mut problems);
        assert_eq!(problems.len(), 1);
        assert_eq!(problems[0].path, "a[0]");
        assert_eq!(problems[0].message, "the environment variable `NOPE` is not set");
    }

    #[test]
    fn flags_win_over_the_environment_and_that_over_the_file() {
        let source = Source::new("f", "cluster: { workers_per_process: 1 }\nrecovery:\n");
        let mut node = yaml::parse(&source).unwrap();
        let environment: Environment = [
            ("TIDEGATE__CLUSTER__WORKERS_PER_PROCESS", "2"),
            ("TIDEGATE__RECOVERY__DIRECTORY", "/env"),
            ("TIDEGATE__STEPS", "[]"),
        ]
        .into_iter()
        .collect();
        let flags = [FlagSetting { flag: "-w", path: "cluster.workers_per_process", value: "3".into() }];
        let mut problems = Vec::new();
        overlay(&mut node, &environment, &flags, &mut problems);
        let workers = node.get("cluster").unwrap().get("workers_per_process").unwrap();
        assert_eq!((workers.describe(), &workers.origin), ("3".into(), &Origin::Flag("-w".into())));
        assert_eq!(node.get("recovery").unwrap().get("directory").unwrap().describe(), "`/env`");
        assert_eq!(problems.len(), 1, "steps come from the file only");
        assert_eq!(problems[0].path, "steps");
    }
}
