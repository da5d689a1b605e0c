//! Coming up, and everything that keeps a cluster from it.

use crate::support::{Member, PATIENCE, failure, free_addresses, join_all, wait_until};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};
use tidegate_cluster::{Assignment, Cause, ClusterError, Joined};
use tidegate_recovery::{ErrorClass, FlowFingerprint, Generation, RunId};

#[test]
fn three_processes_agree_on_the_generation_the_runs_and_the_settings() {
    let addresses = free_addresses(3);
    let members: Vec<Member> = (0..3)
        .map(|index| {
            Member::new(index, &addresses)
                .with(|member| member.identity.known_generation = Generation(u64::from(index) * 3))
        })
        .collect();
    let runs: Vec<RunId> = members.iter().map(|member| member.identity.run_id).collect();
    let joining: Vec<_> = members
        .into_iter()
        .map(|member| {
            let runs = runs.clone();
            std::thread::spawn(move || {
                let mut joined = member
                    .bind()
                    .unwrap()
                    .join(|present| {
                        assert_eq!(member.index, 0, "only process 0 assigns");
                        assert_eq!(present.run_ids, runs);
                        Ok(Assignment {
                            generation: present.next_generation(),
                            settings: b"epoch 41".to_vec(),
                        })
                    })
                    .unwrap();
                assert_eq!(joined.generation(), Generation(7));
                assert_eq!(joined.run_ids(), runs);
                assert_eq!(joined.settings(), b"epoch 41");
                for round in 0..20_u8 {
                    let answer = joined
                        .exchange(vec![round, member.index as u8], |all| {
                            assert_eq!(all, [[round, 0], [round, 1], [round, 2]]);
                            Ok(vec![round; 1000])
                        })
                        .unwrap();
                    assert_eq!(answer, vec![round; 1000]);
                }
                let base = joined.start_clock().unwrap();
                assert!(base.elapsed() < Duration::from_secs(5));
                joined.liveness().check().unwrap();
                joined.barrier().unwrap();
            })
        })
        .collect();
    for thread in joining {
        thread.join().unwrap();
    }
}

#[test]
fn a_process_alone_needs_neither_address_nor_peer() {
    let mut joined = Member::new(0, &[]).with(|member| member.workers = 3).join().unwrap();
    assert_eq!(joined.generation(), Generation(1));
    assert_eq!(joined.exchange(vec![1], |all| Ok(all.concat())).unwrap(), [1]);
}

#[test]
fn processes_meet_over_ipv6_and_by_name() {
    let port = |address: &String| address.rsplit_once(':').unwrap().1.to_string();
    let free = free_addresses(2);
    let addresses = if TcpListener::bind(("::1", 0)).is_ok() {
        vec![format!("localhost:{}", port(&free[0])), format!("[::1]:{}", port(&free[1]))]
    } else {
        vec![format!("localhost:{}", port(&free[0])), free[1].clone()]
    };
    let members = [Member::new(0, &addresses), Member::new(1, &addresses)];
    for joined in join_all(&members) {
        joined.unwrap();
    }
}

#[test]
fn a_failure_of_the_assignment_is_the_first_cause_everywhere() {
    let addresses = free_addresses(2);
    let other = Member::new(1, &addresses).joining();
    let error = Member::new(0, &addresses)
        .bind()
        .unwrap()
        .join(|_| Err(Cause::new(ErrorClass::Data, "STORE_DAMAGED", "commit record 7 is torn")))
        .unwrap_err();
    assert_eq!((error.code(), error.exit_code()), ("STORE_DAMAGED", 65));
    let error = failure(other.join().unwrap());
    assert_eq!((error.code(), error.exit_code()), ("STORE_DAMAGED", 65));
    assert!(error.to_string().contains("process 0"), "{error}");
    assert!(error.to_string().contains("commit record 7 is torn"), "{error}");
}

