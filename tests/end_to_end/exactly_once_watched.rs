//! What a reader beside a cluster sees of exactly-once output while the cluster is killed again and again.

use std::time::Duration;

use rand::SeedableRng as _;
use rand::rngs::SmallRng;
use tidegate_harness::{Broker, OutputWatch, checker};

use crate::case::{Case, DEADLINE, long, numbered, seed};
use crate::feed::Feed;
use crate::restore::kill_running;

const PARTITIONS: i32 = 4;

/// Half of the kills with one worker for each process, half with two.
fn kills() -> usize {
    if long() { 50 } else { 4 }
}

// E12 E33 F4 I1 I2 I3 I4 I5: behaviour 11 of exactly once.
#[test]
fn a_reader_finds_everything_below_the_groups_offsets_and_no_gap_while_the_cluster_is_killed_at_random() {
    let seed = seed("watched");
    let mut random = SmallRng::seed_from_u64(seed);
    let Some(proxy) = Broker::shared().proxy() else { return };
    let case = Case::without_topics(Broker::shared().kafka(), "watched");
    case.kafka.create_topic(&case.input, PARTITIONS);
    case.kafka.create_topic(&case.output, 1);
    case.make_control_topic();
    // A transaction takes longer than the next commit epoch: something is always under way, and something waits.
    proxy.delay(Duration::from_millis(20));
    let flow = case.copy().exactly_once().producer_at(&proxy.address());
    let launch = case.launch(&flow).recovery(&case.store());
    let watch = OutputWatch::start(&case.kafka, &case.group, &case.input, &case.output);
    // More than the kills take.
    let parts = kills() * 1_000;
    let records = numbered(0..parts as u64 * 40, PARTITIONS);
    let feed = Feed::start(&case.kafka, &case.input, records, parts, Duration::from_millis(50));
    for kill in 0..kills() {
        let mut cluster = launch.clone().shape(2, 1 + kill % 2).start();
        // A start is killed too, but not only starts.
        if kill % 4 > 0 {
            let before = watch.moves();
            cluster.wait_for("the group's offsets move", DEADLINE, |_| watch.moves() > before);
        }
        kill_running(cluster, &mut random);
    }
    let records = feed.stop() as u64;
    launch.shape(2, 1).until_end().run_to_exit(0, DEADLINE);
    case.wait_caught_up();
    let looks = watch.finish();
    eprintln!("watched: {} kills, {looks:?}", kills());
    checker::assert_exactly(&case.kafka.drain(&case.output), 0..records);
}
