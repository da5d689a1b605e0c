//! Against the mock cluster.

use crate::support::*;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka_sys::types::{RDKafkaApiKey as Api, RDKafkaRespErr as Error};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use tidegate_harness::{Kafka, Message, wait};
use tidegate_operators::element::PartitionId;
use tidegate_operators::kafka::{Lookup, OutOfRange, Tombstones};
use tidegate_operators::sink::{SinkWriter, Ticket};
use tidegate_operators::source::{PollBudget, SourceReader};
use tidegate_recovery::{ErrorClass, NextOffset, TopicPartition};

type Mock = MockCluster<'static, DefaultProducerContext>;

fn cluster(partitions: i32) -> (Mock, Kafka) {
    let mock = MockCluster::new(1).expect("make a mock cluster");
    mock.create_topic("t", partitions, 1).expect("make a topic");
    let kafka = Kafka::at(&mock.bootstrap_servers());
    (mock, kafka)
}

fn numbered(count: usize) -> Vec<Message> {
    (0..count).map(|n| Message::new(format!("k{n}"), format!("v{n}")).to(0)).collect()
}

#[test]
fn records_come_whole_and_in_order_and_the_position_ends_at_the_log_end() {
    // K12, K15, L36, P9
    let (_mock, kafka) = cluster(2);
    let long = "x".repeat(300_000);
    let messages = [
        Message::new("k", "v").to(0).at(1_000).header("a", b"1").header("a", b"").header("b", b"2"),
        Message { value: Some(Vec::new()), partition: Some(0), ..Message::default() },
        Message::tombstone("gone").to(0),
        Message::new("", long.clone()).to(0),
        Message { key: None, value: None, partition: Some(1), ..Message::default() },
    ];
    kafka.produce("t", &messages);
    for (tombstones, expected) in [(Tombstones::Skip, vec![3, 0]), (Tombstones::Deliver, vec![4, 1])] {
        let mut options = options(&kafka, "g");
        options.tombstones = tombstones;
        let mut reader = open(options, starts("t", &[0, 0]));
        let mut read = Read::default();
        read.until_positions(&mut reader, &[4, 1]);
        // The end-of-partition event must not be counted like a record.
        wait::until("both ends are heard", SOON, || {
            read.poll(&mut reader, ALL).unwrap();
            let ends = [0, 1].map(|p| reader.readable_end(PartitionId(p)));
            (ends == [Some(NextOffset(4)), Some(NextOffset(1))]).then_some(())
        });
        assert_eq!(positions_of(&reader), [4, 1]);
        let counts = [0, 1].map(|p| read.values(p).len());
        assert_eq!(counts.to_vec(), expected);
        let elements = &read.elements[&0];
        let first = &elements[0];
        assert_eq!(first.meta.timestamp, Some(1_000));
        let headers: Vec<_> = first
            .meta
            .headers
            .as_slice()
            .iter()
            .map(|header| (header.name.to_string(), text(header.value.as_deref())))
            .collect();
        assert_eq!(headers, [("a", "1"), ("a", ""), ("b", "2")].map(|(n, v)| (n.to_owned(), v.to_owned())));
        assert_eq!(elements[1].value.key, None);
        assert_eq!(elements[1].value.value.as_deref(), Some(&[][..]), "empty is not absent");
        assert!(elements[1].meta.headers.as_slice().is_empty());
        let last = elements.last().unwrap();
        assert_eq!(last.value.key.as_deref(), Some(&[][..]));
        assert_eq!(last.value.value.as_ref().unwrap().len(), long.len());
        assert_eq!(last.meta.offset, 3);
    }
}

