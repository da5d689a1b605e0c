//! A flow in Rust that writes every record to two places: the topic `OUTPUT` and the file `COPY`.
//!
//! An offset is committed when both have confirmed: `two_sinks run --config settings.yaml`.

use std::process::ExitCode;

/// A setting of this program; the rest is in its settings file.
fn setting(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("set {name}"))
}

fn main() -> ExitCode {
    let (input, output, copy) = (setting("INPUT"), setting("OUTPUT"), setting("COPY"));
    tidegate::main(move |flow| {
        let records = flow.kafka(&input);
        records.clone().file_sink(&copy);
        records.kafka_sink(&output);
    })
}
