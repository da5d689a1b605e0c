//! Child processes that die with this one, signals, and what `/proc` says about them.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};

use crate::wait;

type Order = (Command, Sender<io::Result<Child>>);

static SPAWNER: OnceLock<Mutex<Sender<Order>>> = OnceLock::new();

/// Starts `command` so that the kernel kills it when this process ends, however it ends.
///
/// The kernel counts the *thread* that forked as the parent, and each test runs on a thread of its own, so all
/// children are forked by one thread that lives as long as the process.
pub fn spawn(command: Command) -> io::Result<Child> {
    let spawner = SPAWNER.get_or_init(|| {
        let (orders, inbox) = channel::<Order>();
        std::thread::Builder::new()
            .name("spawner".into())
            .spawn(move || {
                for (mut command, answer) in inbox {
                    // The test that gave the order may have panicked meanwhile: then the child is not wanted.
                    if let Err(unwanted) = answer.send(start(&mut command))
                        && let Ok(mut child) = unwanted.0
                    {
                        let _already_gone = child.kill();
                        let _status = child.wait();
                    }
                }
            })
            .unwrap_or_else(|e| panic!("start the spawner thread: {e}"));
        Mutex::new(orders)
    });
    let (answer, result) = channel();
    spawner
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
        .send((command, answer))
        .map_err(|_| io::Error::other("the spawner thread ended"))?;
    result.recv().map_err(|_| io::Error::other("the spawner thread ended"))?
}

fn start(command: &mut Command) -> io::Result<Child> {
    // SAFETY: the closure runs between fork and exec and makes one system call; it neither allocates nor locks.
    unsafe {
        command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
    }
    command.spawn()
}

/// Runs `command` to its end and returns its output; panics when it cannot be started.
#[track_caller]
pub fn run(command: &mut Command) -> std::process::Output {
    command.output().unwrap_or_else(|e| panic!("run {command:?}: {e}"))
}

/// Sends `signal` to `child`; one that ended already is left alone.
///
/// The child must not have been waited for: the kernel gives its id to another process after that.
pub fn signal(child: &Child, signal: Signal) {
    let id = i32::try_from(child.id()).unwrap_or_else(|e| panic!("process id {}: {e}", child.id()));
    let pid = Pid::from_raw(id).unwrap_or_else(|| panic!("process id {id} is none"));
    match kill_process(pid, signal) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => {}
        Err(e) => panic!("send {signal:?} to process {id}: {e}"),
    }
}

/// Waits for `child` to end; `None` when it has not within `deadline`.
pub fn wait_exit(child: &mut Child, deadline: Duration) -> Option<ExitStatus> {
    wait::until_or_none(deadline, || {
        child.try_wait().unwrap_or_else(|e| panic!("wait for process {}: {e}", child.id()))
    })
}

/// Whether a process with this id exists.
pub fn exists(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

/// The resident memory of a process in bytes (`VmRSS`); `None` when it has ended.
pub fn resident_bytes(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// The CPU time, user and system, that a process and its threads took so far; `None` when it has ended.
pub fn cpu_time(pid: u32) -> Option<Duration> {
    // Linux counts these fields in ticks of USER_HZ, which is 100 a second on every platform we run on.
    const TICK: Duration = Duration::from_millis(10);
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold spaces; what follows it starts with the third field.
    let fields: Vec<&str> = stat.get(stat.rfind(')')? + 2..)?.split(' ').collect();
    let user: u32 = fields.get(11)?.parse().ok()?;
    let system: u32 = fields.get(12)?.parse().ok()?;
    Some(TICK * (user + system))
}
