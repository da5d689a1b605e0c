//! The programs that are compared over one topic, and the order in which they run.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use tidegate_harness::{Kafka, Scratch};

use crate::child::{self, Cost};
use crate::error::Result;
use crate::figures::Samples;
use crate::loops::Task;
use crate::report::{ProgramLine, Report};
use crate::topics::Topic;
use crate::workload::{WindowTotals, Workload};

/// A program that takes longer is stuck.
const RUN_DEADLINE: Duration = Duration::from_secs(900);

/// What a run leaves in its output topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    /// Nothing is written.
    Nothing,
    /// Every record.
    Copy,
    /// The windows' results.
    Windows,
}

/// A program in the comparison.
pub(crate) struct Program {
    /// Which work it does; programs of one work are compared.
    pub(crate) work: &'static str,
    /// Name in the table; the floor's begin with "raw".
    pub(crate) name: &'static str,
    /// What it writes.
    pub(crate) output: Output,
    /// The command that runs it.
    pub(crate) command: MakeCommand,
}

/// Makes the command of one run.
pub(crate) type MakeCommand = fn(&Run<'_>) -> Result<Command>;

/// What one run has to work with.
pub(crate) struct Run<'a> {
    /// The settings of the sitting.
    pub(crate) sitting: &'a Sitting,
    /// The topic that is written; empty when the program writes nothing.
    pub(crate) to: &'a str,
    /// A folder for this run alone.
    pub(crate) scratch: &'a Scratch,
}

/// One sitting: one broker, one topic.
pub(crate) struct Sitting {
    /// The broker.
    pub(crate) kafka: Kafka,
    /// What is in the topic.
    pub(crate) workload: Workload,
    /// The topic.
    pub(crate) from: Topic,
    /// What the windows must come to.
    pub(crate) windows: WindowTotals,
    /// This binary.
    pub(crate) own: PathBuf,
}

/// A raw loop of this binary.
pub(crate) fn raw(task: Task) -> MakeCommand {
    match task {
        Task::Consume => |run| Ok(raw_command(run, "consume")),
        Task::CopySingly => |run| Ok(raw_command(run, "copy-singly")),
        Task::CopyBatched => |run| Ok(raw_command(run, "copy-batched")),
        Task::CopySinglyInTransactions => |run| Ok(transactional(run, "copy-singly-in-transactions")),
        Task::CopyBatchedInTransactions => |run| Ok(transactional(run, "copy-batched-in-transactions")),
        Task::Count => |run| Ok(raw_command(run, "count")),
        Task::Windows => |run| Ok(raw_command(run, "windows")),
    }
}

/// The producer has an id of its own, so that no run fences another.
fn transactional(run: &Run<'_>, task: &str) -> Command {
    let mut command = raw_command(run, task);
    let id = tidegate_harness::kafka::unique("bench-raw");
    command.arg("--producer").arg(format!("transactional.id={id}"));
    command
}

fn raw_command(run: &Run<'_>, task: &str) -> Command {
    let sitting = run.sitting;
    let mut command = Command::new(&sitting.own);
    command
        .args([
            "loop",
            task,
            "--brokers",
            sitting.kafka.bootstrap(),
            "--from",
            sitting.from.name(),
            "--to",
            run.to,
        ])
        .arg("--partitions")
        .arg(sitting.workload.partitions.to_string())
        .arg("--records")
        .arg(sitting.workload.records.to_string());
    command
}

impl Sitting {
    /// Runs every program `rounds` times, forwards and backwards in turn, and adds the figures to the report.
    pub(crate) fn compare(&self, programs: &[Program], rounds: usize, report: &mut Report) -> Result<()> {
        // Warms the page cache; its figures do not count.
        self.run(&Program {
            work: "",
            name: "warm-up",
            output: Output::Nothing,
            command: raw(Task::Consume),
        })?;
        let mut samples = vec![Samples::default(); programs.len()];
        for round in 0..rounds {
            let mut order: Vec<usize> = (0..programs.len()).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for place in order {
                let program = &programs[place];
                let cost = self.run(program)?;
                eprintln!(
                    "round {} of {rounds}: {} / {}: {:.2} CPU-s per 1M, {:.2} s, others {:.2} cores",
                    round + 1,
                    program.work,
                    program.name,
                    cost.cpu_s / (self.workload.records as f64 / 1e6),
                    cost.wall_s,
                    cost.foreign_cores
                );
                samples[place].add(cost);
            }
        }
        for (program, samples) in programs.iter().zip(samples) {
            report.programs.push(ProgramLine { work: program.work, name: program.name.to_owned(), samples });
        }
        Ok(())
    }

    fn run(&self, program: &Program) -> Result<Cost> {
        let scratch = Scratch::new("bench");
        let to = match program.output {
            Output::Nothing => None,
            Output::Copy | Output::Windows => Some(Topic::new(&self.kafka, "out", self.workload.partitions)),
        };
        let run = Run { sitting: self, to: to.as_ref().map_or("", Topic::name), scratch: &scratch };
        let cost = child::measure(program.name, (program.command)(&run)?, RUN_DEADLINE)?;
        match (program.output, &to) {
            (Output::Copy, Some(to)) => to.expect_records(self.workload.records)?,
            (Output::Windows, Some(to)) => to.expect_windows(self.windows)?,
            _ => {}
        }
        Ok(cost)
    }
}
