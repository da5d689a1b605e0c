//! Transactions, against a real broker and, where one does not fail on demand, the mock cluster.

use crate::support::*;
use rdkafka::mocking::{MockCluster, MockCoordinator};
use rdkafka::producer::DefaultProducerContext;
use rdkafka_sys::types::{RDKafkaApiKey as Api, RDKafkaRespErr as Error};
use std::time::{Duration, Instant};
use tidegate_harness::kafka::unique;
use tidegate_harness::{Broker, Kafka, wait};
use tidegate_operators::kafka::{
    ProducerConfig, TransactionTrouble, TransactionalProducer, read_markers, write_token,
};
use tidegate_recovery::exactly_once::{ControlKey, Marker, SeenMarker, Token};
use tidegate_recovery::{Epoch, ErrorClass, Generation, NextOffset, Slot, StoreId, TopicPartition};

const STORE: StoreId = StoreId(7);

fn kafka() -> &'static Kafka {
    Broker::shared().kafka()
}

fn config(kafka: &Kafka, extra: &[(&str, &str)]) -> ProducerConfig {
    ProducerConfig { connection: connection(kafka, extra), ..ProducerConfig::default() }
}

fn initialise(kafka: &Kafka, id: &str) -> TransactionalProducer {
    TransactionalProducer::initialise(&config(kafka, &[]), id, SOON)
        .unwrap_or_else(|trouble| panic!("{trouble}"))
}

fn put(
    producer: &mut TransactionalProducer,
    topic: &str,
    value: &str,
    timestamp: Option<i64>,
    row: u64,
) -> Result<(), TransactionTrouble> {
    let headers = [("h", Some(&b"1"[..])), ("h", None)];
    producer.produce(topic, Some(0), Some(b"k"), Some(value.as_bytes()), timestamp, headers.into_iter(), row)
}

fn put_all(producer: &mut TransactionalProducer, topic: &str, values: &[&str]) {
    for (row, value) in values.iter().enumerate() {
        put(producer, topic, value, Some(1_000), row as u64).unwrap();
    }
}

fn readable(kafka: &Kafka, topic: &str) -> Vec<String> {
    kafka.drain(topic).iter().map(|received| text(received.value.as_deref())).collect()
}

fn topic(partitions: i32) -> String {
    let topic = unique("transactions");
    kafka().create_topic(&topic, partitions);
    topic
}

/// E1, E2: records and the offset of one transaction are there together, and not before its end.
#[test]
fn records_and_offsets_appear_together_when_the_transaction_is_committed() {
    let (topic, group) = (topic(2), unique("group"));
    let offsets = [(TopicPartition::new(&topic, 1), NextOffset(17))];
    let mut producer = initialise(kafka(), &topic);
    for round in 0..2_i64 {
        producer.begin().unwrap();
        // More than the client takes at once, so that it also waits for room.
        for row in 0..50_000_u64 {
            put(&mut producer, &topic, &row.to_string(), Some(1_000 + row as i64), row).unwrap();
        }
        producer.send_offsets(&group, &offsets).unwrap();
        if round == 0 {
            assert_eq!(kafka().stable_bounds(&topic)[&0].1, 0, "nothing can be read yet");
        }
        producer.commit().unwrap();
        assert_eq!(kafka().group_offsets(&group, &topic), [(1, 17)].into());
    }
    let received = kafka().drain(&topic);
    let expected: Vec<String> = (0..2).flat_map(|_| (0..50_000).map(|n| n.to_string())).collect();
    assert_eq!(received.iter().map(|one| text(one.value.as_deref())).collect::<Vec<_>>(), expected);
    assert_eq!(received[3].timestamp, Some(1_003));
    let headers: Vec<_> = received[3].headers.iter().map(|(n, v)| (n.as_str(), v.as_deref())).collect();
    assert_eq!(headers, [("h", Some(&b"1"[..])), ("h", None)]);
}

