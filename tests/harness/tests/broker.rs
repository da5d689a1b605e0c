//! The harness against a real broker: if these fail, no end-to-end test means anything.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tidegate_harness::kafka::unique;
use tidegate_harness::proxy::api;
use tidegate_harness::workload::messages;
use tidegate_harness::{
    Broker, Kafka, Message, OffsetWatch, Outcome, Workload, Writer, checker, process, wait, witness,
};

const DEADLINE: Duration = Duration::from_secs(60);

fn kafka() -> &'static Kafka {
    Broker::shared().kafka()
}

#[test]
fn what_is_produced_is_drained_with_partitions_timestamps_headers_and_order() {
    let topic = unique("plain");
    kafka().create_topic(&topic, 3);
    let events = Workload { partitions: 3, records: 500, ..Workload::default() }.events();
    kafka().produce(&topic, &messages(&events));
    kafka().produce(&topic, &[Message::tombstone("gone").to(2).header("trace", b"t1")]);
    let rows = kafka().drain(&topic);
    assert_eq!(rows.len(), 501);
    checker::assert_exactly(&rows[..500], events.iter().map(|event| event.id));
    checker::assert_key_order(&rows[..500], &events);
    for event in &events {
        let row = rows.iter().find(|row| (row.partition, row.offset) == (event.partition, event.offset));
        assert_eq!(row.and_then(|row| row.timestamp), Some(event.at_ms));
    }
    let last = &rows[500];
    assert_eq!(last.value, None);
    assert_eq!(last.headers, vec![("trace".to_owned(), Some(b"t1".to_vec()))]);
}

#[test]
fn aborted_records_are_drained_only_by_a_reader_that_asks_for_them() {
    let topic = unique("transactions");
    kafka().create_topic(&topic, 1);
    let writer = Writer::transactional(kafka(), &unique("id"));
    writer.transaction(&topic, &[Message::new("a", "1"), Message::new("a", "2")], Outcome::Commit);
    writer.transaction(&topic, &[Message::new("a", "3")], Outcome::Abort);
    assert_eq!(kafka().drain(&topic).len(), 2);
    assert_eq!(kafka().drain_uncommitted(&topic).len(), 3);
    // Two control records stand between and behind the three records.
    wait::until("the stable end passes the last control record", DEADLINE, || {
        (kafka().stable_bounds(&topic)[&0] == (0, 5)).then_some(())
    });
}

#[test]
fn an_open_transaction_holds_the_stable_end() {
    let topic = unique("open");
    kafka().create_topic(&topic, 1);
    let writer = Writer::transactional(kafka(), &unique("id"));
    writer.begin();
    writer.send(&topic, &Message::new("a", "1"));
    writer.flush();
    assert_eq!(kafka().stable_bounds(&topic)[&0], (0, 0));
    assert_eq!(kafka().log_bounds(&topic)[&0], (0, 1));
    writer.end(Outcome::Commit);
    assert_eq!(kafka().drain(&topic).len(), 1);
}

#[test]
fn group_offsets_are_written_read_and_watched_without_a_member() {
    let (topic, group) = (unique("offsets"), unique("group"));
    kafka().create_topic(&topic, 2);
    kafka().produce(&topic, &(0..10).map(|n| Message::new("k", n.to_string()).to(n % 2)).collect::<Vec<_>>());
    assert_eq!(kafka().group_offsets(&group, &topic), BTreeMap::new());
    let watch = OffsetWatch::start(kafka(), &group, &topic);
    for offset in [1, 2, 5] {
        kafka().set_group_offsets(&group, &topic, [(0, offset)]);
        wait::until("the watch sees the offset", DEADLINE, || {
            (watch.latest().get(&0) == Some(&offset)).then_some(())
        });
    }
    watch.assert_only_rises();
    assert_eq!(kafka().lag(&group, &topic), 5);
    let described = witness::describe_group(kafka(), &group);
    assert_eq!(described[&(topic.clone(), 0)].lag, 0);
    assert_eq!(described[&(topic.clone(), 0)].member, None);
    assert!(witness::group_members(kafka(), &group).is_empty());
    kafka().set_group_offsets(&group, &topic, [(0, 3)]);
    wait::until("the watch sees the rewind", DEADLINE, || (watch.latest().get(&0) == Some(&3)).then_some(()));
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| watch.assert_only_rises())).is_err());
}