#[test] // C5, C6
fn whoever_disagrees_ends_both_sides_with_both_values() {
    type Change = fn(&mut Member);
    let cases: [(Change, [&str; 2]); 4] = [
        (|member| member.workers = 2, ["is 1 here and 2 there", "is 2 here and 1 there"]),
        (
            |member| member.identity.cluster_id = "returns".into(),
            ["is orders here and returns there", "is returns here and orders there"],
        ),
        (
            |member| member.identity.fingerprint = FlowFingerprint(8),
            ["0007 here and 0000000000000008 there", "0008 here and 0000000000000007 there"],
        ),
        (
            |member| member.identity.build = "build-2".into(),
            ["is build-1 here and build-2 there", "is build-2 here and build-1 there"],
        ),
    ];
    for (change, expected) in cases {
        let addresses = free_addresses(2);
        let members = [Member::new(0, &addresses), Member::new(1, &addresses).with(change)];
        let start = Instant::now();
        for (joined, expected) in join_all(&members).into_iter().zip(expected) {
            let error = failure(joined);
            assert_eq!((error.code(), error.exit_code()), ("PEER_MISMATCH", 78), "{error}");
            assert!(error.to_string().contains(expected), "{error}");
        }
        assert!(start.elapsed() < Duration::from_secs(10), "it took {:?}", start.elapsed());
    }
}

#[test] // C5
fn a_list_in_another_order_is_found_at_the_first_place_where_it_matters() {
    let addresses = free_addresses(3);
    let zero = Member::new(0, &addresses).joining();
    let mesh = Member::new(1, &addresses).bind().unwrap();
    let watch = mesh.watch();
    let one = std::thread::spawn(move || mesh.join(|_| unreachable!("process 1 does not assign")));
    wait_until("process 1 is connected with process 0", || watch.peers()[0].silent_for.is_some());
    let swapped = [addresses[1].clone(), addresses[0].clone(), addresses[2].clone()];
    let start = Instant::now();
    let two = Member::new(2, &swapped).joining();
    for joining in [two, one, zero] {
        let error = failure(joining.join().unwrap());
        assert_eq!((error.code(), error.exit_code()), ("PEER_MISMATCH", 78), "{error}");
        assert!(error.to_string().contains("the process index of this place is"), "{error}");
    }
    assert!(start.elapsed() < Duration::from_secs(10), "it took {:?}", start.elapsed());
}

#[test]
fn lists_may_name_the_same_places_differently() {
    let addresses = free_addresses(2);
    let by_name: Vec<String> =
        addresses.iter().map(|address| address.replace("127.0.0.1", "localhost")).collect();
    let members = [Member::new(0, &addresses), Member::new(1, &by_name)];
    for joined in join_all(&members) {
        joined.unwrap();
    }
}

#[test] // C7
fn a_taken_port_is_reported_at_once_with_the_address() {
    let addresses = free_addresses(2);
    let _holder = TcpListener::bind(&addresses[1]).unwrap();
    let start = Instant::now();
    let error = failure(Member::new(1, &addresses).join());
    assert_eq!(error.exit_code(), 78);
    let text = error.to_string();
    assert!(text.contains(&addresses[1]) && text.contains("another program listens there"), "{text}");
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test] // C5
fn a_second_process_with_the_same_index_on_the_same_host_is_told_both_runs() {
    let addresses = free_addresses(2);
    let first = Member::new(0, &addresses);
    let waiting = first.joining();
    wait_until("process 0 listens", || TcpStream::connect(&addresses[0]).is_ok());
    let second = Member::new(0, &addresses);
    let error = failure(second.join());
    let text = error.to_string();
    assert_eq!(error.exit_code(), 78);
    for run in [first.identity.run_id, second.identity.run_id] {
        assert!(text.contains(&run.to_string()), "{text}");
    }
    // The first one is not disturbed.
    Member::new(1, &addresses).join().unwrap();
    waiting.join().unwrap().unwrap();
}

