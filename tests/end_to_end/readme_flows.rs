//! The flow of the README, in YAML and in Rust: run on the topics that it names, on a broker of its own.

use std::collections::BTreeMap;
use std::path::Path;

use tidegate_harness::{Broker, Launch, Message, Scratch};

use crate::case::{BINARY, DEADLINE};

const MINUTE_MS: i64 = 60_000;
const START_MS: i64 = 1_735_689_600_000;

/// Number of orders and their total, by customer and start of the minute.
type Totals = BTreeMap<(String, i64), (i64, i64)>;

/// Orders of 20 customers over 10 minutes, every third of them unpaid, and one that is no order at all.
fn orders() -> (Vec<Message>, Totals) {
    let mut expected = Totals::new();
    let mut messages = vec![Message::new("0", "no order").to(0)];
    for number in 0..600_i64 {
        let (customer, at_ms, amount) = (format!("c{}", number % 20), START_MS + number * 1000, number % 7);
        let paid = number % 3 != 0;
        let text = format!(r#"{{"customer":"{customer}","at_ms":{at_ms},"amount":{amount},"paid":{paid}}}"#);
        messages.push(Message::new(number.to_string(), text).to((number % 4) as i32));
        if paid {
            let window = at_ms.div_euclid(MINUTE_MS) * MINUTE_MS;
            let total = expected.entry((customer, window)).or_default();
            total.0 += 1;
            total.1 += amount;
        }
    }
    (messages, expected)
}

/// Runs `launch` on fresh topics and compares the totals by key and window.
fn totals(launch: impl FnOnce(&Scratch, &str) -> Launch) {
    let broker = Broker::start(&[]);
    let kafka = broker.kafka();
    kafka.create_topic("orders.in", 4);
    kafka.create_topic("orders.totals", 2);
    let (messages, expected) = orders();
    kafka.produce("orders.in", &messages);
    let scratch = Scratch::new("readme");
    let launch = launch(&scratch, kafka.bootstrap());
    launch.env("BROKER", kafka.bootstrap()).shape(2, 2).until_end().run_to_exit(0, DEADLINE);
    let mut found = BTreeMap::new();
    for record in kafka.drain("orders.totals") {
        let key = record.key.as_deref().map(String::from_utf8_lossy).unwrap_or_default().into_owned();
        let value: serde_json::Value = serde_json::from_slice(record.value.as_deref().unwrap_or_default())
            .unwrap_or_else(|error| panic!("a result is no JSON: {error}"));
        let window = value["window_start"].as_i64().unwrap_or_else(|| panic!("no window in {value}"));
        let figures = figures(&value).unwrap_or_else(|| panic!("no figures in {value}"));
        assert_eq!(found.insert((key, window), figures), None, "twice: {value}");
    }
    assert_eq!(found, expected);
}

fn figures(value: &serde_json::Value) -> Option<(i64, i64)> {
    Some((value["orders"].as_i64()?, value["total"].as_i64()?))
}

#[test]
fn the_readmes_flow_in_yaml_gives_the_orders_per_customer_and_minute() {
    let text = std::fs::read_to_string(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/flows/orders-per-minute.yaml"),
    )
    .unwrap_or_else(|error| panic!("the flow: {error}"));
    totals(|scratch, _| Launch::new(BINARY, scratch, &text).recovery(&scratch.join("recovery")));
}

#[test]
fn the_readmes_flow_in_rust_gives_the_orders_per_customer_and_minute() {
    totals(|scratch, broker| {
        let settings = format!(
            "kafka:\n  consumer:\n    brokers: [\"{broker}\"]\n    group_id: orders-service\n    delivery: at_least_once\n    auto_offset_reset: earliest\n  producer: {{ brokers: [\"{broker}\"] }}\n"
        );
        let config = scratch.write("settings.yaml", &settings);
        let binary = crate::two_sinks::example("orders_per_minute");
        Launch::new(&binary.display().to_string(), scratch, &settings)
            .config_flag(&config)
            .recovery(&scratch.join("recovery"))
    });
}