/// E3, P15: whoever initialises an id last has it; the one before can end nothing any more.
#[test]
fn of_two_producers_with_one_id_the_older_is_fenced() {
    let topic = topic(1);
    let mut older = initialise(kafka(), &topic);
    older.begin().unwrap();
    put_all(&mut older, &topic, &["old"]);
    let mut newer = initialise(kafka(), &topic);
    newer.begin().unwrap();
    put_all(&mut newer, &topic, &["new"]);
    let trouble = older.commit().unwrap_err();
    assert!(matches!(trouble, TransactionTrouble::Fenced(_)), "{trouble}");
    newer.commit().unwrap();
    assert_eq!(readable(kafka(), &topic), ["new"]);
    // Also in the middle, and with offsets only.
    let mut third = initialise(kafka(), &topic);
    newer.begin().unwrap();
    let trouble = newer.send_offsets(&topic, &[(TopicPartition::new(&topic, 0), NextOffset(1))]).unwrap_err();
    assert!(matches!(trouble, TransactionTrouble::Fenced(_)), "{trouble}");
    third.begin().unwrap();
    put_all(&mut third, &topic, &["third"]);
    third.commit().unwrap();
    assert_eq!(readable(kafka(), &topic), ["new", "third"]);
}

/// E1: what an instance had open that went away is ended by the next that initialises the id.
#[test]
fn a_producer_that_is_dropped_leaves_its_transaction_to_the_next() {
    let topic = topic(1);
    let mut producer = initialise(kafka(), &topic);
    producer.begin().unwrap();
    put_all(&mut producer, &topic, &["lost", "lost too"]);
    producer.send_offsets(&topic, &[(TopicPartition::new(&topic, 0), NextOffset(1))]).unwrap();
    wait::until("the records are in the log", SOON, || (kafka().log_bounds(&topic)[&0].1 == 2).then_some(()));
    drop(producer);
    wait::until("the client is closed", SOON, || {
        let open = tidegate_operators::kafka::reaper::wait(Duration::ZERO);
        open.iter().all(|client| !client.contains(&topic)).then_some(())
    });
    let bounds = (kafka().log_bounds(&topic)[&0].1, kafka().stable_bounds(&topic)[&0].1);
    assert_eq!(bounds, (2, 0), "the transaction is still open");
    let mut next = initialise(kafka(), &topic);
    next.begin().unwrap();
    put_all(&mut next, &topic, &["kept"]);
    next.commit().unwrap();
    assert_eq!(readable(kafka(), &topic), ["kept"]);
    assert!(kafka().group_offsets(&topic, &topic).is_empty());
}

/// P41, E34: a record that a topic will never take is named, whether the client or the broker refuses it, wherever it lies.
#[test]
fn a_record_that_can_never_be_written_is_named_by_its_row() {
    let topic = unique("transactions");
    let settings = [("max.message.bytes", "20000"), ("message.timestamp.after.max.ms", "3600000")];
    kafka().create_topic_with(&topic, 1, &settings);
    let long = "x".repeat(30_000);
    let far_ahead = 4_102_444_800_000;
    for at in [0, 7, 19] {
        for (value, timestamp, what) in [
            (long.as_str(), Some(1_000), "MSG_SIZE_TOO_LARGE"),
            ("v", Some(far_ahead), "INVALID_TIMESTAMP"),
            ("v", Some(0), "the timestamp 0"),
        ] {
            let mut producer = initialise(kafka(), &topic);
            producer.begin().unwrap();
            let sent = (0..20).try_for_each(|row| match row == at {
                true => put(&mut producer, &topic, value, timestamp, 100 + row),
                false => put(&mut producer, &topic, "v", Some(1_000 + row as i64), 100 + row),
            });
            let trouble = sent.and_then(|()| producer.commit()).unwrap_err();
            let TransactionTrouble::Refused { row, what: said } = trouble else {
                panic!("{what} at {at}: {trouble}")
            };
            assert_eq!(row, 100 + at, "{said}");
            assert!(said.contains(what), "{said}");
        }
    }
    assert_eq!(readable(kafka(), &topic), Vec::<String>::new());
}

