//! A flow in Rust whose records may fail: what cannot be decoded, and what a step of one's own refuses, goes to the
//! topic `LETTERS`. The step calls something that may be out of order for a moment, so each record is tried twice more.
//!
//! For the tests it notes each of its calls in the file `CALLS`, and aborts the process in its call number `ABORT_AT`.

use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::process::ExitCode;
use tidegate::{DeadLetters, IntoRecord as _, Json, OnError, Record};

#[derive(Clone, Serialize, Deserialize)]
struct Job {
    id: u64,
    /// What comes of each attempt: `true` is a success.
    attempts: Vec<bool>,
}

/// A setting of this program; the rest is in its settings file.
fn setting(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("set {name}"))
}

/// The calls so far.
struct Calls(File);

impl Calls {
    fn call(&self, job: &Job) -> Result<(), String> {
        let before = std::fs::read_to_string(setting("CALLS")).expect("read the calls");
        writeln!(&self.0, "{}", job.id).expect("note the call");
        if std::env::var("ABORT_AT").is_ok_and(|at| at == (before.lines().count() + 1).to_string()) {
            std::process::abort();
        }
        let own = before.lines().filter(|line| *line == job.id.to_string()).count();
        let succeeds = job.attempts.get(own).is_some_and(|succeeds| *succeeds);
        if succeeds { Ok(()) } else { Err(format!("job {} did not work", job.id)) }
    }
}

fn main() -> ExitCode {
    tidegate::main(|flow| {
        let letters = DeadLetters::to(setting("LETTERS")).create(1, 1);
        let calls = OpenOptions::new().create(true).append(true).open(setting("CALLS")).map(Calls);
        let calls = calls.expect("open CALLS");
        flow.kafka(&setting("INPUT"))
            .decode(Json::<Job>::new())
            .or_dead_letter(letters.clone())
            .try_map("work", OnError::dead_letter(letters), move |job| calls.call(&job).map(|()| job))
            .map("to-record", |job| Record::json(job.id.to_string(), &job))
            .kafka_sink(&setting("OUTPUT"));
    })
}