#[test]
fn topics_grow_lose_records_and_go() {
    let topic = unique("admin");
    kafka().create_topic_with(&topic, 1, &[("cleanup.policy", "compact")]);
    kafka().delete_topic(&topic);
    let topic = unique("admin");
    kafka().create_topic(&topic, 1);
    kafka().produce(&topic, &(0..10).map(|n| Message::new("k", n.to_string()).to(0)).collect::<Vec<_>>());
    kafka().delete_records(&topic, 0, 4);
    wait::until("the log start moves", DEADLINE, || {
        (kafka().log_bounds(&topic)[&0] == (4, 10)).then_some(())
    });
    kafka().add_partitions(&topic, 3);
    assert_eq!(kafka().partitions(&topic), 3);
}

#[test]
fn a_client_behind_the_proxy_is_counted_held_and_cut() {
    let Some(proxy) = Broker::shared().proxy() else { return };
    let behind = Kafka::at(&proxy.address());
    let topic = unique("proxied");
    kafka().create_topic(&topic, 1);
    behind.produce(&topic, &[Message::new("k", "1")]);
    assert!(proxy.requests(api::PRODUCE) >= 1, "the client left the proxy");
    let writer = Writer::new(&behind);
    writer.send(&topic, &Message::new("k", "2"));
    writer.flush();
    proxy.hold();
    writer.send(&topic, &Message::new("k", "3"));
    wait::holds_for("nothing passes a held proxy", Duration::from_millis(300), || {
        kafka().drain(&topic).len() == 2
    });
    proxy.heal();
    writer.flush();
    proxy.cut();
    writer.send(&topic, &Message::new("k", "4"));
    wait::holds_for("nothing passes a cut proxy", Duration::from_millis(300), || {
        kafka().drain(&topic).len() == 3
    });
    proxy.heal();
    writer.flush();
    assert_eq!(kafka().drain(&topic).len(), 4);
    proxy.swallow(api::OFFSET_FETCH);
    let swallowed = std::thread::spawn(move || {
        // The answer never comes: the request runs into its limit of time.
        std::panic::catch_unwind(|| behind.group_offsets("nobody", &topic)).is_err()
    });
    wait::until("the proxy swallows the request", DEADLINE, || (proxy.swallowed() > 0).then_some(()));
    proxy.heal();
    drop(proxy);
    assert!(swallowed.join().is_ok());
}

#[test]
fn a_broker_of_ones_own_stops_dies_freezes_and_comes_back_with_its_records() {
    let broker = Broker::start(&[]);
    let topic = unique("bounced");
    broker.kafka().create_topic(&topic, 1);
    broker.kafka().produce(&topic, &[Message::new("k", "1")]);
    broker.stop();
    assert!(std::net::TcpStream::connect(broker.kafka().bootstrap()).is_err());
    broker.resume();
    broker.kill();
    broker.resume();
    assert_eq!(broker.kafka().drain(&topic).len(), 1);
    broker.freeze();
    let writer = Writer::new(broker.kafka());
    writer.send(&topic, &Message::new("k", "2"));
    let thaw = Instant::now();
    broker.thaw();
    writer.flush();
    assert!(thaw.elapsed() < DEADLINE);
    assert_eq!(broker.kafka().drain(&topic).len(), 2);
}

#[test]
fn a_child_outlives_the_thread_that_asked_for_it_and_its_figures_can_be_read() {
    let mut command = std::process::Command::new("sleep");
    command.arg("600");
    let asked = std::thread::spawn(move || process::spawn(command));
    let Ok(Ok(mut child)) = asked.join() else { panic!("sleep did not start") };
    wait::holds_for("the child lives", Duration::from_millis(200), || {
        child.try_wait().is_ok_and(|status| status.is_none())
    });
    assert!(process::resident_bytes(child.id()).is_some_and(|bytes| bytes > 0));
    assert!(process::cpu_time(child.id()).is_some());
    process::signal(&child, rustix::process::Signal::KILL);
    assert!(process::wait_exit(&mut child, DEADLINE).is_some());
}