/// E7: what stands on the control topic is known up to what was published before the token.
#[test]
fn a_token_comes_back_behind_every_marker_that_was_published_before() {
    let control = unique("control");
    kafka().create_topic_with(&control, 1, &[("cleanup.policy", "compact")]);
    let consumer = consumer(kafka(), "g");
    let marker = |epoch| Marker { generation: Generation(3), epoch: Epoch(epoch) };
    let put_marker = |producer: &mut TransactionalProducer, slot, value: Option<Marker>| {
        let (key, value) =
            (ControlKey::Marker(STORE, slot).to_string(), value.map(|value| value.to_string()));
        let value = value.as_ref().map(|value| value.as_bytes());
        producer
            .produce(&control, Some(0), Some(key.as_bytes()), value, None, std::iter::empty(), 0)
            .unwrap();
    };
    let token = |count| Token { nonce: 9, count };
    let mut mine = initialise(kafka(), &format!("{control}.0"));
    let mut other = initialise(kafka(), &format!("{control}.1"));
    for (slot, epoch) in [(Slot(0), Some(10)), (Slot(2), Some(11)), (Slot(0), Some(20)), (Slot(2), None)] {
        mine.begin().unwrap();
        put_marker(&mut mine, slot, epoch.map(marker));
        mine.commit().unwrap();
    }
    kafka().produce(&control, &[tidegate_harness::Message::new("somebody", "else").to(0)]);
    write_token(&mut mine, &control, STORE, Slot(0), token(1)).unwrap();
    let first = SeenMarker { store: STORE, slot: Slot(0), marker: marker(20) };
    assert_eq!(read_markers(&consumer, &control, token(1), SOON).unwrap(), [first]);

    // Behind a transaction that is open nothing is seen: not even the end.
    other.begin().unwrap();
    put_marker(&mut other, Slot(1), Some(marker(30)));
    wait::until("the marker is in the log", SOON, || {
        let bounds = (kafka().log_bounds(&control)[&0].1, kafka().stable_bounds(&control)[&0].1);
        (bounds.0 > bounds.1).then_some(())
    });
    write_token(&mut mine, &control, STORE, Slot(0), token(2)).unwrap();
    let trouble = read_markers(&consumer, &control, token(2), Duration::from_millis(700)).unwrap_err();
    assert!(matches!(trouble, TransactionTrouble::Unclear(_)), "{trouble}");
    other.commit().unwrap();
    let second = SeenMarker { store: STORE, slot: Slot(1), marker: marker(30) };
    assert_eq!(read_markers(&consumer, &control, token(2), SOON).unwrap(), [first, second]);

    // A marker of another version is not taken for none.
    let key = ControlKey::Marker(STORE, Slot(0)).to_string();
    kafka().produce(&control, &[tidegate_harness::Message::new(key, "2 generation=3 epoch=40").to(0)]);
    write_token(&mut mine, &control, STORE, Slot(0), token(3)).unwrap();
    let TransactionTrouble::Denied(fault) = read_markers(&consumer, &control, token(3), SOON).unwrap_err()
    else {
        panic!("it is refused")
    };
    assert!(fault.class == ErrorClass::Config && fault.message.contains("newer build"), "{fault}");
}

/// E33: a transaction may not be longer than the broker allows; it is said at the start.
#[test]
fn a_transaction_timeout_above_the_brokers_limit_is_refused_with_its_name() {
    let config = config(kafka(), &[("transaction.timeout.ms", "86400000")]);
    let trouble = TransactionalProducer::initialise(&config, &unique("id"), SOON).err().unwrap();
    let TransactionTrouble::Denied(fault) = trouble else { panic!("{trouble}") };
    assert_eq!(fault.class, ErrorClass::Config);
    assert!(fault.message.contains("transaction.max.timeout.ms"), "{fault}");
}

type Mock = MockCluster<'static, DefaultProducerContext>;

fn mock() -> (Mock, Kafka) {
    let mock = MockCluster::new(2).expect("make a mock cluster");
    mock.create_topic("t", 1, 1).expect("make a topic");
    let kafka = Kafka::at(&mock.bootstrap_servers());
    (mock, kafka)
}

