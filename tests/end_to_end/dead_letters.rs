//! Records that a step cannot take, on their way to a topic for dead letters (issue 4, behaviour 5).

use std::collections::BTreeMap;
use std::time::Duration;

use tidegate_harness::{Broker, Cluster, Launch, Message, Received, checker, wait};

use crate::case::{Case, DEADLINE, numbered};
use crate::status;
use crate::two_sinks::example;

const OURS: &str = "tidegate-error-";

/// What a dead letter says of the failure, by the end of the header's name.
fn said(letter: &Received) -> BTreeMap<String, String> {
    let of = |(name, value): &(String, Option<Vec<u8>>)| {
        let name = name.strip_prefix(OURS)?.to_owned();
        Some((name, String::from_utf8(value.clone()?).expect("text")))
    };
    letter.headers.iter().filter_map(of).collect()
}

/// That a letter is this message, with the offset that it had.
#[track_caller]
fn assert_is(letter: &Received, original: &Message, offset: usize) {
    assert_eq!((&letter.key, &letter.value), (&original.key, &original.value));
    let own: Vec<_> = letter.headers.iter().filter(|(name, _)| !name.starts_with(OURS)).cloned().collect();
    assert_eq!(own, original.headers, "its headers in their order");
    if original.timestamp.is_some() {
        assert_eq!(letter.timestamp, original.timestamp);
    }
    assert_eq!(said(letter)["offset"], offset.to_string());
}

/// The topic for dead letters of a case, made with these settings.
fn letters_topic(case: &Case, settings: &[(&str, &str)]) -> String {
    let topic = format!("{}-dlq", case.output);
    case.kafka.create_topic_with(&topic, 1, settings);
    topic
}

/// What a process that ended says that a step put aside.
fn summary<'a>(stderr: &'a str, step: &str) -> Option<&'a str> {
    stderr
        .lines()
        .find(|line| line.contains("put records into a topic for dead letters") && line.contains(step))
}

// E21 P1: the bytes are those that were read, although three steps have made something else of them by then, and
// although the record that is late has gone to another process.
#[test]
fn a_dead_letter_is_the_record_as_it_was_read_also_behind_steps_that_changed_it() {
    let case = Case::new("letter-bytes", 1);
    let letters = letters_topic(&case, &[]);
    let at = 1_700_000_000_000_i64;
    let record = |id: u64, at_ms: i64, amount: &str| {
        let value = format!("{{ \"id\":{id},  \"at_ms\":{at_ms},\"amount\":{amount} }}");
        let mut message = Message::new(format!("k{}", id % 5), value).to(0).at(at + id as i64);
        message =
            message.header("trace", b"one").null_header("trace").header("a", b"").header("trace", b"\xff");
        message
    };
    let mut records: Vec<Message> = (0..100).map(|id| record(id, at + id as i64 * 100, "1")).collect();
    records[40] = record(40, at + 4_000, "\"much\"");
    records[60].key = None;
    records[60].value = Some(b"{\"id\":60, \"at_ms\":1700000006000}".to_vec());
    records[95] = record(95, at - 60_000, "1");
    case.kafka.produce(&case.input, &records);
    let steps = "- decode: { json: {} }\n\
         - event_time: { from: value.at_ms, out_of_order: 1s }\n\
         - map: { name: shape, value: \"{'n': value.amount, 'id': value.id}\", on_error: { dead_letter: OUT-dlq } }\n\
         - key_by: string(value.id)\n\
         - window: { name: totals, tumbling: 1s, late: { dead_letter: OUT-dlq }, \
             on_error: { dead_letter: OUT-dlq, attempts: 2 }, aggregate: { n: sum(value.n), id: first(value.id) } }\n\
         - sink: { kafka: { topic: OUT } }";
    let launch = case.launch(&case.flow(steps)).shape(2, 1).recovery(&case.store()).until_end();
    let cluster = launch.run_to_exit(0, DEADLINE);
    let found = case.kafka.drain(&letters);
    assert_eq!(found.len(), 3, "{found:?}");
    let by_offset = |offset: &str| {
        let is = |letter: &&Received| said(letter)["offset"] == offset;
        found.iter().find(is).unwrap_or_else(|| panic!("no letter about offset {offset}: {found:?}"))
    };
    for (offset, step, class, attempt) in
        [(40, "totals", "failed", "2"), (60, "shape", "failed", "3"), (95, "totals", "late", "1")]
    {
        let letter = by_offset(&offset.to_string());
        assert_is(letter, &records[offset], offset);
        let said = said(letter);
        let expected = [
            ("class", class),
            ("step", step),
            ("topic", &case.input),
            ("partition", "0"),
            ("attempt", attempt),
            ("flow", &case.name),
        ];
        for (name, value) in expected {
            assert_eq!(said[name], value, "{name} of {said:?}");
        }
        assert!(!said["message"].is_empty());
    }
    let id = |row: &Received| row.json()["id"].as_u64().unwrap_or(u64::MAX);
    let mut ids: Vec<u64> = case.kafka.drain(&case.output).iter().map(id).collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..100).filter(|id| ![40, 60, 95].contains(id)).collect::<Vec<_>>());
    assert!(summary(&cluster.all_stderr(), "shape").is_some(), "{}", cluster.all_stderr());
    case.wait_caught_up();
}

