//! How the rate grows from one worker thread to two: an in-memory source, an exchange by key, a count per key. A run is
//! a process of `bench-parts` that prints its seconds as one line.

use std::process::Command;
use std::time::Duration;

use crate::child;
use crate::error::{Error, Result};
use crate::figures::median;
use crate::flows::beside;
use crate::report::{Bound, Limit, Report};
use crate::workload::Workload;

/// A run that takes longer is stuck.
const DEADLINE: Duration = Duration::from_secs(300);

/// Compares one worker with two and adds the bound to the report.
pub(crate) fn compare(workload: &Workload, rounds: usize, report: &mut Report) -> Result<()> {
    let records = workload.records * 4;
    let mut seconds: [Vec<f64>; 2] = Default::default();
    for round in 0..rounds {
        let order = if round % 2 == 0 { [1, 2] } else { [2, 1] };
        for workers in order {
            let mut command = Command::new(beside("bench-parts")?);
            command.args(["scaling", "--workers", &workers.to_string(), "--records", &records.to_string()]);
            command.args(["--keys", &workload.keys.to_string()]);
            let (cost, printed) = child::measure_output("scaling", command, DEADLINE)?;
            let taken: f64 =
                printed.trim().parse().map_err(|_| Error::system("read the seconds of a run", &printed))?;
            eprintln!(
                "round {} of {rounds}: {workers} workers in memory: {:.2} million records/s, others {:.2} cores",
                round + 1,
                records as f64 / taken / 1e6,
                cost.foreign_cores
            );
            seconds[workers - 1].push(taken);
        }
    }
    let [one, two] = seconds.map(|seconds| records as f64 / median(seconds.into_iter()).middle / 1e6);
    report.bounds.push(Bound {
        what: "from 1 to 2 workers, in-memory source, count per key: rate".into(),
        value: two / one,
        unit: "×",
        limit: Limit::AtLeast(1.7),
        from: format!("{one:.2} and {two:.2} million records/s"),
    });
    Ok(())
}
