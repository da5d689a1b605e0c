//! N processes of the real binary as one cluster: started, watched over HTTP, killed, frozen, stopped.
//!
//! What a process writes goes to files. When a test fails, the tail of each stderr is printed; when a
//! [`Cluster`] is dropped, what is left of it is killed.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::scratch::Scratch;
use crate::{http, ports, process, wait};

/// How much of a process's stderr a failing test prints.
const SHOWN_LINES: usize = 60;

/// How a cluster is to be started; a restart is another [`Launch::start`], perhaps of another shape.
#[derive(Clone, Debug)]
pub struct Launch {
    binary: PathBuf,
    folder: PathBuf,
    flow: PathBuf,
    flow_flag: bool,
    processes: usize,
    workers: usize,
    recovery: Option<PathBuf>,
    addresses: Option<Vec<String>>,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
}

impl Launch {
    /// One process with one worker of `binary`, for a flow given as YAML, which is written to a file in `scratch`.
    pub fn new(binary: &str, scratch: &Scratch, flow: &str) -> Launch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("flow-{}.yaml", NEXT.fetch_add(1, Ordering::Relaxed));
        Launch {
            binary: binary.into(),
            folder: scratch.path().to_path_buf(),
            flow: scratch.write(&name, flow),
            flow_flag: false,
            processes: 1,
            workers: 1,
            recovery: None,
            addresses: None,
            arguments: Vec::new(),
            environment: Vec::new(),
        }
    }

    /// With another flow, written beside the first.
    pub fn flow(mut self, scratch: &Scratch, flow: &str) -> Launch {
        self.flow = Launch::new("", scratch, flow).flow;
        self
    }

    /// For a flow written in Rust, which takes this file by `--config` instead of a flow as an argument.
    pub fn config_flag(mut self, config: &Path) -> Launch {
        self.flow = config.to_path_buf();
        self.flow_flag = true;
        self
    }

    /// `processes` × `workers`.
    pub fn shape(mut self, processes: usize, workers: usize) -> Launch {
        self.processes = processes;
        self.workers = workers;
        self
    }

    /// With a recovery store in this directory.
    pub fn recovery(mut self, directory: &Path) -> Launch {
        self.recovery = Some(directory.to_path_buf());
        self
    }

    /// Without a recovery store.
    pub fn without_recovery(mut self) -> Launch {
        self.recovery = None;
        self
    }

    /// With these mesh addresses instead of free ones.
    pub fn addresses(mut self, addresses: &[String]) -> Launch {
        self.addresses = Some(addresses.to_vec());
        self
    }

    /// With one more command line argument.
    pub fn arg(mut self, argument: &str) -> Launch {
        self.arguments.push(argument.to_owned());
        self
    }

    /// With a variable in the environment.
    pub fn env(mut self, name: &str, value: &str) -> Launch {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// With the test steps `gate`, `delay` and `fail_on` allowed.
    pub fn test_steps(self) -> Launch {
        self.env("TIDEGATE_TEST_STEPS", "1")
    }

    /// Until the end of the input.
    pub fn until_end(self) -> Launch {
        self.arg("--until-end")
    }

    /// The file with the flow.
    pub fn flow_file(&self) -> &Path {
        &self.flow
    }

    /// Starts all processes.
    pub fn start(&self) -> Cluster {
        let addresses = self.mesh();
        let members = (0..self.processes).map(|index| self.spawn(index, &addresses)).collect::<Vec<Member>>();
        Cluster { members, launch: self.clone(), addresses }
    }

    /// Starts only process `index` of the cluster, with the addresses that were set.
    pub fn start_only(&self, index: usize) -> Cluster {
        let addresses = self.mesh();
        Cluster { members: vec![self.spawn(index, &addresses)], launch: self.clone(), addresses }
    }

    /// Starts all processes and waits until each has ended with `code`.
    #[track_caller]
    pub fn run_to_exit(&self, code: i32, deadline: Duration) -> Cluster {
        let mut cluster = self.start();
        cluster.expect_exit(code, deadline);
        cluster
    }

    fn mesh(&self) -> Vec<String> {
        match &self.addresses {
            Some(addresses) => addresses.clone(),
            None => (0..self.processes).map(|_| ports::free_address()).collect(),
        }
    }

    fn spawn(&self, index: usize, addresses: &[String]) -> Member {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let run = NEXT.fetch_add(1, Ordering::Relaxed);
        let http = ports::free_address();
        let mut command = Command::new(&self.binary);
        command.arg("run").args(self.flow_flag.then_some("--config"));
        command.arg(&self.flow).args(["-w", &self.workers.to_string(), "--http", &http]);
        if addresses.len() > 1 {
            command.args(["-i", &index.to_string(), "-a", &addresses.join(";")]);
        }
        if let Some(directory) = &self.recovery {
            command.arg("-r").arg(directory);
        }
        command.args(&self.arguments);
        command.env_remove("TIDEGATE_TEST_STEPS").env("NO_COLOR", "1");
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.current_dir(&self.folder);
        let stdout = self.folder.join(format!("run-{run}-process-{index}.out"));
        let stderr = self.folder.join(format!("run-{run}-process-{index}.err"));
        command.stdin(Stdio::null()).stdout(create(&stdout)).stderr(create(&stderr));
        let child =
            process::spawn(command).unwrap_or_else(|e| panic!("start {}: {e}", self.binary.display()));
        Member { child, index, http, stdout, stderr, exit: None }
    }
}

