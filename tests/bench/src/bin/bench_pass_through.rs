//! Every record goes from one topic to another as it is: the flow of `flows/pass-through.yaml`, in Rust.

use std::process::ExitCode;

fn main() -> ExitCode {
    // Set by the benchmark; a topic that is not named is refused when the flow is checked.
    let to = std::env::var("BENCH_TO").unwrap_or_default();
    let from = std::env::var("BENCH_FROM").unwrap_or_default();
    tidegate::main(move |flow| flow.kafka(&from).kafka_sink(&to))
}