#[test]
fn a_poll_keeps_to_its_budget_and_nothing_is_lost_or_doubled() {
    // L59
    let (_mock, kafka) = cluster(1);
    let mut messages = numbered(2_000);
    messages[700] = Message::new("big", "y".repeat(100_000)).to(0);
    kafka.produce("t", &messages);
    let mut reader = open(options(&kafka, "g"), starts("t", &[0]));
    let mut read = Read::default();
    let budget = PollBudget { records: 37, bytes: 900 };
    wait::until("all is read", SOON, || {
        let mut batches = Vec::new();
        reader.poll(budget, &mut batches).unwrap();
        let records: usize = batches.iter().map(|batch| batch.elements.len()).sum();
        let bytes: usize = batches.iter().map(|batch| batch.bytes).sum();
        assert!(records <= 37);
        assert!(bytes <= 900 || records == 1, "only one record may be over the budget");
        if let Some(last) = batches.last() {
            let last = last.elements.last().unwrap().meta.offset;
            assert_eq!(
                reader.position(PartitionId(0)),
                NextOffset(last + 1),
                "what was fetched is not yet read"
            );
        }
        for batch in batches {
            read.elements.entry(0).or_default().extend(batch.elements);
        }
        (positions_of(&reader) == [2_000]).then_some(())
    });
    let offsets: Vec<i64> = read.elements[&0].iter().map(|element| element.meta.offset).collect();
    assert_eq!(offsets, (0..2_000).collect::<Vec<_>>());
}

#[test]
fn a_held_partition_hands_out_nothing_and_loses_nothing_while_others_go_on() {
    // P20
    let (_mock, kafka) = cluster(2);
    let both: Vec<Message> = (0..4_000).map(|n| Message::new("k", format!("{}", n / 2)).to(n % 2)).collect();
    kafka.produce("t", &both);
    let mut reader = open(options(&kafka, "g"), starts("t", &[0, 0]));
    let mut read = Read::default();
    // Hold it with records of it already taken from the client.
    wait::until("both have begun", SOON, || {
        read.poll(&mut reader, PollBudget { records: 40, bytes: 200 }).unwrap();
        (positions_of(&reader).iter().all(|position| *position > 0)).then_some(())
    });
    reader.hold(PartitionId(0), true);
    let held_at = reader.position(PartitionId(0));
    wait::until("the other is read", SOON, || {
        read.poll(&mut reader, ALL).unwrap();
        (reader.position(PartitionId(1)).0 == 2_000).then_some(())
    });
    assert_eq!(reader.position(PartitionId(0)), held_at);
    reader.hold(PartitionId(0), false);
    read.until_positions(&mut reader, &[2_000, 2_000]);
    let expected: Vec<String> = (0..2_000).map(|n| n.to_string()).collect();
    assert_eq!(read.values(0), expected);
    assert_eq!(read.values(1), expected);
}

#[test]
fn an_offset_beyond_the_end_of_the_log_ends_the_run_whatever_the_policy_and_is_never_reset_in_silence() {
    // K4, K10, K13
    let (_mock, kafka) = cluster(1);
    kafka.produce("t", &numbered(10));
    for policy in [OutOfRange::Fail, OutOfRange::Earliest, OutOfRange::Latest] {
        let mut options = options(&kafka, "g");
        options.on_out_of_range = policy;
        let fault = until_fault(&mut open(options, starts("t", &[50])));
        assert_eq!((fault.code, fault.class), ("OFFSET_OUT_OF_RANGE", ErrorClass::Data), "{fault}");
        assert!(fault.message.contains("t:0 goes on at offset 50, and its log ends at 10"), "{fault}");
    }
}

#[test]
fn a_commit_is_answered_and_a_failed_one_says_which_offset() {
    // K5, L30, P11
    let (mock, kafka) = cluster(2);
    kafka.produce("t", &numbered(5));
    let mut reader = open(options(&kafka, "g"), starts("t", &[0, 0]));
    Read::default().until_positions(&mut reader, &[5, 0]);
    let offsets = [(PartitionId(0), NextOffset(3)), (PartitionId(1), NextOffset(0))];
    let outcome = |reader: &mut tidegate_operators::kafka::KafkaReader| {
        wait::until("the commit is answered", SOON, || {
            reader.poll(ALL, &mut Vec::new()).unwrap();
            reader.commit_outcomes().pop()
        })
    };
    mock.request_errors(Api::OffsetCommit, &[Error::RD_KAFKA_RESP_ERR_UNKNOWN_MEMBER_ID]);
    reader.commit(&offsets);
    // At most one is on its way.
    reader.commit(&offsets);
    let second = reader.commit_outcomes().pop().expect("the second is refused at once");
    assert!(second.error.unwrap().contains("on its way"));
    let failed = outcome(&mut reader);
    assert_eq!(failed.offsets, offsets);
    assert!(failed.error.as_ref().unwrap().contains("t:0@3"), "{:?}", failed.error);

    reader.commit(&offsets);
    assert_eq!(outcome(&mut reader).error, None);
    reader.commit_and_wait(&[(PartitionId(0), NextOffset(5))], SOON).unwrap();
    let lookup = Lookup::new(&consumer(&kafka, "g"), SOON).unwrap();
    let committed = lookup.committed(&[0, 1, 2].map(|p| TopicPartition::new("t", p))[..2]).unwrap();
    assert_eq!(committed[&TopicPartition::new("t", 0)], NextOffset(5));
    assert_eq!(committed[&TopicPartition::new("t", 1)], NextOffset(0));
}

