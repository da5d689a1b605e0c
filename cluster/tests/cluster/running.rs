//! Workers at work: data between processes, and every way in which a generation ends.

use crate::support::{Member, Proxy, failure, free_addresses, join_all, wait_until};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use tidegate_cluster::{Cause, Joined, Outcome, WorkerContext, worker_config};
use tidegate_recovery::{ErrorClass, WorkerIndex};
use timely::dataflow::InputHandle;
use timely::dataflow::operators::{Exchange, Input, Inspect, Probe};
use timely::worker::Worker;

/// Sends 0..per_worker from every worker to worker `n mod workers` and sums what arrives here.
fn sum(worker: &mut Worker, context: &WorkerContext, per_worker: u64) -> u64 {
    let total = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let arrived = Arc::clone(&total);
    let mut input = InputHandle::new();
    let probe = worker.dataflow::<u64, _, _>(|scope| {
        scope
            .input_from(&mut input)
            .container::<Vec<u64>>()
            .exchange(|n| *n)
            .inspect(move |n| {
                arrived.fetch_add(*n, Ordering::Relaxed);
            })
            .probe()
            .0
    });
    for n in 0..per_worker {
        input.send(n);
    }
    input.close();
    while !probe.done() && !context.leaving() {
        context.step_or_park(worker, Duration::from_millis(100));
    }
    total.load(Ordering::Relaxed)
}

/// Works until the generation is given up.
fn work_on(worker: &mut Worker, context: &WorkerContext) -> Result<(), Cause> {
    let mut input = InputHandle::new();
    worker.dataflow::<u64, _, _>(|scope| {
        scope.input_from(&mut input).container::<Vec<u64>>().exchange(|n| *n).probe();
    });
    for round in (0..).take_while(|_| !context.leaving()) {
        input.send(round);
        input.advance_to(round);
        context.step_or_park(worker, Duration::from_millis(10));
    }
    Ok(())
}

fn joined_all(members: &[Member]) -> Vec<Joined> {
    join_all(members).into_iter().map(Result::unwrap).collect()
}

fn execute_all<T: Send + 'static>(
    joined: Vec<Joined>,
    work: impl Fn(&mut Worker, &WorkerContext) -> Result<T, Cause> + Clone + Send + Sync + 'static,
) -> Vec<Outcome<T>> {
    let running: Vec<_> = joined
        .into_iter()
        .map(|joined| {
            let work = work.clone();
            std::thread::spawn(move || joined.execute(worker_config(), work))
        })
        .collect();
    running.into_iter().map(|thread| thread.join().unwrap()).collect()
}

#[test]
fn workers_of_several_processes_exchange_data_and_end_together() {
    for (processes, workers) in [(1, 1), (1, 4), (2, 2), (3, 1)] {
        let addresses = free_addresses(if processes == 1 { 0 } else { processes });
        let members: Vec<Member> = (0..processes as u32)
            .map(|index| Member::new(index, &addresses).with(|member| member.workers = workers))
            .collect();
        let peers = (processes * workers) as u64;
        let outcomes = execute_all(joined_all(&members), move |worker, context| {
            assert_eq!(worker.peers() as u64, peers);
            assert_eq!(worker.index(), context.worker.0 as usize);
            Ok(sum(worker, context, 10_000))
        });
        let mut total = 0;
        for outcome in outcomes {
            assert_eq!(outcome.cause, None);
            assert_eq!(outcome.exit_code(), 0);
            assert_eq!(outcome.stuck, []);
            for result in outcome.results {
                total += result.unwrap();
            }
        }
        assert_eq!(total, peers * (0..10_000).sum::<u64>(), "{processes} processes, {workers} workers");
    }
}

#[test]
fn a_process_that_has_ended_is_not_a_lost_one() {
    // Process 0's workers go on for longer than peer_timeout after those of process 1 are done.
    let addresses = free_addresses(2);
    let quick = |member: &mut Member| member.timeouts.peer = Duration::from_millis(800);
    let members = [0, 1].map(|index| Member::new(index, &addresses).with(quick));
    let outcomes = execute_all(joined_all(&members), |worker, context| {
        let sum = sum(worker, context, 10);
        let until = Instant::now() + Duration::from_secs(2);
        while context.worker == WorkerIndex(0) && Instant::now() < until {
            context.step_or_park(worker, Duration::from_millis(100));
        }
        Ok(sum)
    });
    for outcome in outcomes {
        assert_eq!(outcome.cause, None);
    }
}

