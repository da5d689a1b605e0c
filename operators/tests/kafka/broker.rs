//! Against a real broker.

use crate::support::*;
use std::time::Duration;
use tidegate_harness::kafka::unique;
use tidegate_harness::{Broker, Kafka, Message, Outcome, Writer, wait, witness};
use tidegate_operators::element::PartitionId;
use tidegate_operators::kafka::{IsolationLevel, Lookup, OutOfRange, OutputTopic, check_outputs};
use tidegate_operators::sink::{SinkWriter, Ticket};
use tidegate_operators::source::SourceReader;
use tidegate_recovery::{ErrorClass, NextOffset, TopicPartition};

fn kafka() -> &'static Kafka {
    Broker::shared().kafka()
}

fn messages(values: std::ops::Range<i32>) -> Vec<Message> {
    values.map(|n| Message::new("k", n.to_string()).to(0)).collect()
}

const P0: PartitionId = PartitionId(0);

#[test]
fn the_position_steps_over_markers_and_aborted_records_and_ends_exactly_at_the_log_end() {
    // L34, K12, P16
    let topic = unique("markers");
    kafka().create_topic(&topic, 1);
    let writer = Writer::transactional(kafka(), &topic);
    writer.transaction(&topic, &messages(0..3), Outcome::Commit);
    writer.transaction(&topic, &messages(3..5), Outcome::Abort);
    writer.transaction(&topic, &messages(5..6), Outcome::Commit);
    writer.transaction(&topic, &messages(6..9), Outcome::Abort);
    let end = kafka().log_bounds(&topic)[&0].1;
    assert_eq!(end, 13, "nine records and four markers");
    let mut reader = open(options(kafka(), &topic), starts(&topic, &[0]));
    let mut read = Read::default();
    read.until_positions(&mut reader, &[end]);
    assert_eq!(read.values(0), ["0", "1", "2", "5"]);
    assert_eq!(reader.readable_end(P0), Some(NextOffset(end)));
    reader.commit_and_wait(&[(P0, reader.position(P0))], SOON).unwrap();
    assert_eq!(kafka().lag(&topic, &topic), 0);
    assert_eq!(witness::group_members(kafka(), &topic), Vec::<String>::new()); // L42, L43

    // From every offset of the log, also from within markers and aborted records, the end is the same.
    for start in 0..=end {
        let mut reader = open(options(kafka(), &topic), starts(&topic, &[start]));
        let mut read = Read::default();
        read.until_positions(&mut reader, &[end]);
        let expected: Vec<&str> = [(0, "0"), (1, "1"), (2, "2"), (7, "5")]
            .iter()
            .filter(|(at, _)| *at >= start)
            .map(|(_, v)| *v)
            .collect();
        assert_eq!(read.values(0), expected, "from {start}");
    }
}

#[test]
fn a_partition_is_held_at_an_open_transaction_and_says_so() {
    // E13
    let topic = unique("open");
    kafka().create_topic(&topic, 1);
    kafka().produce(&topic, &messages(0..2));
    let writer = Writer::transactional(kafka(), &topic);
    writer.begin();
    for message in messages(2..4) {
        writer.send(&topic, &message);
    }
    writer.flush();
    kafka().produce(&topic, &messages(4..5));
    let mut reader = open(options(kafka(), &topic), starts(&topic, &[0]));
    let mut read = Read::default();
    wait::until("the reader knows both ends", SOON, || {
        read.poll(&mut reader, ALL).unwrap();
        (reader.log_end(P0) == Some(NextOffset(5)) && reader.readable_end(P0) == Some(NextOffset(2)))
            .then_some(())
    });
    assert_eq!(positions_of(&reader), [2]);

    let mut uncommitted = options(kafka(), &topic);
    uncommitted.config.isolation = IsolationLevel::ReadUncommitted;
    let mut all = open(uncommitted, starts(&topic, &[0]));
    let mut read_all = Read::default();
    read_all.until_positions(&mut all, &[5]);
    assert_eq!(read_all.values(0), ["0", "1", "2", "3", "4"]);

    writer.end(Outcome::Abort);
    read.until_positions(&mut reader, &[6]);
    assert_eq!(read.values(0), ["0", "1", "4"]);
}

#[test]
fn readable_end_is_known_while_a_partition_is_still_behind() {
    let topic = unique("behind");
    kafka().create_topic(&topic, 1);
    kafka().produce(&topic, &messages(0..1_000));
    let mut reader = open(options(kafka(), &topic), starts(&topic, &[0]));
    reader.hold(P0, true);
    let mut read = Read::default();
    wait::until("the end is heard without reading", SOON, || {
        read.poll(&mut reader, ALL).unwrap();
        (reader.readable_end(P0) == Some(NextOffset(1_000))).then_some(())
    });
    assert_eq!(positions_of(&reader), [0]);
}