#[test] // C5
fn a_second_process_with_the_same_index_elsewhere_is_refused_while_the_first_lives() {
    let addresses = free_addresses(2);
    let members = [Member::new(0, &addresses), Member::new(1, &addresses)];
    let mut joined: Vec<Joined> = join_all(&members).into_iter().map(Result::unwrap).collect();
    let mut elsewhere = addresses.clone();
    elsewhere[1] = free_addresses(1).remove(0);
    let second = Member::new(1, &elsewhere);
    let start = Instant::now();
    let error = failure(second.join());
    assert!(start.elapsed() < Duration::from_secs(10), "it took {:?}", start.elapsed());
    assert_eq!((error.code(), error.exit_code()), ("CLUSTER_ALREADY_RUNNING", 75), "{error}");
    for run in [members[1].identity.run_id, second.identity.run_id] {
        assert!(error.to_string().contains(&run.to_string()), "{error}");
    }
    // The cluster goes on.
    let mut one = joined.pop().unwrap();
    let other = std::thread::spawn(move || one.barrier());
    joined[0].barrier().unwrap();
    other.join().unwrap().unwrap();
}

#[test] // C3
fn a_caller_of_an_older_generation_is_sent_away() {
    let addresses = free_addresses(2);
    let members = [
        Member::new(0, &addresses).with(|member| member.identity.known_generation = Generation(8)),
        Member::new(1, &addresses),
    ];
    let _joined: Vec<Joined> = join_all(&members).into_iter().map(Result::unwrap).collect();
    let mut elsewhere = addresses.clone();
    elsewhere[1] = free_addresses(1).remove(0);
    let old = Member::new(1, &elsewhere).with(|member| member.identity.known_generation = Generation(8));
    let error = failure(old.join());
    assert_eq!((error.code(), error.exit_code()), ("LEASE_LOST", 75), "{error}");
    assert!(error.to_string().contains("generation 9 runs, this process knows 8"), "{error}");
}

#[test]
fn a_missing_process_is_named_after_the_startup_timeout() {
    let addresses = free_addresses(3);
    let short = |member: &mut Member| member.timeouts.startup = Duration::from_millis(1500);
    let results = join_all(&[Member::new(0, &addresses).with(short), Member::new(2, &addresses).with(short)]);
    for result in results {
        let error = failure(result);
        assert_eq!(error.exit_code(), 75, "{error}");
        let text = error.to_string();
        assert!(text.contains(&format!("process 1 ({}) is missing", addresses[1])), "{text}");
    }
}

#[test] // C7
fn a_name_that_does_not_resolve_is_named() {
    let mut addresses = free_addresses(2);
    addresses[0] = "no-such-host.invalid:2101".into();
    let member =
        Member::new(1, &addresses).with(|member| member.timeouts.startup = Duration::from_millis(300));
    let error = failure(member.join());
    assert!(error.to_string().contains("process 0 (no-such-host.invalid:2101) is missing"), "{error}");
    assert!(error.to_string().contains("cannot be reached"), "{error}");
}

#[test]
fn a_secret_lets_in_who_knows_it_and_the_others_disturb_nobody() {
    let addresses = free_addresses(2);
    let first = Member::new(0, &addresses).secret("hush").joining();
    let mut elsewhere = addresses.clone();
    elsewhere[1] = free_addresses(1).remove(0);
    for impostor in [Member::new(1, &elsewhere), Member::new(1, &elsewhere).secret("guess")] {
        let error = failure(impostor.join());
        assert_eq!((error.code(), error.exit_code()), ("PEER_MISMATCH", 78));
        assert!(error.to_string().contains("the shared secret"), "{error}");
    }
    Member::new(1, &addresses).secret("hush").join().unwrap();
    first.join().unwrap().unwrap();
}

/// Opens connections of every bad kind; the returned ones stay open and silent.
fn strangers(address: &str) -> Vec<TcpStream> {
    let mut silent = Vec::new();
    for bytes in [
        &b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"[..],
        &[0xff; 5000],
        b"tidegate\0\x01\xff\xff",
        b"tidegate\0\x01\0\x10garbage-garbage!",
        b"tide",
        b"",
    ] {
        let mut stream = TcpStream::connect(address).unwrap();
        // It may have been cut off by the first bytes.
        let _ = stream.write_all(bytes);
        silent.push(stream);
    }
    // A port probe.
    drop(TcpStream::connect(address).unwrap());
    silent
}

