//! How offsets are committed: coalesced, retried, at the end, when idle, and never at the price of the data.

use tidegate_harness::proxy::api;
use tidegate_harness::{Broker, Launch, Member, OffsetWatch, checker, wait};

use crate::case::{Case, DEADLINE, numbered};
use crate::status;

// L37
#[test]
fn a_hundred_thousand_records_cost_a_handful_of_commits() {
    let Some(proxy) = Broker::shared().proxy() else { return };
    let case = Case::new("coalesced", 4);
    case.kafka.produce(&case.input, &numbered(0..100_000, 4));
    let started = std::time::Instant::now();
    let mut cluster = case.launch(&case.copy().consumer_at(&proxy.address())).start();
    case.wait_caught_up();
    // One commit per client and commit interval (200 ms) at most, and a few for the start.
    let cycles = started.elapsed().as_millis() / 200 + 5;
    let commits = u128::from(proxy.requests(api::OFFSET_COMMIT));
    assert!(commits >= 1 && commits <= cycles, "{commits} commits in {cycles} cycles");
    cluster.terminate_all();
    cluster.expect_exit(0, DEADLINE);
    checker::assert_exactly(&case.kafka.drain(&case.output), 0..100_000);
}

// L38 C9 P5 P7 P8 P11
#[test]
fn sigterm_under_load_commits_all_that_was_done_so_that_a_restart_repeats_nothing() {
    for store in [false, true] {
        let case = Case::new("term", 2);
        let mut launch: Launch = case.launch(&case.copy()).shape(1, 2);
        if store {
            launch = launch.recovery(&case.store());
        }
        case.kafka.produce(&case.input, &numbered(0..60_000, 2));
        let mut cluster = launch.start();
        wait::until("output begins", DEADLINE, || (case.outputs() > 0).then_some(()));
        cluster.terminate_all();
        cluster.expect_exit(0, DEADLINE);
        let done = i64::try_from(case.outputs()).unwrap_or(0);
        assert_eq!(
            case.kafka.lag(&case.group, &case.input),
            60_000 - done,
            "the group is not where the output is"
        );
        launch.clone().until_end().run_to_exit(0, DEADLINE);
        checker::assert_exactly(&case.kafka.drain(&case.output), 0..60_000);
    }
}

// L39 L61
#[test]
fn an_idle_partition_commits_its_offset_again_when_the_keep_alive_is_due() {
    let Some(proxy) = Broker::shared().proxy() else { return };
    let case = Case::new("keepalive", 1);
    case.kafka.produce(&case.input, &numbered(0..5, 1));
    let flow = case.copy().consumer_at(&proxy.address()).consumer("commit_keepalive_ms: 1000");
    let mut cluster = case.launch(&flow).start();
    case.wait_caught_up();
    let before = proxy.requests(api::OFFSET_COMMIT);
    cluster.wait_for("two further commits", DEADLINE, |_| proxy.requests(api::OFFSET_COMMIT) >= before + 2);
    assert!(
        proxy.requests(api::OFFSET_COMMIT) <= before + 4,
        "far more commits than the keep-alive asks for"
    );
}

// L40
#[test]
fn brokers_that_forget_offsets_before_the_keep_alive_are_warned_about() {
    let broker = Broker::start(&[("offsets.retention.minutes", "1")]);
    let case = Case::on(broker.kafka(), "retention", 1);
    for (keepalive_ms, warned) in [(60_000, true), (59_999, false)] {
        let flow = case.copy().consumer(&format!("commit_keepalive_ms: {keepalive_ms}"));
        // The end of a process waits for the answer, so that a line that is not there by then never comes.
        let cluster = case.launch(&flow).until_end().run_to_exit(0, DEADLINE);
        let stderr = cluster.stderr(0);
        let line = stderr.lines().find(|line| line.contains("commit_keepalive_ms"));
        assert_eq!(line.is_some(), warned, "keep-alive of {keepalive_ms} ms: {stderr}");
        assert!(line.is_none_or(|line| line.contains("60000") && line.contains("WARN")), "{stderr}");
    }
}

// L30 L31
#[test]
fn a_refused_commit_is_logged_with_its_offset_counted_and_retried_without_new_input() {
    let case = Case::new("refused", 1);
    case.kafka.produce(&case.input, &numbered(0..5, 1));
    let mut cluster = case.launch(&case.copy()).start();
    case.wait_caught_up();
    // With a live member in the group the broker refuses the commits of everybody else.
    let member = Member::join(&case.kafka, &case.group, &case.input);
    case.kafka.produce(&case.input, &numbered(5..9, 1));
    cluster.wait_logged(0, &case.input, DEADLINE);
    cluster.wait_for("the failure is counted", DEADLINE, |cluster| {
        status::metric(cluster, 0, "tidegate_commit_failures_total").is_some_and(|count| count >= 1.0)
    });
    let stderr = cluster.stderr(0);
    let named = stderr
        .lines()
        .any(|line| line.contains(&case.input) && line.contains('9') && line.contains("commit"));
    assert!(named, "no line names topic, partition and offset of the refused commit: {stderr}");
    drop(member);
    wait::until("the commit arrives without new input", DEADLINE, || {
        (case.kafka.group_offsets(&case.group, &case.input).get(&0) == Some(&9)).then_some(())
    });
    checker::assert_exactly(&case.kafka.drain(&case.output), 0..9);
}

// K5 I8
#[test]
fn a_coordinator_that_takes_no_commits_holds_no_records_up_and_gets_them_when_it_is_back() {
    let Some(proxy) = Broker::shared().proxy() else { return };
    let case = Case::new("no-commits", 1);
    let launch = case.launch(&case.copy().consumer_at(&proxy.address())).recovery(&case.store());
    let mut cluster = launch.start();
    cluster.wait_ready(DEADLINE);
    proxy.swallow(api::OFFSET_COMMIT);
    for part in 0..5_u64 {
        case.kafka.produce(&case.input, &numbered(part * 10..part * 10 + 10, 1));
        cluster.wait_for("the part comes out", DEADLINE, |_| case.outputs() as u64 == part * 10 + 10);
    }
    proxy.heal();
    // A swallowed request is given up by the client after its own limit; cutting it off is quicker.
    proxy.reset();
    case.wait_caught_up();
    cluster.kill_all();
}

// L55 P46 I4: the positions that an outsider sees only rise, over kills, restarts and shapes.
#[test]
fn the_group_only_rises_while_a_cluster_is_killed_and_reshaped() {
    let case = Case::new("rises", 4);
    let watch = OffsetWatch::start(&case.kafka, &case.group, &case.input);
    let launch = case.launch(&case.copy()).recovery(&case.store());
    for (round, shape) in [(1, 1), (2, 2), (1, 3), (3, 1)].into_iter().enumerate() {
        let first = round as u64 * 2_000;
        let mut cluster = launch.clone().shape(shape.0, shape.1).start();
        // Before the records are there: the cluster may be done with them before this goes on.
        let before = watch.latest();
        case.kafka.produce(&case.input, &numbered(first..first + 2_000, 4));
        wait::until("the group moves", DEADLINE, || (watch.latest() != before).then_some(()));
        cluster.kill_all();
    }
    launch.until_end().run_to_exit(0, DEADLINE);
    checker::assert_no_loss(&case.kafka.drain(&case.output), 0..8_000);
    case.wait_caught_up();
    watch.assert_only_rises();
}
