//! How long a worker thread is with the publication of exactly-once output: it must never wait for a transaction.

use std::thread;
use std::time::Duration;

use tidegate_harness::{Scratch, http, ports};

use crate::child::{self, End};
use crate::error::{Error, Result};
use crate::flows;
use crate::report::{Bound, Limit, Report};
use crate::suite::{MakeCommand, Run, Sitting};
use crate::topics::Topic;

const DEADLINE: Duration = Duration::from_secs(300);
/// The histogram's bucket that nothing may lie above.
const LONGEST: &str = "0.005";
const HISTOGRAM: &str = "tidegate_publication_wait_seconds";
/// So often the figures are read while the flow runs: of the last moment before its end they say nothing.
const READ_EVERY: Duration = Duration::from_millis(50);

/// Runs the exactly-once flows once each and adds how often a worker was longer with the publication than it may.
pub(crate) fn look(sitting: &Sitting, report: &mut Report) -> Result<()> {
    let flows: [(&str, MakeCommand); 3] = [
        ("pass-through, a transaction every second", |run| flows::pass_through_exactly_once(run, "1s")),
        ("pass-through, a transaction every 100 ms", |run| flows::pass_through_exactly_once(run, "100ms")),
        ("windows, a transaction every second", flows::windows_exactly_once),
    ];
    for (what, command) in flows {
        let (all, short) = waits(sitting, what, command)?;
        report.bounds.push(Bound {
            what: format!("{what}: a worker thread was longer than 5 ms with the publication"),
            value: (all - short) as f64,
            unit: "times",
            limit: Limit::AtMost(0.0),
            from: format!("{all} times in all, `{HISTOGRAM}`"),
        });
    }
    Ok(())
}

/// How often a worker thread was with the publication, and how often not longer than it may.
fn waits(sitting: &Sitting, what: &str, command: MakeCommand) -> Result<(u64, u64)> {
    let scratch = Scratch::new("bench-waits");
    let to = Topic::new(&sitting.kafka, "waits", sitting.workload.partitions);
    let address = ports::free_address();
    let mut command = command(&Run { sitting, to: to.name(), scratch: &scratch })?;
    command.env("TIDEGATE__HTTP", &address);
    let running = child::start(what, command)?;
    let reader = thread::spawn(move || last_page(&address));
    running.finish(End::Itself, DEADLINE)?;
    let page = reader.join().ok().flatten().ok_or_else(|| Error::system(what, "it showed no figures"))?;
    let figure = |line: String| {
        let value = page.lines().find_map(|found| found.strip_prefix(&line)?.trim().parse::<u64>().ok());
        value.ok_or_else(|| Error::system(what, format!("no `{line}` among its figures")))
    };
    Ok((figure(format!("{HISTOGRAM}_count"))?, figure(format!("{HISTOGRAM}_bucket{{le=\"{LONGEST}\"}}"))?))
}

/// The figures as they were last, when nobody answers any more.
fn last_page(address: &str) -> Option<String> {
    let mut last = tidegate_harness::wait::until_or_none(DEADLINE, || http::get(address, "/metrics"));
    loop {
        thread::sleep(READ_EVERY);
        match http::get(address, "/metrics") {
            Some(page) => last = Some(page),
            None => return last.map(|(_, page)| page),
        }
    }
}
