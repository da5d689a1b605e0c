//! Real processes: this test binary starts itself, once per member of a cluster, and sends it signals.

use crate::support::{PATIENCE, free_addresses, wait_until};
use rand::{Rng, SeedableRng, rngs::StdRng};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tidegate_cluster::{
    Assignment, Cause, ClusterError, ClusterSpec, ClusterWatch, HardExit, Identity, Joined, Mesh, Supervisor,
    Timeouts, WorkerContext, new_run_id, worker_config,
};
use tidegate_recovery::{FlowFingerprint, Generation};
use timely::dataflow::InputHandle;
use timely::dataflow::operators::{Exchange, Input, Inspect, Probe};
use timely::worker::Worker;

const MEMBER: &str = "TIDEGATE_CLUSTER_TEST_MEMBER";

/// Not a test: what a member of a cluster does when this binary is started as one. The variable holds
/// `index|addresses|workers|flow|peer timeout in ms|what to do`.
#[test]
fn member() {
    let Ok(member) = std::env::var(MEMBER) else { return };
    let fields: Vec<&str> = member.split('|').collect();
    let [index, addresses, workers, flow, peer_ms, task] = fields[..] else { panic!("{member}") };
    let supervisor = Supervisor::new();
    let up = || -> Result<Joined, ClusterError> {
        let spec = ClusterSpec::from_flags(index.parse().ok(), Some(addresses), workers.parse().ok())?;
        let identity = Identity {
            cluster_id: flow.into(),
            fingerprint: FlowFingerprint(flow.len() as u64),
            build: "test".into(),
            in_common: Default::default(),
            run_id: new_run_id()?,
            known_generation: Generation(0),
            secret: None,
        };
        let timeouts = Timeouts {
            startup: Duration::from_secs(10),
            peer: Duration::from_millis(peer_ms.parse().unwrap()),
            unwind: Duration::from_secs(1),
            ..Timeouts::default()
        };
        eprintln!("run {}", identity.run_id);
        Mesh::bind(spec, identity, timeouts, &supervisor)?
            .join(|present| Ok(Assignment { generation: present.next_generation(), settings: Vec::new() }))
    };
    let joined = match up() {
        Ok(joined) => joined,
        Err(error) => {
            eprintln!("cause {}: {error}", error.code());
            std::process::exit(error.exit_code().into());
        }
    };
    eprintln!("joined generation {}", joined.generation());
    let (liveness, watch) = (joined.liveness(), joined.watch());
    let (task, hangs) = match task {
        "hang" => ("panic".to_string(), true),
        other => (other.to_string(), false),
    };
    let outcome =
        joined.execute(worker_config(), move |worker, context| work(worker, context, &task, &watch));
    if hangs {
        // As a client that waits for ever for its broker when it is closed.
        let _armed = HardExit::arm(Duration::from_millis(300), outcome.exit_code()).unwrap();
        loop {
            std::thread::park();
        }
    }
    if let Some(cause) = &outcome.cause {
        eprintln!("cause {cause}");
        eprintln!("may commit: {}", liveness.check().is_ok());
    }
    eprintln!("stuck {:?}", outcome.stuck);
    std::process::exit(outcome.exit_code().into());
}

/// Works until the sum is known and then until a file exists; says which peers it heard finish, and lost.
fn wait_for_file(worker: &mut Worker, context: &WorkerContext, path: &str, watch: &ClusterWatch) {
    let mut said = BTreeSet::new();
    while !std::path::Path::new(path).exists() && !context.leaving() {
        context.step_or_park(worker, Duration::from_millis(5));
        for peer in watch.peers() {
            let seen = [(peer.finished, "heard"), (peer.silent_for.is_none(), "lost")];
            for (_, word) in seen.into_iter().filter(|(is_so, _)| *is_so) {
                if said.insert((peer.process, word)) {
                    eprintln!("{word} {}", peer.process);
                }
            }
        }
    }
}