const TO_LETTERS: &str =
    "- decode: { json: {}, on_error: { dead_letter: OUT-dlq } }\n- sink: { kafka: { topic: OUT } }";

// L5 E21: the broker of the dead letters is away for a while, and the process is killed in the meantime. Nothing is
// passed over, and nothing is given up. (`min.insync.replicas` refuses nothing on one broker: a broker asks for no more
// than there are replicas.)
#[test]
fn a_dead_letter_that_waits_for_its_broker_holds_the_offset_and_is_written_when_the_broker_is_back() {
    let frozen = Broker::start(&[]);
    let case = Case::new("letter-waits", 1);
    let letters = format!("{}-dlq", case.output);
    frozen.kafka().create_topic(&case.output, 1);
    frozen.kafka().create_topic(&letters, 1);
    let launch = case.launch(&case.flow(TO_LETTERS).producer_at(frozen.kafka().bootstrap()));
    let mut cluster = launch.start();
    case.kafka.produce(&case.input, &numbered(0..50, 1));
    case.wait_caught_up();
    frozen.freeze();
    let poison = Message::new("k", "not json {").to(0);
    case.kafka.produce(&case.input, [&poison]);
    cluster.wait_for("it is waited for, and the status says so", DEADLINE, |cluster| {
        let status = cluster.status(0).map(|status| status.to_string());
        status.is_some_and(|status| status.contains(&format!("\"step\":\"dead-letters.{letters}\"")))
    });
    let committed = || case.kafka.group_offsets(&case.group, &case.input)[&0];
    wait::holds_for("the offset stays below the poison", Duration::from_secs(2), || committed() == 50);
    cluster.kill_all();
    assert_eq!(committed(), 50);
    frozen.thaw();
    let _cluster = launch.start();
    case.wait_caught_up();
    let found = frozen.kafka().drain(&letters);
    assert!(!found.is_empty());
    found.iter().for_each(|letter| assert_is(letter, &poison, 50));
}

