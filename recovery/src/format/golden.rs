//! Golden files: what every version of every format looks like, byte by byte.
//!
//! The files under `tests/golden` are never made anew for a version that was released: a change of a format gets a
//! new version, and the old files must still be read. `TIDEGATE_BLESS=1` writes files that are not there yet.

use super::builder::SegmentBuilder;
use super::lease::{LeaseBody, LeaseFile};
use super::outbox::{DecisionBody, Outbox};
use super::record::CommitRecord;
use super::segment::SegmentFile;
use super::*;
use crate::lease::LeaseHolder;
use crate::names::PartName;
use crate::outbox::OutputRow;
use crate::rows::{RowBuffer, RowChange, RowRef, decode_row};
use crate::steps::{RecordedStep, StepShape};
use crate::*;
use std::path::PathBuf;

fn golden(name: &str, bytes: &[u8]) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("TIDEGATE_BLESS").is_some() && !path.exists() {
        std::fs::write(&path, bytes).expect("the golden folder can be written");
    }
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn holder() -> LeaseHolder {
    LeaseHolder {
        generation: Generation(7),
        run: RunId(0x0123_4567_89ab_cdef_0011_2233_4455_6677),
        host: "a-host".to_owned(),
        pid: 4711,
        shape: ClusterShape { processes: 2, workers_per_process: 3 },
        slots: vec![Slot(0), Slot(1)],
        build: "0.1.0".to_owned(),
    }
}

fn segment_ref() -> SegmentRef {
    SegmentRef {
        epoch: Epoch(300),
        generation: Generation(7),
        process: ProcessIndex(1),
        length: 4242,
        checksum: 0xdead_beef,
    }
}

fn rows(count: u32, noise: bool) -> RowBuffer {
    let mut buffer = RowBuffer::new();
    for index in 0..count {
        let key = format!("customer-{index}");
        let value = if noise { KeyHash::of(key.as_bytes()).0.to_le_bytes().to_vec() } else { vec![b'v'; 48] };
        buffer.push(RowRef {
            step: StepNumber((index % 2) as u16),
            route: RowRoute::Bucket(KeyHash::of(key.as_bytes()).bucket()),
            key: key.as_bytes(),
            sub: &index.to_be_bytes(),
            change: RowChange::Put(&value),
        });
    }
    let partition = rows::partition_key(&TopicPartition::new("orders.in", 3));
    let row = RowRef {
        step: StepNumber(1),
        route: RowRoute::Partition,
        key: &partition,
        sub: b"",
        change: RowChange::Delete,
    };
    buffer.push(row);
    buffer.push(RowRef { change: RowChange::DeletePrefix, sub: b"p", ..row });
    buffer
}

fn segment(rows: &RowBuffer) -> (Vec<u8>, SegmentRef) {
    let name = PartName { epoch: Epoch(300), generation: Generation(7), process: ProcessIndex(1) };
    let steps = vec![(StepId::new("per-minute"), 1), (StepId::new("watermark"), 2)];
    let build = |in_background: bool| {
        let mut builder = SegmentBuilder::new(name, steps.clone(), Vec::new()).expect("the head is small");
        if in_background {
            builder = builder.in_background();
        }
        let mut rest = rows.as_bytes();
        while let Some((_, tail)) = decode_row(rest) {
            builder.push(&rest[..rest.len() - tail.len()]).expect("the encoder lives");
            rest = tail;
        }
        builder.finish().expect("the encoder lives")
    };
    let built = build(false);
    let read = SegmentFile::open(&built.segment, built.bytes.clone()).expect("it was just made");
    assert_eq!(read.frames, built.frames);
    assert_eq!(build(true).bytes, built.bytes, "on a thread of its own the bytes are the same");
    (built.bytes, built.segment)
}

#[test]
fn the_store_file_is_as_it_was() {
    let body =
        StoreBody { store: StoreId(0xfeed_0000_0000_0000_0000_0000_0000_0001), flow: "orders".to_owned() };
    let bytes = body.encode().expect("it is small");
    let kept = golden("v1/STORE", &bytes);
    assert_eq!(bytes, kept);
    assert_eq!(StoreBody::decode(&kept).expect("it is version 1"), body);
}

#[test]
fn a_lease_is_as_it_was() {
    let body = LeaseBody { store: StoreId(5), holder: holder() };
    let lease = LeaseFile { body, counter: Some(258) };
    let bytes = lease.encode().expect("it is small");
    let kept = golden("v1/lease", &bytes);
    assert_eq!(bytes, kept);
    assert_eq!(LeaseFile::decode("lease", &kept).expect("it is version 1"), lease);
    let mut half_renewed = kept;
    let counter = half_renewed.len() - 12;
    half_renewed[counter] ^= 1;
    let read =
        LeaseFile::decode("lease", &half_renewed).expect("a counter that is being written is no damage");
    assert_eq!(read, LeaseFile { counter: None, ..lease });
}

fn record(outboxes: Vec<OutboxRef>) -> CommitRecord {
    CommitRecord {
        store: StoreId(5),
        number: RecordNumber(12),
        epoch: Epoch(300),
        generation: Generation(7),
        run: holder().run,
        shape: holder().shape,
        slots: holder().slots,
        fingerprint: FlowFingerprint(0x1122_3344_5566_7788),
        steps: vec![RecordedStep {
            shape: StepShape::new("per-minute", "window").parameter("size", "60000ms"),
            since: Epoch(1),
        }],
        offsets: vec![
            (TopicPartition::new("orders.in", 0), NextOffset(100)),
            (TopicPartition::new("orders.in", 1), NextOffset(-1)),
        ],
        segments: vec![segment_ref()],
        outboxes,
        topics: Vec::new(),
    }
}

