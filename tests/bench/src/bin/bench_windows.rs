//! How many orders each customer made in each minute: the flow of `flows/windows.yaml`, in Rust.

use std::process::ExitCode;

use serde::{Deserialize, Serialize};
use tidegate::{Aggregate, IntoRecord, Json, OutOfOrder, Record, Tumbling, Window};

/// What is needed of an order; the other fields are skipped.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Order {
    customer: String,
    at_ms: i64,
}

/// A result as it is written.
#[derive(Serialize)]
struct Minute {
    window_start: i64,
    window_end: i64,
    orders: i64,
}

fn main() -> ExitCode {
    // Set by the benchmark; a topic that is not named is refused when the flow is checked.
    let to = std::env::var("BENCH_TO").unwrap_or_default();
    let from = std::env::var("BENCH_FROM").unwrap_or_default();
    tidegate::main(move |flow| {
        flow.kafka(&from)
            .decode(Json::<Order>::new())
            .or_fail()
            .event_time("ordered-at", |order| order.at_ms, OutOfOrder::secs(5))
            .key_by(|order| order.customer.clone())
            .window("per-minute", Tumbling::minutes(1), Aggregate::count())
            .map("to-record", |window: Window<String, i64>| {
                let minute = Minute {
                    window_start: window.window_start,
                    window_end: window.window_end,
                    orders: window.result,
                };
                Record::json(window.key, &minute)
            })
            .kafka_sink(&to);
    })
}