// E20 E21 K15 fault P2: an output that its topic does not take is that record's error, and the others are written.
#[test]
fn an_output_that_is_too_large_is_a_dead_letter_or_is_dropped_as_the_sink_says() {
    for (name, policy) in [("drop", "drop"), ("letter", "{ dead_letter: OUT-dlq }")] {
        let case = Case::new(&format!("large-{name}"), 1);
        let letters = letters_topic(&case, &[]);
        let small = format!("{}-small", case.output);
        case.kafka.create_topic_with(&small, 1, &[("max.message.bytes", "2000")]);
        let mut records = numbered(0..1000, 1);
        records[500] = Message::new("k5", format!("{{\"id\":500, \"pad\":\"{}\"}}", "x".repeat(9_000)))
            .to(0)
            .header("h", b"1");
        case.kafka.produce(&case.input, &records);
        let steps = format!(
            "- decode: {{ json: {{}} }}\n\
             - map: {{ value: \"{{'id': value.id, 'was': value}}\" }}\n\
             - sink: {{ kafka: {{ topic: OUT-small }}, on_error: {policy} }}"
        );
        let cluster = case.launch(&case.flow(&steps)).until_end().run_to_exit(0, DEADLINE);
        checker::assert_exactly(&case.kafka.drain(&small), (0..1000).filter(|id| *id != 500));
        case.wait_caught_up();
        let found = case.kafka.drain(&letters);
        if policy == "drop" {
            assert!(found.is_empty());
            assert!(cluster.stderr(0).contains("the step left records out"), "{}", cluster.stderr(0));
            continue;
        }
        assert_eq!(found.len(), 1);
        assert_is(&found[0], &records[500], 500);
        let said = said(&found[0]);
        assert_eq!((said["class"].as_str(), said["step"].as_str()), ("refused", "sink"));
        assert!(said["message"].contains(&small), "{said:?}");
    }
}

// L5 E21: a letter that its topic refuses ends the process with the name of its record, which is not passed over. When
// the topic takes it, the next start goes on from there.
#[test]
fn a_dead_letter_that_its_topic_refuses_ends_the_run_and_the_next_one_writes_it_when_the_topic_takes_it() {
    let case = Case::new("letter-large", 1);
    let letters = letters_topic(&case, &[("max.message.bytes", "2000")]);
    let mut records = numbered(0..20, 1);
    records[7] = Message::new("k", format!("not json {}", "x".repeat(9_000))).to(0);
    case.kafka.produce(&case.input, &records);
    let launch = case.launch(&case.flow(TO_LETTERS)).until_end();
    for _ in 0..2 {
        let mut cluster = launch.start();
        cluster.expect_exit(65, DEADLINE);
        let stderr = cluster.stderr(0);
        let last = stderr.lines().last().unwrap_or_default();
        for part in [letters.as_str(), &format!("{}:0@7)", case.input), "dead letter"] {
            assert!(last.contains(part), "{part} is not in {last}");
        }
        let committed = case.kafka.group_offsets(&case.group, &case.input);
        assert!(committed.get(&0).is_none_or(|offset| *offset <= 7), "{committed:?}");
        assert!(case.kafka.drain(&letters).is_empty());
    }
    case.kafka.set_topic(&letters, &[("max.message.bytes", "20000")]);
    launch.run_to_exit(0, DEADLINE);
    let found = case.kafka.drain(&letters);
    assert_eq!(found.len(), 1);
    assert_is(&found[0], &records[7], 7);
    checker::assert_no_loss(&case.kafka.drain(&case.output), (0..20).filter(|id| *id != 7));
    case.wait_caught_up();
}

// E21: the topic is deleted while the flow runs.
#[test]
fn a_topic_for_dead_letters_that_is_deleted_ends_the_run_at_the_next_letter() {
    let case = Case::new("letters-gone", 1);
    let letters = letters_topic(&case, &[]);
    let flow = case.flow(TO_LETTERS).producer(
        "extra: { topic.metadata.refresh.interval.ms: 500, topic.metadata.propagation.max.ms: 1000 }",
    );
    let mut cluster = case.launch(&flow).start();
    case.kafka.produce(&case.input, [&Message::new("k", "{").to(0)]);
    case.wait_caught_up();
    case.kafka.delete_topic(&letters);
    case.kafka.produce(&case.input, [&Message::new("k", "[").to(0)]);
    cluster.expect_exit(65, DEADLINE);
    let stderr = cluster.stderr(0);
    let last = stderr.lines().last().unwrap_or_default();
    assert!(last.contains(&letters) && last.contains(&case.input), "{last}");
    assert_eq!(case.kafka.group_offsets(&case.group, &case.input)[&0], 1);
}