#[test] // C10
fn a_panic_of_one_worker_is_the_cause_while_another_one_is_blocked() {
    let member = Member::new(0, &[]).with(|member| {
        member.workers = 3;
        member.timeouts.unwind = Duration::from_secs(1);
    });
    let (hold, blocked) = channel::<()>();
    let blocked = Arc::new(std::sync::Mutex::new(blocked));
    let is_blocked = Arc::new(AtomicUsize::new(0));
    let start = Instant::now();
    let outcome = member.join().unwrap().execute(worker_config(), move |worker, context| {
        match context.thread {
            0 => {
                is_blocked.store(1, Ordering::SeqCst);
                // For ever: the sender outlives the test.
                let _ = blocked.lock().unwrap().recv();
                Ok(())
            }
            1 => work_on(worker, context),
            _ => {
                wait_until("worker 0 is blocked", || is_blocked.load(Ordering::SeqCst) == 1);
                panic!("on purpose")
            }
        }
    });
    assert!(start.elapsed() < Duration::from_secs(5), "it took {:?}", start.elapsed());
    let cause = outcome.cause.clone().unwrap();
    assert_eq!(cause.class, ErrorClass::Internal);
    let text = cause.to_string();
    assert!(text.starts_with("PANIC: worker 2: panicked at ") && text.ends_with("on purpose"), "{text}");
    assert_eq!(outcome.stuck, [WorkerIndex(0)]);
    assert_eq!(outcome.results, [None, Some(()), None]);
    assert_eq!(outcome.exit_code(), 75, "a blocked thread cannot be saved");
    drop(hold);
}

#[test] // fault P2
fn a_panic_in_an_operator_is_the_first_cause_on_every_process() {
    let addresses = free_addresses(3);
    let members: Vec<Member> =
        (0..3).map(|index| Member::new(index, &addresses).with(|member| member.workers = 2)).collect();
    let outcomes = execute_all(joined_all(&members), |worker, context| {
        let mut input = InputHandle::new();
        let here = context.worker;
        worker.dataflow::<u64, _, _>(|scope| {
            scope.input_from(&mut input).container::<Vec<u64>>().exchange(|n| *n).inspect(move |n| {
                assert!(*n != 500 || here != WorkerIndex(2), "record 500 is poison");
            });
        });
        for round in (0..).take_while(|_| !context.leaving()) {
            // Key 500 belongs to worker 2 of 6: 500 mod 6.
            input.send(500);
            input.advance_to(round);
            context.step_or_park(worker, Duration::from_millis(5));
        }
        Ok(())
    });
    for (process, outcome) in outcomes.iter().enumerate() {
        let cause = outcome.cause.clone().unwrap();
        assert_eq!(cause.code, "PANIC", "process {process}: {cause}");
        assert!(cause.text.contains("record 500 is poison"), "process {process}: {cause}");
        assert_eq!(outcome.stuck, []);
        assert_eq!(outcome.exit_code(), if process == 1 { 70 } else { 75 }, "process {process}");
    }
}

#[test] // fault P1
fn a_fault_of_a_record_ends_every_process_with_its_exit_code() {
    let addresses = free_addresses(2);
    let members = [0, 1].map(|index| Member::new(index, &addresses));
    let outcomes = execute_all(joined_all(&members), |worker, context| {
        if context.worker == WorkerIndex(1) {
            sum_for_a_while(worker, context);
            return Err(Cause::new(ErrorClass::Data, "RECORD_FAILED", "step decode, orders:3@77: no JSON"));
        }
        work_on(worker, context)
    });
    for outcome in outcomes {
        assert_eq!(outcome.exit_code(), 65);
        assert!(outcome.cause.unwrap().text.contains("orders:3@77"));
    }
}