fn transaction(producer: &mut TransactionalProducer) -> Result<(), TransactionTrouble> {
    producer.begin()?;
    put(producer, "t", "v", Some(1_000), 0)?;
    producer.send_offsets("g", &[(TopicPartition::new("t", 0), NextOffset(1))])?;
    producer.commit()
}

const QUICK: [(&str, &str); 2] = [("transaction.timeout.ms", "3000"), ("socket.timeout.ms", "1000")];

/// E11, fault E11: only an answer that says for certain that another instance has the id counts as fenced; what passes by
/// itself is waited for, and all else is unclear.
#[test]
fn every_answer_to_a_request_of_a_transaction_is_one_of_four_kinds() {
    const DONE: &str = "done";
    let fenced = [Error::RD_KAFKA_RESP_ERR_INVALID_PRODUCER_EPOCH, Error::RD_KAFKA_RESP_ERR_PRODUCER_FENCED];
    let passing = [
        Error::RD_KAFKA_RESP_ERR_CONCURRENT_TRANSACTIONS,
        Error::RD_KAFKA_RESP_ERR_COORDINATOR_LOAD_IN_PROGRESS,
        Error::RD_KAFKA_RESP_ERR_COORDINATOR_NOT_AVAILABLE,
        Error::RD_KAFKA_RESP_ERR_NOT_COORDINATOR,
    ];
    let unclear = [
        Error::RD_KAFKA_RESP_ERR_INVALID_TXN_STATE,
        Error::RD_KAFKA_RESP_ERR_INVALID_PRODUCER_ID_MAPPING,
        Error::RD_KAFKA_RESP_ERR_UNKNOWN,
    ];
    let denied = [Error::RD_KAFKA_RESP_ERR_TRANSACTIONAL_ID_AUTHORIZATION_FAILED];
    let (mock, kafka) = mock();
    for api in [Api::AddPartitionsToTxn, Api::AddOffsetsToTxn, Api::TxnOffsetCommit, Api::EndTxn] {
        let kinds = [("fenced", &fenced[..]), (DONE, &passing), ("unclear", &unclear), ("denied", &denied)];
        for (expected, codes) in kinds {
            for code in codes {
                let id = unique("id");
                let mut producer =
                    TransactionalProducer::initialise(&config(&kafka, &QUICK), &id, SOON).unwrap();
                mock.request_errors(api, &[*code]);
                let kind = match transaction(&mut producer) {
                    Ok(()) => DONE,
                    Err(TransactionTrouble::Fenced(_)) => "fenced",
                    Err(TransactionTrouble::Unclear(_)) => "unclear",
                    Err(TransactionTrouble::Refused { .. }) => "refused",
                    Err(TransactionTrouble::Denied(fault)) => {
                        assert_eq!(fault.class, ErrorClass::Config);
                        assert!(fault.message.contains(&id), "{fault}");
                        "denied"
                    }
                };
                assert_eq!(kind, expected, "{api:?} answered with {code:?}");
                mock.clear_request_errors(api);
            }
        }
    }
}

/// E12, fault E12: a coordinator that moves in the middle of a transaction costs time and nothing else.
#[test]
fn a_coordinator_that_moves_is_followed() {
    let (mock, kafka) = mock();
    let coordinate =
        |broker| mock.coordinator(MockCoordinator::Transaction("moving".into()), broker).unwrap();
    coordinate(1);
    let mut producer = TransactionalProducer::initialise(&config(&kafka, &[]), "moving", SOON).unwrap();
    for round in 0..4 {
        producer.begin().unwrap();
        put(&mut producer, "t", "v", Some(1_000), 0).unwrap();
        coordinate(1 + (round + 1) % 2);
        producer.commit().unwrap();
    }
    assert_eq!(kafka.drain("t").len(), 4);
}

