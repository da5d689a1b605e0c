//! The Kafka parts against librdkafka's mock cluster, which can be told to fail, and against a real broker.

mod broker;
mod mock;
mod support;
mod transactions;
