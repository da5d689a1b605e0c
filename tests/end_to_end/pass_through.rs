//! Records that nothing touches: bytes, headers, timestamps, partitions and order, with and without a store.

use tidegate_harness::checker;
use tidegate_harness::workload::messages;
use tidegate_harness::{Message, OffsetWatch, Workload, wait};

use crate::case::{Case, DEADLINE, numbered};

// L51 A2 A4
#[test]
fn bytes_headers_timestamps_and_order_pass_through_untouched() {
    let case = Case::new("untouched", 2);
    let records = [
        Message::new("a", vec![0_u8, 255, 1])
            .to(0)
            .at(1_700_000_000_001)
            .header("trace", b"t")
            .header("trace", b"u"),
        Message::new("a", "").to(0).at(1_700_000_000_002),
        Message { key: None, ..Message::new("", "no key") }.to(1).at(1_700_000_000_003),
    ];
    case.kafka.produce(&case.input, &records);
    let mut cluster = case.launch(&case.copy()).until_end().start();
    cluster.expect_exit(0, DEADLINE);
    cluster.assert_stdout_empty();
    let rows = case.kafka.drain(&case.output);
    assert_eq!(rows.len(), records.len());
    for record in &records {
        let same = |row: &&tidegate_harness::Received| {
            row.key == record.key
                && row.value == record.value
                && row.timestamp == record.timestamp
                && row.headers == record.headers
        };
        assert_eq!(rows.iter().filter(same).count(), 1, "{record:?} is not once in {rows:?}");
    }
    let of_a: Vec<_> = rows.iter().filter(|row| row.key_text() == "a").map(|row| row.timestamp).collect();
    assert_eq!(of_a, vec![Some(1_700_000_000_001), Some(1_700_000_000_002)]);
}

// L9 L44 L51 A1 A4 A9 A11 I5
#[test]
fn a_stateless_flow_without_a_store_loses_nothing_when_it_is_killed_at_random() {
    let case = Case::new("stateless-kill", 4);
    let workload = Workload { records: 6_000, ..Workload::default() };
    let events = workload.events();
    let launch = case.launch(&case.copy()).shape(2, 2);
    let watch = OffsetWatch::start(&case.kafka, &case.group, &case.input);
    for part in events.chunks(1_500) {
        let before = case.outputs();
        let mut cluster = launch.start();
        case.kafka.produce(&case.input, &messages(part));
        wait::until("something of the part came out", DEADLINE, || (case.outputs() > before).then_some(()));
        cluster.kill_all();
    }
    launch.clone().until_end().run_to_exit(0, DEADLINE);
    let rows = case.kafka.drain(&case.output);
    checker::assert_no_loss(&rows, events.iter().map(|event| event.id));
    checker::assert_key_order(&rows, &events);
    case.wait_caught_up();
    watch.assert_only_rises();
}

// A6
#[test]
fn a_key_lands_on_the_partition_that_the_java_client_would_choose() {
    let case = Case::new("partitioner", 1);
    case.kafka.create_topic(&format!("{}-5", case.output), 5);
    let keys: Vec<String> = (0..200).map(|n| format!("key-{n}")).collect();
    case.kafka
        .produce(&case.input, &keys.iter().map(|key| Message::new(key.as_str(), "x")).collect::<Vec<_>>());
    let flow = case.flow("- sink: { kafka: { topic: OUT-5 } }");
    case.launch(&flow).until_end().run_to_exit(0, DEADLINE);
    let rows = case.kafka.drain(&format!("{}-5", case.output));
    assert_eq!(rows.len(), keys.len());
    for row in rows {
        let key = row.key.unwrap_or_default();
        assert_eq!(row.partition, java_partition(&key, 5), "key {}", String::from_utf8_lossy(&key));
    }
}

/// `Utils.toPositive(Utils.murmur2(key)) % partitions` of Kafka's Java client.
fn java_partition(key: &[u8], partitions: i32) -> i32 {
    const M: u32 = 0x5bd1_e995;
    let mut hash = 0x9747_b28c_u32 ^ u32::try_from(key.len()).unwrap_or(0);
    let mut words = key.chunks_exact(4);
    for word in &mut words {
        let mut k = u32::from_le_bytes([word[0], word[1], word[2], word[3]]).wrapping_mul(M);
        k ^= k >> 24;
        hash = hash.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    let rest = words.remainder();
    for (index, byte) in rest.iter().enumerate().rev() {
        hash ^= u32::from(*byte) << (8 * index);
    }
    if !rest.is_empty() {
        hash = hash.wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    hash ^= hash >> 15;
    i32::try_from(hash & 0x7fff_ffff).unwrap_or(0) % partitions
}

#[test]
fn the_java_clients_hash_is_the_one_that_its_own_tests_pin() {
    // The vectors of UtilsTest.testMurmur2, taken modulo a number of partitions that keeps them apart.
    for (key, hash) in [("21", -973_932_308_i32), ("foobar", -790_332_482), ("abc", 479_470_107)] {
        assert_eq!(java_partition(key.as_bytes(), i32::MAX), (hash & i32::MAX) % i32::MAX, "{key}");
    }
}

// A12
#[test]
fn two_groups_each_read_the_whole_topic() {
    let case = Case::new("two-groups", 2);
    case.kafka.produce(&case.input, &numbered(0..100, 2));
    for group in ["one", "two"] {
        let mut flow = case.copy().named(&format!("{}-{group}", case.name));
        flow.group = format!("{}-{group}", case.group);
        case.launch(&flow).until_end().run_to_exit(0, DEADLINE);
    }
    let rows = case.kafka.drain(&case.output);
    assert_eq!(checker::assert_no_loss(&rows, 0..100), 100, "each record came out once per group");
}

// A7
#[test]
fn more_workers_than_partitions_warn_and_hold_nothing_up() {
    let case = Case::new("idle-workers", 3);
    case.kafka.produce(&case.input, &numbered(0..300, 3));
    let mut cluster = case.launch(&case.copy()).shape(2, 4).until_end().start();
    cluster.expect_exit(0, DEADLINE);
    assert!(cluster.all_stderr().contains("WORKERS_EXCEED_PARTITIONS"), "no warning");
    checker::assert_exactly(&case.kafka.drain(&case.output), 0..300);
    case.wait_caught_up();
}
