//! Runs a program as a process of its own and says what it cost: CPU time of all its threads, and wall time.
//!
//! The kernel's account of an ended process stays readable until its parent asks for the exit code. So the figures
//! are the whole life of the process, start and end included; the resolution is 10 ms.
//!
//! Also says how busy the machine was with anything else meanwhile: the CPU time that neither this process, the
//! measured one nor the broker took. A figure that was taken beside a busy neighbour is marked as such.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tidegate_harness::process;

use crate::error::{Error, Result};

/// What a run of a program cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    /// CPU seconds, user and system, of all threads.
    pub(crate) cpu_s: f64,
    /// Seconds from its start to its end.
    pub(crate) wall_s: f64,
    /// Cores that were busy on average with something that is neither the program, the broker nor the benchmark.
    pub(crate) foreign_cores: f64,
}

/// A measured program that runs.
pub(crate) struct Running {
    name: String,
    child: Child,
    started: Instant,
    before: Busy,
    stdout: File,
    stderr: File,
}

/// How a program is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// By itself.
    Itself,
    /// By SIGTERM, after which it exits with 0.
    Terminated,
}

/// Starts `command`; what it writes is kept.
pub(crate) fn start(name: &str, mut command: Command) -> Result<Running> {
    let (stdout, out) = kept_file()?;
    let (stderr, err) = kept_file()?;
    command.stdin(Stdio::null()).stdout(out).stderr(err);
    let before = Busy::now()?;
    let started = Instant::now();
    let child = process::spawn(command).map_err(|e| Error::system(format!("start {name}"), e))?;
    Ok(Running { name: name.to_owned(), child, started, before, stdout, stderr })
}

/// Runs `command` to its end.
pub(crate) fn measure(name: &str, command: Command, deadline: Duration) -> Result<Cost> {
    measure_output(name, command, deadline).map(|(cost, _)| cost)
}

/// Runs `command` to its end and gives what it wrote to stdout too.
pub(crate) fn measure_output(name: &str, command: Command, deadline: Duration) -> Result<(Cost, String)> {
    start(name, command)?.finish(End::Itself, deadline)
}

fn kept_file() -> Result<(File, File)> {
    let error = |e| Error::system("create a file for what a program writes", e);
    let file = tempfile::tempfile().map_err(error)?;
    let written = file.try_clone().map_err(error)?;
    Ok((file, written))
}

impl Running {
    /// CPU time that it took so far.
    pub(crate) fn cpu(&self) -> Result<Duration> {
        process::cpu_time(self.child.id())
            .ok_or_else(|| Error::system(format!("read the CPU time of {}", self.name), "it ended"))
    }

    /// When it was started.
    pub(crate) fn started(&self) -> Instant {
        self.started
    }

    /// Waits for its end and gives its cost; a failure, or no end within `deadline`, is an error.
    pub(crate) fn finish(mut self, end: End, deadline: Duration) -> Result<(Cost, String)> {
        let pid = pid(&self.child)?;
        if end == End::Terminated {
            kill_process(pid, Signal::TERM).map_err(|e| Error::system(format!("stop {}", self.name), e))?;
        }
        let (ended, inbox) = channel();
        let waiter = std::thread::spawn(move || {
            // NOWAIT leaves the process's account where it is.
            let status = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
            // Nobody listens when the deadline has passed.
            let _late = ended.send(status.map(|_| Instant::now()));
        });
        let at = match inbox.recv_timeout(deadline) {
            Ok(Ok(at)) => at,
            Ok(Err(e)) => return Err(Error::system(format!("wait for {}", self.name), e)),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                kill_process(pid, Signal::KILL)
                    .map_err(|e| Error::system(format!("end {}", self.name), e))?;
                let _killed = self.child.wait();
                return Err(self.failed(format!("no end within {deadline:?}")));
            }
        };
        let wall = at - self.started;
        let cpu = self.cpu()?;
        let busy = self.before.until_now()?;
        if waiter.join().is_err() {
            return Err(Error::system(format!("wait for {}", self.name), "the waiting thread panicked"));
        }
        let status = self.child.wait().map_err(|e| Error::system(format!("wait for {}", self.name), e))?;
        if !status.success() {
            return Err(self.failed(status.to_string()));
        }
        let cost = Cost {
            cpu_s: cpu.as_secs_f64(),
            wall_s: wall.as_secs_f64(),
            foreign_cores: (busy.saturating_sub(cpu)).as_secs_f64() / wall.as_secs_f64(),
        };
        Ok((cost, written(&mut self.stdout)))
    }

    fn failed(&mut self, status: String) -> Error {
        let stderr = written(&mut self.stderr);
        let lines: Vec<&str> = stderr.lines().collect();
        let tail = lines[lines.len().saturating_sub(30)..].join("\n");
        Error::Child { program: self.name.clone(), status, stderr: tail }
    }
}

/// What is in the file. What cannot be read is missing from a message, no more.
fn written(file: &mut File) -> String {
    let mut bytes = Vec::new();
    let _unreadable = file.seek(SeekFrom::Start(0)).and_then(|_| file.read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

fn pid(child: &Child) -> Result<Pid> {
    let id = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    id.ok_or_else(|| Error::system("name a process", format!("{} is no process id", child.id())))
}

/// CPU time of the whole machine less that of this process and of the children that ran before the measured one (the broker).
struct Busy {
    machine: Duration,
    ours: Duration,
    broker: Vec<u32>,
}

impl Busy {
    fn now() -> Result<Busy> {
        let broker = children()?;
        Ok(Busy { machine: machine()?, ours: taken(&broker), broker })
    }

    /// What the machine did since then, less what this process and the broker did.
    fn until_now(&self) -> Result<Duration> {
        let machine = machine()?.saturating_sub(self.machine);
        Ok(machine.saturating_sub(taken(&self.broker).saturating_sub(self.ours)))
    }
}

fn taken(broker: &[u32]) -> Duration {
    let own = process::cpu_time(std::process::id()).unwrap_or_default();
    own + broker.iter().filter_map(|&pid| process::cpu_time(pid)).sum::<Duration>()
}

/// Children of this process; with a broker of our own, that is the broker. A foreign broker counts as foreign.
fn children() -> Result<Vec<u32>> {
    let own = std::process::id();
    let mut found = Vec::new();
    let entries = std::fs::read_dir("/proc").map_err(|e| Error::system("list /proc", e))?;
    for entry in entries.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        // A process may end between the two calls.
        let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
        let parent =
            stat.rfind(')').and_then(|end| stat[end..].split(' ').nth(2)).and_then(|p| p.parse::<u32>().ok());
        if parent == Some(own) {
            found.push(pid);
        }
    }
    Ok(found)
}

/// CPU time of all processes since the machine started.
fn machine() -> Result<Duration> {
    let stat = std::fs::read_to_string("/proc/stat").map_err(|e| Error::system("read /proc/stat", e))?;
    let fields = stat.lines().next().unwrap_or_default().split_ascii_whitespace().skip(1);
    let ticks: Vec<u64> = fields.map_while(|field| field.parse().ok()).collect();
    match ticks[..] {
        // user, nice, system, (idle, iowait,) irq, softirq
        [user, nice, system, _, _, irq, softirq, ..] => {
            Ok(Duration::from_millis(10 * (user + nice + system + irq + softirq)))
        }
        _ => Err(Error::system("read /proc/stat", "fewer fields than expected")),
    }
}
