//! Orders and their total per customer and minute: the flow of `orders-per-minute.yaml`, in Rust.

use serde::{Deserialize, Serialize};
use std::process::ExitCode;
use tidegate::{Aggregate, IntoRecord, Json, OutOfOrder, Record, Tumbling, sum};

#[derive(Clone, Serialize, Deserialize)]
struct Order {
    customer: String,
    at_ms: i64,
    amount: i64,
    paid: bool,
}

fn main() -> ExitCode {
    tidegate::main(|flow| {
        flow.kafka("orders.in")
            .decode(Json::<Order>::new())
            .or_drop()
            .event_time("ordered-at", |o| o.at_ms, OutOfOrder::secs(5))
            .filter("paid", |o| o.paid)
            .key_by(|o| o.customer.clone())
            .window("per-minute", Tumbling::minutes(1), Aggregate::count().and(sum(|o: &Order| o.amount)))
            .map("to-record", |w| Record::json(&*w.key, &w))
            .kafka_sink("orders.totals");
    })
}