// E21 E22: a topic that is missing is refused before anything is read, or made as the flow says.
#[test]
fn a_topic_for_dead_letters_that_is_missing_is_refused_or_made() {
    let case = Case::new("letters-missing", 1);
    let mut records = numbered(0..10, 1);
    records[3] = Message::new("k", "{").to(0);
    case.kafka.produce(&case.input, &records);
    let steps = |create: &str| {
        format!(
            "- decode: {{ json: {{}}, on_error: {{ dead_letter: OUT-dlq{create} }} }}\n\
             - sink: {{ kafka: {{ topic: OUT }} }}"
        )
    };
    let mut cluster = case.launch(&case.flow(&steps(""))).until_end().start();
    cluster.expect_exit(66, DEADLINE);
    assert!(cluster.stderr(0).contains(&format!("{}-dlq", case.output)), "{}", cluster.stderr(0));
    assert!(case.kafka.group_offsets(&case.group, &case.input).is_empty());
    let made = case.flow(&steps(", create: { partitions: 1, replication: 1 }"));
    case.launch(&made).until_end().run_to_exit(0, DEADLINE);
    assert_eq!(case.kafka.drain(&format!("{}-dlq", case.output)).len(), 1);
}

// E21 F11: a repaired flow reads the dead letters as if they had never failed.
#[test]
fn a_topic_for_dead_letters_is_read_by_a_repaired_flow_without_what_was_said_of_the_failures() {
    let case = Case::new("letter-replay", 1);
    let letters = letters_topic(&case, &[]);
    let mut records = numbered(0..10, 1);
    let poison = |id: u64| Message::new("k", format!("{{\"nr\":{id}}}")).to(0).header("own", b"1");
    (records[2], records[8]) = (poison(2), poison(8));
    case.kafka.produce(&case.input, &records);
    let steps = "- decode: { json: {} }\n\
         - map: { value: \"{'id': value.id}\", on_error: { dead_letter: OUT-dlq } }\n\
         - sink: { kafka: { topic: OUT } }";
    case.launch(&case.flow(steps)).until_end().run_to_exit(0, DEADLINE);
    assert_eq!(case.kafka.drain(&letters).len(), 2);
    // One of them fails again: the new letter has the new flow's words only.
    let repaired = "- decode: { json: {} }\n\
         - map: { name: again, value: \"{'id': value.nr / (8 - value.nr) * (8 - value.nr)}\", \
             on_error: { dead_letter: OUT-again, create: { partitions: 1, replication: 1 } } }\n\
         - sink: { kafka: { topic: OUT } }";
    let mut flow = case.flow(repaired).named(&format!("{}-repaired", case.name));
    flow.topics = letters.clone();
    flow.group = format!("{}-repaired", case.group);
    case.launch(&flow).until_end().run_to_exit(0, DEADLINE);
    let rows = case.kafka.drain(&case.output);
    let replayed: Vec<&Received> = rows.iter().filter(|row| !row.headers.is_empty()).collect();
    assert_eq!(replayed.len(), 1, "{rows:?}");
    assert_eq!(replayed[0].headers, records[2].headers);
    let again = case.kafka.drain(&format!("{}-again", case.output));
    assert_eq!(again.len(), 1);
    assert_is(&again[0], &records[8], 1);
    let said = said(&again[0]);
    assert_eq!((said["step"].as_str(), said["topic"].as_str()), ("again", letters.as_str()));
    assert_eq!(again[0].headers.len(), 1 + 8, "each name stands there once");
}

// A record far in the future moves no watermark, and is kept.
#[test]
fn a_record_too_far_ahead_of_the_clock_is_a_dead_letter() {
    let case = Case::new("letter-ahead", 1);
    let letters = letters_topic(&case, &[]);
    let at = 1_700_000_000_000_i64;
    let record = |id: u64, at_ms: i64| Message::new("k", format!("{{\"id\":{id},\"at_ms\":{at_ms}}}")).to(0);
    let mut records: Vec<Message> = (0..10).map(|id| record(id, at + id as i64)).collect();
    records[4] = record(4, 33_000_000_000_000);
    case.kafka.produce(&case.input, &records);
    let steps = "- decode: { json: {} }\n\
         - event_time: { from: value.at_ms, out_of_order: 1s, ahead: { dead_letter: OUT-dlq } }\n\
         - sink: { kafka: { topic: OUT } }";
    let mut cluster = case.launch(&case.flow(steps)).start();
    case.wait_caught_up();
    checker::assert_exactly(&case.kafka.drain(&case.output), (0..10).filter(|id| *id != 4));
    let found = case.kafka.drain(&letters);
    assert_eq!(found.len(), 1);
    assert_is(&found[0], &records[4], 4);
    assert_eq!(said(&found[0])["class"], "ahead");
    cluster.wait_for("it is counted", DEADLINE, |cluster| {
        status::metric(cluster, 0, "tidegate_step_dead_letters_total") == Some(1.0)
    });
    let status = cluster.status(0).unwrap_or_default();
    assert_eq!(status["steps"]["event_time"]["dead_letters"][&letters], 1, "{status}");
}

