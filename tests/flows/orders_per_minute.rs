//! Orders and their total per customer and minute: the flow of `orders-per-minute.yaml`, in Rust.

use serde::{Deserialize, Serialize};
use std::process::ExitCode;
use std::time::Duration;
use tidegate::{Aggregate, IntoRecord, Json, OutOfOrder, Record, Tumbling, sum};

#[derive(Clone, Serialize, Deserialize)]
struct Order {
    customer: String,
    at_ms: i64,
    amount: i64,
    paid: bool,
}

#[derive(Serialize)]
struct Totals {
    window_start: i64,
    window_end: i64,
    orders: i64,
    total: i64,
}

fn main() -> ExitCode {
    tidegate::main(|flow| {
        flow.kafka("orders.in")
            .decode(Json::<Order>::new())
            .or_drop()
            .event_time("ordered-at", |o| o.at_ms, OutOfOrder::secs(5).idle(Duration::from_secs(30)))
            .filter("paid", |o| o.paid)
            .key_by(|o| o.customer.clone())
            .window(
                "per-minute",
                Tumbling::minutes(1).lateness(Duration::from_secs(10)),
                Aggregate::count().and(sum(|o: &Order| o.amount)),
            )
            .map("to-record", |w| {
                let (orders, total) = w.result;
                let (window_start, window_end) = (w.window_start, w.window_end);
                Record::json(&*w.key, &Totals { window_start, window_end, orders, total })
            })
            .kafka_sink("orders.totals");
    })
}