fn work(worker: &mut Worker, context: &WorkerContext, task: &str, watch: &ClusterWatch) -> Result<(), Cause> {
    let total = Arc::new(AtomicU64::new(0));
    let arrived = Arc::clone(&total);
    let mut input = InputHandle::new();
    let probe = worker.dataflow::<u64, _, _>(|scope| {
        let numbers = scope.input_from(&mut input).container::<Vec<u64>>().exchange(|n| *n);
        let counted = numbers.inspect(move |n| {
            arrived.fetch_add(*n, Ordering::Relaxed);
        });
        counted.probe().0
    });
    let (task, until) = task.split_once(" until ").map_or((task, None), |(task, path)| (task, Some(path)));
    match task {
        "sum" => {
            for n in 0..1000 {
                input.send(n);
            }
            input.close();
            while !probe.done() && !context.leaving() {
                context.step_or_park(worker, Duration::from_millis(100));
            }
            eprintln!("sum {}", total.load(Ordering::Relaxed));
            if let Some(path) = until {
                wait_for_file(worker, context, path, watch);
            }
            Ok(())
        }
        "run" | "block" | "panic" | "panic twice" => {
            eprintln!("works");
            let start = Instant::now();
            while !context.leaving() {
                let epoch = (start.elapsed().as_millis() / 20) as u64;
                input.send(epoch);
                input.advance_to(epoch);
                if epoch > 10 && context.thread == 0 && task == "panic" {
                    panic!("on purpose");
                }
                if epoch > 10 && task == "panic twice" {
                    let _again = Again;
                    panic!("on purpose");
                }
                if epoch > 5 && context.thread == 1 && task != "run" {
                    eprintln!("blocks");
                    loop {
                        std::thread::park();
                    }
                }
                context.step_or_park(worker, Duration::from_millis(20));
            }
            Ok(())
        }
        other => panic!("unknown task {other}"),
    }
}

/// Panics when it is dropped, as an output does whose connection is lost.
struct Again;

impl Drop for Again {
    fn drop(&mut self) {
        panic!("again");
    }
}