/// E11, fault E11: an instance that lost a connection finishes what it has and begins nothing more, since what it sent before may
/// still arrive.
#[test]
fn an_instance_that_missed_an_answer_begins_no_other_transaction() {
    let (mock, kafka) = mock();
    mock.coordinator(MockCoordinator::Transaction("cut".into()), 2).unwrap();
    let mut producer = TransactionalProducer::initialise(&config(&kafka, &[]), "cut", SOON).unwrap();
    transaction(&mut producer).unwrap();
    producer.begin().unwrap();
    put(&mut producer, "t", "v", Some(1_000), 0).unwrap();
    mock.broker_down(2).unwrap();
    mock.broker_up(2).unwrap();
    producer.commit().unwrap();
    let trouble = producer.begin().unwrap_err();
    assert!(matches!(trouble, TransactionTrouble::Unclear(_)), "{trouble}");
    let mut next = TransactionalProducer::initialise(&config(&kafka, &[]), "cut", SOON).unwrap();
    transaction(&mut next).unwrap();
}

/// E11, fault K2: a transaction that nobody answers is unclear when its time is over; a record is not given up before.
#[test]
fn a_transaction_without_answers_is_unclear_when_its_time_is_over() {
    let (mock, kafka) = mock();
    for during_commit in [false, true] {
        let mut producer =
            TransactionalProducer::initialise(&config(&kafka, &QUICK), &unique("id"), SOON).unwrap();
        producer.begin().unwrap();
        let begin = Instant::now();
        put(&mut producer, "t", "v", Some(1_000), 0).unwrap();
        mock.broker_down(1).unwrap();
        mock.broker_down(2).unwrap();
        let trouble = match during_commit {
            true => producer.commit(),
            false => producer.send_offsets("g", &[(TopicPartition::new("t", 0), NextOffset(1))]),
        };
        let trouble = trouble.unwrap_err();
        assert!(matches!(trouble, TransactionTrouble::Unclear(_)), "{trouble}");
        assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
        mock.broker_up(1).unwrap();
        mock.broker_up(2).unwrap();
    }
}

/// E11: the coordinator answers a transaction that took too long as it answers a fenced producer, so that this says nothing.
#[test]
fn a_producer_whose_transaction_expired_is_not_taken_for_fenced() {
    let (mock, kafka) = mock();
    let quick = [("transaction.timeout.ms", "1000")];
    let mut producer = TransactionalProducer::initialise(&config(&kafka, &quick), "slow", SOON).unwrap();
    producer.begin().unwrap();
    put(&mut producer, "t", "v", Some(1_000), 0).unwrap();
    let begin = Instant::now();
    wait::until("the transaction is too old", SOON, || {
        (begin.elapsed() > Duration::from_millis(1_050)).then_some(())
    });
    mock.request_errors(Api::AddOffsetsToTxn, &[Error::RD_KAFKA_RESP_ERR_INVALID_PRODUCER_EPOCH]);
    let offsets = [(TopicPartition::new("t", 0), NextOffset(1))];
    let trouble = producer.send_offsets("g", &offsets).unwrap_err();
    assert!(matches!(trouble, TransactionTrouble::Unclear(_)), "{trouble}");
}

/// E15, fault E15: an id that is denied, and a broker that has no transactions, are said at once, with what to grant.
#[test]
fn a_denied_id_and_a_broker_without_transactions_are_permanent() {
    let (mock, kafka) = mock();
    mock.request_errors(
        Api::InitProducerId,
        &[Error::RD_KAFKA_RESP_ERR_TRANSACTIONAL_ID_AUTHORIZATION_FAILED],
    );
    let denied = TransactionalProducer::initialise(&config(&kafka, &[]), "tidegate.f.0", SOON).err().unwrap();
    let TransactionTrouble::Denied(fault) = denied else { panic!("{denied}") };
    assert_eq!(fault.class, ErrorClass::Config);
    assert!(fault.message.contains("Write on TransactionalId `tidegate.f.0`"), "{fault}");

    mock.apiversion(Api::InitProducerId, None, None).unwrap();
    let old = TransactionalProducer::initialise(&config(&kafka, &[]), "tidegate.f.0", SOON).err().unwrap();
    let TransactionTrouble::Denied(fault) = old else { panic!("{old}") };
    assert_eq!(fault.class, ErrorClass::Config);
    assert!(fault.message.contains("has no transactions"), "{fault}");
}