fn outbox_ref() -> OutboxRef {
    OutboxRef {
        epoch: Epoch(290),
        generation: Generation(6),
        process: ProcessIndex(2),
        slot: Slot(2),
        length: 777,
        checksum: 0xfeed_f00d,
    }
}

// S13
#[test]
fn a_commit_record_is_as_it_was() {
    let topics = vec![("orders.in".into(), TopicId(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff))];
    let record = CommitRecord { topics, ..record(vec![outbox_ref()]) };
    let bytes = record.encode().expect("it is small");
    let kept = golden("v3/commit", &bytes);
    assert_eq!(bytes, kept);
    let read = CommitRecord::decode("commit", RecordNumber(12), &kept).expect("it is version 3");
    assert_eq!(read, record);
    assert!(CommitRecord::decode("commit", RecordNumber(13), &kept).is_err(), "under another's name");
}

// S13
#[test]
fn commit_records_of_older_versions_are_read_without_what_they_did_not_have() {
    let read = |version| {
        let kept = golden(&format!("{version}/commit"), &[]);
        CommitRecord::decode("commit", RecordNumber(12), &kept).expect("it can be read")
    };
    assert_eq!(read("v1"), record(Vec::new()));
    assert_eq!(read("v2"), record(vec![outbox_ref()]));
}

fn output(step: &str, topics: [&str; 2], rows: u8) -> OutputBuffer {
    let mut buffer = OutputBuffer::new();
    let step = StepId::new(step);
    let destinations = topics.map(|topic| buffer.destination(&step, topic).expect("there is room"));
    for index in 0..rows {
        let key = [index];
        buffer.push(&OutputRow {
            destination: destinations[usize::from(index % 2)],
            partition: (index % 3 == 0).then_some(i32::from(index)),
            timestamp: (index % 2 == 0).then_some(1_700_000_000_000 + i64::from(index)),
            key: (index != 1).then_some(&key[..]),
            value: (index != 2).then_some(b"a value"),
            headers: if index == 0 { vec![("trace", Some(b"1")), ("trace", None)] } else { Vec::new() },
        });
    }
    buffer
}

// S13
#[test]
fn an_outbox_is_as_it_was() {
    let name = PartName { epoch: Epoch(300), generation: Generation(7), process: ProcessIndex(1) };
    let buffers = [
        output("totals", ["orders.totals", "orders.other"], 4),
        output("late", ["orders.other", "orders.totals"], 2),
    ];
    let (bytes, reference) =
        super::outbox::build(name, Slot(1), &buffers).expect("it is small").expect("there are rows");
    let kept = golden("v1/outbox", &bytes);
    let reference = OutboxRef { length: kept.len() as u64, checksum: crc32fast::hash(&kept), ..reference };
    let outbox = Outbox::open(&reference, kept).expect("it is version 1");
    let mut read = Vec::new();
    outbox
        .visit(|stored| {
            let (step, topic) = (stored.destination.step.to_string(), stored.destination.topic.to_string());
            read.push((stored.number, step, topic, stored.row.key.map(<[u8]>::to_vec)));
            Ok::<(), StoreError>(())
        })
        .expect("it is whole");
    let expected = [
        (0, "totals", "orders.totals", Some(vec![0])),
        (1, "totals", "orders.other", None),
        (2, "totals", "orders.totals", Some(vec![2])),
        (3, "totals", "orders.other", Some(vec![3])),
        (4, "late", "orders.other", Some(vec![0])),
        (5, "late", "orders.totals", None),
    ];
    assert_eq!(
        read,
        expected.map(|(number, step, topic, key)| (number, step.to_owned(), topic.to_owned(), key))
    );
}

// S13
#[test]
fn a_decision_is_as_it_was() {
    let part = PartName { epoch: Epoch(300), generation: Generation(7), process: ProcessIndex(1) };
    let decision = Decision::DeadLetter { topic: "orders.dlq".to_owned() };
    let body = DecisionBody {
        epoch: part.epoch,
        generation: part.generation,
        process: part.process,
        row: 17,
        decision: decision.clone(),
    };
    let bytes = body.encode().expect("it is small");
    let kept = golden("v1/decision", &bytes);
    assert_eq!(bytes, kept);
    assert_eq!(DecisionBody::decode(part, 17, &kept).expect("it is version 1"), decision);
    assert!(DecisionBody::decode(part, 18, &kept).is_err(), "under another's name");
}

#[test]
fn a_segment_of_rows_that_do_not_shrink_is_as_it_was() {
    let rows = rows(3, true);
    let (bytes, _) = segment(&rows);
    let kept = golden("v1/segment-stored", &bytes);
    assert_eq!(bytes, kept);
}

#[test]
fn segments_are_read_as_they_were() {
    for (name, rows) in [("segment-stored", rows(3, true)), ("segment-compressed", rows(200, false))] {
        let (bytes, reference) = segment(&rows);
        let kept = golden(&format!("v1/{name}"), &bytes);
        // The compressor may find another encoding one day; what it stands for may not change.
        let reference =
            SegmentRef { length: kept.len() as u64, checksum: crc32fast::hash(&kept), ..reference };
        let file = SegmentFile::open(&reference, kept).expect("it is version 1");
        assert_eq!(file.head.steps, [(StepId::new("per-minute"), 1), (StepId::new("watermark"), 2)]);
        let mut read = Vec::new();
        for frame in &file.frames {
            read.extend_from_slice(&file.rows(frame).expect("the frame is whole"));
        }
        assert_eq!(read, rows.as_bytes(), "{name}");
    }
    let (compressed, _) = segment(&rows(200, false));
    assert!(compressed.len() < rows(200, false).as_bytes().len() / 2, "the second one is compressed");
}