/// A running member.
struct Process {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Process {
    fn start(
        index: u32,
        addresses: &[String],
        workers: usize,
        flow: &str,
        peer: Duration,
        task: &str,
    ) -> Process {
        let list = addresses.join(";");
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "processes::member", "--nocapture", "--test-threads=1"])
            .env(MEMBER, format!("{index}|{list}|{workers}|{flow}|{}|{task}", peer.as_millis()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines: Arc<Mutex<Vec<String>>> = Arc::default();
        let (stderr, collected) = (child.stderr.take().unwrap(), Arc::clone(&lines));
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                collected.lock().unwrap().push(line);
            }
        });
        Process { child, lines }
    }

    fn said(&self, beginning: &str) -> Vec<String> {
        let lines = self.lines.lock().unwrap();
        lines.iter().filter_map(|line| line.strip_prefix(beginning)).map(str::to_string).collect()
    }

    fn wait_for(&self, beginning: &str) {
        wait_until(&format!("a member says {beginning:?}, it said {:?}", self.lines), || {
            !self.said(beginning).is_empty()
        });
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn exit(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "a member does not end; it said {:?}", self.lines);
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }

    /// The exit code and the one line that names the first cause.
    fn end(&mut self) -> (Option<i32>, String) {
        let status = self.exit();
        // The reader may be behind.
        wait_until("its last words are read", || Arc::strong_count(&self.lines) == 1);
        let causes = self.said("cause ");
        assert!(status.success() || causes.len() == 1, "one line names the first cause: {:?}", self.lines);
        for line in self.lines.lock().unwrap().iter().filter(|line| !line.starts_with("cause ")) {
            assert!(!line.contains("panicked"), "a second line about the failure: {:?}", self.lines);
        }
        (status.code(), causes.into_iter().next().unwrap_or_default())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn running(
    count: u32,
    workers: usize,
    peer: Duration,
    task: impl Fn(u32) -> &'static str,
) -> (Vec<String>, Vec<Process>) {
    let started = starting(count, workers, peer, &task);
    for process in &started.1 {
        if task(0) != "sum" {
            process.wait_for("works");
        }
    }
    started
}

fn starting<T: AsRef<str>>(
    count: u32,
    workers: usize,
    peer: Duration,
    task: impl Fn(u32) -> T,
) -> (Vec<String>, Vec<Process>) {
    let addresses = free_addresses(count as usize);
    let processes = (0..count)
        .map(|index| Process::start(index, &addresses, workers, "orders", peer, task(index).as_ref()))
        .collect();
    (addresses, processes)
}

#[test]
fn real_processes_exchange_data_and_exit_with_0() {
    let (_, mut processes) = running(2, 2, Duration::from_secs(5), |_| "sum");
    let mut total = 0;
    for process in &mut processes {
        let (code, cause) = process.end();
        assert_eq!((code, cause.as_str()), (Some(0), ""), "{:?}", process.lines);
        total += process.said("sum ").iter().map(|sum| sum.parse::<u64>().unwrap()).sum::<u64>();
    }
    assert_eq!(total, 4 * (0..1000).sum::<u64>());
}

/// Process 1 of three is killed: when its work is done and another one still works, or the other way round. The
/// path that the one that works waits for is the test's own.
fn killed_at_the_end(works: u32, release: bool) -> Vec<(Option<i32>, String)> {
    let file = std::env::temp_dir().join(format!("tidegate-end-{}-{works}", std::process::id()));
    let task = |index| match index == works {
        true => format!("sum until {}", file.display()),
        false => "sum".into(),
    };
    let (_, mut processes) = starting(3, 2, Duration::from_secs(5), task);
    for done in (0..3).filter(|index| *index != works) {
        processes[works as usize].wait_for(&format!("heard {done}"));
    }
    processes[1].signal(Signal::KILL);
    if release {
        processes[works as usize].wait_for("lost 1");
        std::fs::write(&file, "").unwrap();
    }
    let ended = [0, 2].map(|index| processes[index].end()).to_vec();
    // It exists only if it was released.
    let _ = std::fs::remove_file(&file);
    ended
}

#[test] // C1, C15
fn a_process_that_is_killed_when_its_work_was_done_fails_nobody_though_another_one_still_works() {
    for (code, cause) in killed_at_the_end(0, true) {
        assert_eq!((code, cause.as_str()), (Some(0), ""));
    }
}

#[test] // C1, I10
fn a_process_that_is_killed_before_its_work_was_done_fails_all_whose_work_was() {
    for (code, cause) in killed_at_the_end(1, false) {
        assert_eq!(code, Some(75), "{cause}");
        assert!(cause.starts_with("PEER_LOST: ") && cause.contains("process 1 ("), "{cause}");
    }
}

/// The moment is a random one around the end, when nobody knows who has heard what.
#[test] // C1, C15
fn whoever_survives_a_kill_around_the_end_exits_like_all_others() {
    let first = number("TIDEGATE_CLUSTER_SEED").unwrap_or_else(|| rand::rngs::StdRng::from_os_rng().random());
    for seed in (0..number("TIDEGATE_CLUSTER_ROUNDS").unwrap_or(12)).map(|round| first.wrapping_add(round)) {
        eprintln!("seed {seed}");
        let mut random = StdRng::seed_from_u64(seed);
        let (_, mut processes) = starting(3, 1, Duration::from_secs(2), |_| "sum");
        let victim = random.random_range(0..3_usize);
        processes[random.random_range(0..3_usize)].wait_for("sum ");
        let (reached, after) = (Instant::now(), Duration::from_micros(random.random_range(0..3_000)));
        while reached.elapsed() < after {
            std::hint::spin_loop();
        }
        // It may have ended.
        let _ = processes[victim].child.kill();
        let codes = [1, 2].map(|next| processes[(victim + next) % 3].end().0);
        assert!(codes == [Some(0); 2] || codes == [Some(75); 2], "seed {seed}: {codes:?}");
    }
}

#[test] // C1, I10
fn a_killed_process_is_lost_within_the_timeout_and_named_by_all_others() {
    for victim in [0, 2] {
        let timeout = Duration::from_secs(2);
        let (addresses, mut processes) = running(3, 2, timeout, |_| "run");
        processes[victim].signal(Signal::KILL);
        let killed = Instant::now();
        for (index, process) in processes.iter_mut().enumerate() {
            if index == victim {
                continue;
            }
            let (code, cause) = process.end();
            assert!(killed.elapsed() < timeout + Duration::from_secs(1), "after {:?}", killed.elapsed());
            assert_eq!(code, Some(75), "{cause}");
            assert!(cause.starts_with("PEER_LOST: "), "{:?}", process.lines);
            assert!(cause.contains(&format!("process {victim} ({}", addresses[victim])), "{cause}");
            assert_eq!(process.said("may commit: "), ["false"], "{:?}", process.lines);
        }
    }
}

#[test] // C2
fn a_frozen_process_is_lost_within_the_timeout_and_knows_it_when_it_wakes() {
    for victim in [0, 1] {
        let timeout = Duration::from_secs(2);
        let (_, mut processes) = running(3, 1, timeout, |_| "run");
        processes[victim].signal(Signal::STOP);
        let stopped = Instant::now();
        for (index, process) in processes.iter_mut().enumerate() {
            if index == victim {
                continue;
            }
            let (code, cause) = process.end();
            let took = stopped.elapsed();
            assert!(took < timeout + Duration::from_secs(1), "after {took:?}");
            assert!(took > timeout / 2, "after {took:?}");
            assert_eq!(code, Some(75), "{cause}");
            assert!(cause.starts_with("PEER_LOST: "), "{cause}");
            assert!(cause.contains(&format!("process {victim} ")), "{cause}");
        }
        wait_until("it stood still for longer than the timeout", || stopped.elapsed() > timeout * 5 / 4);
        processes[victim].signal(Signal::CONT);
        let (code, cause) = processes[victim].end();
        assert_eq!(code, Some(75), "{cause}");
        assert!(cause.starts_with("STOOD_STILL: ") || cause.starts_with("PEER_LOST: "), "{cause}");
        assert_eq!(processes[victim].said("may commit: "), ["false"]);
    }
}

#[test]
fn a_process_alone_that_stood_still_gives_its_generation_up() {
    let (_, mut processes) = running(1, 1, Duration::from_millis(500), |_| "run");
    processes[0].signal(Signal::STOP);
    let stopped = Instant::now();
    wait_until("it stood still", || stopped.elapsed() > Duration::from_millis(1200));
    processes[0].signal(Signal::CONT);
    let (code, cause) = processes[0].end();
    assert_eq!(code, Some(75));
    assert!(cause.starts_with("STOOD_STILL: "), "{cause}");
}

#[test] // C1, C10, I10
fn a_worker_that_panics_again_while_it_unwinds_ends_its_process_with_the_code_of_the_first_panic() {
    let (_, mut processes) =
        running(2, 1, Duration::from_secs(3), |index| if index == 1 { "panic twice" } else { "run" });
    assert_eq!(processes[1].exit().code(), Some(70), "{:?}", processes[1].lines);
    let (code, cause) = processes[0].end();
    assert_eq!(code, Some(75), "{cause}");
}

#[test] // C10, I10
fn a_panic_beside_a_blocked_worker_ends_all_processes_within_five_seconds() {
    let (_, mut processes) =
        running(2, 2, Duration::from_secs(3), |index| if index == 1 { "panic" } else { "block" });
    for process in &processes {
        process.wait_for("blocks");
    }
    let start = Instant::now();
    for (index, process) in processes.iter_mut().enumerate() {
        let (code, cause) = process.end();
        assert_eq!(code, Some(75), "{cause}");
        assert!(cause.contains("on purpose"), "process {index}: {cause}");
        assert!(cause.contains("worker 2"), "process {index}: {cause}");
        assert_eq!(process.said("stuck ").len(), 1);
    }
    assert!(start.elapsed() < Duration::from_secs(5), "it took {:?}", start.elapsed());
}

#[test] // C5, C6
fn processes_that_were_started_differently_exit_with_78_and_both_values() {
    let second = Duration::from_secs(1);
    for (workers, flow, expected) in [
        (2, "orders", ["is 1 here and 2 there", "is 2 here and 1 there"]),
        (1, "returns", ["orders here and returns there", "returns here and orders there"]),
    ] {
        let addresses = free_addresses(2);
        let mut processes = [
            Process::start(0, &addresses, 1, "orders", second, "run"),
            Process::start(1, &addresses, workers, flow, second, "run"),
        ];
        for (process, expected) in processes.iter_mut().zip(expected) {
            let (code, cause) = process.end();
            assert_eq!(code, Some(78), "{cause}");
            assert!(cause.starts_with("PEER_MISMATCH: ") && cause.contains(expected), "{cause}");
        }
    }
}

#[test] // C5, C7
fn the_same_index_twice_on_one_host_names_both_runs_and_spares_the_first() {
    let (addresses, mut processes) = running(2, 1, Duration::from_secs(2), |_| "run");
    let mut second = Process::start(1, &addresses, 1, "orders", Duration::from_secs(2), "run");
    let (code, cause) = second.end();
    assert_eq!(code, Some(78), "{cause}");
    for run in [processes[1].said("run "), second.said("run ")] {
        assert!(cause.contains(&run[0]), "{cause} does not name {run:?}");
    }
    assert!(cause.contains(&addresses[1]), "{cause}");
    for process in &mut processes {
        assert_eq!(process.child.try_wait().unwrap(), None, "{:?}", process.lines);
    }
}

#[test] // C5
fn a_swapped_list_on_one_host_is_told_by_the_process_that_is_there() {
    let addresses = free_addresses(2);
    let swapped = [addresses[1].clone(), addresses[0].clone()];
    let second = Duration::from_secs(1);
    let mut first = Process::start(0, &addresses, 1, "orders", second, "run");
    first.wait_for("run ");
    wait_until("it listens", || std::net::TcpStream::connect(&addresses[0]).is_ok());
    let mut other = Process::start(1, &swapped, 1, "orders", second, "run");
    for process in [&mut other, &mut first] {
        let (code, cause) = process.end();
        assert_eq!(code, Some(78), "{cause}");
        assert!(cause.contains("the process index of this place is"), "{cause}");
    }
}

#[test] // I10
fn a_process_that_hangs_while_it_closes_is_ended_with_its_exit_code() {
    let (_, mut processes) = running(1, 1, Duration::from_secs(1), |_| "hang");
    assert_eq!(processes[0].exit().code(), Some(70));
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// A process is killed at a random moment of the start or of the work; whoever exits with 75 is started
/// again, as an orchestrator does, until all have done their work. TIDEGATE_CLUSTER_ROUNDS sets how often,
/// TIDEGATE_CLUSTER_SEED where to begin.
#[test] // C1, C3, C14, I8
fn a_cluster_converges_when_a_process_is_killed_at_any_moment() {
    let rounds = number("TIDEGATE_CLUSTER_ROUNDS").unwrap_or(12);
    let first = number("TIDEGATE_CLUSTER_SEED").unwrap_or_else(|| rand::rngs::StdRng::from_os_rng().random());
    for seed in (0..rounds).map(|round| first.wrapping_add(round)) {
        eprintln!("seed {seed}");
        let mut random = StdRng::seed_from_u64(seed);
        let addresses = free_addresses(3);
        let timeout = Duration::from_secs(2);
        let start = |index: u32| Process::start(index, &addresses, 1, "orders", timeout, "sum");
        let mut processes: Vec<Process> = (0..3).map(start).collect();
        let victim = random.random_range(0..3_usize);
        let after = Duration::from_micros(random.random_range(0..120_000));
        let started = Instant::now();
        wait_until("the moment of the kill", || started.elapsed() >= after);
        // It may have ended.
        let _ = processes[victim].child.kill();
        let mut done = [false; 3];
        let (mut restarts, mut causes) = (0, Vec::new());
        let deadline = Instant::now() + PATIENCE;
        while !done.iter().all(|done| *done) {
            assert!(
                Instant::now() < deadline,
                "seed {seed}: not converged after {restarts} restarts, done {done:?}: {causes:#?} {:#?}",
                processes.iter().map(|process| &process.lines).collect::<Vec<_>>()
            );
            for index in 0..3 {
                let Some(status) = processes[index].child.try_wait().unwrap() else { continue };
                match status.code() {
                    Some(0) => {
                        done[index] = true;
                        // If the one that was killed had finished before, its next run waits for nobody.
                        if !done[victim] && processes[victim].said("joined ").is_empty() {
                            done[victim] = true;
                            let _ = processes[victim].child.kill();
                        }
                    }
                    None if done.iter().any(|done| *done) => done[index] = true,
                    Some(75) if done.iter().any(|done| *done) => panic!(
                        "seed {seed}: process {index} exited with 75 beside one with 0: {:?}",
                        processes[index].lines
                    ),
                    None | Some(75) => {
                        restarts += 1;
                        causes.push((index, status, processes[index].said("cause ")));
                        processes[index] = start(index as u32);
                    }
                    Some(code) => panic!(
                        "seed {seed}: process {index} exited with {code}: {:?}",
                        processes[index].lines
                    ),
                }
            }
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }
}