#[test]
fn a_commit_that_waits_gives_up_at_its_deadline_while_the_broker_is_away() {
    let (mock, kafka) = cluster(1);
    let mut reader = open(options(&kafka, "g"), starts("t", &[0]));
    reader.commit_and_wait(&[(PartitionId(0), NextOffset(0))], SOON).unwrap();
    mock.broker_down(1).unwrap();
    let begin = Instant::now();
    let error = reader.commit_and_wait(&[(PartitionId(0), NextOffset(1))], Duration::from_millis(300));
    assert!(error.unwrap_err().contains("may or may not"));
    assert!(begin.elapsed() < Duration::from_secs(5), "it took {:?}", begin.elapsed());
    // A close does not wait for the broker either.
    let begin = Instant::now();
    drop(reader);
    assert!(begin.elapsed() < Duration::from_secs(1), "the worker was held up for {:?}", begin.elapsed());
}

#[test]
fn reading_goes_on_where_it_was_after_a_broker_was_away() {
    // K2
    let (mock, kafka) = cluster(1);
    kafka.produce("t", &numbered(1_000));
    let mut reader = open(options(&kafka, "g"), starts("t", &[0]));
    let mut read = Read::default();
    wait::until("reading has begun", SOON, || {
        read.poll(&mut reader, PollBudget { records: 20, bytes: 1_000 }).unwrap();
        (positions_of(&reader)[0] >= 100).then_some(())
    });
    mock.broker_down(1).unwrap();
    read.until_positions(&mut reader, &[1_000]);
    reader.commit(&[(PartitionId(0), NextOffset(1_000))]);
    mock.broker_up(1).unwrap();
    kafka.produce("t", &numbered(500));
    read.until_positions(&mut reader, &[1_500]);
    let offsets: Vec<i64> = read.elements[&0].iter().map(|element| element.meta.offset).collect();
    assert_eq!(offsets, (0..1_500).collect::<Vec<_>>());
    // A commit that was on its way is answered, one way or the other: the next can follow.
    wait::until("the commit is answered", SOON, || {
        read.poll(&mut reader, ALL).unwrap();
        reader.commit_outcomes().pop()
    });
}

#[test]
fn reading_goes_on_at_the_new_leader_when_the_leader_changes_or_dies() {
    // K4
    let mock: Mock = MockCluster::new(3).expect("make a mock cluster");
    mock.create_topic("t", 1, 3).expect("make a topic");
    mock.partition_leader("t", 0, Some(1)).unwrap();
    let kafka = Kafka::at(&mock.bootstrap_servers());
    kafka.produce("t", &numbered(1_000));
    let mut reader = open(options(&kafka, "g"), starts("t", &[0]));
    let mut read = Read::default();
    let begun = |read: &mut Read, reader: &mut tidegate_operators::kafka::KafkaReader, at: i64| {
        wait::until("reading goes on", SOON, || {
            read.poll(reader, PollBudget { records: 20, bytes: 1_000 }).unwrap();
            (positions_of(reader)[0] >= at).then_some(())
        });
    };
    begun(&mut read, &mut reader, 100);
    mock.partition_leader("t", 0, Some(2)).unwrap();
    kafka.produce("t", &numbered(1_000));
    begun(&mut read, &mut reader, 1_100);
    mock.partition_leader("t", 0, Some(3)).unwrap();
    mock.broker_down(2).unwrap();
    kafka.produce("t", &numbered(1_000));
    read.until_positions(&mut reader, &[3_000]);
    let offsets: Vec<i64> = read.elements[&0].iter().map(|element| element.meta.offset).collect();
    assert_eq!(offsets, (0..3_000).collect::<Vec<_>>());
}