fn sum_for_a_while(worker: &mut Worker, context: &WorkerContext) {
    let mut input = InputHandle::<u64, timely::container::CapacityContainerBuilder<Vec<u64>>>::new();
    worker.dataflow::<u64, _, _>(|scope| {
        scope.input_from(&mut input).exchange(|n| *n).probe();
    });
    for n in 0..20 {
        input.send(n);
        context.step_or_park(worker, Duration::from_millis(5));
    }
}

#[test] // C4
fn peers_that_are_cut_off_from_each_other_leave_within_the_timeout() {
    let addresses = free_addresses(2);
    let proxy = Proxy::to(&addresses[0]);
    let through_proxy = [proxy.address.clone(), addresses[1].clone()];
    let timeout = Duration::from_secs(2);
    let members = [Member::new(0, &addresses), Member::new(1, &through_proxy)]
        .map(|member| member.with(|member| member.timeouts.peer = timeout));
    let joined = joined_all(&members);
    let supervisor = members[0].supervisor.clone();
    let running = std::thread::spawn(move || execute_all(joined, work_on));
    wait_until("the data flows", || proxy.connections() == 2);
    proxy.freeze();
    let frozen = Instant::now();
    wait_until("the cut is noticed", || supervisor.leaving());
    assert!(frozen.elapsed() < timeout + Duration::from_millis(500), "after {:?}", frozen.elapsed());
    for (process, outcome) in running.join().unwrap().iter().enumerate() {
        let cause = outcome.cause.clone().unwrap();
        assert_eq!((cause.code.as_ref(), outcome.exit_code()), ("PEER_LOST", 75));
        assert!(cause.text.contains(&format!("process {}", 1 - process)), "{cause}");
        assert!(cause.text.contains("silent"), "{cause}");
    }
}

#[test] // C4
fn a_data_connection_that_breaks_alone_is_a_lost_peer_too() {
    let addresses = free_addresses(2);
    let proxy = Proxy::to(&addresses[0]);
    let through_proxy = [proxy.address.clone(), addresses[1].clone()];
    let members = [Member::new(0, &addresses), Member::new(1, &through_proxy)]
        .map(|member| member.with(|member| member.timeouts.peer = Duration::from_secs(1)));
    let joined = joined_all(&members);
    assert_eq!(proxy.connections(), 2, "control, then data");
    let start = Instant::now();
    let running = std::thread::spawn(move || execute_all(joined, work_on));
    proxy.cut(1);
    for outcome in running.join().unwrap() {
        let cause = outcome.cause.clone().unwrap();
        assert_eq!((cause.code.as_ref(), outcome.exit_code()), ("PEER_LOST", 75), "{cause}");
        assert!(cause.text.contains("its data connection broke"), "{cause}");
    }
    assert!(start.elapsed() < Duration::from_secs(5), "it took {:?}", start.elapsed());
}

#[test]
fn a_cluster_can_be_started_again_at_once_on_the_same_ports() {
    let addresses = free_addresses(2);
    for round in 1..=5 {
        let members = [0, 1].map(|index| Member::new(index, &addresses));
        let outcomes = execute_all(joined_all(&members), |worker, context| Ok(sum(worker, context, 10)));
        for outcome in outcomes {
            assert_eq!(outcome.exit_code(), 0, "round {round}: {:?}", outcome.cause);
        }
    }
}

#[test]
fn a_generation_that_ended_before_its_work_does_none() {
    let member = Member::new(0, &[]);
    let joined = member.join().unwrap();
    member.supervisor.report(Cause::new(ErrorClass::TryAgain, "LEASE_LOST", "generation 5 took over"));
    let outcome = joined.execute(worker_config(), work_on);
    assert_eq!(outcome.exit_code(), 75);
    assert_eq!(outcome.cause.unwrap().text, "generation 5 took over");
}

#[test]
fn after_a_first_cause_nobody_joins() {
    let member = Member::new(0, &[]);
    member.supervisor.report(Cause::new(ErrorClass::TryAgain, "LEASE_LOST", "generation 5 took over"));
    let error = failure(member.join());
    assert_eq!(error.to_string(), "LEASE_LOST: generation 5 took over");
}