#[test] // C8
fn strangers_are_dropped_and_do_not_disturb_the_join() {
    let addresses = free_addresses(2);
    let waiting =
        Member::new(0, &addresses).with(|member| member.timeouts.stranger = Duration::from_secs(1)).joining();
    wait_until("process 0 listens", || TcpStream::connect(&addresses[0]).is_ok());
    let mut silent = strangers(&addresses[0]);
    // More silent connections than the door has places.
    silent.extend((0..100).map(|_| TcpStream::connect(&addresses[0]).unwrap()));
    let start = Instant::now();
    Member::new(1, &addresses).join().unwrap();
    assert!(start.elapsed() < Duration::from_secs(5), "it took {:?}", start.elapsed());
    waiting.join().unwrap().unwrap();
    for stream in &mut silent {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        match stream.read(&mut [0; 64]) {
            Ok(0) => {}
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
            other => panic!("a stranger was not cut off: {other:?}"),
        }
    }
}

#[test] // C8
fn strangers_do_not_disturb_a_cluster_that_runs() {
    let addresses = free_addresses(2);
    let members = [Member::new(0, &addresses), Member::new(1, &addresses)];
    let mut joined: Vec<Joined> = join_all(&members).into_iter().map(Result::unwrap).collect();
    let _silent = strangers(&addresses[0]);
    // Another flow that was led here by mistake ends itself, not the cluster.
    let mut lost = addresses.clone();
    lost[1] = free_addresses(1).remove(0);
    let error =
        failure(Member::new(1, &lost).with(|member| member.identity.cluster_id = "lost".into()).join());
    assert_eq!(error.exit_code(), 78, "{error}");
    let mut one = joined.pop().unwrap();
    let other = std::thread::spawn(move || one.barrier());
    joined[0].barrier().unwrap();
    other.join().unwrap().unwrap();
}

#[test] // C3
fn a_process_that_is_started_anew_while_the_cluster_gathers_takes_its_own_place() {
    let addresses = free_addresses(3);
    let zero = Member::new(0, &addresses).joining();
    let first = Member::new(1, &addresses);
    let mesh = first.bind().unwrap();
    let watch = mesh.watch();
    let joining = std::thread::spawn(move || mesh.join(|_| unreachable!("process 1 does not assign")));
    wait_until("process 1 is connected with process 0", || watch.peers()[0].silent_for.is_some());
    first.supervisor.stop_request().request();
    let error = failure(joining.join().unwrap());
    assert!(matches!(error, ClusterError::Stopped), "{error}");
    assert_eq!(error.exit_code(), 0);
    drop(watch);

    let again = Member::new(1, &addresses);
    let run = again.identity.run_id;
    let joining = again.joining();
    let two = Member::new(2, &addresses).join().unwrap();
    assert_eq!(two.run_ids()[1], run);
    assert_eq!(joining.join().unwrap().unwrap().run_ids(), two.run_ids());
    assert_eq!(zero.join().unwrap().unwrap().run_ids(), two.run_ids());
}

#[test]
fn a_process_that_leaves_in_the_middle_of_the_start_sequence_ends_it_for_all() {
    let addresses = free_addresses(2);
    let members = [Member::new(0, &addresses), Member::new(1, &addresses)];
    let mut joined: Vec<Joined> = join_all(&members).into_iter().map(Result::unwrap).collect();
    drop(joined.pop());
    let error = joined[0].barrier().unwrap_err();
    assert_eq!((error.code(), error.exit_code()), ("PEER_LOST", 75), "{error}");
    assert!(error.to_string().contains("process 1"), "{error}");
}

#[test] // C13
fn a_long_restore_of_one_process_is_no_timeout() {
    let addresses = free_addresses(2);
    let quick = |member: &mut Member| {
        member.timeouts.peer = Duration::from_secs(1);
        member.timeouts.startup = Duration::from_secs(2);
    };
    let slow = Member::new(1, &addresses).with(quick);
    let slow = std::thread::spawn(move || {
        let mut joined = slow.join().unwrap();
        // Longer than both timeouts: the thread is busy, the heartbeat is not.
        let until = Instant::now() + Duration::from_secs(3);
        while Instant::now() < until {
            std::thread::park_timeout(Duration::from_millis(50));
        }
        joined.barrier()
    });
    let mut joined = Member::new(0, &addresses).with(quick).join().unwrap();
    joined.barrier().unwrap();
    slow.join().unwrap().unwrap();
}