#[test]
fn committed_offsets_that_cannot_be_fetched_end_the_start_and_are_never_taken_for_none() {
    // L58
    let (mock, kafka) = cluster(1);
    let partition = [TopicPartition::new("t", 0)];
    let mut reader = open(options(&kafka, "g"), starts("t", &[0]));
    reader.commit_and_wait(&[(PartitionId(0), NextOffset(7))], SOON).unwrap();

    // A passing error: asked again.
    let errors =
        [Error::RD_KAFKA_RESP_ERR_NOT_COORDINATOR, Error::RD_KAFKA_RESP_ERR_COORDINATOR_LOAD_IN_PROGRESS];
    mock.request_errors(Api::OffsetFetch, &errors);
    let committed = Lookup::new(&consumer(&kafka, "g"), SOON).unwrap().committed(&partition).unwrap();
    assert_eq!(committed[&partition[0]], NextOffset(7));

    // One that stays.
    mock.request_errors(Api::OffsetFetch, &[Error::RD_KAFKA_RESP_ERR_COORDINATOR_NOT_AVAILABLE; 500]);
    let lookup = Lookup::new(&consumer(&kafka, "g"), Duration::from_secs(3)).unwrap();
    let fault = lookup.committed(&partition).unwrap_err();
    assert_eq!(fault.class, ErrorClass::Unavailable, "{fault}");
    assert_eq!(fault.class.exit_code(), 69);
    mock.clear_request_errors(Api::OffsetFetch);

    // No broker at all (K1).
    mock.broker_down(1).unwrap();
    let lookup = Lookup::new(&consumer(&kafka, "g"), Duration::from_secs(1)).unwrap();
    assert_eq!(lookup.committed(&partition).unwrap_err().class, ErrorClass::Unavailable);
    let lookup = Lookup::new(&consumer(&kafka, "g"), Duration::from_secs(1)).unwrap();
    assert_eq!(lookup.partitions(&["t".into()]).unwrap_err().class, ErrorClass::Unavailable);
}

#[test]
fn the_partitions_are_sorted_the_bounds_are_known_and_all_missing_topics_are_named() {
    let (mock, kafka) = cluster(3);
    mock.create_topic("a", 2, 1).unwrap();
    kafka.produce("t", &numbered(4));
    let mut lookup = Lookup::new(&consumer(&kafka, "g"), SOON).unwrap();
    let partitions = lookup.partitions(&["t".into(), "a".into()]).unwrap();
    let names: Vec<String> = partitions.iter().map(ToString::to_string).collect();
    assert_eq!(names, ["a:0", "a:1", "t:0", "t:1", "t:2"]);
    let bounds = lookup.bounds(&partitions).unwrap();
    assert_eq!((bounds[&partitions[2]].start, bounds[&partitions[2]].end), (NextOffset(0), NextOffset(4)));
    assert_eq!((bounds[&partitions[0]].start, bounds[&partitions[0]].end), (NextOffset(0), NextOffset(0)));
    let fault = lookup.partitions(&["^t.*".into()]).unwrap_err();
    assert_eq!(fault.class, ErrorClass::Config);
}

#[test]
fn every_record_is_acknowledged_under_its_ticket_and_written_as_it_was() {
    // P1, P18
    let (mock, kafka) = cluster(1);
    mock.create_topic("u", 1, 1).unwrap();
    let producer = producer(&kafka, |config| config.in_flight_records = 10);
    let mut writing = Writing::new(&producer, "t");
    let mut other = Writing::new(&producer, "u");
    let first = with_header(with_header(element(Some("k"), Some("v"), Some(5)), "h", None), "h", Some("x"));
    let elements: Vec<_> = std::iter::once(first)
        .chain([element(None, None, Some(6)), element(Some(""), Some(""), None)])
        .chain((3..200).map(|n| element(Some("k"), Some(&n.to_string()), Some(n))))
        .collect();
    // More than fits is taken in parts (P17, P18), never dropped.
    let taken = writing.writer.submit(Ticket(1), &elements, false).unwrap();
    assert_eq!(taken, 10);
    assert!(writing.writer.in_flight_bytes() > 0);
    assert_eq!(other.writer.submit(Ticket(1), &elements, false).unwrap(), 0, "the producer's room is shared");
    writing.submit_all(1, &elements[taken..]);
    writing.until_done(&[1]);
    other.submit_all(7, &elements[..3]);
    other.until_done(&[7]);
    // A ticket without elements is acknowledged too.
    other.submit_all(8, &[]);
    other.until_done(&[7, 8]);
    assert_eq!((writing.writer.in_flight_bytes(), other.writer.in_flight_bytes()), (0, 0));
    assert!(writing.refused.is_empty() && other.refused.is_empty());

    let mut options = options(&kafka, "g");
    options.tombstones = Tombstones::Deliver;
    let mut reader = open(options, starts("t", &[0]));
    let mut read = Read::default();
    read.until_positions(&mut reader, &[200]);
    let written = &read.elements[&0];
    assert_eq!(written[0].value, elements[0].value);
    assert_eq!(written[0].meta.headers, elements[0].meta.headers);
    assert_eq!(written[0].meta.timestamp, Some(5));
    assert_eq!(written[1].value, elements[1].value);
    assert_eq!(written[2].value, elements[2].value);
    assert!(written[2].meta.timestamp.unwrap() > 1_600_000_000_000, "no timestamp means now");
    assert!(written[3..].iter().map(|e| e.meta.timestamp).eq((3..200).map(Some)), "the order is kept");
}

