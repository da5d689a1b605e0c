//! The recovery store by itself: commits of many changed rows against one file that is written in sequence, and
//! reading a large state back. Each task is a process of `bench-parts` that prints the seconds of its work as one line.

use std::process::Command;
use std::time::Duration;

use tidegate_harness::Scratch;

use crate::child;
use crate::error::{Error, Result};
use crate::figures::median;
use crate::flows::beside;
use crate::report::{Bound, Limit, Report};

/// Keys of the state that is read back, and of the larger of the two that are written.
const KEYS: u64 = 1_000_000;
/// Keys of a state of which each commit changes every row.
const KEYS_ALL_CHANGED: u64 = 100_000;
/// A task that takes longer is stuck.
const DEADLINE: Duration = Duration::from_secs(300);

/// Runs the tasks in turn and adds their bounds to the report.
pub(crate) fn compare(rounds: usize, report: &mut Report) -> Result<()> {
    let kept = Scratch::new("bench-restore");
    timed("fill", KEYS, &kept)?;
    let tasks = [
        ("commits", KEYS_ALL_CHANGED),
        ("sequential", KEYS_ALL_CHANGED),
        ("commits", KEYS),
        ("sequential", KEYS),
        ("restore", KEYS),
    ];
    let mut seconds: [Vec<f64>; 5] = Default::default();
    for round in 0..rounds {
        let mut order: Vec<usize> = (0..tasks.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for place in order {
            let (task, keys) = tasks[place];
            let fresh = Scratch::new("bench-store");
            let taken = timed(task, keys, if task == "restore" { &kept } else { &fresh })?;
            eprintln!("round {} of {rounds}: store of {keys} keys / {task}: {taken:.2} s", round + 1);
            seconds[place].push(taken);
        }
    }
    let [few, few_sequential, many, many_sequential, restore] =
        seconds.map(|seconds| median(seconds.into_iter()));
    for (keys, commits, sequential) in
        [(KEYS_ALL_CHANGED, few, few_sequential), (KEYS, many, many_sequential)]
    {
        report.bounds.push(Bound {
            what: format!("store: 30 commits × 100000 changed rows of 64 bytes, of {keys} keys, against one sequential file"),
            value: commits.middle / sequential.middle,
            unit: "×",
            limit: Limit::AtMost(2.0),
            from: format!("{:.2} s against {:.2} s, a sync per commit each", commits.middle, sequential.middle),
        });
    }
    report.bounds.push(Bound {
        what: format!("restore of {KEYS} keys × 64 bytes"),
        value: restore.middle,
        unit: "s",
        limit: Limit::AtMost(1.0),
        from: format!("opening the store included; {:.2}–{:.2} s", restore.least, restore.most),
    });
    Ok(())
}

fn timed(task: &str, keys: u64, folder: &Scratch) -> Result<f64> {
    let mut command = Command::new(beside("bench-parts")?);
    command.args(["store", task, "--keys", &keys.to_string(), "--folder"]).arg(folder.path());
    let (_, printed) = child::measure_output(task, command, DEADLINE)?;
    printed.trim().parse().map_err(|_| Error::system(format!("read the seconds of {task}"), printed))
}