/// The flow of `tests/flows/dead_letters.rs`, and the ids of its calls so far.
fn worker_of(case: &Case) -> (Launch, impl Fn() -> Vec<u64>) {
    let yaml: String = case.copy().yaml().split("steps:").next().unwrap_or_default().to_owned();
    let config = case.scratch.write("settings.yaml", &yaml);
    let calls = case.scratch.join("calls");
    let launch = Launch::new(&example("dead_letters").display().to_string(), &case.scratch, &yaml)
        .config_flag(&config)
        .env("INPUT", &case.input)
        .env("OUTPUT", &case.output)
        .env("LETTERS", &format!("{}-dlq", case.output))
        .env("CALLS", &calls.display().to_string())
        .until_end();
    let noted = move || {
        let text = std::fs::read_to_string(&calls).unwrap_or_default();
        text.lines().map(|line| line.parse().expect("an id")).collect()
    };
    (launch, noted)
}

fn job(id: u64, attempts: &str) -> Message {
    Message::new("k", format!("{{\"id\":{id},\"attempts\":{attempts}}}")).to(0)
}

// E23: the first emission is attempt 1.
#[test]
fn a_record_of_a_rust_flow_is_tried_three_times_in_its_place_and_then_is_a_dead_letter() {
    let case = Case::new("attempts", 1);
    let jobs = [
        job(0, "[true]"),
        job(1, "[false,false,true]"),
        job(2, "[]"),
        Message::new("k", "{").to(0),
        job(4, "[true]"),
    ];
    case.kafka.produce(&case.input, &jobs);
    let (launch, calls) = worker_of(&case);
    launch.run_to_exit(0, DEADLINE);
    assert_eq!(calls(), [0, 1, 1, 1, 2, 2, 2, 4], "each in its place");
    let ids: Vec<_> = case.kafka.drain(&case.output).iter().map(Received::key_text).collect();
    assert_eq!(ids, ["0", "1", "4"], "in their order");
    let letters = case.kafka.drain(&format!("{}-dlq", case.output));
    assert_eq!(letters.len(), 2);
    for (offset, step, attempt) in [(2, "work", "3"), (3, "decode", "3")] {
        let letter = letters.iter().find(|letter| said(letter)["offset"] == offset.to_string());
        let letter = letter.unwrap_or_else(|| panic!("no letter about {offset}"));
        assert_is(letter, &jobs[offset], offset);
        let said = said(letter);
        assert_eq!((said["step"].as_str(), said["attempt"].as_str()), (step, attempt));
    }
}

// E24: a crash between two attempts begins them again, and no crash makes them endless.
#[test]
fn a_crash_between_two_attempts_costs_as_many_again_and_the_letter_is_written() {
    let case = Case::new("attempts-crash", 1);
    case.kafka.produce(&case.input, &[job(0, "[true,true,true]"), job(1, "[]"), job(2, "[true,true,true]")]);
    let (launch, calls) = worker_of(&case);
    let aborts = |launch: Launch, at: &str| launch.env("ABORT_AT", at);
    for at in ["3", "6"] {
        let mut cluster: Cluster = aborts(launch.clone(), at).start();
        assert_ne!(cluster.wait_exit(0, DEADLINE), 0);
    }
    launch.run_to_exit(0, DEADLINE);
    let of_poison = calls().into_iter().filter(|id| *id == 1).count();
    assert_eq!(of_poison, 2 + 2 + 3, "{:?}", calls());
    let letters = case.kafka.drain(&format!("{}-dlq", case.output));
    assert_eq!(letters.len(), 1);
    assert_eq!(said(&letters[0])["attempt"], "3");
    case.wait_caught_up();
}

