//! How a cluster comes together, and who is kept out: issue 3, behaviour 8.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use tidegate_harness::{Cluster, checker, ports, wait};

use crate::case::{Case, DEADLINE, numbered, text_of};

/// A cluster that disagrees ends far sooner than the 60 s that it would wait for a peer.
const SOON: Duration = Duration::from_secs(20);

fn addresses(count: usize) -> Vec<String> {
    (0..count).map(|_| ports::free_address()).collect()
}

/// Waits until process 0 of three waits for `missing` and no longer for `there`.
fn wait_only_missing(cluster: &mut Cluster, missing: u32, there: u32) {
    let (missing, there) = (format!("process {missing}"), format!("process {there}"));
    cluster.wait_for(&format!("{there} is there"), DEADLINE, |cluster| {
        let status = cluster.get(0, "/status");
        status.is_some_and(|(_, status)| status.contains(&missing) && !status.contains(&there))
    });
}

// C8
#[test]
fn strangers_on_the_mesh_port_are_dropped_and_the_cluster_forms_all_the_same() {
    let case = Case::new("strangers", 2);
    let mesh = addresses(2);
    let launch = case.launch(&case.copy()).shape(2, 1).addresses(&mesh);
    let mut first = launch.start_only(0);
    let connect = || wait::until("the mesh port is open", DEADLINE, || TcpStream::connect(&mesh[0]).ok());
    drop(connect());
    let silent = connect();
    let mut browser = connect();
    assert!(browser.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").is_ok());
    let mut garbage = connect();
    assert!(garbage.write_all(&[0xff; 4096]).is_ok());
    for mut stranger in [browser, garbage] {
        assert!(stranger.set_read_timeout(Some(DEADLINE)).is_ok());
        // Closed in an orderly way or reset: both are the end of it.
        let mut answer = Vec::new();
        let _reset = stranger.read_to_end(&mut answer);
    }
    let mut second = launch.start_only(1);
    first.wait_ready(DEADLINE);
    second.wait_ready(DEADLINE);
    // A stranger that comes when all is running disturbs nothing either.
    drop(TcpStream::connect(&mesh[1]));
    case.kafka.produce(&case.input, &numbered(0..50, 2));
    case.wait_caught_up();
    checker::assert_exactly(&case.kafka.drain(&case.output), 0..50);
    assert_eq!((first.exited(0), second.exited(0)), (None, None));
    drop(silent);
}

// C7
#[test]
fn a_taken_mesh_port_is_reported_at_once_with_its_address() {
    let case = Case::new("taken", 1);
    let mesh = addresses(2);
    let holder = TcpListener::bind(&mesh[0]);
    assert!(holder.is_ok());
    let started = Instant::now();
    let mut cluster = case.launch(&case.copy()).shape(2, 1).addresses(&mesh).start_only(0);
    cluster.expect_exit(78, SOON);
    assert!(started.elapsed() < SOON);
    cluster.assert_one_line_with(0, &mesh[0]);
}

// C5
#[test]
fn a_wrong_order_of_addresses_ends_the_processes_with_both_indexes_printed() {
    let case = Case::new("order", 1);
    let mesh = addresses(3);
    // Where the second looks for process 0, it finds process 2.
    let turned = [mesh[2].clone(), mesh[1].clone(), mesh[0].clone()];
    let launch = case.launch(&case.copy()).shape(3, 1);
    let mut first = launch.clone().addresses(&mesh).start_only(0);
    let mut third = launch.clone().addresses(&mesh).start_only(2);
    wait_only_missing(&mut first, 1, 2);
    let mut second = launch.addresses(&turned).start_only(1);
    second.expect_exit(78, SOON);
    let stderr = second.stderr(0);
    let line = stderr.lines().find(|line| line.contains("PEER_MISMATCH"));
    assert!(
        line.is_some_and(|line| line.contains("index") && line.contains('0') && line.contains('2')),
        "{stderr}"
    );
    // Whoever disagrees says so to those it has met: none of the three waits for a cluster that cannot be.
    third.expect_exit(78, SOON);
    first.expect_exit(78, SOON);
}

// C5 C3
#[test]
fn a_second_process_with_the_same_index_is_turned_away_while_the_cluster_forms() {
    let case = Case::new("same-index", 1);
    let mesh = addresses(3);
    let elsewhere = [mesh[0].clone(), ports::free_address(), mesh[2].clone()];
    let launch = case.launch(&case.copy()).shape(3, 1);
    let mut first = launch.clone().addresses(&mesh).start_only(0);
    let mut second = launch.clone().addresses(&mesh).start_only(1);
    wait_only_missing(&mut first, 2, 1);
    let mut double = launch.clone().addresses(&elsewhere).start_only(1);
    double.expect_exit(75, SOON);
    assert!(double.all_stderr().contains("process index 1 is taken"), "the reason is not named");
    let mut third = launch.addresses(&mesh).start_only(2);
    first.wait_ready(DEADLINE);
    case.kafka.produce(&case.input, &numbered(0..10, 1));
    case.wait_caught_up();
    assert_eq!((first.exited(0), second.exited(0), third.exited(0)), (None, None, None));
}

// C5
#[test]
fn another_number_of_workers_is_refused_on_both_sides_with_both_values() {
    let case = Case::new("workers-differ", 1);
    let mesh = addresses(2);
    let mut first = case.launch(&case.copy()).shape(2, 2).addresses(&mesh).start_only(0);
    let mut second = case.launch(&case.copy()).shape(2, 3).addresses(&mesh).start_only(1);
    for cluster in [&mut first, &mut second] {
        cluster.expect_exit(78, SOON);
        let stderr = cluster.stderr(0);
        let line = stderr.lines().find(|line| line.contains("PEER_MISMATCH"));
        assert!(line.is_some_and(|line| line.contains('2') && line.contains('3')), "{stderr}");
    }
}

// C6
#[test]
fn another_flow_is_refused_on_both_sides() {
    let case = Case::new("flows-differ", 1);
    let mesh = addresses(2);
    let other = case.flow("- filter: 'true'\n- sink: { kafka: { topic: OUT } }");
    let mut first = case.launch(&case.copy()).shape(2, 1).addresses(&mesh).start_only(0);
    let mut second = case.launch(&other).shape(2, 1).addresses(&mesh).start_only(1);
    for cluster in [&mut first, &mut second] {
        cluster.expect_exit(78, SOON);
        assert!(cluster.stderr(0).contains("PEER_MISMATCH"));
    }
}

// C6
#[test]
fn the_same_steps_with_another_expression_or_setting_are_refused_on_both_sides_with_both_values() {
    let case = Case::new("expressions-differ", 1);
    let steps = |filter: &str| {
        format!("- decode: {{ json: {{}} }}\n- filter: {filter}\n- sink: {{ kafka: {{ topic: OUT }} }}")
    };
    let (one, other) = (case.flow(&steps("value.id > 1")), case.flow(&steps("value.id > 2")));
    let often = one.clone().top("epoch_interval: 50ms");
    for (other, field) in [(&other, "definition of the flow's steps"), (&often, "epoch_interval")] {
        let mesh = addresses(2);
        let mut first = case.launch(&one).shape(2, 1).addresses(&mesh).start_only(0);
        let mut second = case.launch(other).shape(2, 1).addresses(&mesh).start_only(1);
        first.expect_exit(78, SOON);
        second.expect_exit(78, SOON);
        // "… FIELD is A here and B there": what one side calls here is there for the other.
        let values = |stderr: String| {
            let line = stderr.lines().find(|line| line.contains("PEER_MISMATCH") && line.contains(field));
            let line = line.unwrap_or_else(|| panic!("no mismatch of {field} is named: {stderr}"));
            let rest = &line[line.find(field).unwrap_or(0)..];
            let (here, rest) = rest
                .split_once(" is ")
                .and_then(|(_, rest)| rest.split_once(" here and "))
                .unwrap_or_default();
            let there = rest.split_once(" there").unwrap_or_default().0;
            (here.to_owned(), there.to_owned())
        };
        let (at_first, at_second) = (values(first.stderr(0)), values(second.stderr(0)));
        assert_eq!(at_first, (at_second.1, at_second.0));
        assert!(at_first.0 != at_first.1 && !at_first.0.is_empty() && !at_first.1.is_empty(), "{at_first:?}");
    }
}

// C6 STORE_NOT_SHARED
#[test]
fn a_process_without_the_store_that_the_others_have_is_refused() {
    let case = Case::new("one-store", 1);
    let mesh = addresses(2);
    let launch = case.launch(&case.copy()).shape(2, 1).addresses(&mesh);
    let mut first = launch.clone().recovery(&case.store()).start_only(0);
    let mut second = launch.start_only(1);
    for cluster in [&mut first, &mut second] {
        cluster.expect_exit(78, SOON);
        let stderr = cluster.stderr(0);
        let line = stderr.lines().find(|line| line.contains("PEER_MISMATCH"));
        assert!(line.is_some_and(|line| line.contains("recovery.directory")), "{stderr}");
    }
}

// C5
#[test]
fn an_index_out_of_range_and_an_address_named_twice_are_refused_before_anything_is_bound() {
    let case = Case::new("out-of-range-index", 1);
    let file = case.launch(&case.copy()).flow_file().display().to_string();
    let address = ports::free_address();
    let other = ports::free_address();
    for (index, list, part) in
        [("2", format!("{address};{other}"), "2"), ("0", format!("{address};{address}"), address.as_str())]
    {
        let output = crate::case::tidegate(&["run", &file, "-i", index, "-a", &list]);
        let text = text_of(&output);
        assert!([Some(64), Some(78)].contains(&output.status.code()), "{:?}: {text}", output.status);
        assert!(text.contains(part), "{text}");
    }
}

// C7
#[test]
fn a_peer_whose_name_does_not_resolve_is_named_at_the_deadline() {
    let case = Case::new("unresolvable", 1);
    let mesh = [ports::free_address(), "no-such-host.invalid:2101".to_owned()];
    let flow = case.copy().cluster("startup_timeout: 3s");
    let mut cluster = case.launch(&flow).shape(2, 1).addresses(&mesh).start_only(0);
    let code = cluster.wait_exit(0, SOON);
    assert!([75, 78].contains(&code), "exit code {code}");
    assert!(cluster.stderr(0).contains("no-such-host.invalid"));
}

// L46 I7
#[test]
fn the_same_cluster_started_twice_on_one_store_is_refused_with_both_sides_named() {
    let case = Case::new("twice", 1);
    let launch = case.launch(&case.copy()).recovery(&case.store());
    let mut first = launch.start();
    first.wait_ready(DEADLINE);
    let mut second = launch.run_to_exit(75, DEADLINE);
    second.assert_one_line_with(0, "CLUSTER_ALREADY_RUNNING");
    assert_eq!(second.exited(0), Some(75));
    case.kafka.produce(&case.input, &numbered(0..10, 1));
    case.wait_caught_up();
    checker::assert_exactly(&case.kafka.drain(&case.output), 0..10);
    assert_eq!(first.exited(0), None, "the first was disturbed");
}

// STORE_NOT_SHARED
#[test]
fn processes_that_see_different_stores_are_refused() {
    let case = Case::new("not-shared", 1);
    let mesh = addresses(2);
    let launch = case.launch(&case.copy()).shape(2, 1).addresses(&mesh);
    let mut first = launch.clone().recovery(&case.scratch.join("one")).start_only(0);
    let mut second = launch.recovery(&case.scratch.join("two")).start_only(1);
    let codes = [first.wait_exit(0, SOON), second.wait_exit(0, SOON)];
    assert!(codes.contains(&78), "{codes:?}");
    assert!(format!("{}{}", first.all_stderr(), second.all_stderr()).contains("STORE_NOT_SHARED"));
}

// C1 C2 I10
#[test]
fn a_killed_and_a_frozen_peer_are_noticed_within_peer_timeout_and_the_others_exit_75() {
    for freeze in [false, true] {
        let case = Case::new("peer-lost", 2);
        let mut cluster = case.launch(&case.copy().cluster("peer_timeout: 1s")).shape(3, 1).start();
        cluster.wait_ready(DEADLINE);
        if freeze {
            cluster.freeze(1)
        } else {
            cluster.kill(1)
        }
        for n in [0, 2] {
            assert_eq!(cluster.wait_exit(n, Duration::from_secs(10)), 75);
            assert!(cluster.stderr(n).contains("PEER_LOST"), "process {n} does not name the cause");
        }
        if freeze {
            cluster.thaw(1);
            assert_eq!(cluster.wait_exit(1, Duration::from_secs(10)), 75, "the thawed one goes too");
        }
    }
}
