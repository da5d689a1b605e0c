//! What is wrong with a configuration, or worth a warning, and where.

use super::yaml::{Origin, Source};
use std::fmt::{self, Write};

/// The stable codes.
pub mod code {
    /// A key that has no meaning; the near match is named.
    pub const UNKNOWN_OPTION: &str = "UNKNOWN_OPTION";
    /// A type, unit or range that does not fit.
    pub const INVALID_VALUE: &str = "INVALID_VALUE";
    /// A step that does not exist; the near match is named.
    pub const UNKNOWN_STEP: &str = "UNKNOWN_STEP";
    /// An expression that does not compile.
    pub const BAD_EXPRESSION: &str = "BAD_EXPRESSION";
    /// `delivery` contradicts the deprecated `enable_auto_commit`.
    pub const DELIVERY_CONFLICT: &str = "DELIVERY_CONFLICT";
    /// A keyed step without a recovery store: every crash would lose its state.
    pub const STATE_WITHOUT_RECOVERY: &str = "STATE_WITHOUT_RECOVERY";
    /// The same on more than one process.
    pub const DELIVERY_KEYED_MULTIPROCESS: &str = "DELIVERY_KEYED_MULTIPROCESS";
    /// A window meets a stream whose event time was never set.
    pub const NO_EVENT_TIME: &str = "NO_EVENT_TIME";
    /// `exactly_once` cannot be kept; lists every blocker.
    pub const EXACTLY_ONCE_BLOCKED: &str = "EXACTLY_ONCE_BLOCKED";
    /// Warning: the group's name changes with the host, the process or the pod.
    pub const GROUP_ID_UNSTABLE: &str = "GROUP_ID_UNSTABLE";
    /// Warning: an option that does nothing any more, or that another one replaces.
    pub const DEPRECATED_OPTION: &str = "DEPRECATED_OPTION";
    /// Warning: a filter before `event_time` keeps records from moving the watermark.
    pub const FILTER_BEFORE_EVENT_TIME: &str = "FILTER_BEFORE_EVENT_TIME";
    /// Warning: `delivery` is not set, and means at most once.
    pub const DELIVERY_UNSET: &str = "DELIVERY_UNSET";
    /// Warning: results that are made per key are written without it.
    pub const SINK_WITHOUT_KEY: &str = "SINK_WITHOUT_KEY";
    /// Warning: the flow reads what it writes.
    pub const OUTPUT_IS_INPUT: &str = "OUTPUT_IS_INPUT";
    /// Warning: windows by the time at which a record is read.
    pub const ARRIVAL_TIME: &str = "ARRIVAL_TIME";
    /// Warning: state per key that begins at the end of the topics.
    pub const LATEST_WITH_STATE: &str = "LATEST_WITH_STATE";
    /// Warning: exactly once over records of transactions that were aborted.
    pub const READS_UNCOMMITTED: &str = "READS_UNCOMMITTED";
    /// Warning: the brokers abort transactions that are open little longer than planned.
    pub const TRANSACTION_TIMEOUT_SHORT: &str = "TRANSACTION_TIMEOUT_SHORT";
    /// Warning: some workers have no partition to read.
    pub const WORKERS_EXCEED_PARTITIONS: &str = "WORKERS_EXCEED_PARTITIONS";
    /// Warning: a recovery store in a folder for temporary files.
    pub const STORE_IS_TEMPORARY: &str = "STORE_IS_TEMPORARY";
}

/// The codes of all warnings, and what each is about: the README has the same table. The last three
/// are known only when the brokers have answered, so that `run` says them and `check` does not.
pub const WARNINGS: [(&str, &str); 14] = [
    (code::DELIVERY_UNSET, "`delivery` is not set, which means `at_most_once`"),
    (code::DEPRECATED_OPTION, "an option that does nothing any more, or that another one replaces"),
    (
        code::GROUP_ID_UNSTABLE,
        "a `group_id` with the name of a host, a process or a pod in it: another one at the next start",
    ),
    (code::OUTPUT_IS_INPUT, "the topic of a sink or of dead letters is read by the flow: a loop"),
    (code::SINK_WITHOUT_KEY, "results per key are written without a key, or all with the same"),
    (code::FILTER_BEFORE_EVENT_TIME, "what a filter drops before `event_time` moves no watermark"),
    (code::ARRIVAL_TIME, "windows by the time of arrival: what is read again falls into other windows"),
    (code::LATEST_WITH_STATE, "`auto_offset_reset: latest` with state per key: it begins with a part"),
    (code::STORE_IS_TEMPORARY, "a recovery store under `/tmp` or another folder that is emptied"),
    (
        code::READS_UNCOMMITTED,
        "`exactly_once` over the records of aborted transactions (`isolation: read_uncommitted`)",
    ),
    (
        code::TRANSACTION_TIMEOUT_SHORT,
        "`exactly_once` without a store: twice the `commit_interval` is more than `transaction_timeout`",
    ),
    (code::WORKERS_EXCEED_PARTITIONS, "more worker threads than partitions: some read nothing"),
    (
        tidegate_operators::kafka::KEEPALIVE_ABOVE_RETENTION,
        "`commit_keepalive_ms` is not below the brokers' `offsets.retention.minutes`",
    ),
    (
        tidegate_operators::kafka::COMPACTED_AS_LOG,
        "windows or state over a compacted topic: records that were overwritten are never seen",
    ),
];