#[test]
fn records_that_were_deleted_before_they_were_read_are_never_skipped_in_silence() {
    // K11, K13
    let topic = unique("deleted");
    kafka().create_topic(&topic, 1);
    kafka().produce(&topic, &messages(0..100));
    kafka().delete_records(&topic, 0, 40);
    let fault = until_fault(&mut open(options(kafka(), &topic), starts(&topic, &[10])));
    assert_eq!((fault.code, fault.class), ("OFFSET_OUT_OF_RANGE", ErrorClass::Data), "{fault}");
    assert!(fault.message.contains("its log begins at 40: 30 offsets were deleted"), "{fault}");
    let mut latest = options(kafka(), &topic);
    latest.on_out_of_range = OutOfRange::Latest;
    let mut reader = open(latest, starts(&topic, &[10]));
    Read::default().until_positions(&mut reader, &[100]);
    assert_eq!(reader.lost(P0), 90);
    let mut earliest = options(kafka(), &topic);
    earliest.on_out_of_range = OutOfRange::Earliest;
    let mut reader = open(earliest, starts(&topic, &[10]));
    let mut read = Read::default();
    read.until_positions(&mut reader, &[100]);
    assert_eq!((read.values(0).len(), reader.lost(P0)), (60, 30));
    // After the reset it goes on as before.
    kafka().produce(&topic, &messages(100..120));
    read.until_positions(&mut reader, &[120]);
    let mut lookup = Lookup::new(&consumer(kafka(), &topic), SOON).unwrap();
    let partition = [TopicPartition::new(&topic, 0)];
    let bounds = lookup.bounds(&partition).unwrap()[&partition[0]];
    assert_eq!((bounds.start, bounds.end), (NextOffset(40), NextOffset(120)));
}

#[test]
fn missing_topics_are_all_named_at_the_start_and_none_is_made() {
    let (there, gone) = (unique("there"), unique("gone"));
    kafka().create_topic(&there, 1);
    let lookup = Lookup::new(&consumer(kafka(), "g"), SOON).unwrap();
    let other = unique("gone");
    let fault = lookup.partitions(&[gone.clone(), there, other.clone()]).unwrap_err();
    assert_eq!(fault.class, ErrorClass::Missing, "{fault}");
    assert!(fault.message.contains(&gone) && fault.message.contains(&other), "{fault}");
    assert!(!fault.message.contains("there"), "{fault}");
}

#[test]
fn a_topic_that_is_deleted_while_it_is_read_ends_the_run() {
    let topic = unique("vanishing");
    kafka().create_topic(&topic, 1);
    kafka().produce(&topic, &messages(0..3));
    let mut reader = open(options(kafka(), &topic), starts(&topic, &[0]));
    Read::default().until_positions(&mut reader, &[3]);
    kafka().delete_topic(&topic);
    let mut read = Read::default();
    let fault =
        wait::until("the loss is noticed", Duration::from_secs(90), || read.poll(&mut reader, ALL).err());
    assert_eq!(fault.class, ErrorClass::Missing, "{fault}");
    assert!(fault.message.contains(&topic), "{fault}");
}

#[test]
fn a_record_that_the_broker_refuses_takes_no_other_of_its_batch_along() {
    // P2, P41
    let topic = unique("refused");
    kafka().create_topic_with(&topic, 1, &[("message.timestamp.after.max.ms", "3600000")]);
    let producer = producer(kafka(), |config| {
        config.connection.extra.insert("linger.ms".into(), "200".into());
    });
    let mut writing = Writing::new(&producer, &topic);
    let far_ahead = 4_102_444_800_000 + 86_400_000;
    let elements: Vec<_> = (0..20)
        .map(|n| {
            let at = if n == 7 { far_ahead } else { 1_000 + n };
            with_header(element(Some("k"), Some(&n.to_string()), Some(at)), "n", Some(&n.to_string()))
        })
        .collect();
    assert_eq!(writing.writer.submit(Ticket(0), &elements, false).unwrap(), 20);
    writing.until_done(&[0]);
    let refused: Vec<usize> = writing.refused.iter().map(|refused| refused.index).collect();
    assert_eq!(refused, [7], "{:?}", writing.refused);
    let mut reader = open(options(kafka(), &topic), starts(&topic, &[0]));
    let mut read = Read::default();
    read.until_positions(&mut reader, &[19]);
    let expected: Vec<String> = (0..20).filter(|n| *n != 7).map(|n| n.to_string()).collect();
    assert_eq!(read.values(0), expected);
    assert!(read.elements[&0].iter().all(|element| {
        text(element.meta.headers.as_slice()[0].value.as_deref()) == text(element.value.value.as_deref())
    }));
    assert_eq!(writing.writer.in_flight_bytes(), 0);
}

#[test]
fn a_topic_that_is_missing_at_the_output_is_refused_unless_it_is_to_be_made() {
    let (there, made, gone) = (unique("there"), unique("made"), unique("gone"));
    kafka().create_topic(&there, 1);
    let connection = connection(kafka(), &[]);
    let outputs =
        [OutputTopic::existing(&there), OutputTopic::created(&made, 3, 1), OutputTopic::existing(&gone)];
    let fault = check_outputs(&connection, &outputs, SOON).unwrap_err();
    assert_eq!(fault.class, ErrorClass::Missing, "{fault}");
    assert!(fault.message.contains(&gone) && !fault.message.contains(&there), "{fault}");
    let found = check_outputs(&connection, &outputs[..2], SOON).unwrap();
    assert_eq!(kafka().partitions(&made), 3);
    let found = found.iter().map(|topic| (&*topic.name, topic.partitions, topic.limits.record_bytes_max));
    let largest = Some(1_048_588);
    assert_eq!(found.collect::<Vec<_>>(), [(&*there, 1, largest), (&*made, 3, largest)]);
    // Again: it is there now.
    check_outputs(&connection, &outputs[..2], SOON).unwrap();
}

#[test]
fn the_retention_of_group_offsets_is_read_from_the_broker() {
    // L40
    let lookup = Lookup::new(&consumer(kafka(), "g"), SOON).unwrap();
    drop(lookup);
    let retention = tidegate_operators::kafka::offsets_retention(&connection(kafka(), &[]), SOON).unwrap();
    assert_eq!(retention, Some(Duration::from_secs(7 * 24 * 3600)));
}