#[test]
fn a_record_that_can_never_be_written_is_refused_alone() {
    // P2, P39, P41, K15
    let (_mock, kafka) = cluster(1);
    let producer = producer(&kafka, |config| {
        config.connection.extra.insert("message.max.bytes".into(), "2000".into());
    });
    let mut writing = Writing::new(&producer, "t");
    let elements = [
        element(Some("a"), Some("1"), Some(1)),
        element(Some("b"), Some(&"x".repeat(3_000)), Some(2)),
        element(Some("c"), Some("3"), Some(0)),
        element(Some("d"), Some("4"), Some(4)),
    ];
    assert_eq!(writing.writer.submit(Ticket(3), &elements[..2], true).unwrap(), 2);
    assert_eq!(writing.writer.submit(Ticket(3), &elements[2..], false).unwrap(), 2);
    writing.until_done(&[3]);
    let refused: Vec<_> = writing.refused.iter().map(|refused| (refused.ticket, refused.index)).collect();
    assert_eq!(refused, [(Ticket(3), 1), (Ticket(3), 2)], "places count over the whole ticket");
    assert!(writing.refused[0].reason.contains("MSG_SIZE_TOO_LARGE"), "{}", writing.refused[0].reason);
    let mut reader = open(options(&kafka, "g"), starts("t", &[0]));
    let mut read = Read::default();
    read.until_positions(&mut reader, &[2]);
    assert_eq!(read.values(0), ["1", "4"]);
}

#[test]
fn acknowledgements_wait_for_a_broker_that_is_away_and_come_when_it_is_back() {
    // K2, P37
    let (mock, kafka) = cluster(1);
    let producer = producer(&kafka, |_| {});
    let mut writing = Writing::new(&producer, "t");
    writing.submit_all(0, &[element(None, Some("0"), Some(1))]);
    writing.until_done(&[0]);
    mock.request_errors(
        Api::Produce,
        &[Error::RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION, Error::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS],
    );
    mock.broker_down(1).unwrap();
    for n in 1..50 {
        writing.submit_all(n, &[element(None, Some(&n.to_string()), Some(1))]);
    }
    wait::holds_for("nothing is acknowledged", Duration::from_millis(300), || {
        writing.look().unwrap();
        writing.done.len() == 1
    });
    mock.broker_up(1).unwrap();
    writing.until_done(&(0..50).collect::<Vec<_>>());
    let mut reader = open(options(&kafka, "g"), starts("t", &[0]));
    let mut read = Read::default();
    read.until_positions(&mut reader, &[50]);
    assert_eq!(read.values(0), (0..50).map(|n| n.to_string()).collect::<Vec<_>>());
}

#[test]
fn a_topic_that_may_not_be_written_ends_the_run_with_its_name_and_the_operation() {
    let (mock, kafka) = cluster(1);
    mock.request_errors(Api::Produce, &[Error::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED; 10]);
    let producer = producer(&kafka, |_| {});
    let mut writing = Writing::new(&producer, "t");
    writing.submit_all(0, &[element(None, Some("0"), Some(1))]);
    let fault = writing.until_fault();
    assert_eq!(fault.class, ErrorClass::Config, "{fault}");
    assert!(fault.message.contains("`t`") && fault.message.contains("Write"), "{fault}");
    assert!(writing.done.is_empty(), "what was not written is not acknowledged");
}

