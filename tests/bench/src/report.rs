//! The table: every figure, every bound, and whether it is met.

use std::fmt::Write as _;

use crate::figures::{Median, Samples};
use crate::machine::Machine;
use crate::workload::{VALUE_BYTES, Workload};

/// How a measured value is held against its bound.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Limit {
    /// The value must not be above.
    AtMost(f64),
    /// The value must not be below.
    AtLeast(f64),
}

/// A value with a bound.
#[derive(Clone, Debug)]
pub(crate) struct Bound {
    /// What is measured.
    pub(crate) what: String,
    /// The value.
    pub(crate) value: f64,
    /// Its unit, or `×` for a ratio.
    pub(crate) unit: &'static str,
    /// The bound.
    pub(crate) limit: Limit,
    /// What the value was made of.
    pub(crate) from: String,
}

impl Bound {
    /// Whether the bound is met.
    pub(crate) fn met(&self) -> bool {
        match self.limit {
            Limit::AtMost(bound) => self.value <= bound,
            Limit::AtLeast(bound) => self.value >= bound,
        }
    }
}

/// A program over the topic.
#[derive(Clone, Debug)]
pub(crate) struct ProgramLine {
    /// Which work it does.
    pub(crate) work: &'static str,
    /// What it is.
    pub(crate) name: String,
    /// Its runs.
    pub(crate) samples: Samples,
}

/// All that was measured.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// Programs over the topic, in the order of the table.
    pub(crate) programs: Vec<ProgramLine>,
    /// Bounds.
    pub(crate) bounds: Vec<Bound>,
    /// Further remarks.
    pub(crate) notes: Vec<String>,
}

/// Cores that others may keep busy before a figure is called disturbed.
const DISTURBED_CORES: f64 = 0.15;

impl Report {
    /// How many bounds are missed.
    pub(crate) fn missed(&self) -> usize {
        self.bounds.iter().filter(|bound| !bound.met()).count()
    }

    /// The whole page, as Markdown.
    pub(crate) fn page(
        &self,
        workload: &Workload,
        rounds: usize,
        machine: &Machine,
        command: &str,
    ) -> String {
        let mut page = String::new();
        // Writing to a string cannot fail.
        let _infallible = self.write(&mut page, workload, rounds, machine, command);
        page
    }

    fn write(
        &self,
        page: &mut String,
        workload: &Workload,
        rounds: usize,
        machine: &Machine,
        command: &str,
    ) -> std::fmt::Result {
        writeln!(page, "# Results of the benchmark\n")?;
        writeln!(
            page,
            "Made by `{command}`, which needs what `tests/all` needs (a JDK and the broker's jars).\n"
        )?;
        writeln!(page, "{machine}\n")?;
        if !self.bounds.is_empty() {
            let met = self.bounds.len() - self.missed();
            writeln!(page, "## Bounds: {met} of {} met\n", self.bounds.len())?;
            writeln!(page, "| what | measured | bound | | from |\n|---|---|---|---|---|")?;
            for bound in &self.bounds {
                let limit = match bound.limit {
                    Limit::AtMost(limit) => format!("≤ {}", number(limit)),
                    Limit::AtLeast(limit) => format!("≥ {}", number(limit)),
                };
                let verdict = if bound.met() { "met" } else { "**missed**" };
                writeln!(
                    page,
                    "| {} | {} {unit} | {limit} {unit} | {verdict} | {} |",
                    bound.what,
                    number(bound.value),
                    bound.from,
                    unit = bound.unit
                )?;
            }
            writeln!(page)?;
        }
        if !self.programs.is_empty() {
            writeln!(page, "## Programs over one topic\n")?;
            writeln!(
                page,
                "{} records with values of {VALUE_BYTES} bytes, {} keys, {} partitions; {rounds} rounds. Medians, with the least and the \
                 most in parentheses. Ratios are to the best raw loop of the same work.\n",
                workload.records, workload.keys, workload.partitions
            )?;
            writeln!(
                page,
                "| work | program | CPU-s per 1M records | ratio | wall s | rate, records/s | ratio | others' cores |"
            )?;
            writeln!(page, "|---|---|---|---|---|---|---|---|")?;
            for line in &self.programs {
                let cpu = line.samples.cpu_s();
                let wall = line.samples.wall_s();
                let rate = workload.records as f64 / wall.middle;
                let (cpu_ratio, rate_ratio) = match self.best_raw(line.work) {
                    Some((best_cpu, best_wall)) => {
                        (format!("{:.2}", cpu.middle / best_cpu), format!("{:.2}", best_wall / wall.middle))
                    }
                    None => (String::new(), String::new()),
                };
                let foreign = line.samples.foreign_cores();
                let mark = if foreign.middle > DISTURBED_CORES { " (disturbed)" } else { "" };
                writeln!(
                    page,
                    "| {} | {} | {} | {cpu_ratio} | {} | {rate:.0} | {rate_ratio} | {:.2}{mark} |",
                    line.work,
                    line.name,
                    spread(cpu, workload.records as f64 / 1e6),
                    spread(wall, 1.0),
                    foreign.middle
                )?;
            }
            writeln!(page)?;
        }
        writeln!(page, "## How noise was handled\n")?;
        writeln!(
            page,
            "All programs of one work ran on one broker in one sitting, each as a process of its own, in turn: a round runs them in order, the \
             next one in reverse order. The topic was read once before, so that it stood in the page cache. The CPU seconds are the kernel's account of the \
             whole process, start and end included (resolution 10 ms); the broker's are not in it, although broker and client share the \
             machine's cores, which is why the wall rate says less. \"Others' cores\" is what neither the program, the broker nor \
             the benchmark used, on average; above {DISTURBED_CORES} the figure is marked as disturbed. The number and the sum of the results were checked \
             after each run, outside the measured time."
        )?;
        for note in &self.notes {
            writeln!(page, "\n{note}")?;
        }
        Ok(())
    }

    /// The program of this work and name.
    pub(crate) fn program(&self, work: &str, name: &str) -> Option<&ProgramLine> {
        self.programs.iter().find(|line| line.work == work && line.name == name)
    }

    /// CPU seconds and wall seconds of the raw loops of a work, each the best of them.
    pub(crate) fn best_raw(&self, work: &str) -> Option<(f64, f64)> {
        let raw = || self.programs.iter().filter(|line| line.work == work && line.name.starts_with("raw"));
        let least = |values: Vec<f64>| values.into_iter().min_by(f64::total_cmp);
        let cpu = least(raw().map(|line| line.samples.cpu_s().middle).collect())?;
        let wall = least(raw().map(|line| line.samples.wall_s().middle).collect())?;
        Some((cpu, wall))
    }
}

fn spread(median: Median, per: f64) -> String {
    format!("{:.2} ({:.2}–{:.2})", median.middle / per, median.least / per, median.most / per)
}

/// Three significant digits, which is more than the noise leaves.
fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