/// Whether a problem stops a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// It stops a start.
    Error,
    /// It does not.
    Warning,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
        })
    }
}

/// Something that is wrong, or worth a warning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Whether it stops a start.
    pub severity: Severity,
    /// Its stable code.
    pub code: &'static str,
    /// Path of the key, such as `steps[2].window.lateness`; empty for the whole.
    pub path: String,
    /// Where the value stands.
    pub origin: Origin,
    /// What was found and what is allowed: lower case, no full stop.
    pub message: String,
    /// What to do; may be empty.
    pub advice: String,
}

impl Problem {
    /// An error.
    pub fn error(
        code: &'static str,
        path: impl Into<String>,
        origin: &Origin,
        message: impl Into<String>,
    ) -> Problem {
        Problem {
            severity: Severity::Error,
            code,
            path: path.into(),
            origin: origin.clone(),
            message: message.into(),
            advice: String::new(),
        }
    }

    /// A warning.
    pub fn warning(
        code: &'static str,
        path: impl Into<String>,
        origin: &Origin,
        message: impl Into<String>,
    ) -> Problem {
        Problem { severity: Severity::Warning, ..Problem::error(code, path, origin, message) }
    }

    /// With what to do.
    pub fn advise(mut self, advice: impl Into<String>) -> Problem {
        self.advice = advice.into();
        self
    }

    /// Message and advice in one line.
    pub fn text(&self) -> String {
        match self.advice.is_empty() {
            true => self.message.clone(),
            false => format!("{}; {}", self.message, self.advice),
        }
    }

    /// For a person: one line, and the line of the file with a mark under the place.
    pub fn human(&self, source: &Source) -> String {
        let mut text = format!("{}[{}]", self.severity, self.code);
        let place = self.origin.describe(source.name());
        if !place.is_empty() {
            let _ = write!(text, " {place}");
        }
        if !self.path.is_empty() {
            let _ = write!(text, " {}", self.path);
        }
        let _ = write!(text, ": {}", self.message);
        if !self.advice.is_empty() {
            let _ = write!(text, "\n  = {}", self.advice);
        }
        if let Origin::File(position) = self.origin
            && let Some(line) = source.line(position.line)
        {
            const SHOWN_MAX: usize = 160;
            let number = position.line.to_string();
            let shown: String =
                line.chars().take(SHOWN_MAX).map(|c| if c == '\t' { ' ' } else { c }).collect();
            let margin = " ".repeat(number.len());
            let indent = " ".repeat((position.column as usize).saturating_sub(1).min(SHOWN_MAX));
            let _ = write!(text, "\n {margin} |\n {number} | {shown}\n {margin} | {indent}^");
        }
        text
    }

    /// For a program: one line of JSON with `code`, `severity`, `message`, `path`, `file`, `line` and `column`.
    pub fn json(&self, source: &Source) -> String {
        let (line, column) = match self.origin {
            Origin::File(position) => (Some(position.line), Some(position.column)),
            _ => (None, None),
        };
        serde_json::json!({
            "code": self.code,
            "severity": self.severity.to_string(),
            "message": self.text(),
            "path": self.path,
            "file": line.map(|_| source.name()),
            "line": line,
            "column": column,
        })
        .to_string()
    }
}

/// Problems in the order in which a person wants to read them: by place, errors and warnings mixed.
#[derive(Clone, Debug, Default)]
pub struct Problems {
    list: Vec<Problem>,
}

impl Problems {
    /// Adds a problem; the same one twice is one.
    pub fn push(&mut self, problem: Problem) {
        if !self.list.contains(&problem) {
            self.list.push(problem);
        }
    }

    /// Adds all problems of `other`.
    pub fn extend(&mut self, other: impl IntoIterator<Item = Problem>) {
        other.into_iter().for_each(|problem| self.push(problem));
    }

    /// Whether one of them stops a start.
    pub fn has_errors(&self) -> bool {
        self.list.iter().any(|problem| problem.severity == Severity::Error)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// How many errors and how many warnings.
    pub fn counts(&self) -> (usize, usize) {
        let errors = self.list.iter().filter(|problem| problem.severity == Severity::Error).count();
        (errors, self.list.len() - errors)
    }

    /// The problems, those of the file by place, then the others.
    pub fn sorted(mut self) -> Problems {
        self.list.sort_by_key(|problem| match &problem.origin {
            Origin::File(position) => (0, position.line, position.column),
            _ => (1, 0, 0),
        });
        self
    }

    /// The problems.
    pub fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.list.iter()
    }

    /// The warnings.
    pub fn warnings(&self) -> impl Iterator<Item = &Problem> {
        self.list.iter().filter(|problem| problem.severity == Severity::Warning)
    }
}

impl IntoIterator for Problems {
    type Item = Problem;
    type IntoIter = std::vec::IntoIter<Problem>;

    fn into_iter(self) -> Self::IntoIter {
        self.list.into_iter()
    }
}
