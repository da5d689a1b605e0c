//! The progress of a bounded run, on a terminal: records, rate, lag, epoch; and at the end of any run, what was left out.

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tidegate_operators::process::ProcessContext;
use tidegate_operators::status::Status;

/// How often the line is written anew.
const EVERY: Duration = Duration::from_millis(500);

/// The line on the terminal; it ends when this is dropped.
pub(crate) struct Progress {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Shows the progress of a bounded run when stderr is a terminal.
pub(crate) fn show(bounded: bool, process: &Arc<ProcessContext>) -> Option<Progress> {
    if !bounded || !std::io::stderr().is_terminal() {
        return None;
    }
    let process = Arc::clone(process);
    let (end, ended) = channel::<()>();
    let thread = std::thread::Builder::new().name("progress".into()).spawn(move || {
        let started = Instant::now();
        let mut last = (Instant::now(), 0);
        while ended.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
            let status = process.status.snapshot();
            let records = records_of(&status);
            let rate = (records - last.1) as f64 / last.0.elapsed().as_secs_f64().max(0.001);
            last = (Instant::now(), records);
            write_line(&format!("\r{}\x1b[K", line(&status, records, rate)));
        }
        let records = records_of(&process.status.snapshot());
        let seconds = started.elapsed().as_secs_f64();
        write_line(&format!(
            "\r{records} records in {seconds:.1} s ({:.0}/s)\x1b[K\n",
            records as f64 / seconds
        ));
    });
    Some(Progress { end: Some(end), thread: thread.ok() })
}

/// Says what this process read and, for each step, how many records it left out, so that nobody has to have looked at
/// `/metrics` in time.
pub(crate) fn say_what_was_left_out(process: &ProcessContext) {
    let status = process.status.snapshot();
    tracing::info!(records = records_of(&status), "records that this process read");
    for (step, figures) in &status.steps {
        for (topic, letters) in figures.dead_letters.iter().filter(|(_, letters)| **letters > 0) {
            tracing::warn!(
                step = step.as_str(),
                topic = &**topic,
                records = letters,
                "the step put records into a topic for dead letters"
            );
        }
    }
    for (step, figures) in status.steps.iter().filter(|(_, figures)| figures.late + figures.dropped > 0) {
        tracing::warn!(
            step = step.as_str(),
            late = figures.late,
            dropped = figures.dropped,
            "the step left records out"
        );
    }
}

fn write_line(text: &str) {
    // A terminal that is gone takes nothing away from the run.
    drop(std::io::stderr().write_all(text.as_bytes()));
}

fn records_of(status: &Status) -> u64 {
    status.steps.iter().filter(|(id, _)| id.as_str() == "source").map(|(_, step)| step.emitted).sum()
}

fn line(status: &Status, records: u64, rate: f64) -> String {
    let lag: i64 = status.partitions.iter().filter_map(|partition| partition.lag).sum();
    format!("{records} records, {rate:.0}/s, lag {lag}, epoch {}", status.epoch)
}

impl Drop for Progress {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // A panic there was printed by its own hook.
            drop(thread.join());
        }
    }
}