fn create(path: &Path) -> File {
    File::create(path).unwrap_or_else(|e| panic!("create {}: {e}", path.display()))
}

/// One process of a cluster.
struct Member {
    child: Child,
    index: usize,
    http: String,
    stdout: PathBuf,
    stderr: PathBuf,
    exit: Option<i32>,
}

/// A running cluster.
pub struct Cluster {
    members: Vec<Member>,
    launch: Launch,
    addresses: Vec<String>,
}

impl Cluster {
    /// How many processes were started.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether no process was started.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// The mesh addresses.
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// The process id of the `n`-th process.
    pub fn pid(&self, n: usize) -> u32 {
        self.members[n].child.id()
    }

    /// The address that the `n`-th process serves HTTP at.
    pub fn http(&self, n: usize) -> &str {
        &self.members[n].http
    }

    /// Status code and body of a GET of the `n`-th process; `None` when it does not answer.
    pub fn get(&self, n: usize, path: &str) -> Option<(u16, String)> {
        http::get(&self.members[n].http, path)
    }

    /// `/status` of the `n`-th process; `None` when it does not answer.
    pub fn status(&self, n: usize) -> Option<Value> {
        let (code, body) = self.get(n, "/status")?;
        if code != 200 {
            return None;
        }
        Some(serde_json::from_str(&body).unwrap_or_else(|e| panic!("/status is not JSON ({e}): {body}")))
    }

    /// Waits until every process answers 200 at `/readyz`.
    #[track_caller]
    pub fn wait_ready(&mut self, deadline: Duration) {
        for n in 0..self.members.len() {
            self.wait_for("/readyz answers 200", deadline, |cluster| {
                cluster.get(n, "/readyz").is_some_and(|(code, _)| code == 200)
            });
        }
    }

    /// Waits until `condition` holds, and panics at once when a process ends before it does.
    #[track_caller]
    pub fn wait_for(&mut self, what: &str, deadline: Duration, condition: impl Fn(&Cluster) -> bool) {
        let met = wait::until_or_none(deadline, || {
            if condition(self) {
                return Some(true);
            }
            (0..self.members.len()).any(|n| self.exited(n).is_some()).then_some(false)
        });
        match met {
            Some(true) => {}
            Some(false) => panic!("a process ended while waiting: {what}; exit codes {:?}", self.exits()),
            None => panic!("waited {deadline:?} in vain: {what}"),
        }
    }

    /// Waits until the `n`-th process has logged `text`.
    #[track_caller]
    pub fn wait_logged(&mut self, n: usize, text: &str, deadline: Duration) {
        self.wait_for(&format!("process {n} logs {text:?}"), deadline, |cluster| {
            cluster.stderr(n).contains(text)
        });
    }

    /// The exit code of the `n`-th process if it has ended; 128 + the signal's number when a signal ended it.
    pub fn exited(&mut self, n: usize) -> Option<i32> {
        let member = &mut self.members[n];
        if member.exit.is_none() {
            let status = member.child.try_wait().unwrap_or_else(|e| panic!("wait for a process: {e}"));
            member.exit = status.map(exit_code);
        }
        member.exit
    }

    /// The exit codes of all processes, `None` for those that run.
    pub fn exits(&mut self) -> Vec<Option<i32>> {
        (0..self.members.len()).map(|n| self.exited(n)).collect()
    }

    /// Waits until the `n`-th process has ended, and returns its exit code.
    #[track_caller]
    pub fn wait_exit(&mut self, n: usize, deadline: Duration) -> i32 {
        let code = wait::until_or_none(deadline, || self.exited(n));
        code.unwrap_or_else(|| panic!("I10 diagnosis: process {n} has not ended within {deadline:?}"))
    }

    /// Waits until every process has ended with `code`.
    #[track_caller]
    pub fn expect_exit(&mut self, code: i32, deadline: Duration) {
        let codes: Vec<i32> = (0..self.members.len()).map(|n| self.wait_exit(n, deadline)).collect();
        assert!(
            codes.iter().all(|found| *found == code),
            "I10 diagnosis: exit codes {codes:?}, expected {code}"
        );
    }

