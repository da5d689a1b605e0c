//! Records come out as they came in, whatever is in them and however they are packed.

use tidegate_harness::{Broker, Message, Received, Writer};

use crate::case::{Case, DEADLINE};

/// What must be the same at both ends.
type Content = (Option<Vec<u8>>, Option<Vec<u8>>, Vec<(String, Option<Vec<u8>>)>, Option<i64>);

fn content(row: &Received) -> Content {
    (row.key.clone(), row.value.clone(), row.headers.clone(), row.timestamp)
}

/// The content of a topic with one partition, in its order.
fn contents(case: &Case, topic: &str) -> Vec<Content> {
    case.kafka.drain(topic).iter().map(content).collect()
}

/// A case whose topics have one partition each, so that the whole order can be compared.
fn one_partition(broker: &Broker, name: &str, settings: &[(&str, &str)]) -> Case {
    let case = Case::without_topics(broker.kafka(), name);
    case.kafka.create_topic_with(&case.input, 1, settings);
    case.kafka.create_topic(&case.output, 1);
    case
}

/// Copies records with everything in them that a record can have.
pub(crate) fn copy_odd_records(broker: &Broker) {
    let case = one_partition(broker, "fidelity", &[]);
    let all_bytes: Vec<u8> = (0..=255).collect();
    let odd = |at: i64, key: Option<&[u8]>, value: Option<&[u8]>| Message {
        key: key.map(<[u8]>::to_vec),
        value: value.map(<[u8]>::to_vec),
        timestamp: Some(1_700_000_000_000 + at),
        partition: Some(0),
        ..Message::default()
    };
    let empty: &[u8] = b"";
    let parts = [None, Some(empty), Some(&all_bytes[..])];
    let mut records: Vec<Message> =
        parts.iter().flat_map(|key| parts.iter().map(|value| odd(0, *key, *value))).collect();
    records.push(
        odd(1, Some(b"k"), Some(b"v"))
            .header("same", b"2")
            .header("other", &all_bytes)
            .null_header("same")
            .header("same", b"")
            .header("same", b"1")
            .header("", b"no name")
            .header("\u{e9}\u{20ac}", b"not ASCII"),
    );
    // Times that go back stay as they are, and in the order of their offsets.
    records.extend([odd(9, Some(b"k"), Some(b"later")), odd(3, Some(b"k"), Some(b"earlier"))]);
    case.kafka.produce(&case.input, &records);
    let flow = case.copy().consumer("tombstones: deliver");
    case.launch(&flow).until_end().run_to_exit(0, DEADLINE);
    let came_in = contents(&case, &case.input);
    assert_eq!(came_in.len(), records.len());
    assert_eq!(contents(&case, &case.output), came_in);
    case.wait_caught_up();
}

// A2 K15
#[test]
fn absent_empty_and_arbitrary_bytes_and_headers_that_repeat_or_have_no_value_come_out_as_they_came_in() {
    copy_odd_records(Broker::shared());
}

/// Copies a record whose time is set by the broker.
pub(crate) fn copy_append_time(broker: &Broker) {
    let case = one_partition(broker, "append-time", &[("message.timestamp.type", "LogAppendTime")]);
    case.kafka.produce(&case.input, &[Message::new("k", "v").to(0).at(1_000)]);
    case.launch(&case.copy()).until_end().run_to_exit(0, DEADLINE);
    let came_in = contents(&case, &case.input);
    assert!(came_in[0].3.is_some_and(|at| at > 1_600_000_000_000), "{came_in:?}");
    assert_eq!(contents(&case, &case.output), came_in);
}

// A2: the time at which a broker took a record in is the record's time.
#[test]
fn a_timestamp_that_the_broker_has_set_goes_on() {
    copy_append_time(Broker::shared());
}

// K15
#[test]
fn every_compression_is_read_and_written() {
    let broker = Broker::shared();
    for (number, codec) in ["none", "gzip", "snappy", "lz4", "zstd"].into_iter().enumerate() {
        let case = one_partition(broker, codec, &[]);
        let writer = Writer::compressing(&case.kafka, codec);
        for id in 0..200 {
            let value = format!("{{\"id\":{id},\"text\":{:?}}}", "again and ".repeat(20));
            writer.send(&case.input, &Message::new(format!("k{id}"), value).to(0).at(1_700_000_000_000));
        }
        writer.flush();
        let flow = case.copy().producer(&format!("compression: {codec}"));
        case.launch(&flow).until_end().run_to_exit(0, DEADLINE);
        let came_in = contents(&case, &case.input);
        assert_eq!(came_in.len(), 200);
        assert_eq!(contents(&case, &case.output), came_in, "{codec}");
        for topic in [&case.input, &case.output] {
            let Some(codecs) = broker.codecs(topic, 0) else { continue };
            assert!(
                !codecs.is_empty() && codecs.iter().all(|found| usize::from(*found) == number),
                "{codec}: {codecs:?}"
            );
        }
    }
}

// K15
#[test]
fn a_record_as_large_as_the_topics_take_passes_among_small_ones() {
    // Below the limit of a topic (1 048 588 bytes) by the frame of a batch; nothing compresses it.
    const LARGE: usize = 1_048_588 - 600;
    let case = one_partition(Broker::shared(), "large", &[]);
    let mut state = 1_u32;
    let noise: Vec<u8> = (0..LARGE)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        })
        .collect();
    let small = || Message::new("small", "s").to(0).at(1_700_000_000_000);
    let large = Message::new("large", noise).to(0).at(1_700_000_000_000);
    case.kafka.produce(&case.input, &[small(), small(), large.clone(), small(), large, small()]);
    case.launch(&case.copy()).until_end().run_to_exit(0, DEADLINE);
    let came_in = contents(&case, &case.input);
    assert_eq!(came_in.len(), 6);
    assert!(contents(&case, &case.output) == came_in, "the records differ");
}
