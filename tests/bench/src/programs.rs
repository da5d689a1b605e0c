//! The programs that run over the topic, and the bounds between them.

use crate::flows::{self, Language};
use crate::loops::Task;
use crate::report::{Bound, Limit, Report};
use crate::suite::{Output, Program, raw};

const CONSUME: &str = "consume";
const COPY: &str = "copy";
const COPY_ONCE: &str = "copy, exactly once";
const COUNT: &str = "count per key";
const WINDOWS: &str = "count per key and minute";

const RUST: &str = "flow in Rust";
const YAML: &str = "flow in YAML";
const RUST_STORE: &str = "flow in Rust, a snapshot every second";
const RUST_UNSAVED: &str = "flow in Rust, nothing saved";
const RUST_ONCE: &str = "flow in Rust, exactly once";
const EVERY_SECOND: &str = "flow in Rust, a transaction every second";
const EVERY_TENTH: &str = "flow in Rust, a transaction every 100 ms";
const YAML_STORE: &str = "flow in YAML, a snapshot every second";

/// All programs, in the order of the table.
pub(crate) fn all() -> Vec<Program> {
    let program = |work, name, output, command| Program { work, name, output, command };
    vec![
        program(CONSUME, "raw", Output::Nothing, raw(Task::Consume)),
        program(COUNT, "raw", Output::Nothing, raw(Task::Count)),
        program(COPY, "raw, one by one", Output::Copy, raw(Task::CopySingly)),
        program(COPY, "raw, in batches", Output::Copy, raw(Task::CopyBatched)),
        program(COPY, RUST, Output::Copy, |run| flows::pass_through(run, Language::Rust)),
        program(COPY, YAML, Output::Copy, |run| flows::pass_through(run, Language::Yaml)),
        program(COPY_ONCE, "raw, one by one", Output::Copy, raw(Task::CopySinglyInTransactions)),
        program(COPY_ONCE, "raw, in batches", Output::Copy, raw(Task::CopyBatchedInTransactions)),
        program(COPY_ONCE, EVERY_SECOND, Output::Copy, |run| flows::pass_through_exactly_once(run, "1s")),
        program(COPY_ONCE, EVERY_TENTH, Output::Copy, |run| flows::pass_through_exactly_once(run, "100ms")),
        program(WINDOWS, "raw", Output::Windows, raw(Task::Windows)),
        program(WINDOWS, RUST_STORE, Output::Windows, |run| flows::windows(run, Language::Rust)),
        program(WINDOWS, RUST_ONCE, Output::Windows, flows::windows_exactly_once),
        program(WINDOWS, RUST_UNSAVED, Output::Windows, flows::windows_unsaved),
        program(WINDOWS, YAML_STORE, Output::Windows, |run| flows::windows(run, Language::Yaml)),
    ]
}

/// The bounds on the programs, from their medians.
pub(crate) fn add_bounds(report: &mut Report) {
    let mut bounds = Vec::new();
    for (name, what) in [(RUST, "Rust"), (YAML, "YAML")] {
        bounds.extend(against_raw(report, COPY, name, &format!("pass-through flow, {what}"), 1.3));
        bounds.extend(rate_against_raw(report, COPY, name, &format!("pass-through flow, {what}"), 0.75));
    }
    bounds.extend(against_raw(
        report,
        WINDOWS,
        RUST_STORE,
        "keyed one-minute window count with a store, Rust",
        1.6,
    ));
    bounds.extend(against_raw(
        report,
        WINDOWS,
        YAML_STORE,
        "keyed one-minute window count with a store, YAML",
        4.0,
    ));
    if let (Some(saved), Some(unsaved)) =
        (cpu(report, WINDOWS, RUST_STORE), cpu(report, WINDOWS, RUST_UNSAVED))
    {
        bounds.push(Bound {
            what: "the windows in Rust, a snapshot every second against none: CPU".into(),
            value: saved / unsaved,
            unit: "×",
            limit: Limit::AtMost(1.1),
            from: format!("{saved:.2} against {unsaved:.2} CPU-s a run"),
        });
    }
    add_exactly_once(report, &mut bounds);
    report.bounds.extend(bounds);
}

fn add_exactly_once(report: &Report, bounds: &mut Vec<Bound>) {
    bounds.extend(against_raw(report, COPY_ONCE, EVERY_SECOND, "pass-through flow, exactly once", 1.3));
    if let (Some(second), Some(tenth)) =
        (wall(report, COPY_ONCE, EVERY_SECOND), wall(report, COPY_ONCE, EVERY_TENTH))
    {
        bounds.push(Bound {
            what: "the same with a transaction every 100 ms against every second: rate".into(),
            value: second / tenth,
            unit: "×",
            limit: Limit::AtLeast(0.8),
            from: format!("{tenth:.2} s against {second:.2} s"),
        });
    }
    if let (Some(once), Some(saved)) = (cpu(report, WINDOWS, RUST_ONCE), cpu(report, WINDOWS, RUST_STORE)) {
        bounds.push(Bound {
            what: "the windows in Rust, exactly once against at least once: CPU".into(),
            value: once / saved,
            unit: "×",
            limit: Limit::AtMost(1.25),
            from: format!("{once:.2} against {saved:.2} CPU-s a run"),
        });
    }
    if let (Some(once), Some(saved)) = (wall(report, WINDOWS, RUST_ONCE), wall(report, WINDOWS, RUST_STORE)) {
        bounds.push(Bound {
            what: "the same: rate".into(),
            value: saved / once,
            unit: "×",
            limit: Limit::AtLeast(0.9),
            from: format!("{once:.2} s against {saved:.2} s"),
        });
    }
}

fn against_raw(report: &Report, work: &str, name: &str, what: &str, limit: f64) -> Option<Bound> {
    let (raw, _) = report.best_raw(work)?;
    let flow = cpu(report, work, name)?;
    Some(Bound {
        what: format!("{what}: CPU"),
        value: flow / raw,
        unit: "× the best raw loop",
        limit: Limit::AtMost(limit),
        from: format!("{flow:.2} against {raw:.2} CPU-s a run"),
    })
}

fn rate_against_raw(report: &Report, work: &str, name: &str, what: &str, limit: f64) -> Option<Bound> {
    let (_, raw) = report.best_raw(work)?;
    let flow = report.program(work, name)?.samples.wall_s().middle;
    Some(Bound {
        what: format!("{what}: rate"),
        value: raw / flow,
        unit: "× the best raw loop",
        limit: Limit::AtLeast(limit),
        from: format!("{flow:.2} s against {raw:.2} s, from the start of the process to its end"),
    })
}

fn wall(report: &Report, work: &str, name: &str) -> Option<f64> {
    Some(report.program(work, name)?.samples.wall_s().middle)
}

fn cpu(report: &Report, work: &str, name: &str) -> Option<f64> {
    Some(report.program(work, name)?.samples.cpu_s().middle)
}