    /// Waits until every process has ended with one of `codes`.
    #[track_caller]
    pub fn expect_exit_in(&mut self, codes: &[i32], deadline: Duration) {
        let found: Vec<i32> = (0..self.members.len()).map(|n| self.wait_exit(n, deadline)).collect();
        assert!(
            found.iter().all(|code| codes.contains(code)),
            "I10 diagnosis: exit codes {found:?}, expected some of {codes:?}"
        );
    }

    /// SIGKILL to the `n`-th process; returns when it has ended.
    pub fn kill(&mut self, n: usize) {
        self.send(n, Signal::KILL);
        let _code = self.wait_exit(n, Duration::from_secs(20));
    }

    /// SIGKILL to all processes.
    pub fn kill_all(&mut self) {
        for n in 0..self.members.len() {
            self.send(n, Signal::KILL);
        }
        for n in 0..self.members.len() {
            let _code = self.wait_exit(n, Duration::from_secs(20));
        }
    }

    /// SIGTERM to the `n`-th process.
    pub fn terminate(&self, n: usize) {
        self.send(n, Signal::TERM);
    }

    /// SIGINT to the `n`-th process.
    pub fn interrupt(&self, n: usize) {
        self.send(n, Signal::INT);
    }

    /// SIGTERM to all processes.
    pub fn terminate_all(&self) {
        for n in 0..self.members.len() {
            self.terminate(n);
        }
    }

    /// SIGSTOP to the `n`-th process.
    pub fn freeze(&self, n: usize) {
        self.send(n, Signal::STOP);
    }

    /// SIGSTOP to all processes.
    pub fn freeze_all(&self) {
        for n in 0..self.members.len() {
            self.freeze(n);
        }
    }

    /// Whether the `n`-th process is stopped by a signal.
    pub fn is_frozen(&self, n: usize) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid(n))).unwrap_or_default();
        // The state follows the name, which stands in parentheses and may hold anything.
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    }

    /// SIGCONT to the `n`-th process.
    pub fn thaw(&self, n: usize) {
        self.send(n, Signal::CONT);
    }

    /// SIGCONT to all processes.
    pub fn thaw_all(&self) {
        for n in 0..self.members.len() {
            self.thaw(n);
        }
    }

    /// What the `n`-th process wrote to stderr so far.
    pub fn stderr(&self, n: usize) -> String {
        read(&self.members[n].stderr)
    }

    /// What all processes wrote to stderr so far, one after the other.
    pub fn all_stderr(&self) -> String {
        (0..self.members.len()).map(|n| self.stderr(n)).collect()
    }

    /// What the `n`-th process wrote to stdout so far.
    pub fn stdout(&self, n: usize) -> String {
        read(&self.members[n].stdout)
    }

    /// I12: the flow wrote nothing to stdout, so nothing may be there.
    #[track_caller]
    pub fn assert_stdout_empty(&self) {
        for n in 0..self.members.len() {
            let stdout = self.stdout(n);
            assert!(stdout.is_empty(), "I12 stdout belongs to the user: process {n} wrote {stdout:?}");
        }
    }

    /// I10: the stderr of the `n`-th process names the cause in exactly one line.
    #[track_caller]
    pub fn assert_one_line_with(&self, n: usize, text: &str) {
        let stderr = self.stderr(n);
        let lines = stderr.lines().filter(|line| line.contains(text)).count();
        assert_eq!(lines, 1, "I10 diagnosis: {lines} lines of process {n} contain {text:?}");
    }

    /// A process that has been waited for gets nothing: its id may be another process's by now.
    fn send(&self, n: usize, signal: Signal) {
        let member = &self.members[n];
        if member.exit.is_none() {
            process::signal(&member.child, signal);
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let failed = std::thread::panicking();
        for member in &mut self.members {
            if member.exit.is_none() {
                process::signal(&member.child, Signal::KILL);
                member.exit = process::wait_exit(&mut member.child, Duration::from_secs(20)).map(exit_code);
            }
            if failed {
                let code = member.exit;
                eprintln!("--- process {} of {}, exit {code:?}:", member.index, self.launch.binary.display());
                let stderr = read(&member.stderr);
                let lines: Vec<&str> = stderr.lines().collect();
                for line in &lines[lines.len().saturating_sub(SHOWN_LINES)..] {
                    eprintln!("    {line}");
                }
            }
        }
    }
}

fn exit_code(status: std::process::ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt as _;
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(-1)
}

fn read(path: &Path) -> String {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("read {}: {e}", path.display()));
    String::from_utf8_lossy(&bytes).into_owned()
}