// P1 E21 K15: under exactly once a dead letter is a part of the same transaction as the other outputs of its epoch, also
// one that a keyed step gives up on another worker, one whose output the topic does not take, and one above the client's
// default limit. The topics take batches of different sizes, and one client writes to both.
#[test]
fn dead_letters_of_an_exactly_once_flow_are_written_once_through_kills() {
    let keyed = "- key_by: string(value.id)\n\
         - stateful_map: { name: count, initial: '0', state: state + value.n, emit: value, \
             on_error: { dead_letter: OUT-dlq } }\n";
    letters_are_written_once("letters-once", keyed, |launch, case| launch.recovery(&case.store()));
}

#[test]
fn dead_letters_of_an_exactly_once_flow_without_a_store_are_written_once_through_kills() {
    let plain = "- map: { value: \"{'id': value.id, 'n': value.n + 1, 'all': value}\", \
             on_error: { dead_letter: OUT-dlq } }\n";
    letters_are_written_once("letters-direct", plain, |launch, _| launch.without_recovery());
}

fn letters_are_written_once(name: &str, step: &str, stored: impl Fn(Launch, &Case) -> Launch) {
    const COUNT: usize = 3_000;
    let case = Case::new(name, 2);
    let letters = letters_topic(&case, &[("max.message.bytes", "4000000")]);
    case.kafka.set_topic(&case.input, &[("max.message.bytes", "4000000")]);
    let small = format!("{}-small", case.output);
    case.kafka.create_topic_with(&small, 1, &[("max.message.bytes", "2000")]);
    let poison = |id: usize| match id % 100 {
        7 if id == 1507 => Some(format!("{{{}", "x".repeat(2_000_000))),
        7 => Some("{".to_owned()),
        8 => Some(format!("{{\"id\":{id},\"n\":\"x\"}}")),
        9 => Some(format!("{{\"id\":{id},\"n\":1,\"pad\":\"{}\"}}", "x".repeat(4_000))),
        _ => None,
    };
    let steps = format!(
        "- decode: {{ json: {{}}, on_error: {{ dead_letter: OUT-dlq }} }}\n\
         {step}- sink: {{ kafka: {{ topic: OUT-small }}, on_error: {{ dead_letter: OUT-dlq }} }}"
    );
    let flow = case.flow(&steps).exactly_once().consumer("batch_size: 20").consumer("in_flight_records: 100");
    let launch = stored(case.launch(&flow).shape(2, 1), &case);
    let good = |id: usize| format!("{{\"id\":{id},\"n\":1}}");
    let record = |id: usize| {
        let value = poison(id).unwrap_or_else(|| good(id));
        Message::new(format!("k{id}"), value).to((id % 2) as i32)
    };
    for part in 0..3 {
        let ids = part * COUNT / 3..(part + 1) * COUNT / 3;
        case.kafka.produce(&case.input, &ids.map(record).collect::<Vec<_>>());
        let mut cluster = launch.start();
        let before = part * COUNT / 300;
        cluster.wait_for("letters are written", DEADLINE, |_| case.kafka.drain(&letters).len() > 3 * before);
        cluster.kill_all();
    }
    launch.clone().until_end().run_to_exit(0, DEADLINE);
    let is_good = |id: &u64| poison(*id as usize).is_none();
    checker::assert_exactly(&case.kafka.drain(&small), (0..COUNT as u64).filter(is_good));
    let mut keys: Vec<String> = case.kafka.drain(&letters).iter().map(Received::key_text).collect();
    keys.sort_unstable();
    let mut expected: Vec<String> =
        (0..COUNT).filter(|id| poison(*id).is_some()).map(|id| format!("k{id}")).collect();
    expected.sort_unstable();
    assert_eq!(keys, expected, "each record once, as it was read");
    case.wait_caught_up();
}
