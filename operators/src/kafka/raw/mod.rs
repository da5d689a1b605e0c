//! The only unsafe code of the Kafka parts: thin owners around librdkafka's handles.
//!
//! The safe client library hands out one event and one reference count per record and has no batch consume,
//! and it cannot say `NO_CONSUMER_CLOSE`, without which a close waits for a coordinator that may be away. So
//! the hot paths (consume a batch, produce, delivery reports) and everything that shares a handle with them
//! stand here. What is checked once:
//!
//! - every type owns exactly one handle and gives it back exactly once, in `Drop`;
//! - whatever lives inside a client (queue, topic, message, event) keeps the [`Client`] alive through an
//!   [`Arc`], so a handle never outlives it;
//! - no error code of a broker is read as a Rust enum, because a newer broker may send one that the
//!   bindings do not know: it is a number ([`Code`]).

mod client;
mod code;
mod list;
mod members;
mod message;
mod queue;
mod token;
mod transaction;
mod trouble;

pub(crate) use client::{Client, Kind, Properties};
pub(crate) use code::Code;
pub(crate) use list::PartitionList;
pub(crate) use list::PartitionOffset;
pub(crate) use members::GroupMember;
pub(crate) use message::{Message, Outgoing, Topic};
pub(crate) use queue::{Isolation, OffsetSpec, Queue, Reply, Signal, TopicDescription};
pub(crate) use token::give_token;
pub(crate) use transaction::TransactionError;
pub(crate) use trouble::TroubleKind;