#[test]
fn keys_lie_where_jvm_applications_put_them() {
    // Vectors of Java's `DefaultPartitioner` (murmur2) over 6 partitions.
    let mock = MockCluster::new(1).expect("make a mock cluster");
    mock.create_topic("t", 6, 1).unwrap();
    let kafka = Kafka::at(&mock.bootstrap_servers());
    let producer = producer(&kafka, |_| {});
    let mut writing = Writing::new(&producer, "t");
    let keys: Vec<String> = (0..64).map(|n| format!("customer-{n}")).collect();
    let elements: Vec<_> = keys.iter().map(|key| element(Some(key), Some(key), Some(1))).collect();
    writing.submit_all(0, &elements);
    writing.until_done(&[0]);
    let mut reader = open(options(&kafka, "g"), starts("t", &[0; 6]));
    let mut read = Read::default();
    wait::until("all is read", SOON, || {
        read.poll(&mut reader, ALL).unwrap();
        (positions_of(&reader).iter().sum::<i64>() == 64).then_some(())
    });
    for partition in 0..6 {
        for key in read.values(partition) {
            assert_eq!(java_partition(key.as_bytes(), 6), partition as i32, "{key}");
        }
    }
    let used: BTreeSet<u32> = read.elements.keys().copied().collect();
    assert_eq!(used.len(), 6);
}

/// Kafka's `Utils.murmur2`, then `toPositive(hash) % partitions`.
fn java_partition(key: &[u8], partitions: i32) -> i32 {
    const M: i32 = 0x5bd1_e995;
    let mut h: i32 = 0x9747_b28c_u32 as i32 ^ key.len() as i32;
    let chunks = key.chunks_exact(4);
    let tail = chunks.remainder();
    for chunk in chunks {
        let mut k = i32::from_le_bytes(chunk.try_into().unwrap()).wrapping_mul(M);
        k ^= ((k as u32) >> 24) as i32;
        h = h.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    for (index, byte) in tail.iter().enumerate().rev() {
        h ^= i32::from(*byte) << (8 * index);
    }
    if !tail.is_empty() {
        h = h.wrapping_mul(M);
    }
    h ^= ((h as u32) >> 13) as i32;
    h = h.wrapping_mul(M);
    h ^= ((h as u32) >> 15) as i32;
    (h & 0x7fff_ffff) % partitions
}

#[test]
fn a_sleeping_worker_is_woken_by_records_commits_and_acknowledgements() {
    // L60, P3
    let (_mock, kafka) = cluster(1);
    let bootstrap = kafka.bootstrap().to_owned();
    timely::execute_directly(move |worker| {
        let kafka = Kafka::at(&bootstrap);
        let activator = || worker.sync_activator_for(vec![0]);
        let mut reader = open(options(&kafka, "g"), starts("t", &[0]));
        reader.wake_with(activator());
        let producer = producer(&kafka, |_| {});
        let mut writing = Writing::new(&producer, "t");
        writing.writer.wake_with(activator());
        let mut read = Read::default();
        let mut woken = |what: &str, mut done: Box<dyn FnMut() -> bool + '_>| {
            let begin = Instant::now();
            while !done() {
                // Sleeps until somebody wakes it: a lost wake-up would cost the whole minute.
                worker.step_or_park(Some(Duration::from_secs(60)));
                assert!(begin.elapsed() < SOON, "nobody woke the worker for {what}");
            }
        };
        woken(
            "the end of an empty partition",
            Box::new(|| {
                read.poll(&mut reader, ALL).unwrap();
                reader.readable_end(PartitionId(0)) == Some(NextOffset(0))
            }),
        );
        for n in 0..50_u64 {
            writing.submit_all(n, &[element(None, Some("v"), Some(1))]);
            woken(
                "an acknowledgement",
                Box::new(|| {
                    writing.look().unwrap();
                    writing.done.len() as u64 == n + 1
                }),
            );
            woken(
                "a record",
                Box::new(|| {
                    read.poll(&mut reader, ALL).unwrap();
                    reader.position(PartitionId(0)).0 as u64 == n + 1
                }),
            );
        }
        reader.commit(&[(PartitionId(0), NextOffset(50))]);
        woken(
            "a commit",
            Box::new(|| {
                read.poll(&mut reader, ALL).unwrap();
                !reader.commit_outcomes().is_empty()
            }),
        );
    });
}
